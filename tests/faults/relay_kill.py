"""Kill relays at random for a while, then count what a consumer got: nothing was lost, and order was kept.

`python -m tests.faults.relay_kill --seconds 60` does it on every database that can be had, and into every broker. A
producer publishes in business transactions, some of them rolled back; the route is ordered. About every second a relay
is killed with SIGKILL and replaced, a third one joins and leaves, and a broker is killed once and started again.
"""

import argparse
import json
import os
import random
import sys
import tempfile
import time
from collections import defaultdict
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast import Holdfast, Retry
from holdfast.demo.crew import Crew, serve
from tests import servers
from tests.faults.relay_places import PLACES, Arrival, FilePlace, Place, sink_to
from tests.faults.shared import DATABASES, Producer, backlog, in_sync_style, own_database, until

URL, TOLD = "HOLDFAST_URL", "HOLDFAST_RELAY_KILL_TOLD"
LEASE = 2.0
KEYS = 7
BACKLOG = 300
DRAIN = 120.0
# What a relay sent this long before a broker was killed may have had no answer yet; the clocks are one machine's.
UNDER_WAY = 12.0


def application(url: str, told: dict[str, str]) -> Holdfast:
    hf = Holdfast(url, busy_timeout=20)
    retry = Retry(max_attempts=1_000, first_delay=0.05, factor=1.0, max_delay=0.05)
    hf.route("order.*", to=sink_to(told), name="orders", ordered=True, lease=LEASE, retry=retry, batch=20)
    return hf


@dataclass
class Account:
    """What was published, what arrived, which relays were killed, and from when to when a broker was away."""

    published: dict[str, tuple[str, int]] = field(default_factory=dict[str, tuple[str, int]])
    rolled_back: set[str] = field(default_factory=set[str])
    arrived: list[Arrival] = field(default_factory=list[Arrival])
    killed: set[int] = field(default_factory=set[int])
    away: tuple[float, float] | None = None

    @property
    def repeats(self) -> int:
        return len(self.arrived) - len({one.event for one in self.arrived})

    def broken(self) -> list[str]:
        """Say which promises do not hold."""
        seen: dict[str, list[Arrival]] = defaultdict(list)
        order: dict[str, list[int]] = defaultdict(list)
        for one in self.arrived:
            if one.event not in seen:
                order[one.key].append(one.number)
            seen[one.event].append(one)
        lost = [event for event in self.published if event not in seen]
        strange = [event for event in seen if event not in self.published]
        unexplained = [event for event, copies in seen.items() if not all(map(self._explained, copies[:-1]))]
        return [
            *(f"lost: {event}" for event in lost),
            *(f"arrived, and was rolled back: {event}" for event in strange),
            *(f"key {key} out of order: {numbers}" for key, numbers in order.items() if numbers != sorted(numbers)),
            *(f"sent twice, and no relay died with it: {event}" for event in unexplained),
        ]

    def _explained(self, copy: Arrival) -> bool:
        """Tell why a message was sent again: its relay was killed, or the broker that should have confirmed it."""
        if copy.pid in self.killed:
            return True
        return self.away is not None and self.away[0] - UNDER_WAY <= copy.sent <= self.away[1]


class Publisher(Producer):
    """Publishes in transactions of its own; one in ten is rolled back."""

    def __init__(self, hf: Holdfast, account: Account) -> None:
        super().__init__(hf, BACKLOG)
        self.account = account

    def produce(self, connection: Any, number: int) -> None:
        key, rolls_back = f"k{number % KEYS}", random.random() < 0.1
        connection.cursor().execute("begin")
        said = self.hf.publish("order.created", number, key=key, tx=connection)
        connection.cursor().execute("rollback" if rolls_back else "commit")
        if rolls_back:
            self.account.rolled_back.add(said.id)
        else:
            self.account.published[said.id] = (key, number)


