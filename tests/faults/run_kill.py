"""Kill workers at random while thousands of durable runs go on, then count that each ended and what it has done.

`python -m tests.faults.run_kill --seconds 60` does it on every database that can be had. A producer starts runs in
transactions, some of them rolled back, signals each of them, and cancels a few. A run makes plain steps, which append a
line to a file, and transactions, which insert into a table, alone and side by side; it waits for a timer, a signal and
a child. About every second a worker is killed with SIGKILL and replaced.
"""

import argparse
import asyncio
import os
import random
import sys
import tempfile
import time
from collections import Counter, defaultdict
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast import Holdfast, Retry, Run
from holdfast.demo.crew import Crew, serve
from holdfast.runs import RunFilter, runs
from tests.faults.shared import DATABASES, Producer, backlog, in_async_style, in_sync_style, own_database, until

URL, POSTED = "HOLDFAST_URL", "HOLDFAST_RUN_KILL_FILE"
LEASE = 3.0
BACKLOG = 150
DRAIN = 150.0
# What a run of an order does, by the names of its effects.
POSTS = ("charge", "left", "right", "packed", "bill")
BOOKS = ("reserve", "left", "right", "bill")


def application(url: str, posted: str) -> Holdfast:
    hf = Holdfast(url, busy_timeout=20)
    hf.queue("runs", retention=86400)
    retry = Retry(max_attempts=1_000, first_delay=0.05, factor=1.0, max_delay=0.05)

    async def post(order: str, what: str) -> int:
        # One write of a short line to a file that is opened for appending: lines of several processes do not mix.
        with open(posted, "ab", buffering=0) as file:  # noqa: ASYNC230 - a line, once in a while
            file.write(f"{order} {what} {os.getpid()}\n".encode())
        await asyncio.sleep(random.choice((0, 0.002, 0.02)))
        return len(what)

    def book(tx: Any, order: str, what: str) -> int:
        tx.execute(in_sync_style(hf.store, "insert into booked (run, what) values (?, ?)"), (order, what))
        return len(what)

    async def abook(tx: Any, order: str, what: str) -> int:
        await tx.execute(in_async_style(hf.store, "insert into booked (run, what) values (?, ?)"), order, what)
        return len(what)

    @hf.workflow(lease=LEASE, retry=retry)
    async def bill(run: Run, order: str) -> int:
        await run.step(post, order, "bill", retry=retry)
        return int(await run.transaction(book, order, "bill", retry=retry))

    @hf.workflow(lease=LEASE, retry=retry)
    async def order(run: Run) -> int:
        async def branch(name: str) -> int:
            found = await run.step(post, run.id, name, retry=retry)
            return found + int(await run.transaction(abook, run.id, name, retry=retry))

        total = await run.step(post, run.id, "charge", retry=retry)
        total += await run.transaction(book, run.id, "reserve", retry=retry)
        await run.sleep(0.05)
        total += sum(await asyncio.gather(branch("left"), branch("right")))
        total += int(await run.signal("approved"))
        total += await run.child(bill, run.id)
        return total + await run.step(post, run.id, "packed", retry=retry)

    return hf


# What a run that is done has returned: what its effects gave, and the signal.
TOTAL = sum(map(len, POSTS)) + sum(map(len, BOOKS)) - len("bill") + 7


@dataclass
class Account:
    """What was started, cancelled and rolled back, how runs ended, what they did, and which workers were killed."""

    started: set[str] = field(default_factory=set[str])
    cancelled: set[str] = field(default_factory=set[str])
    rolled_back: set[str] = field(default_factory=set[str])
    outcomes: dict[str, str] = field(default_factory=dict[str, str])
    results: dict[str, Any] = field(default_factory=dict[str, Any])
    booked: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    posted: list[tuple[str, str, int]] = field(default_factory=list[tuple[str, str, int]])
    killed: set[int] = field(default_factory=set[int])

    @property
    def repeats(self) -> int:
        return len(self.posted) - len({(order, what) for order, what, _ in self.posted})

    def broken(self) -> list[str]:
        """Say which promises do not hold."""
        booked, posted = Counter(self.booked), defaultdict[tuple[str, str], list[int]](list)
        for order, what, pid in self.posted:
            posted[order, what].append(pid)
        done = {run for run in self.started if self.outcomes.get(run) == "done"}
        return [
            *(f"never ended: {run}" for run in self.started if run not in self.outcomes),
            *(f"was rolled back, and is there: {run}" for run in self.rolled_back if run in self.outcomes),
            *(f"{run} is {how}" for run, how in self.outcomes.items() if how not in ("done", "cancelled")),
            *(
                f"{run} is {how}, and nobody cancelled it"
                for run, how in self.outcomes.items()
                if how == "cancelled" and run.partition("/")[0] not in self.cancelled
            ),
            *(f"{run} gave {self.results.get(run)}" for run in done if self.results.get(run) != TOTAL),
            *(f"booked {count} times: {run} {what}" for (run, what), count in booked.items() if count > 1),
            *(f"not booked: {run} {what}" for run in done for what in BOOKS if (run, what) not in booked),
            *(f"not posted: {run} {what}" for run in done for what in POSTS if (run, what) not in posted),
            *(
                f"posted twice, and no worker died with it: {run} {what}"
                for (run, what), pids in posted.items()
                if not set(pids[:-1]) <= self.killed and run not in self.cancelled
            ),
        ]


