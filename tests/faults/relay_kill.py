"""Kill relays at random for a while, then count from a file of what arrived that nothing was lost and order was kept.

`python -m tests.faults.relay_kill --seconds 60` does it on every database that can be had. A producer publishes in
business transactions, some of them rolled back; the route is ordered, and its sink appends a line for each message to
a file. About every second a relay is killed with SIGKILL and replaced.
"""

import argparse
import asyncio
import os
import random
import sys
import tempfile
import threading
import time
from collections import defaultdict
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast import Holdfast, Retry
from holdfast.demo.crew import Crew, serve
from holdfast.sinks import Function, Message
from tests.faults.shared import DATABASES, backlog, own_database, until

URL, ARRIVED = "HOLDFAST_URL", "HOLDFAST_RELAY_KILL_FILE"
LEASE = 2.0
KEYS = 7
BACKLOG = 300
DRAIN = 120.0


def application(url: str, arrived: str) -> Holdfast:
    hf = Holdfast(url, busy_timeout=20)

    async def append(message: Message) -> None:
        line = f"{message.event.id} {message.key} {message.event.data} {os.getpid()}\n"
        # One write of a short line to a file that is opened for appending: lines of several processes do not mix.
        with open(arrived, "ab", buffering=0) as file:  # noqa: ASYNC230 - a line, once in a while
            file.write(line.encode())
        await asyncio.sleep(0.002)

    retry = Retry(max_attempts=1_000, first_delay=0.05, factor=1.0, max_delay=0.05)
    hf.route("order.*", to=Function(append), name="orders", ordered=True, lease=LEASE, retry=retry, batch=20)
    return hf


@dataclass
class Account:
    """What was published, what arrived (id, key, number, pid), and which relays were killed."""

    published: dict[str, tuple[str, int]] = field(default_factory=dict[str, tuple[str, int]])
    rolled_back: set[str] = field(default_factory=set[str])
    arrived: list[tuple[str, str, int, int]] = field(default_factory=list[tuple[str, str, int, int]])
    killed: set[int] = field(default_factory=set[int])

    @property
    def repeats(self) -> int:
        return len(self.arrived) - len({event for event, *_ in self.arrived})

    def broken(self) -> list[str]:
        """Say which promises do not hold."""
        seen: dict[str, list[int]] = defaultdict(list)
        order: dict[str, list[int]] = defaultdict(list)
        for event, key, number, pid in self.arrived:
            if event not in seen:
                order[key].append(number)
            seen[event].append(pid)
        sent = defaultdict[str, list[int]](list)
        for key, number in self.published.values():
            sent[key].append(number)
        lost = [event for event in self.published if event not in seen]
        strange = [event for event in seen if event not in self.published]
        unexplained = [event for event, pids in seen.items() if not set(pids[:-1]) <= self.killed]
        return [
            *(f"lost: {event}" for event in lost),
            *(f"arrived, and was rolled back: {event}" for event in strange),
            *(f"key {key} out of order: {numbers}" for key, numbers in order.items() if numbers != sorted(numbers)),
            *(f"sent twice, and no relay died with it: {event}" for event in unexplained),
        ]


class Producer(threading.Thread):
    """Publishes in transactions of its own; one in ten is rolled back."""

    def __init__(self, hf: Holdfast, account: Account) -> None:
        super().__init__(daemon=True)
        self.hf = hf
        self.account = account
        self.stopped = threading.Event()
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            with closing(self.hf.store.dialect.connect(self.hf.url)) as connection:
                number = 0
                while not self.stopped.is_set():
                    if backlog(self.hf.store) > BACKLOG:
                        time.sleep(0.02)
                        continue
                    number += 1
                    self.publish(connection, number)
        except BaseException as error:
            self.failure = error

    def publish(self, connection: Any, number: int) -> None:
        key, rolls_back = f"k{number % KEYS}", random.random() < 0.1
        connection.cursor().execute("begin")
        said = self.hf.publish("order.created", number, key=key, tx=connection)
        connection.cursor().execute("rollback" if rolls_back else "commit")
        if rolls_back:
            self.account.rolled_back.add(said.id)
        else:
            self.account.published[said.id] = (key, number)


def kill(url: str, seconds: float) -> Account:
    """Publish and kill relays for a while, drain, and return the account."""
    with tempfile.TemporaryDirectory(prefix="holdfast-relays-") as folder:
        arrived = Path(folder) / "arrived"
        arrived.touch()
        hf, account = application(url, str(arrived)), Account()
        hf.migrate()
        producer = Producer(hf, account)
        crew = Crew("tests.faults.relay_kill", {URL: url, ARRIVED: str(arrived)}, Path(folder))
        try:
            producer.start()
            for _ in range(2):
                crew.hire()
            _disturb(crew, account, arrived, seconds)
            producer.stopped.set()
            producer.join()
            if producer.failure is not None:
                raise producer.failure
            until("every event has been delivered", lambda: backlog(hf.store) == 0, DRAIN)
        finally:
            producer.stopped.set()
            crew.dismiss()
            hf.close()
        account.arrived = [_read(line) for line in arrived.read_text().splitlines()]
        return account


def _disturb(crew: Crew, account: Account, arrived: Path, seconds: float) -> None:
    """Kill a relay that has delivered something since the last kill, about every second, and one at least."""
    began, looked = time.monotonic(), 0
    while time.monotonic() - began < (seconds if account.killed else DRAIN):
        time.sleep(random.uniform(0.5, 1.0))
        lines = arrived.read_text().splitlines()
        busy = {_read(line)[3] for line in lines[looked:]}
        victims = [member for member in crew.alive if member.pid in busy]
        if victims:
            victim = random.choice(victims)
            victim.kill()
            account.killed.add(victim.pid)
            crew.hire()
            looked = len(lines)


def _read(line: str) -> tuple[str, str, int, int]:
    event, key, number, pid = line.split()
    return event, key, int(number), int(pid)


def main() -> int:
    if URL in os.environ:
        return serve(application(os.environ[URL], os.environ[ARRIVED]), poll=0.1)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("databases", nargs="*", default=DATABASES)
    given = parser.parse_args()
    ended = 0
    for name in given.databases:
        with own_database(name) as ground:
            if ground is None:
                continue
            account = kill(ground.url, given.seconds)
            broken = account.broken()
            figures = f"{len(account.published):,} events, {account.repeats:,} repeats"
            print(
                f"{name}: {figures}, {len(account.killed)} relays killed; "
                + ("; ".join(broken[:5]) or "nothing lost, every key in order")
            )
            ended = ended or bool(broken)
    return int(ended)


if __name__ == "__main__":
    sys.exit(main())
