"""One attempt: decode the payload, run the handler through the middlewares, turn what came of it into an outcome."""

from __future__ import annotations

import asyncio
import contextvars
import time
import types
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import ExitStack
from datetime import UTC, datetime
from typing import Any, TypeGuard, TypeVar

from holdfast import events
from holdfast.context import Context, Next
from holdfast.errors import ConfigError, Fatal, LeaseLost, TimedOut, Unusable
from holdfast.flow import Flow
from holdfast.handlers import Handler
from holdfast.job import Job
from holdfast.life.expiry import must_record
from holdfast.values.failure import ErrorRecord, fatal_in, type_name, words
from holdfast.values.payload import encode_value
from holdfast.values.retry import Cancel, Retry, Snooze, delay_by, seconds
from holdfast.values.rows import Finish, PutBack
from holdfast.worker.attempt_context import rest
from holdfast.worker.begins import Begins
from holdfast.worker.handler_threads import Call, NoThread, Threads
from holdfast.worker.work import Ended, Interrupt, Work

T = TypeVar("T")
# Seconds after which a job is tried again that the system had no thread for.
NO_THREAD_PAUSE = 1.0


class Executor:
    """Runs attempts for one worker, each in a copy of the context that the worker started in.

    Without `begins`, nothing is recorded before a handler is called.
    """

    def __init__(self, context: Context, worker: str, threads: Threads, begins: Begins | None = None) -> None:
        self._context = context
        self.worker = worker
        self.threads = threads
        self._begins = begins
        self._variables = contextvars.copy_context()

    def attempt(self, work: Work) -> Coroutine[Any, Any, Ended]:
        """Run the handler once. Whatever it raises, cancellation included, becomes an outcome: a slot lives on.

        A function that returns a coroutine: each coroutine within another is woken and put to sleep with it.
        """
        lease = work.lease
        if self._begins is not None and must_record(lease.lapses, lease.max_attempts):
            recording = work.source.begin(lease)
            if recording is not None:
                return self._attempt_on_record(work, self._begins, recording)
        return self._attempt(work)

    async def _attempt_on_record(self, work: Work, begins: Begins, recording: Flow[None]) -> Ended:
        """Run a handler whose call must be known of, should the process die."""
        try:
            await begins.record(work, recording)
        except BaseException as error:
            work.started = time.monotonic()
            return self._outcome(work, self.raised, error)
        if work.handler.is_async and not self._context.middlewares:
            # Nothing waits between here and the call.
            begins.entered(work)
        try:
            return await self._attempt(work)
        finally:
            begins.entered(work)

    async def _attempt(self, work: Work) -> Ended:
        context, handler = self._context, work.handler
        variables = self._variables.copy()
        work.started = time.monotonic()
        if context.events.wants(events.JobStarted):
            variables.run(context.events.emit, events.JobStarted(*self.about(work)))
        # The shortest way for the plainest handlers: two frames and an object less for each job.
        job = None
        if not handler.is_plain or context.middlewares or context.around_handlers:
            job = work.job = Job(work.lease, context.store, keep=work.keep, source=work.source, worker=self.worker)
        try:
            arguments = handler.signature.decode(work.lease.payload, handler.kind)
        except BaseException as error:
            # The payload will read no better the next time.
            return self._dead(work, error)
        try:
            running = handler.fn(**arguments) if job is None else self._call(work, job, arguments)
            try:
                # The first step here: a handler that never waits is over with it, and spared a generator.
                waits_for = variables.run(running.send, None)
            except StopIteration as end:
                value = end.value
            else:
                value = await rest(variables, running, waits_for)
        except GeneratorExit as error:
            if not _loop_runs():
                # Not the handler's: the loop is gone, and this coroutine is being thrown away.
                raise
            return self._outcome(work, self.raised, error)
        except BaseException as error:
            return self._outcome(work, self.raised, error)
        if value is None and job is None:
            return self._done(work, None)
        return self._outcome(work, self.returned, value)

    async def _call(self, work: Work, job: Job, arguments: dict[str, Any]) -> Any:
        if work.handler.signature.injected:
            arguments[work.handler.signature.injected] = job
        if not self._context.middlewares:
            return await self._run(work, job, arguments)

        async def innermost(_: Job) -> Any:
            return await self._run(work, job, arguments)

        call: Next = innermost
        for middleware in reversed(self._context.middlewares):
            call = _wrapped(middleware, call)
        return await call(job)

    async def _run(self, work: Work, job: Job, arguments: dict[str, Any]) -> Any:
        handler, limit = work.handler, work.handler.options.timeout
        if not handler.is_async:
            call = self._run_on_thread(work, job, arguments)
        else:
            if self._begins is not None:
                self._begins.entered(work)
            call = (
                self._run_inside(job, handler, arguments) if self._context.around_handlers else handler.fn(**arguments)
            )
        # A wait with a time-out costs as much again as the hop to the thread.
        return await (call if limit is None else _within(limit, call))

    async def _run_inside(self, job: Job, handler: Handler[..., Any], arguments: dict[str, Any]) -> Any:
        with ExitStack() as stack:
            self._enter(stack, job)
            return await handler.fn(**arguments)

    async def _run_on_thread(self, work: Work, job: Job, arguments: dict[str, Any]) -> Any:
        call = self.threads.submit(lambda: self._call_on_thread(work.handler, job, arguments))
        try:
            if self._begins is not None and self._begins.inside is work:
                await self._begins.entered_on_thread(work, call)
            value, error = await call.future
        except asyncio.CancelledError:
            self._give_up(work, call)
            raise
        if error is not None:
            raise error
        # A decorator that knows nothing of async hides a coroutine function behind a plain one.
        return await value if _is(value, types.CoroutineType) else value

    def _call_on_thread(self, handler: Handler[..., Any], job: Job, arguments: dict[str, Any]) -> Any:
        if not self._context.around_handlers:
            return handler.fn(**arguments)
        with ExitStack() as stack:
            self._enter(stack, job)
            return handler.fn(**arguments)

    def _enter(self, stack: ExitStack, job: Job) -> None:
        for around in self._context.around_handlers:
            block = around(job)
            if not hasattr(type(block), "__enter__"):
                rule = "needs a function that returns a `with` block; add @contextmanager"
                raise ConfigError("around_handler", rule, around)
            stack.enter_context(block)

    def _give_up(self, work: Work, call: Call) -> None:
        """Leave a thread to itself: it cannot be stopped, only told, and the fence refuses what it may still write."""
        if work.job is not None:
            work.job.lost = True
        self.threads.abandon(call)

    # What came of it. Nothing that a handler gave may end more than its attempt, so whatever goes wrong in reading it
    # (`except BaseException`) becomes an outcome, too.

    def _outcome(self, work: Work, read: Callable[[Work, Any], Ended], given: Any) -> Ended:
        try:
            return read(work, given)
        except BaseException as flaw:
            return self._again(work, work.handler.options.retry, _unusable("What the handler gave", given, flaw))

    def returned(self, work: Work, value: Any) -> Ended:
        """Turn what the handler returned into an outcome."""
        if work.settled:
            return self._done(work, None)
        if _is(value, Retry):
            return self._again(work, value, Fatal(_reason(value) or "the handler asked for a retry"), "Retry")
        if _is(value, Snooze):
            return self._snoozed(work, value)
        if _is(value, Cancel):
            return self.cancelled(work, _reason(value))
        if _is(value, Fatal):
            return self._dead(work, value)
        return self._done(work, value)

    def raised(self, work: Work, error: BaseException) -> Ended:
        """Turn what the handler raised into an outcome."""
        if work.settled:
            # The effect and the completion are committed; what failed afterwards cannot undo them.
            if work.interrupt is None:
                self._context.events.emit(events.FailedAfterDone(*self.about(work), _said(self._record(work, error))))
            return self._done(work, None)
        if work.interrupt is not None:
            return self._interrupted(work, work.interrupt)
        if _is(error, LeaseLost) and (error.job_id, error.fence) == (work.lease.job_id, work.lease.fence):
            return self._lost(work)
        if work.job is not None and work.job.cancel_requested:
            return self.cancelled(work, "cancelled while it ran")
        if _is(error, NoThread):
            # It has not begun, and the next worker may have a thread to spare.
            return self._put_off(work, NO_THREAD_PAUSE, str(error))
        if fatal_in(error) is not None:
            return self._dead(work, error)
        return self._again(work, work.handler.options.retry, error)

    def _snoozed(self, work: Work, snooze: Snooze) -> Ended:
        try:
            delay = seconds(snooze.delay, "delay")
        except BaseException as flaw:
            return self._again(work, work.handler.options.retry, _unusable("The returned Snooze", snooze, flaw))
        return self._put_off(work, delay, _reason(snooze))

    def _put_off(self, work: Work, delay: float, reason: str) -> Ended:
        write = PutBack(work.lease.id, work.lease.fence, round(delay * 1000), 1)
        return Ended(work, write, events.JobSnoozed(*self.about(work), delay, reason))

    def cancelled(self, work: Work, reason: str) -> Ended:
        record = self._record(work, Fatal(reason or "cancelled")).named("Cancelled")
        write = Finish(work.lease.id, work.lease.fence, "cancelled", None, record.to_json())
        return Ended(work, write, events.JobCancelled(*self.about(work), reason))

    def released(self, work: Work, later: float | None = None) -> Ended:
        """Give a job back that has not run: to its old place, or in some seconds."""
        delay_ms = None if later is None else round(later * 1000)
        return Ended(work, PutBack(work.lease.id, work.lease.fence, delay_ms, 1), events.JobReleased(*self.about(work)))

    def _interrupted(self, work: Work, why: Interrupt) -> Ended:
        match why:
            case "cancelled":
                return self.cancelled(work, "cancelled while it ran")
            case "stop":
                return self.released(work)
            case "lost":
                return self._lost(work)

    def _lost(self, work: Work) -> Ended:
        return Ended(work, None, events.LeaseWasLost(*self.about(work)))

    def _done(self, work: Work, value: Any) -> Ended:
        lease = work.lease
        event = None
        if self._context.events.wants(events.JobDone):
            event = events.JobDone(*self.about(work), time.monotonic() - work.started)
        if work.settled:
            return Ended(work, None, event)
        if value is None:
            return Ended(work, Finish(lease.id, lease.fence, "done", None, None, None, work.keep), event)
        try:
            result = encode_value(value, "result")
        except BaseException as error:
            self._context.events.emit(events.ResultDropped(*self.about(work), _said(self._record(work, error))))
            record = self._record(work, error).named("ResultDropped").to_json()
            return Ended(work, Finish(lease.id, lease.fence, "done", None, record, keep=work.keep), event)
        return Ended(work, Finish(lease.id, lease.fence, "done", result, keep=work.keep), event)

    def _again(self, work: Work, policy: Retry, error: BaseException, name: str | None = None) -> Ended:
        lease, record = work.lease, self._record(work, error)
        if name is not None:
            record = record.named(name)
        if lease.attempt >= lease.max_attempts:
            return self._buried(work, record, error)
        delay, flaw = delay_by(lease.attempt, policy, work.handler.options.retry)
        if flaw is not None:
            record = record.noted(f"The delay that {type_name(policy)} asks for cannot be used: {words(flaw)}")
        write = PutBack(lease.id, lease.fence, round(delay * 1000), 0, record.to_json())
        return Ended(work, write, events.JobRetried(*self.about(work), delay, _said(record)), error)

    def _dead(self, work: Work, error: BaseException) -> Ended:
        return self._buried(work, self._record(work, error), error)

    def _buried(self, work: Work, record: ErrorRecord, error: BaseException) -> Ended:
        write = Finish(work.lease.id, work.lease.fence, "dead", None, record.to_json(), record.fingerprint)
        return Ended(work, write, events.JobDead(*self.about(work), _said(record)), error)

    def _record(self, work: Work, error: BaseException) -> ErrorRecord:
        began, now = work.started_at, datetime.now(UTC)
        return ErrorRecord.of(error, attempt=work.lease.attempt, worker=self.worker, started_at=began, failed_at=now)

    def about(self, work: Work) -> tuple[str, str, str, str, int]:
        lease = work.lease
        return (self.worker, lease.job_id, lease.kind, lease.queue, lease.attempt)


async def _within(limit: float, call: Awaitable[Any]) -> Any:
    scope = asyncio.timeout(limit)
    try:
        async with scope:
            return await call
    except TimeoutError as error:
        if scope.expired():
            raise TimedOut(limit) from error
        raise


def _wrapped(middleware: Any, call_next: Next) -> Next:
    async def call(job: Job) -> Any:
        return await middleware(job, call_next)

    return call


def _loop_runs() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _is(value: object, kind: type[T]) -> TypeGuard[T]:
    """Tell whether a value is of a class; one whose `__class__` fails is not."""
    try:
        return isinstance(value, kind)
    except BaseException:
        return False


def _reason(value: Any) -> str:
    try:
        return "" if value.reason is None else words(value.reason)
    except BaseException as flaw:
        return f"<the reason cannot be read: {type_name(flaw)}>"


def _unusable(what: str, given: object, flaw: BaseException) -> Unusable:
    error = Unusable(what, type_name(given), f"{type_name(flaw)}: {words(flaw)}")
    error.__cause__ = flaw
    return error


def _said(record: ErrorRecord) -> str:
    return f"{record.type.rpartition('.')[2]}: {record.message}"