class Starter(Producer):
    """Starts runs in transactions of its own, one in ten rolled back; signals each once, and cancels one in twenty."""

    def __init__(self, hf: Holdfast, account: Account) -> None:
        super().__init__(hf, BACKLOG)
        self.account = account

    def produce(self, connection: Any, number: int) -> None:
        order: Any = self.hf.handlers["order@1"]
        names, rolls_back = [f"o{number}-{n}" for n in range(10)], random.random() < 0.1
        connection.cursor().execute("begin")
        order.start_many({name: order.bind() for name in names}, tx=connection)
        connection.cursor().execute("rollback" if rolls_back else "commit")
        if rolls_back:
            self.account.rolled_back |= set(names)
            return
        self.account.started |= set(names)
        for name in names:
            if random.random() < 0.05:
                self.account.cancelled.add(name)
                self.hf.cancel(name)
            for _ in range(2):
                # Sent twice, taken once.
                if name not in self.account.cancelled:
                    self.hf.signal(name, "approved", 7, idempotency_key="once")


def kill(url: str, seconds: float) -> Account:
    """Start runs and kill workers for a while, drain, and return the account."""
    with tempfile.TemporaryDirectory(prefix="holdfast-runs-") as folder:
        posted = Path(folder) / "posted"
        posted.touch()
        hf, account = application(url, str(posted)), Account()
        hf.migrate()
        with closing(hf.store.dialect.connect(url)) as connection:
            connection.cursor().execute("create table booked (run varchar(100) not null, what varchar(20) not null)")
            connection.commit()
        producer = Starter(hf, account)
        crew = Crew("tests.faults.run_kill", {URL: url, POSTED: str(posted)}, Path(folder))
        try:
            producer.start()
            for _ in range(2):
                crew.hire()
            _disturb(crew, account, posted, seconds)
            producer.stopped.set()
            producer.join()
            if producer.failure is not None:
                raise producer.failure
            until("every run has ended", lambda: backlog(hf.store) == 0, DRAIN)
            _read_all(hf, account, posted)
        except Exception as error:
            error.add_note(crew.last_words())
            raise
        finally:
            producer.stopped.set()
            crew.dismiss()
            hf.close()
        return account


def _disturb(crew: Crew, account: Account, posted: Path, seconds: float) -> None:
    """Kill a worker that has done something since the last kill, about every second, and one at least."""
    began, looked = time.monotonic(), 0
    while time.monotonic() - began < (seconds if account.killed else DRAIN):
        time.sleep(random.uniform(0.5, 1.0))
        lines = posted.read_text().splitlines()
        busy = {int(line.split()[2]) for line in lines[looked:]}
        victims = [member for member in crew.alive if member.pid in busy]
        if victims:
            victim = random.choice(victims)
            victim.kill()
            account.killed.add(victim.pid)
            crew.hire()
            looked = len(lines)


def _read_all(hf: Holdfast, account: Account, posted: Path) -> None:
    over = hf.store.run(runs(RunFilter(), 1_000_000))
    account.outcomes = {view.id: view.status for view in over}
    orders = [view for view in over if view.workflow == "order" and view.status == "done"]
    account.results = {view.id: hf.get(view.job_id).result for view in orders}
    account.posted = [(run, what, int(pid)) for run, what, pid in map(str.split, posted.read_text().splitlines())]
    with closing(hf.store.dialect.connect(hf.url)) as connection:
        cursor = connection.cursor()
        cursor.execute("select run, what from booked")
        account.booked = [tuple(row) for row in cursor.fetchall()]


def main() -> int:
    if URL in os.environ:
        return serve(application(os.environ[URL], os.environ[POSTED]), poll=0.1)
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
            figures = f"{len(account.started):,} runs of {len(account.posted) + len(account.booked):,} effects"
            said = f"{account.repeats:,} plain effects repeated, {len(account.killed)} workers killed"
            print(f"{name}: {figures}, {said}; " + ("; ".join(broken[:5]) or "every run ended, every booking once"))
            ended = ended or bool(broken)
    return int(ended)


if __name__ == "__main__":
    sys.exit(main())
