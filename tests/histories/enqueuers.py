"""A process that enqueues without end: one or many, with keys, unique, in transactions of the application's own.

`sync` enqueues one call after the other, `async` several at once.
"""

import asyncio
import itertools
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

from holdfast.demo.crew import NAME, end_with_employer
from holdfast.errors import HoldfastError
from tests.faults.shared import backlog
from tests.histories.app import hf, log, store
from tests.histories.calls import Call, Wanted, bind
from tests.histories.choices import Choices
from tests.histories.own import ORDER, AsyncOwn, Own, aput, put
from tests.histories.settings import COLOUR, SEED, WITHOUT

BACKLOG = 150
AT_ONCE = 3


@dataclass(frozen=True)
class Plan:
    """One call to make: its jobs, whether in a transaction of the application's own, and whether that commits."""

    name: str
    jobs: list[Wanted]
    tx: bool
    commits: bool
    # Of the transaction: whether it sees only what was there when it began, and how long it takes before the enqueue.
    repeatable: bool
    pause: float


class Planner:
    """Draws call after call."""

    def __init__(self, name: str) -> None:
        self._name = f"{name}-{os.getpid()}"
        self._count = itertools.count(1)
        self.without = frozenset(os.environ[WITHOUT].split(","))
        self.choices = Choices(f"{os.environ[SEED]}/{name}", self.without)
        self.random = self.choices.random

    def plan(self) -> Plan:
        name = f"{self._name}-{next(self._count)}"
        count = self.random.choices((1, self.random.randint(2, 12)), (3, 1))[0]
        jobs = [self._named(self.choices.job(f"{name}/{place}")) for place in range(count)]
        tx = self.random.random() < 0.35
        repeatable = self.random.random() < 0.3 and "repeatable" not in self.without
        commits = not tx or self.random.random() < 0.7
        return Plan(name, jobs, tx, commits, repeatable, pause=self.random.choice((0.0, 0.03)))

    def _named(self, wanted: Wanted) -> Wanted:
        """Give a few jobs a key, some of these both."""
        if self.random.random() < 0.15:
            # One kind for each, because a key counts within its kind; and so that the second is the same request.
            wanted |= {"kind": self.random.choice(("book", "plain")), "key": self.choices.key(), "acts": ["ok"]}
        if self.random.random() < 0.1:
            wanted |= {"kind": self.random.choice(("book", "plain")), "unique": self.choices.unique(), "acts": ["ok"]}
        return wanted

    def pauses(self) -> Iterator[float]:
        """Give the seconds between calls, for ever; longer ones while too many jobs wait."""
        while True:
            try:
                full = backlog(store) > BACKLOG
            except HoldfastError:
                full = True
            for _ in range(10):
                yield self.random.uniform(0.2, 0.4) if full else self.random.uniform(0.005, 0.08)


def enqueue_for_ever(planner: Planner) -> None:
    for pause in planner.pauses():
        time.sleep(pause)
        plan = planner.plan()
        call = Call(log, plan.name, plan.jobs, tx=plan.tx)
        try:
            enqueue(plan, call)
        except Exception as error:
            call.failed(error)


def enqueue(plan: Plan, call: Call) -> None:
    bound = [bind(hf, wanted) for wanted in plan.jobs]
    if not plan.tx:
        call.answered(hf.enqueue_many(bound) if len(bound) > 1 else [hf.enqueue_bound(bound[0])])
        return
    with Own(store, repeatable=plan.repeatable) as own:
        put(store, own.tx, ORDER, plan.name)
        time.sleep(plan.pause)
        call.answered(hf.enqueue_many(bound, tx=own.tx))
        if plan.commits:
            own.commit()
            call.committed()
    if not plan.commits:
        call.rolled_back()


async def enqueue_at_once(planner: Planner) -> None:
    async def one_after_the_other() -> None:
        pauses = planner.pauses()
        while True:
            await asyncio.sleep(await asyncio.to_thread(next, pauses))
            plan = planner.plan()
            call = Call(log, plan.name, plan.jobs, tx=plan.tx)
            try:
                await aenqueue(plan, call)
            except Exception as error:
                call.failed(error)

    await asyncio.gather(*(one_after_the_other() for _ in range(AT_ONCE)))


async def aenqueue(plan: Plan, call: Call) -> None:
    bound = [bind(hf, wanted) for wanted in plan.jobs]
    if not plan.tx:
        call.answered(await hf.aenqueue_many(bound) if len(bound) > 1 else [await hf.aenqueue_bound(bound[0])])
        return
    async with AsyncOwn(store, repeatable=plan.repeatable) as own:
        await aput(store, own.tx, ORDER, plan.name)
        await asyncio.sleep(plan.pause)
        call.answered(await hf.aenqueue_many(bound, tx=own.tx))
        if plan.commits:
            await own.commit()
            call.committed()
    if not plan.commits:
        call.rolled_back()


if __name__ == "__main__":
    end_with_employer()
    planner = Planner(os.environ[NAME])
    if os.environ[COLOUR] == "async":
        asyncio.run(enqueue_at_once(planner))
    else:
        enqueue_for_ever(planner)
    sys.exit(1)
