"""Holdfast's side of the benchmark: the public face, with its defaults.

It runs with the Holdfast of another checkout, too (`--before`), so it imports nothing but what stays.
"""

from __future__ import annotations

import asyncio
import random
import re
import threading
import time
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, nullcontext
from functools import cached_property
from typing import TYPE_CHECKING, Any

import holdfast
from holdfast import Holdfast, Job, Retry, admin
from holdfast.handlers import Bound

if TYPE_CHECKING:
    from holdfast import Bulk, Continue, Run
    from holdfast.bench.effects import Effects
else:
    # An older checkout has none.
    Bulk, Continue, Run = (getattr(holdfast, name, None) for name in ("Bulk", "Continue", "Run"))

KEPT, DELETED, STAMPED = "kept", "deleted", "stamped"
# Attempts at once. A no-op handler never waits, so more slots change little; the default of a worker is 20.
CONCURRENCY = 20
# Jobs that share a commit are as many as run at once, so this is what the guide advises for them.
CONCURRENCY_TOGETHER = 50
# What stands for a handler where events are drained, their route, and how many of them a call of its sink takes.
RELAY, ROUTE, RELAY_BATCH = "relay", "bench", 500
# The jobs of a batch, with the one that runs after the others.
BATCH = 10_000
# The queue of runs, and how many are started in one call.
RUNS, STARTS = "runs", 1_000
CLEARED = {"jobs", "finished", "lines", "joins", "waits", "runs", "steps", "signals", "attributes"}


# Queues with order and limits, by name: what is said of them. The limit is one that is never reached.
SPECIAL: dict[str, dict[str, Any]] = {
    "ordered": {"ordered": True},
    "limited": {"concurrency": 1_000_000},
    "fair": {"fair": True},
}


