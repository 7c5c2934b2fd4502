"""One attempt: decode the payload, run the handler through the middlewares, turn what came of it into an outcome."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from holdfast import events
from holdfast.errors import Fatal, HoldfastError, InvalidPayload, LeaseLost
from holdfast.fingerprint import ErrorRecord
from holdfast.handlers import Handler
from holdfast.job import Job
from holdfast.model import Finish, Lease, PutBack
from holdfast.payload import encode_value
from holdfast.retry import Cancel, Retry, Snooze
from holdfast.threads import Threads

if TYPE_CHECKING:
    from holdfast.app import Holdfast

Write = Finish | PutBack
Call = Callable[[Job], Awaitable[Any]]


class Work:
    """A claimed job in a worker's hands, from claim to settle."""

    __slots__ = ("handler", "interrupt", "job", "keep", "lease", "renewed", "slot", "started", "started_at", "taken")

    def __init__(self, lease: Lease, handler: Handler[..., Any], keep: bool, now: float) -> None:
        self.lease = lease
        self.handler = handler
        self.keep = keep
        self.taken = now
        self.renewed = now
        self.job: Job | None = None
        self.slot: Any = None
        self.started = 0.0
        self.started_at: datetime | None = None
        # Why the attempt must stop: "lost", "cancelled", "stop".
        self.interrupt: str | None = None


class Ended:
    """What an attempt came to: what to write (None when nothing may be), and the event for when that is committed."""

    __slots__ = ("error", "event", "work", "write")

    def __init__(
        self, work: Work, write: Write | None, event: events.Event, error: BaseException | None = None
    ) -> None:
        self.work = work
        self.write = write
        self.event = event
        # What the handler raised, when that is why it ended so.
        self.error = error


