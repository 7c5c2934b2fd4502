"""One call of a bulk handler: the items of several jobs together, and an end for each of them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Sequence
from contextlib import nullcontext
from typing import Any

from holdfast import events
from holdfast.bulk import MOST_ITEMS, Bulk, BulkHandler
from holdfast.context import Care
from holdfast.errors import Unusable
from holdfast.job import Job
from holdfast.observe.tallies import outcome_of
from holdfast.values.failure import type_name
from holdfast.worker.attempt_context import stepped
from holdfast.worker.expiry import may_expire
from holdfast.worker.handler_executor import Executor, loop_runs, within
from holdfast.worker.work import Ended, Work


class BulkExecutor(Executor):
    """Runs bulk handlers for one worker. A job that must run alone is a batch of one, recorded as any other is."""

    batch_limit = MOST_ITEMS

    def takes_streak(self, work: Work) -> bool:
        return False

    def batch_of(self, first: Work) -> int:
        lease = first.lease
        return _handler(first).share(lease.attempt, lease.max_attempts, lease.lapses)

    def goes_with(self, first: Work, other: Work) -> bool:
        return other.handler is first.handler and self.batch_of(other) == self.batch_of(first)

    async def attempt_batch(self, works: Sequence[Work]) -> Sequence[Ended]:
        tracing, first = self._tracing, works[0]
        # One that runs alone has its span by itself.
        sampled = [] if tracing is None or len(works) == 1 else [w.lease for w in works if tracing.wants(w.lease)]
        if tracing is None or not sampled:
            return await self._attempt_all(works)
        span, before = tracing.begin(sampled, self.worker, self.operation), self._unspanned(first)
        self._by_slot[first.slot], slot = span.inside(before), first.slot
        ends: Sequence[Ended] = ()
        try:
            ends = await self._attempt_all(works)
        finally:
            self._by_slot[slot] = before
            failed = next((ended for ended in ends if ended.error is not None), None)
            span.end("done" if failed is None else outcome_of(failed), None if failed is None else failed.error)
        return ends

    async def _attempt_all(self, works: Sequence[Work]) -> Sequence[Ended]:
        ends: list[Ended] = []
        if any(may_expire(work.lease) for work in works):
            ends, works = await self._weed_out(works)
        if len(works) > 1:
            # None of them is one whose call must be recorded: such a job shares an attempt with nobody.
            return [*ends, *await self._together(works)]
        for work in works:
            # Not begun while it waits for its record: a renewal would say that it has.
            work.started = 0.0
            ends.append(await self.attempt(work, in_time=True))
        return ends

    async def _attempt(self, work: Work) -> Ended:
        [ended] = await self._together([work])
        return ended

    async def _together(self, works: Sequence[Work]) -> list[Ended]:
        variables = self._fresh(*works)
        variables.run(self._start, works)
        ends: list[Ended] = []
        readable: list[Work] = []
        items: list[Any] = []
        for work in works:
            try:
                items.append(_handler(work).item_of(work.lease.payload))
            except BaseException as error:
                # The payload will read no better the next time; the others are none the worse for it.
                ends.append(self._outcomes.dead(work, error))
            else:
                readable.append(work)
        if not readable:
            return ends
        bulk = self._bulk(readable)
        value: Any = None
        failure: BaseException | None = None
        try:
            value = await stepped(variables, self._called(readable, items, bulk))
        except GeneratorExit as error:
            if not loop_runs():
                raise
            failure = error
        except BaseException as error:
            failure = error
        ends += self._judged(readable, bulk, value, failure)
        return ends

    def _start(self, works: Sequence[Work]) -> None:
        told, now = self._context.events, time.monotonic()
        tells = told.wants(events.JobStarted)
        for work in works:
            work.started = now
            if tells:
                about = self._outcomes.about(work)
                told.emit(events.JobStarted(*about, source=work.source.name, waited=work.waited()))

    def _bulk(self, works: Sequence[Work]) -> Bulk:
        jobs: list[Job] = []
        for work in works:
            before = tuple if work.stint is None else work.stint.ends
            work.job = Job(
                work.lease, self._store, keep=work.keep, source=work.source, worker=self.worker, before=before
            )
            jobs.append(work.job)
        return Bulk(jobs, self._store, works[0].source, self.worker)

    async def _called(self, works: Sequence[Work], items: list[Any], bulk: Bulk) -> Any:
        handler = works[0].handler
        injected = self.given_to(handler.signature.given)
        if handler.signature.injected:
            injected[handler.signature.injected] = bulk
        call: Coroutine[Any, Any, Any]
        if handler.is_async:
            if self._begins is not None:
                self._begins.entered(works[0])
            call = handler.fn(items, **injected)
            if self._context.care is not None:
                call = _cared_for(self._context.care, call)
        else:
            call = self._on_thread(works, lambda: self._with_care(handler.fn, items, injected))
        limit = handler.options.timeout
        return await (call if limit is None else within(limit, call))

    def _with_care(self, fn: Any, items: list[Any], injected: dict[str, Any]) -> Any:
        with nullcontext() if self._context.care is None else self._context.care:
            return fn(items, **injected)

    # What came of it

    def _judged(self, works: Sequence[Work], bulk: Bulk, value: Any, failure: BaseException | None) -> list[Ended]:
        given: Sequence[Any] = [None] * len(works)
        if value is not None:
            # Their own classes: what a subclass says of its length might be anything, or raise.
            if type(value) in (list, tuple) and len(value) == len(works):
                given = value
            else:
                failure = _unusable(value, len(works))
        return [self._judge(n, work, bulk, given[n], failure) for n, work in enumerate(works)]

    def _judge(self, index: int, work: Work, bulk: Bulk, value: Any, failure: BaseException | None) -> Ended:
        outcomes = self._outcomes
        if not work.settled and work.interrupt in ("lost", "cancelled"):
            return outcomes.raised(work, asyncio.CancelledError())
        if not work.settled and bulk.refusal is not None:
            # Whatever the handler made of it: nothing was committed. Its write finds out whether it was this one.
            return outcomes.released(work)
        left_out = bulk.left_out.get(index)
        if left_out is not None and (failure is None or bulk.settled):
            value, failure = (None, left_out) if isinstance(left_out, BaseException) else (left_out, None)
        if failure is not None:
            about_others = left_out is not failure and len(bulk.jobs) > 1
            return outcomes.read(outcomes.raised_for_several if about_others else outcomes.raised, work, failure)
        return outcomes.read(outcomes.returned, work, value)


async def _cared_for(care: Care, call: Coroutine[Any, Any, Any]) -> Any:
    async with care:
        return await call


def _handler(work: Work) -> BulkHandler[Any, Any]:
    handler: Any = work.handler
    return handler  # type: ignore[no-any-return]


def _unusable(value: object, count: int) -> Unusable:
    length = f" with {len(value)} entries" if type(value) in (list, tuple) else ""  # type: ignore[arg-type]
    return Unusable(
        "What the bulk handler returned",
        f"{type_name(value)}{length}",
        f"return None when all are done, or a list with an entry for each of the {count} items, in their order",
    )
