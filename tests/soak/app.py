"""The processes of a soak, told apart by their names: workers, and the application that enqueues at a fixed rate.

Every job has a tag of its own. Its effect is counted under that tag in the shard that the job is in.
"""

import asyncio
import itertools
import os
import random
import sys
import time
from pathlib import Path
from typing import Any

from holdfast import Continue, Holdfast, Job, Retry, Run
from holdfast.demo.crew import NAME, end_with_employer, serve
from holdfast.errors import DatabaseUnavailable
from holdfast.testing.history import Recorder, Sent
from holdfast.values.options import EnqueueKeywords
from holdfast.worker.rounds.prune import Prune
from tests.histories.log import Log

FOLDER, KEEP, RATE = "HOLDFAST_SOAK_FOLDER", "HOLDFAST_SOAK_KEEP", "HOLDFAST_SOAK_RATE"
ENQUEUER, VETERAN = "enqueuer", "veteran"
DEFAULT, LINES, RUNS = "default", "lines", "runs"
KEYS = 24
LEASE = 4.0
DEATHS = 3
# Enqueues under way at most: what a shard that is away holds up is made up for when it is back.
UNDER_WAY = 64
WORKFLOW = "order"
# Of a hundred jobs, how many are of each kind.
MIX = {"plain": 35, "book": 15, "book_def": 15, "step": 20, "flaky": 7, "doomed": 2, "first": 4, WORKFLOW: 2}
# Kinds whose jobs have an effect of their own, and what they call it.
EFFECTS = {"book": ("book",), "book_def": ("book",), "second": ("second",), f"{WORKFLOW}@1": ("reserve", "pack")}

# The unique key is what counts: an effect that comes again is added up, and seen.
TABLE = (
    "create table effects (tag text not null, what text not null, times integer not null default 1, "
    "primary key (tag, what))"
)
EFFECT = "insert into effects (tag, what) values ({}) on conflict (tag, what) do update set times = effects.times + 1"
ASYNC, SYNC = EFFECT.format("$1, $2"), EFFECT.format("%s, %s")


class Trouble(Exception):
    """What a handler raises because it was told to."""


def pause() -> float:
    """How long a handler takes: mostly milliseconds, now and then longer than its lease."""
    return LEASE * 1.5 if random.random() < 0.001 else random.expovariate(1 / 0.01)


async def plain(tag: str) -> None:
    await asyncio.sleep(pause())


async def step(tag: str) -> None:
    await asyncio.sleep(pause())


async def book(job: Job, tag: str) -> None:
    await asyncio.sleep(pause())
    async with job.transaction() as tx:
        await tx.execute(ASYNC, tag, "book")


def book_def(job: Job, tag: str) -> None:
    time.sleep(pause())
    with job.transaction() as tx:
        tx.execute(SYNC, (tag, "book"))


async def flaky(job: Job, tag: str) -> None:
    if job.attempt <= 2:
        raise Trouble


async def doomed(tag: str) -> None:
    raise Trouble


async def second(job: Job, tag: str) -> None:
    async with job.transaction() as tx:
        await tx.execute(ASYNC, tag, "second")


async def reserve(tx: Any, tag: str) -> None:
    await tx.execute(ASYNC, tag, "reserve")


def pack(tx: Any, tag: str) -> None:
    tx.execute(SYNC, (tag, "pack"))


async def weigh() -> float:
    await asyncio.sleep(pause())
    return random.random()


def application(shards: list[str] | None = None, keep: float = 60.0) -> Holdfast:
    """Make the application on these shards, or on those of HOLDFAST_SHARDS; keep: how long finished jobs are kept."""
    hf = Holdfast(shards=shards, connect_timeout=5)
    kept = {"done": keep, "dead": keep, "cancelled": keep}
    for queue in (DEFAULT, RUNS):
        hf.queue(queue, retention=kept)
    hf.queue(LINES, ordered=True, retention=kept)
    # Enough that no job dies of an outage or of killed workers.
    again = Retry(max_attempts=1_000, first_delay=0.05, factor=1.0, max_delay=0.1)
    for handler in (plain, step, book, book_def, flaky, second):
        hf.job(kind=handler.__name__, lease=LEASE, retry=again)(handler)
    hf.job(kind="doomed", lease=LEASE, retry=Retry(max_attempts=DEATHS, first_delay=0.05, factor=1.0))(doomed)

    @hf.job(kind="first", lease=LEASE, retry=again)
    async def first(tag: str) -> Continue:
        await asyncio.sleep(pause())
        return Continue(hf.bind("second", {"tag": tag}))

    @hf.workflow(name=WORKFLOW, lease=LEASE, retry=again)
    async def order(run: Run, tag: str) -> float:
        await run.transaction(reserve, tag, retry=again)
        weight = await run.step(weigh, retry=again)
        await run.sleep(0.5)
        await run.transaction(pack, tag, retry=again)
        return weight

    return hf


class Enqueuer:
    """Enqueues at a fixed rate until it is told to stop, and notes what it was answered."""

    def __init__(self, folder: Path, rate: float) -> None:
        self.hf = application()
        self._rate = rate
        self._recorder = Recorder(folder / "history" / f"{ENQUEUER}.jsonl")
        self._log = Log(folder / "answers", ENQUEUER)
        self._stop = folder / "stop"

    async def run(self) -> None:
        began, room = time.monotonic(), asyncio.Semaphore(UNDER_WAY)
        async with asyncio.TaskGroup() as tasks:
            for number in itertools.count():
                await asyncio.sleep(max(0.0, began + number / self._rate - time.monotonic()))
                if number % 10 == 0 and self._stop.exists():
                    break
                await room.acquire()
                tasks.create_task(self._enqueue(f"j{number}")).add_done_callback(lambda _: room.release())
        await self.hf.aclose()

    async def _enqueue(self, tag: str) -> None:
        [kind] = random.choices(list(MIX), list(MIX.values()))
        key = f"line:{random.randrange(KEYS)}" if kind == "step" else None
        said: EnqueueKeywords = {"queue": LINES, "key": key} if key else {}
        began = time.monotonic()
        try:
            if kind == WORKFLOW:
                workflow: Any = self.hf.handlers[f"{WORKFLOW}@1"]
                await workflow.astart(tag=tag, id=tag)
            else:
                added = await self.hf.aenqueue(kind, {"tag": tag}, **said)
                self._recorder.write(Sent([added.id], LINES if key else DEFAULT, key, began, time.monotonic()))
        except DatabaseUnavailable as error:
            # It may be there or not.
            self._log.write("unknown", tag=tag, kind=kind, why=str(error))
        else:
            self._log.write("answered", tag=tag, kind=f"{WORKFLOW}@1" if kind == WORKFLOW else kind)


def work(name: str, folder: Path) -> int:
    keep = float(os.environ[KEEP])
    Prune.every_seconds = min(Prune.every_seconds, keep / 4)
    hf = application(keep=keep)
    Recorder(folder / "history" / f"{name}.jsonl").attach(hf)
    return serve(hf, queues=[DEFAULT, LINES, RUNS], concurrency=16, drain=10)


def main() -> int:
    name, folder = os.environ[NAME], Path(os.environ[FOLDER])
    if name != ENQUEUER:
        return work(name, folder)
    end_with_employer()
    asyncio.run(Enqueuer(folder, float(os.environ[RATE])).run())
    return 0


if __name__ == "__main__":
    sys.exit(main())