class TimedOut(HoldfastError):
    """The attempt took longer than the handler's time-out."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"The attempt took longer than its time-out of {seconds:g} s.")


class Executor:
    """Runs attempts for one worker."""

    def __init__(self, app: Holdfast, worker: str, threads: Threads) -> None:
        self.app = app
        self.worker = worker
        self.threads = threads

    async def attempt(self, work: Work) -> Ended:
        """Run the handler once; never raises, but for the cancellation of the slot itself."""
        work.started = time.monotonic()
        work.started_at = datetime.now(UTC)
        work.job = job = Job(work.lease, self.app.store, keep=work.keep)
        try:
            value = await self._call(work, job)
        except asyncio.CancelledError:
            raise
        except LeaseLost:
            return Ended(work, None, events.LeaseWasLost(*self.about(work)))
        except BaseException as error:
            return self.failed(work, error)
        return self.returned(work, value)

    async def _call(self, work: Work, job: Job) -> Any:
        handler = work.handler
        arguments = handler.signature.decode(work.lease.payload, handler.kind)
        if handler.signature.injected:
            arguments[handler.signature.injected] = job
        if not self.app.middlewares:
            return await self._run(work, arguments)

        async def innermost(_: Job) -> Any:
            return await self._run(work, arguments)

        call: Call = innermost
        for middleware in reversed(self.app.middlewares):
            call = _wrapped(middleware, call)
        return await call(job)

    async def _run(self, work: Work, arguments: dict[str, Any]) -> Any:
        handler, limit = work.handler, work.handler.options.timeout
        if not handler.is_async:
            return await self._run_on_thread(work, arguments, limit)
        if limit is None:
            return await handler.fn(**arguments)
        scope = asyncio.timeout(limit)
        try:
            async with scope:
                return await handler.fn(**arguments)
        except TimeoutError as error:
            if scope.expired():
                raise TimedOut(limit) from error
            raise

    async def _run_on_thread(self, work: Work, arguments: dict[str, Any], limit: float | None) -> Any:
        future = self.threads.submit(lambda: work.handler.fn(**arguments))
        try:
            done, _ = await asyncio.wait([future], timeout=limit)
        except asyncio.CancelledError:
            self._give_up(work)
            raise
        if not done:
            self._give_up(work)
            raise TimedOut(limit or 0)
        return future.result()

    def _give_up(self, work: Work) -> None:
        """Leave a thread to itself: it cannot be stopped, only told, and the fence refuses what it may still write."""
        if work.job is not None:
            work.job.lost = True
        self.threads.abandon()

    # What came of it

    def returned(self, work: Work, value: Any) -> Ended:
        """Turn what the handler returned into an outcome."""
        match value:
            case Retry():
                return self._again(work, value, Fatal(value.reason or "the handler asked for a retry"))
            case Snooze():
                write = PutBack(work.lease.id, work.lease.fence, round(value.delay * 1000), 1)
                return Ended(work, write, events.JobSnoozed(*self.about(work), value.delay, value.reason))
            case Cancel():
                return self.cancelled(work, value.reason)
            case _:
                return self._done(work, value)

    def failed(self, work: Work, error: BaseException) -> Ended:
        """Turn what the handler raised into an outcome."""
        if work.job is not None and work.job.settled:
            # The effect and the completion are committed; what failed afterwards cannot undo them.
            return self._done(work, None)
        if isinstance(error, Fatal | InvalidPayload):
            return self._dead(work, error)
        return self._again(work, work.handler.options.retry, error)

    def cancelled(self, work: Work, reason: str) -> Ended:
        record = self._record(work, Fatal(reason or "cancelled")).named("Cancelled")
        write = Finish(work.lease.id, work.lease.fence, "cancelled", None, record.to_json())
        return Ended(work, write, events.JobCancelled(*self.about(work), reason))

    def released(self, work: Work) -> Ended:
        return Ended(work, PutBack(work.lease.id, work.lease.fence, None, 1), events.JobReleased(*self.about(work)))

    def _done(self, work: Work, value: Any) -> Ended:
        lease = work.lease
        event = events.JobDone(*self.about(work), time.monotonic() - work.started)
        if work.job is not None and work.job.settled:
            return Ended(work, None, event)
        if value is None:
            return Ended(work, Finish(lease.id, lease.fence, "done", None, keep=work.keep), event)
        try:
            result = encode_value(value, "result")
        except Exception as error:
            self.app.events.emit(events.ResultDropped(*self.about(work), str(error)))
            record = self._record(work, error).named("ResultDropped").to_json()
            return Ended(work, Finish(lease.id, lease.fence, "done", None, record, keep=work.keep), event)
        return Ended(work, Finish(lease.id, lease.fence, "done", result, keep=work.keep), event)

    def _again(self, work: Work, policy: Retry, error: BaseException) -> Ended:
        lease = work.lease
        if lease.attempt >= lease.max_attempts:
            return self._dead(work, error)
        delay = policy.delay(lease.attempt)
        write = PutBack(lease.id, lease.fence, round(delay * 1000), 0, self._record(work, error).to_json())
        return Ended(work, write, events.JobRetried(*self.about(work), delay, _said(error)), error)

    def _dead(self, work: Work, error: BaseException) -> Ended:
        record = self._record(work, error)
        write = Finish(work.lease.id, work.lease.fence, "dead", None, record.to_json(), record.fingerprint)
        return Ended(work, write, events.JobDead(*self.about(work), _said(error)), error)

    def _record(self, work: Work, error: BaseException) -> ErrorRecord:
        now = datetime.now(UTC)
        return ErrorRecord.of(
            error, attempt=work.lease.attempt, worker=self.worker, started_at=work.started_at or now, failed_at=now
        )

    def about(self, work: Work) -> tuple[str, str, str, str, int]:
        lease = work.lease
        return (self.worker, lease.job_id, lease.kind, lease.queue, lease.attempt)


def _wrapped(middleware: Any, call_next: Call) -> Call:
    async def call(job: Job) -> Any:
        return await middleware(job, call_next)

    return call


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
