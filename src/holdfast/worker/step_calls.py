"""Calls of a run's steps: on the worker's loop or on a thread, with their time-outs, and in transactions."""

from __future__ import annotations

import asyncio
import types
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, ExitStack
from contextvars import ContextVar
from typing import Any

from holdfast.flow import Flow, Steps
from holdfast.job import Job, Transaction
from holdfast.runs import Entry, add_one
from holdfast.store import Store
from holdfast.tracing import Tracing
from holdfast.worker.handler_executor import within
from holdfast.worker.handler_threads import Threads
from holdfast.worker.outcomes import is_a
from holdfast.worker.step_turns import StepTurns
from holdfast.workflows import Operation, given_of, is_async


class Effect:
    """A transaction of a run's own: what its block completes is the checkpoint. The flags are those of `Job`."""

    def __init__(self) -> None:
        self.in_transaction = False
        self.undone = False
        self.shares_commit = False
        self.completing = False
        self.settled = False
        self.open_tx: Any = None
        # Nobody waits for it any more, and nothing of it may be committed.
        self.given_up = False
        # What its function gave, and what came of the checkpoint.
        self.value: Any = None
        self.entry: Entry | None = None
        self.at = 0

    def __repr__(self) -> str:
        return "The transaction of a run"


# The job of the run that a step is made for, where something is to be entered around each call.
RUN_JOB: ContextVar[Job | None] = ContextVar("holdfast_run_job", default=None)


class StepCalls:
    """Calls functions for the runs of one worker and store.

    `enter` opens what goes around each call: on its thread, or on the event loop.
    """

    def __init__(
        self,
        store: Store,
        threads: Threads,
        worker: str,
        enter: tuple[Callable[[ExitStack, Job], None], Callable[[AsyncExitStack, Job], Awaitable[None]]],
        given_to: Callable[[Mapping[str, Any]], dict[str, Any]],
        tracing: Tracing | None = None,
    ) -> None:
        self._tracing = tracing
        self._store = store
        self._threads = threads
        self._worker = worker
        self._enter, self._aenter = enter
        self._given_to = given_to
        self.turns = StepTurns()

    def call(self, op: Operation) -> Awaitable[Any]:
        """Call what a step names; what is returned gives what that gave.

        A function that returns something to be awaited: each coroutine within another is woken and put to sleep with
        it.
        """
        return self._call(op) if self._tracing is None else self._traced(self._tracing, op)

    async def _traced(self, tracing: Tracing, op: Operation) -> Any:
        with tracing.step(op.key):
            return await self._call(op)

    def _call(self, op: Operation) -> Awaitable[Any]:
        kwargs = self._kwargs(op)
        if is_async(op.fn, op.facts):
            running = self._inside(op.fn, *op.args, **kwargs)
        else:
            running = self._on_thread(lambda: self._inside_on_thread(op.fn, *op.args, **kwargs))
        return running if op.timeout is None else within(op.timeout, running)

    def _kwargs(self, op: Operation) -> dict[str, Any]:
        """Return what a step is called with by name, and the resources that its function asks for."""
        asked = given_of(op.fn, op.facts)
        return {**self._given_to(asked), **op.kwargs} if asked else op.kwargs

    def _inside(self, fn: Any, *args: Any, **kwargs: Any) -> Any:
        job = RUN_JOB.get()
        return fn(*args, **kwargs) if job is None else self._entered(job, fn, args, kwargs)

    async def _entered(self, job: Job, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        async with AsyncExitStack() as stack:
            await self._aenter(stack, job)
            return await fn(*args, **kwargs)

    def _inside_on_thread(self, fn: Any, *args: Any, **kwargs: Any) -> Any:
        job = RUN_JOB.get()
        with ExitStack() as stack:
            if job is not None:
                self._enter(stack, job)
            return fn(*args, **kwargs)

    async def transact(self, op: Operation, effect: Effect, entry: Callable[[Any], Entry]) -> None:
        """Call what an operation names inside a transaction, and commit it with the checkpoint that `entry` makes.

        Raises: LeaseLost and EffectThere, with nothing committed; what the function raised; StoreError, and then nobody
        knows.
        """
        complete = self._completion(effect, entry)
        if is_async(op.fn):
            running = self._transacted(op, effect, complete)
        else:
            running = self._on_thread(lambda: self._transacted_on_thread(op, effect, complete))
        await (running if op.timeout is None else within(op.timeout, running))

    async def _transacted(self, op: Operation, effect: Effect, complete: Callable[[Any], Flow[None]]) -> None:
        async with Transaction(effect, self._store, complete) as tx:
            effect.value = await self._inside(op.fn, tx, *op.args, **self._kwargs(op))

    def _transacted_on_thread(self, op: Operation, effect: Effect, complete: Callable[[Any], Flow[None]]) -> None:
        with Transaction(effect, self._store, complete) as tx:
            effect.value = self._inside_on_thread(op.fn, tx, *op.args, **self._kwargs(op))

    def _completion(self, effect: Effect, entry: Callable[[Any], Entry]) -> Callable[[Any], Flow[None]]:
        def complete(_: Any) -> Flow[None]:
            made = effect.entry = entry(effect.value)

            def steps() -> Steps[None]:
                effect.at = yield from add_one(made, self._worker)

            return Flow("checkpoint", steps)

        return complete

    async def _on_thread(self, fn: Callable[[], Any]) -> Any:
        call = self._threads.submit(fn)
        try:
            value, error = await call.future
        except asyncio.CancelledError:
            call.future.cancel()
            self._threads.abandon(call)
            raise
        if error is not None:
            raise error
        return await value if is_a(value, types.CoroutineType) else value
