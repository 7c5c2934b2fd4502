"""The application: handlers with and without an effect of their own in the database, `async def` and `def`."""

import asyncio
import os
import random
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from holdfast import Holdfast, Job, Retry
from holdfast.demo.crew import NAME
from holdfast.events import LeaseWasLost, WorkerStarted, WorkerStopping
from tests.histories import acts as doing
from tests.histories.acts import LEASE, TIMEOUT, Trouble, attempt
from tests.histories.calls import Call, Wanted, bind
from tests.histories.log import Log
from tests.histories.own import COUNT, EFFECT, AsyncOwn, Own, aput, put
from tests.histories.settings import FOLDER

log = Log(Path(os.environ[FOLDER]), os.environ.get(NAME, "application"))
hf = Holdfast(busy_timeout=10, pool_size=6)
store = hf.store

# A queue that keeps nothing of a job that is done.
BRIEF = "brief"
hf.queue(BRIEF, retention=0)
QUEUES = ("default", BRIEF)

hf.on(LeaseWasLost, lambda event: log.write("lease lost", job=event.id, attempt=event.attempt))
hf.on(WorkerStarted, lambda event: log.write("worker started", worker=event.worker))
hf.on(WorkerStopping, lambda event: log.write("worker stopping", worker=event.worker, why=event.why))

SLOW = {
    "postgres": "select pg_sleep({})",
    "mysql": "select sleep({})",
    # SQLite cannot sleep, so it counts: about a million a second.
    "sqlite": "with recursive c(n) as (select 1 union all select n + 1 from c where n < {} * 1e6) select max(n) from c",
}[store.dialect.name]


# Handlers without an effect


async def plain(job: Job, tag: str, acts: list[str]) -> Any:
    with attempt(log, job, tag, acts) as act:
        if act == "spawn":
            [wanted] = children(job, tag, 1)
            call = Call(log, f"{tag}#{job.fence}", [wanted])
            call.answered([await hf.aenqueue_bound(bind(hf, wanted))])
        return await before(act)


def plain_def(job: Job, tag: str, acts: list[str]) -> Any:
    with attempt(log, job, tag, acts) as act:
        if act == "spawn":
            [wanted] = children(job, tag, 1)
            call = Call(log, f"{tag}#{job.fence}", [wanted])
            call.answered([hf.enqueue_bound(bind(hf, wanted))])
        return before_def(act)


# Handlers with an effect in `job.transaction()`


async def book(job: Job, tag: str, acts: list[str]) -> Any:
    return await _book(job, tag, acts, 0)


async def parent(job: Job, tag: str, acts: list[str]) -> Any:
    return await _book(job, tag, acts, 2)


async def _book(job: Job, tag: str, acts: list[str], count: int) -> Any:
    with attempt(log, job, tag, acts) as act:
        if (outcome := await before(act)) is not None:
            return outcome
        async with job.transaction() as tx:
            await aput(store, tx, EFFECT, *effect(job, tag))
            if count:
                wanted = children(job, tag, count)
                call = Call(log, f"{tag}#{job.fence}", wanted, inside=(job.id, job.fence))
                call.answered(await hf.aenqueue_many([bind(hf, one) for one in wanted], tx=tx))
            await _while_inside(tx, act)
            doing.inside(act)
        doing.after(act)


async def _while_inside(tx: Any, act: str) -> None:
    if act == "torn":
        await asyncio.gather(tx.execute(SLOW.format(0.05)), _fail())
    if act in ("slow", "late inside"):
        await tx.execute(SLOW.format(0.3 if act == "slow" else TIMEOUT * 2))
    if act == "swallow":
        for statement in collision():
            with suppress(Exception):
                await tx.execute(statement)
            await asyncio.sleep(0.05)


async def _fail() -> None:
    raise Trouble("as told, beside a statement")


def book_def(job: Job, tag: str, acts: list[str]) -> Any:
    return _book_def(job, tag, acts, 0)


def parent_def(job: Job, tag: str, acts: list[str]) -> Any:
    return _book_def(job, tag, acts, 2)


def _book_def(job: Job, tag: str, acts: list[str], count: int) -> Any:
    with attempt(log, job, tag, acts) as act:
        if (outcome := before_def(act)) is not None:
            return outcome
        with job.transaction() as tx:
            put(store, tx, EFFECT, *effect(job, tag))
            if count:
                wanted = children(job, tag, count)
                call = Call(log, f"{tag}#{job.fence}", wanted, inside=(job.id, job.fence))
                call.answered(hf.enqueue_many([bind(hf, one) for one in wanted], tx=tx))
            if act in ("slow", "late inside"):
                tx.execute(SLOW.format(0.3 if act == "slow" else TIMEOUT * 2))
            if act == "swallow":
                for statement in collision():
                    with suppress(Exception):
                        tx.execute(statement)
                    time.sleep(0.05)
            doing.inside(act)
        doing.after(act)


# Handlers that complete their job on a connection of the application's own


async def own(job: Job, tag: str, acts: list[str]) -> Any:
    with attempt(log, job, tag, acts) as act:
        if (outcome := await before(act)) is not None:
            return outcome
        async with AsyncOwn(store) as own:
            await aput(store, own.tx, EFFECT, *effect(job, tag))
            await job.acomplete(tx=own.tx)
            doing.inside(act)
            await own.commit()
        doing.after(act)


def own_def(job: Job, tag: str, acts: list[str]) -> Any:
    with attempt(log, job, tag, acts) as act:
        if (outcome := before_def(act)) is not None:
            return outcome
        with Own(store) as own:
            put(store, own.tx, EFFECT, *effect(job, tag))
            job.complete(tx=own.tx)
            doing.inside(act)
            own.commit()
        doing.after(act)


# What they share


async def before(act: str) -> Any:
    """Do what comes before an effect; what it returns ends the attempt, unless it is None."""
    doing.block(act)
    await asyncio.sleep(doing.pause(act))
    return doing.answer(act)


def before_def(act: str) -> Any:
    time.sleep(doing.pause(act))
    return doing.answer(act)


def effect(job: Job, tag: str) -> tuple[str, int, int, str]:
    return (job.id, job.fence, job.attempt, tag)


def children(job: Job, tag: str, count: int) -> Sequence[Wanted]:
    """Make jobs whose tags tell which attempt of which job they come from."""
    kinds = random.choices(("book", "book_def"), k=count)
    queue = random.choice(QUEUES)
    return [
        {"tag": f"{tag}#{job.fence}/{place}", "kind": kind, "queue": queue, "acts": ["ok"]}
        for place, kind in enumerate(kinds)
    ]


def collision() -> Iterator[str]:
    """Give statements in the middle of which the database may end the transaction: a deadlock, or a conflict clause."""
    if store.embedded:
        yield "insert or rollback into counters values (1, 5)"
        return
    for number in random.sample((1, 2), 2):
        yield COUNT.replace("?", str(number))


SOON = Retry(max_attempts=3, first_delay=0.05, factor=1.0, max_delay=0.05)
for fn in (plain, plain_def, book, book_def, parent, parent_def, own, own_def):
    hf.job(kind=fn.__name__, lease=LEASE, retry=SOON)(fn)
for fn in (book, book_def):
    hf.job(kind=fn.__name__.replace("book", "hasty"), lease=LEASE, retry=SOON, timeout=TIMEOUT)(fn)
    hf.job(kind=fn.__name__.replace("book", "few"), lease=LEASE, retry=SOON, concurrency=2)(fn)
    hf.job(kind=fn.__name__.replace("book", "shared"), lease=LEASE, retry=SOON, commit="together")(fn)