class Ours:
    """Holdfast on one database, with a table prefix of its own."""

    def __init__(self, url: str, prefix: str, effect: Effects) -> None:
        self.app = Holdfast(url, prefix=prefix)
        self.app.queue(DELETED, retention=0)
        self.app.job(kind="stamp", queue=STAMPED)(self._stamp)
        self.effect = effect
        self._update = effect.update({"postgres": "$1", "mysql": "%s", "sqlite": "?"}[self.app.store.dialect.name])
        self._update_sync = effect.update("?" if self.app.store.embedded else "%s")
        # By the name of a handler: how it is registered, what it is, and with which options.
        self._kinds: dict[str, tuple[str, Any, dict[str, Any]]] = {
            "async def": ("job", self._noop_async, {}),
            "keyed": ("job", self._noop_async, {"key": "order:{order}"}),
            "def": ("job", self._noop_def, {}),
            "effect, async def": ("job", self._effect_async, {}),
            "effect, def": ("job", self._effect_def, {}),
            "effect together, async def": ("job", self._effect_async, {"commit": "together"}),
            "effect together, def": ("job", self._effect_def, {"commit": "together"}),
            "effect bulk, def": ("bulk", self._effect_bulk, {}),
            "returns Retry": ("job", self._returns_retry, {}),
            "raises": ("job", self._raises, {"retry": Retry.after(0)}),
            "raises, own words": ("job", self._raises_own_words, {"retry": Retry.after(0)}),
        }
        if Continue is not None:
            self._kinds["chain of two"] = ("job", self._continued, {})
        self.stamps: list[float] = []
        self._over = asyncio.Event()
        self._left = 0
        self._computing = 0.0
        self._lock = threading.Lock()
        self._working = AsyncExitStack()
        self._failed: set[int] = set()
        # When each tenth of a long run began.
        self._marks: list[float] = []

    def _handler(self, name: str) -> Any:
        """Return a handler, registered at its first use: what an older Holdfast lacks then fails in its row alone."""
        if name not in self.app.handlers:
            how, handler, options = self._kinds[name]
            getattr(self.app, how)(kind=name, queue=KEPT, **options)(handler)
        return self.app.handlers[name]

    async def install(self) -> None:
        self.app.migrate()
        with self.app.store.link() as link:
            for statement in self.effect.make:
                link.tell(statement)

    async def uninstall(self) -> None:
        with self.app.store.link() as link:
            made = "".join(migration.sql for migration in self.app.store.migrations)
            tables = re.findall(r"create table (?:if not exists )?([^\s(]+)", made, re.IGNORECASE)
            for table in {*tables, self.app.store.dialect.table("meta")}:
                link.tell(f"drop table if exists {table}")
            link.tell(self.effect.drop)

    async def open(self) -> None:
        # On PostgreSQL each drain has a process of its own. What a worker imports would count as the CPU of its jobs:
        # 0.2 s where Python keeps no compiled files, and 0.1 s in a checkout with fewer modules. It is not started.
        self.app.worker(queues=[STAMPED])
        # So that the first job does not pay for the connection.
        with self.app.store.link():
            pass

    async def close(self) -> None:
        if "theirs" in self.__dict__:
            self.theirs.close()
        await self.app.aclose()

    @cached_property
    def theirs(self) -> Any:
        """A connection of the application's own."""
        return self.app.store.dialect.connect(self.app.url)

    async def clear(self) -> None:
        empty = "delete from" if self.app.store.embedded else "truncate table"
        dialect = self.app.store.dialect
        # An older checkout has no list of them.
        tables = CLEARED.intersection(getattr(dialect, "tables", ("jobs", "finished")))
        with self.app.store.link() as link:
            for table in tables:
                link.tell(f"{empty} {dialect.table(table)}")

    async def enqueue_one(self, count: int, handler: str = "async def", special: str = "") -> None:
        noop = self._handler(handler)
        if special:
            noop = noop.using(queue=self._queues(True, 1, special)[0])
        for order in range(count):
            noop.enqueue(order=order, amount=12.5)

    async def enqueue_in(self, count: int) -> None:
        dialect, theirs = self.app.store.dialect, self.theirs
        noop = self._handler("async def")
        dialect.tell(theirs, dialect.begin)
        for order in range(count):
            noop.using(tx=theirs).enqueue(order=order, amount=12.5)
        dialect.tell(theirs, "commit")

    async def publish_in(self, count: int) -> None:
        dialect, theirs = self.app.store.dialect, self.theirs
        self._route()
        dialect.tell(theirs, dialect.begin)
        for order in range(count):
            self.app.publish("order.placed", {"order": order, "amount": 12.5}, tx=theirs)
        dialect.tell(theirs, "commit")

    def _route(self) -> None:
        """Declare the route at its first use, as handlers are."""
        # Here, because an older checkout has none.
        from holdfast.sinks import Function

        if ROUTE not in self.app.context.routes.by_name:
            self.app.route("order.*", to=Function(self._taken, batch=True), name=ROUTE, batch=RELAY_BATCH)

    async def _taken(self, messages: Sequence[Any]) -> None:
        for _ in messages:
            self._count()

    async def aenqueue_one(self, count: int) -> None:
        noop = self._handler("async def")
        for order in range(count):
            await noop.aenqueue(order=order, amount=12.5)

    async def enqueue_many(
        self,
        count: int,
        per_call: int,
        handler: str = "async def",
        keep: bool = True,
        queues: int = 1,
        special: str = "",
        keys: int = 0,
    ) -> None:
        if handler == "batch of 10,000":
            await self._add_batches(count)
            return
        if handler == RELAY:
            self._route()
            self.app.publish_many(
                self.app.draft("order.placed", {"order": order, "amount": 12.5}) for order in range(count)
            )
            return
        if handler == "chain of two":
            # Each of them adds the other half.
            count //= 2
        each = [self._handler(handler).using(queue=name) for name in self._queues(keep, queues, special)]
        if keys:
            # Those of a key are made once, as an application does that says the same of many jobs.
            [name] = self._queues(keep, queues, special)
            each = [self._handler(handler).using(queue=name, key=f"key {number}") for number in range(keys)]
            queues = keys
        for start in range(0, count, per_call):
            orders = range(start, min(start + per_call, count))
            if "bulk" in handler:
                await self._add([each[order % queues].bind(order) for order in orders])
            else:
                await self._add([each[order % queues].bind(order=order, amount=12.5) for order in orders])

    def _queues(self, keep: bool, queues: int, special: str = "") -> list[str]:
        if special:
            self.app.queue(special, retention=None if keep else 0, **SPECIAL[special])
            return [special]
        return [KEPT if keep else DELETED] if queues == 1 else [f"queue {number}" for number in range(queues)]

    async def _add_batches(self, count: int) -> None:
        """Add jobs in batches, the one that runs after the others counted among them."""
        noop = self._handler("async def")
        for start in range(0, count, BATCH):
            with self.app.batch(then=noop.bind(order=start, amount=12.5)) as batch:
                batch.add_many(noop.bind(order=n, amount=12.5) for n in range(start + 1, min(start + BATCH, count)))

    async def _add(self, bound: list[Bound]) -> None:
        if self.app.store.embedded:
            self.app.enqueue_many(bound)
        else:
            await self.app.aenqueue_many(bound)

    async def drain(
        self,
        count: int,
        keep: bool,
        handler: str = "async def",
        queues: int = 1,
        special: str = "",
        keys: int = 0,
        runs: bool = False,
    ) -> float:
        # The worker serves what is registered when it starts; jobs that are continued or waited for have this one.
        self._handler("async def")
        if handler not in ("batch of 10,000", RELAY):
            self._handler(handler)
        # A chain ends in an even number of jobs.
        self._left = count - count % 2 if handler == "chain of two" else count
        self._failed.clear()
        self._over.clear()
        self._loop = asyncio.get_running_loop()
        concurrency = CONCURRENCY_TOGETHER if "together" in handler else CONCURRENCY
        if handler == RELAY:
            worker = self.app.relay()
        else:
            served = self._queues(keep, queues, special) + [RUNS] * runs
            if runs:
                # The worker could take up runs that wait here.
                self._workflow(self._answer)
            worker = self.app.worker(queues=served, concurrency=concurrency)
        began = time.perf_counter()
        async with worker, self._beside(worker):
            await self._over.wait()
            # A worker holds a job until its outcome is committed.
            while worker.held:  # noqa: ASYNC110 (no event is told while nobody subscribes: that is how most will run it)
                await asyncio.sleep(0.001)
            return time.perf_counter() - began

    def _beside(self, worker: Any) -> AbstractAsyncContextManager[None]:
        """Give what goes on while a worker drains."""
        return nullcontext()

    async def unfinished(self) -> int:
        # By hand, because an older checkout does not know every state.
        live = self.app.store.dialect.table("jobs")
        return int(self.theirs.execute(f"select count(*) from {live}").fetchone()[0])  # noqa: S608 - a table of ours

    async def effects(self) -> int:
        return int(self.theirs.execute(self.effect.count).fetchone()[0])

    async def work(self, busy: bool = False, keep: bool = True, computing: float = 0.0) -> None:
        self.stamps = []
        self._computing = computing
        if not keep:
            self.app.queue(STAMPED, retention=0)
        self._working = AsyncExitStack()
        await self._working.enter_async_context(self.app.worker(queues=[STAMPED], concurrency=CONCURRENCY))

    async def rest(self) -> None:
        await self._working.aclose()

    async def send(self, sent: Sequence[int]) -> None:
        stamp = self.app.handlers["stamp"]
        if len(sent) > 1:
            await self._add([stamp.bind(sent=one) for one in sent])
        elif self.app.store.embedded:
            stamp.enqueue(sent=sent[0])
        else:
            await stamp.aenqueue(sent=sent[0])

    # Runs

    def _workflow(self, body: Any) -> Any:
        """Return the workflow of a body, registered at its first use, as handlers are."""
        kind = f"{body.__name__}@1"
        return self.app.handlers.get(kind) or self.app.workflow(queue=RUNS)(body)

    async def start_runs(self, count: int, steps: int) -> None:
        many = self._workflow(self._many)
        for start in range(0, count, STARTS):
            await self._start(many, [many.bind(n=steps) for _ in range(start, min(start + STARTS, count))])

    async def _start(self, workflow: Any, runs: Any) -> None:
        if self.app.store.embedded:
            workflow.start_many(runs)
        else:
            await workflow.astart_many(runs)

    async def run_all(self, count: int, steps: int, at_once: int) -> float:
        self._workflow(self._many)
        self._left = count
        self._over.clear()
        self._loop = asyncio.get_running_loop()
        worker = self.app.worker(queues=[RUNS], concurrency=max(CONCURRENCY, at_once))
        began = time.perf_counter()
        async with worker:
            await self._over.wait()
            while worker.held:  # noqa: ASYNC110 (as in `drain`)
                await asyncio.sleep(0.001)
            return time.perf_counter() - began

    async def long_run(self, steps: int) -> list[float]:
        """Make one run of many steps, and return the seconds that each tenth of them took."""
        await self.start_runs(1, steps)
        self._marks = []
        await self.run_all(1, steps, 1)
        return [later - sooner for sooner, later in zip(self._marks, self._marks[1:], strict=False)]

    async def fan_out(self, children: int) -> float:
        """Make a run that starts children and waits for all of them, and return the seconds until all are over."""
        self._workflow(self._many)
        parent = self._workflow(self._parent)
        await self._start(parent, [parent.bind(children=children)])
        return await self.run_all(children + 1, 1, 1)

    async def wait_for_signals(self, count: int) -> None:
        """Start runs that wait for a signal, and wait until they do."""
        answer = self._workflow(self._answer)
        await self._work_on_runs()
        await self._start(answer, {f"run-{n}": answer.bind() for n in range(count)})
        waiting = admin.count_jobs(admin.Filter(states=("waiting",)))
        while await self.app.store.arun(waiting) < count:  # noqa: ASYNC110
            await asyncio.sleep(0.02)

    async def signal_runs(self, count: int, gap: tuple[float, float]) -> None:
        for number in range(count):
            await asyncio.sleep(random.uniform(*gap))
            if self.app.store.embedded:
                self.app.signal(f"run-{number}", "go", time.monotonic_ns())
            else:
                await self.app.asignal(f"run-{number}", "go", time.monotonic_ns())

    async def sleep_runs(self, count: int, between: tuple[float, float]) -> None:
        """Start runs that sleep, each for another time between these seconds."""
        sleep = self._workflow(self._sleep)
        await self._work_on_runs()
        await self._start(sleep, [sleep.bind(seconds=random.uniform(*between)) for _ in range(count)])

    async def _work_on_runs(self) -> None:
        self.stamps = []
        self._computing = 0.0
        self._working = AsyncExitStack()
        await self._working.enter_async_context(self.app.worker(queues=[RUNS], concurrency=CONCURRENCY))

    async def _many(self, run: Run, n: int) -> int:
        for order in range(n):
            if order % max(1, n // 10) == 0:
                self._marks.append(time.perf_counter())
            await run.step(charge, order)
        self._marks.append(time.perf_counter())
        self._count()
        return n

    async def _parent(self, run: Run, children: int) -> int:
        many = self._workflow(self._many)
        total: int = sum(await asyncio.gather(*(run.child(many, 1) for _ in range(children))))
        self._count()
        return total

    async def _answer(self, run: Run) -> None:
        await run.step(self._stamp, await run.signal("go"))

    async def _sleep(self, run: Run, seconds: float) -> None:
        due = run.now().timestamp() + seconds
        await run.sleep(seconds)
        await run.step(self._late, due)

    async def _late(self, due: float) -> None:
        self.stamps.append(max(0.0, time.time() - due) * 1000)

    async def _noop_async(self, order: int, amount: float) -> None:
        self._count()

    async def _continued(self, order: int, amount: float) -> Continue:
        self._count()
        return Continue(self._handler("async def").bind(order=order, amount=amount))

    def _noop_def(self, order: int, amount: float) -> None:
        with self._lock:
            self._count()

    async def _effect_async(self, job: Job, order: int, amount: float) -> None:
        row = self.effect.row(order)
        async with job.transaction() as tx:
            await tx.execute(self._update, (row,) if self.app.store.embedded else row)
        self._count()

    def _effect_def(self, job: Job, order: int, amount: float) -> None:
        with job.transaction() as tx:
            tx.execute(self._update_sync, (self.effect.row(order),))
        with self._lock:
            self._count()

    def _effect_bulk(self, orders: list[int], bulk: Bulk) -> None:
        with bulk.transaction() as tx:
            tx.cursor().executemany(self._update_sync, [(self.effect.row(order),) for order in orders])
        with self._lock:
            self._left -= len(orders) - 1
            self._count()

    async def _returns_retry(self, order: int, amount: float) -> Retry | None:
        if self._fails(order):
            return Retry.after(0, "the other side is away")
        self._count()
        return None

    async def _raises(self, order: int, amount: float) -> None:
        if self._fails(order):
            raise ConnectionError("the other side is away")
        self._count()

    async def _raises_own_words(self, order: int, amount: float) -> None:
        if self._fails(order):
            raise ConnectionError(f"the other side is away for order {order}")
        self._count()

    def _fails(self, order: int) -> bool:
        """Tell whether this is the first attempt; by a set, because to ask for the job would have it made."""
        if order in self._failed:
            return False
        self._failed.add(order)
        return True

    def _count(self) -> None:
        self._left -= 1
        if self._left == 0:
            self._loop.call_soon_threadsafe(self._over.set)

    async def _stamp(self, sent: int) -> None:
        self.stamps.append((time.monotonic_ns() - sent) / 1e6)
        if self._computing:
            enough = time.thread_time() + self._computing
            while time.thread_time() < enough:
                pass


async def charge(order: int) -> dict[str, Any]:
    return {"charge": "ch_123", "amount": 12.5}