def kill(url: str, seconds: float, place: Place | None = None, *, restart: bool = False) -> Account:
    """Publish and kill relays for a while, drain, and return the account; `restart` kills the broker, too."""
    with tempfile.TemporaryDirectory(prefix="holdfast-relays-") as folder:
        place = place or FilePlace(Path(folder))
        place.make()
        hf, account = application(url, place.told), Account()
        hf.migrate()
        producer = Publisher(hf, account)
        crew = Crew("tests.faults.relay_kill", {URL: url, TOLD: json.dumps(place.told)}, Path(folder))
        try:
            producer.start()
            for _ in range(2):
                crew.hire()
            _disturb(crew, account, hf, seconds, place if restart else None)
            producer.stopped.set()
            producer.join()
            if producer.failure is not None:
                raise producer.failure
            until("every event has been delivered", lambda: backlog(hf.store) == 0, DRAIN)
        except TimeoutError as error:
            raise TimeoutError(f"{error}\n{crew.last_words()}") from error
        finally:
            producer.stopped.set()
            crew.dismiss()
            hf.close()
        account.arrived = place.arrived()
        return account


def _disturb(crew: Crew, account: Account, hf: Holdfast, seconds: float, place: Place | None) -> None:
    """Kill a relay about every second, and one at least; let a third one come and go; kill the broker once."""
    began = time.monotonic()
    third = None
    while (spent := time.monotonic() - began) < (seconds if account.killed else DRAIN):
        time.sleep(random.uniform(0.5, 1.0))
        if third is None and spent > seconds / 4:
            third = crew.hire()
        elif third is not None and third.alive and spent > seconds * 3 / 4:
            # Leaves in order, and gives back what it has not sent.
            third.process.terminate()
        if place is not None and account.away is None and spent > seconds / 2:
            gone = time.time()
            place.restart()
            account.away = (gone, time.time() + UNDER_WAY)
        if victims := [one for one in crew.alive if one is not third and _has_worked(hf, one)]:
            victim = random.choice(victims)
            victim.kill()
            account.killed.add(victim.pid)
            crew.hire()


def _has_worked(hf: Holdfast, member: Any) -> bool:
    """Tell whether a relay has delivered something: one that is killed before that brings nothing forward."""
    with closing(hf.store.dialect.connect(hf.url)) as connection:
        cursor = connection.cursor()
        query = in_sync_style(hf.store, "select 1 from holdfast_finished where leased_by like ? limit 1")
        cursor.execute(query, (f"{member.name}-{member.pid}-%",))
        return cursor.fetchone() is not None


def main() -> int:
    if URL in os.environ:
        return serve(application(os.environ[URL], json.loads(os.environ[TOLD])), poll=0.1)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument(
        "--into", action="append", choices=["function", *PLACES], help="Into this alone; may be repeated"
    )
    parser.add_argument("databases", nargs="*", help="On these alone")
    given = parser.parse_args()
    # Each database once, and each broker once, on the database that most have.
    usual = [*((name, "function") for name in DATABASES), *(("postgres", name) for name in PLACES)]
    runs = [(database, into) for database in given.databases or DATABASES for into in given.into or ["function"]]
    ended = 0
    for database, into in runs if given.databases or given.into else usual:
        ended |= _one(database, into, given.seconds)
    return ended


def _one(database: str, into: str, seconds: float) -> int:
    with own_database(database) as ground:
        if ground is None:
            return 0
        try:
            place = None if into == "function" else PLACES[into]()
        except servers.Unavailable as absent:
            print(absent)
            return 0
        try:
            account = kill(ground.url, seconds, place, restart=place is not None)
        finally:
            if place is not None:
                place.discard()
    broken = account.broken()
    figures = f"{len(account.published):,} events, {account.repeats:,} repeats, {len(account.killed)} relays killed"
    away = "" if account.away is None else ", the broker once"
    print(f"{database} into {into}: {figures}{away}; " + ("; ".join(broken[:5]) or "nothing lost, every key in order"))
    return int(bool(broken))


if __name__ == "__main__":
    sys.exit(main())
