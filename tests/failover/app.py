"""The processes of a failover test, told apart by their names: workers, and applications that enqueue.

Each job has a tag of its own in its payload. An application notes what it asked for and what was answered; a handler
writes its effect through `job.transaction()`, so that the tables tell how often it happened.
"""

import asyncio
import itertools
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast import Bound, Enqueued, Holdfast, Job, Retry
from holdfast.demo.crew import NAME, end_with_employer, serve
from holdfast.errors import DatabaseUnavailable
from holdfast.events import DatabaseRegained, ListenerRegained
from holdfast.testing.history import Recorder, Sent
from holdfast.values.options import EnqueueKeywords
from tests.histories.log import Log

FOLDER = "HOLDFAST_FAILOVER_FOLDER"
LINES = "lines"
KEYS = 4
LEASE = 2.0
WORKERS, ENQUEUERS = ("worker1", "worker2"), ("sync", "async")
# An application's pause between its enqueues; the async one has as many under way as it has keys.
PAUSE = 0.01
TABLE = (
    # No unique constraint: what comes twice shall be seen, not refused.
    "create table effects (seq bigserial, tag text not null, job_id text not null, fence integer not null, "
    "key text, n integer)"
)
EFFECT = "insert into effects (tag, job_id, fence, key, n) values ({})"
ASYNC, SYNC = EFFECT.format("$1, $2, $3, $4, $5"), EFFECT.format("%s, %s, %s, %s, %s")


def row(job: Job, tag: str, n: int) -> tuple[Any, ...]:
    return (tag, job.id, job.fence, job.key, n)


async def book(job: Job, tag: str, n: int, seconds: float = 0.0) -> None:
    await asyncio.sleep(seconds)
    async with job.transaction() as tx:
        await tx.execute(ASYNC, *row(job, tag, n))


def book_def(job: Job, tag: str, n: int, seconds: float = 0.0) -> None:
    time.sleep(seconds)
    with job.transaction() as tx:
        tx.execute(SYNC, row(job, tag, n))


KINDS = (book, book_def)


def application(url: str, notify: bool = True) -> Holdfast:
    """Make the application: two kinds of handlers, and a queue that keeps the order of its keys."""
    hf = Holdfast(url, connect_timeout=5, notify=notify)
    # Enough that no job dies of an outage.
    again = Retry(max_attempts=1_000, first_delay=0.05, factor=1.0, max_delay=0.05)
    for handler in KINDS:
        hf.job(kind=handler.__name__, lease=LEASE, retry=again)(handler)
    hf.queue(LINES, ordered=True)
    return hf


@dataclass
class Ask:
    """One enqueue. With a line it has an idempotency key, too, and is made again until it has succeeded."""

    tag: str
    line: str | None
    bound: Bound
    began: float
    tries: int = 1


class Caller:
    """An application that enqueues until it is told to stop, and notes what it was answered."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        # Commits that notify wait for each other in the server, so that only one of them can be lost on its way.
        self.hf = application(os.environ["HOLDFAST_URL"], notify=name == "sync")
        self._recorder = Recorder(folder / "history" / f"{name}.jsonl")
        self._log = Log(folder / "answers", name)
        self._stop = folder / "stop"
        self._count = itertools.count()

    def asks(self, lines: Sequence[str]) -> Iterator[Ask]:
        """Draw what to enqueue: by turns a job that nothing but its id tells from others, and the next of a line."""
        for line in itertools.cycle(itertools.chain.from_iterable((None, line) for line in lines)):
            if self._stop.exists():
                return
            n = next(self._count)
            tag = f"{self.name}/{n}"
            said: EnqueueKeywords = {} if line is None else {"queue": LINES, "key": line, "idempotency_key": tag}
            kind = KINDS[n // 2 % 2].__name__
            yield Ask(tag, line, self.hf.bind(kind, {"tag": tag, "n": n}, **said), time.monotonic())

    def answered(self, ask: Ask, answer: Enqueued) -> None:
        queue = LINES if ask.line else "default"
        self._recorder.write(Sent([answer.id], queue, ask.line, ask.began, time.monotonic()))
        self._log.write("answered", tag=ask.tag, line=ask.line, began=ask.began, tries=ask.tries)

    def is_over(self, ask: Ask) -> bool:
        """Note that the database was away for too long; tell whether that is the end of it."""
        ask.tries += 1
        if ask.line is None:
            self._log.write("unknown", tag=ask.tag, line=ask.line, began=ask.began)
        return ask.line is None

    def call(self) -> None:
        for ask in self.asks([f"{self.name}-{number}" for number in range(KEYS)]):
            while True:
                try:
                    self.answered(ask, self.hf.enqueue_bound(ask.bound))
                    break
                except DatabaseUnavailable:
                    if self.is_over(ask):
                        break
            time.sleep(PAUSE)

    async def acall(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for number in range(KEYS):
                tasks.create_task(self._acall(f"{self.name}-{number}"))
        await self.hf.aclose()

    async def _acall(self, line: str) -> None:
        for ask in self.asks([line]):
            while True:
                try:
                    self.answered(ask, await self.hf.aenqueue_bound(ask.bound))
                    break
                except DatabaseUnavailable:
                    if self.is_over(ask):
                        break
            await asyncio.sleep(PAUSE * KEYS)


def work(name: str, folder: Path) -> int:
    hf, log = application(os.environ["HOLDFAST_URL"]), Log(folder / "answers", name)
    Recorder(folder / "history" / f"{name}.jsonl").attach(hf)
    hf.on(DatabaseRegained, lambda event: log.write("database regained", after=event.seconds))
    hf.on(ListenerRegained, lambda event: log.write("listener regained", after=event.seconds))
    return serve(hf, queues=["default", LINES], concurrency=8, drain=10)


def main() -> int:
    name, folder = os.environ[NAME], Path(os.environ[FOLDER])
    if name in WORKERS:
        return work(name, folder)
    end_with_employer()
    caller = Caller(name, folder)
    if name == "sync":
        caller.call()
    else:
        asyncio.run(caller.acall())
    return 0


if __name__ == "__main__":
    sys.exit(main())
