"""What a handler returned or raised, as the end of its attempt: what to write, and what to say once that is committed.

Nothing here runs a handler or touches a database. Nothing that a handler gave may end more than its attempt, so
whatever goes wrong in reading it (`except BaseException`) becomes an outcome, too.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, TypeGuard, TypeVar

from holdfast import events
from holdfast.bound import Bound, Continue, following
from holdfast.errors import ConfigError, Conflict, Fatal, LeaseLost, SharedTransactionUndone, StoreError, Unusable
from holdfast.values.expires import expiry_in
from holdfast.values.failure import ErrorRecord, iso, type_name, words
from holdfast.values.payload import encode_value
from holdfast.values.retry import LONGEST, Cancel, Retry, Snooze, delay_by, seconds
from holdfast.values.rows import Continued, Finish, PutBack, when
from holdfast.worker.handler_threads import NoThread
from holdfast.worker.work import Ended, Interrupt, Work

T = TypeVar("T")
About = tuple[str, str, str, str, int]
# A job that the system had no thread for is tried again after this time.
NO_THREAD_PAUSE_SECONDS = 1.0


class Outcomes:
    """Judges the attempts of one worker."""

    def __init__(self, worker: str, told: events.Events) -> None:
        self._worker = worker
        self._events = told

    # What the handler gave

    def read(self, judge: Callable[[Work, Any], Ended], work: Work, given: Any) -> Ended:
        """Judge what a handler gave by `returned` or `raised`; what cannot even be read is a failed attempt."""
        try:
            return judge(work, given)
        except BaseException as flaw:
            return self._again(work, work.handler.options.retry, _unusable("What the handler gave", given, flaw))

    def returned(self, work: Work, value: Any) -> Ended:
        """Turn what the handler returned into an outcome."""
        if work.settled:
            if any(is_a(value, kind) for kind in (Retry, Snooze, Cancel, Fatal, Continue)):
                self._tell_too_late(work, _late(type_name(value).rpartition(".")[2]))
            return self.done(work, None)
        if work.job is not None and work.job.undone:
            # The handler has caught it and gone on; there is no effect, so it cannot be done.
            return self.released(work)
        if is_a(value, Retry):
            return self._again(work, value, Fatal(_reason(value) or "the handler asked for a retry"), "Retry")
        if is_a(value, Snooze):
            return self._snoozed(work, value)
        if is_a(value, Cancel):
            return self.cancelled(work, _reason(value))
        if is_a(value, Fatal):
            return self.dead(work, value)
        if is_a(value, Continue):
            return self._continued(work, value.job)
        if is_a(value, Bound):
            # It would never run, and nobody would miss it.
            advice = "it is enqueued by nobody; to have it run next, return Continue(…) with it"
            return self._again(work, work.handler.options.retry, Unusable("What the handler returned", "a job", advice))
        if work.job is not None and work.job.following is not None:
            return self._continued(work, work.job.following)
        return self.done(work, value)

    def raised(self, work: Work, error: BaseException) -> Ended:
        """Turn what the handler raised into an outcome."""
        return self._raised(work, error, several=False)

    def raised_for_several(self, work: Work, error: BaseException) -> Ended:
        """As `raised`, where other jobs ran in the same call: what is fatal for one of them is a failure of the rest.

        Nobody knows for which. It counts once the job runs alone.
        """
        return self._raised(work, error, several=True)

    def _raised(self, work: Work, error: BaseException, *, several: bool) -> Ended:
        if work.settled:
            # The effect and the completion are committed; what failed afterwards cannot undo them.
            if work.interrupt is None:
                record = self.record(work, error)
                self._tell_too_late(work, _said(record), record.traceback, error)
            return self.done(work, None)
        if work.interrupt is not None:
            return self._interrupted(work, work.interrupt)
        if is_a(error, LeaseLost) and (error.job_id, error.fence) == (work.lease.job_id, work.lease.fence):
            return self.lost(work)
        if work.job is not None and work.job.cancel_requested:
            return self.cancelled(work, "cancelled while it ran")
        if is_a(error, SharedTransactionUndone):
            # Not its own doing: it has had no effect, and what went wrong may be another job's.
            return self.released(work)
        if work.stint is not None and work.stint.unwritten and is_a(error, StoreError):
            # Ends of jobs before it were to be written with its own: one of those may be what was refused.
            return self.released(work)
        if is_a(error, NoThread):
            # It has not begun, and the next worker may have a thread to spare.
            return self.put_off(work, NO_THREAD_PAUSE_SECONDS, str(error))
        own = None if work.job is None else work.job.retry
        policy = own or work.handler.options.retry
        if not several and not policy.retries(error):
            return self.dead(work, error)
        return self._again(work, policy, error)

    def after_completion(self, ended: Ended) -> Ended:
        """Turn another end into done: the handler's own transaction turned out to have completed the job before."""
        work, asked = ended.work, _asked(ended)
        if work.job is not None:
            work.job.settled = True
        if ended.error is not None and asked is None:
            return self.raised(work, ended.error)
        if asked is not None and work.interrupt is None:
            self._tell_too_late(work, _late(asked))
        return self.done(work, None)

    def _tell_too_late(self, work: Work, said: str, traceback: str = "", raised: BaseException | None = None) -> None:
        self._events.emit(events.FailedAfterDone(*self.about(work), said, traceback, raised, **measures(work)))

    def _interrupted(self, work: Work, why: Interrupt) -> Ended:
        match why:
            case "cancelled" if work.handler.executor != "run":
                return self.cancelled(work, "cancelled while it ran")
            # A run whose body has not heard of it may have to clean up: it does so first once it is claimed again.
            case "cancelled" | "stop":
                return self.released(work)
            case "lost":
                return self.lost(work)

    # How an attempt can end

    def done(self, work: Work, value: Any) -> Ended:
        """End a job as done, with the value as its result if JSON can hold it."""
        lease = work.lease
        event = None
        if self._events.wants(events.JobDone):
            took = time.monotonic() - work.started
            event = events.JobDone(
                *self.about(work), took, source=work.source.name, waited=work.waited(), duration=took
            )
        if work.settled:
            return Ended(work, None, event)
        if value is None:
            return Ended(work, Finish(lease.id, lease.fence, "done", None, None, None, work.keep), event)
        try:
            result = encode_value(value, "result")
        except BaseException as error:
            record = self.record(work, error)
            self._events.emit(events.ResultDropped(*self.about(work), _said(record), **measures(work)))
            dropped = record.named("ResultDropped").to_json()
            return Ended(work, Finish(lease.id, lease.fence, "done", None, dropped, keep=work.keep), event)
        return Ended(work, Finish(lease.id, lease.fence, "done", result, keep=work.keep), event)

    def all_done(self, works: Sequence[Work], values: Sequence[Any]) -> list[Ended]:
        """End jobs that nothing has settled as done, each with its value: as `read` with `done`, for less."""
        if self._events.wants(events.JobDone):
            return [self.read(self.done, work, value) for work, value in zip(works, values, strict=True)]
        ends: list[Ended] = []
        for work, value in zip(works, values, strict=True):
            if value is not None and not _is_plain(value):
                ends.append(self.read(self.done, work, value))
                continue
            lease = work.lease
            result = None if value is None else f'"{value}"'
            ends.append(Ended(work, Finish(lease.id, lease.fence, "done", result, None, None, work.keep), None))
        return ends

    def _continued(self, work: Work, job: Bound) -> Ended:
        """End a job as done, and have another one added that continues it."""
        lease = work.lease
        try:
            then = following(job, lease, work.source)
        except (Conflict, ConfigError) as error:
            return self._again(work, work.handler.options.retry, error)
        return Ended(work, Continued(lease.id, lease.fence, then, work.keep), self.done(work, None).event)

    def dead(self, work: Work, error: BaseException) -> Ended:
        """Send a job to the dead letters."""
        return self._dead_letter(work, self.record(work, error), error)

    def cancelled(self, work: Work, reason: str) -> Ended:
        """End a job as cancelled."""
        record = self.record(work, Fatal(reason or "cancelled"), "Cancelled")
        write = Finish(work.lease.id, work.lease.fence, "cancelled", None, record.to_json())
        return Ended(work, write, events.JobCancelled(*self.about(work), reason, **measures(work)))

    def expired(self, work: Work) -> Ended:
        """End a job as cancelled that may not begin any more."""
        moment = expiry_in(work.lease.headers, when(work.lease.created_at))
        reason = f"expired at {moment.isoformat()}" if moment else "expired"
        record = self.record(work, Fatal(reason), "Expired")
        write = Finish(work.lease.id, work.lease.fence, "cancelled", None, record.to_json())
        return Ended(work, write, events.JobExpired(*self.about(work), reason, **measures(work)))

    def released(self, work: Work, later: float | None = None) -> Ended:
        """Give a job back that has not run: to its old place, or after `later` seconds."""
        write = PutBack(work.lease.id, work.lease.fence, None if later is None else round(later * 1000), 1)
        return Ended(work, write, events.JobReleased(*self.about(work), **measures(work)))

    def lost(self, work: Work) -> Ended:
        """Note that the lease is gone: nothing may be written. The one place that says so."""
        return Ended(work, None, events.LeaseWasLost(*self.about(work), **measures(work)))

    def _snoozed(self, work: Work, snooze: Snooze) -> Ended:
        try:
            delay = seconds(snooze.delay, "delay")
        except BaseException as flaw:
            return self._again(work, work.handler.options.retry, _unusable("The returned Snooze", snooze, flaw))
        return self.put_off(work, delay, _reason(snooze))

    def put_off(self, work: Work, delay: float, reason: str) -> Ended:
        """Run a job again after a delay, without counting this attempt."""
        write = PutBack(work.lease.id, work.lease.fence, round(delay * 1000), 1)
        return Ended(work, write, self._event(events.JobSnoozed, work, delay, reason))

    def failed(self, work: Work, reason: str, retry_after: float | None) -> Ended:
        """Try a delivery again that was not taken, when the receiver has asked for it, where it has."""
        policy = work.handler.options.retry
        if retry_after is not None:
            policy = Retry.after(min(max(0.0, retry_after), LONGEST))
        return self._again(work, policy, Fatal(reason), "DeliveryFailed")

    def refused(self, work: Work, reason: str, code: str | None) -> Ended:
        """Send a delivery to the dead letters that will never be taken."""
        record = self.record(work, Fatal(reason if code is None else f"{code}: {reason}"), "DeliveryRefused")
        return self._dead_letter(work, record, Fatal(reason), "DeliveryRefused")

    def _again(self, work: Work, policy: Retry, error: BaseException, name: str | None = None) -> Ended:
        lease, record = work.lease, self.record(work, error, name)
        if lease.attempt >= lease.max_attempts:
            return self._dead_letter(work, record, error, name)
        delay, flaw = delay_by(lease.attempt, policy, work.handler.options.retry)
        if flaw is not None:
            record = record.noted(f"The delay that {type_name(policy)} asks for cannot be used: {words(flaw)}")
        write = PutBack(lease.id, lease.fence, round(delay * 1000), 0, record.to_json())
        event = self._event(events.JobRetried, work, delay, _said(record), record.traceback, _raised(error, name))
        return Ended(work, write, event, error)

    def _dead_letter(self, work: Work, record: ErrorRecord, error: BaseException, name: str | None = None) -> Ended:
        write = Finish(work.lease.id, work.lease.fence, "dead", None, record.to_json(), record.fingerprint)
        event = self._event(events.JobDead, work, _said(record), record.traceback, _raised(error, name))
        return Ended(work, write, event, error)

    # What events and records say of it

    def about(self, work: Work) -> About:
        """Give what every event of a job begins with."""
        lease = work.lease
        return (self._worker, lease.job_id, lease.kind, lease.queue, lease.attempt)

    def _event(self, kind: type[events.JobEvent], work: Work, *said: Any) -> events.JobEvent | None:
        """Make what is told once the end is committed; None where nobody listens: in a storm each costs 2 µs."""
        return kind(*self.about(work), *said, **measures(work)) if self._events.wants(kind) else None

    def record(self, work: Work, error: BaseException, name: str | None = None) -> ErrorRecord:
        """Describe an error of this attempt, as the job's row keeps it; `name` is the type of what nobody raised."""
        moment = time.time()
        running = time.monotonic() - work.started if work.started else 0.0
        attempt, worker, began, now = work.lease.attempt, self._worker, iso(moment - running), iso(moment)
        if name is None:
            return ErrorRecord.of(error, attempt=attempt, worker=worker, started_at=began, failed_at=now)
        [reason] = error.args
        return ErrorRecord.asked(name, reason, attempt=attempt, worker=worker, started_at=began, failed_at=now)


def measures(work: Work) -> dict[str, Any]:
    """Give what every event of a job ends with: where it came from, and how long it waited and ran so far."""
    duration = time.monotonic() - work.started if work.started else None
    return {"source": work.source.name, "waited": work.waited(), "duration": duration}


def is_a(value: object, kind: type[T]) -> TypeGuard[T]:
    """Tell whether a value is of a class; one whose `__class__` fails is not."""
    try:
        return isinstance(value, kind)
    except BaseException:
        return False


def _is_plain(value: object) -> bool:
    """Tell whether a value is a text that JSON writes as it is, as receipts of brokers are."""
    return type(value) is str and value.isascii() and value.isprintable() and '"' not in value and "\\" not in value


def _late(what: str) -> str:
    return f"{what} came after the job's transaction had completed it"


def _asked(ended: Ended) -> str | None:
    """Name what the handler asked for by returning it; None where it raised, or asked for nothing."""
    match ended.write:
        case Continued():
            return "Continue"
        case Finish(outcome="cancelled"):
            return "Cancel"
        case PutBack(attempts_back=1):
            return "Snooze"
        case PutBack() if is_a(ended.error, Fatal):
            return "Retry"
        case _:
            return None


def _reason(value: Any) -> str:
    try:
        return "" if value.reason is None else words(value.reason)
    except BaseException as flaw:
        return f"<the reason cannot be read: {type_name(flaw)}>"


def _unusable(what: str, given: object, flaw: BaseException) -> Unusable:
    error = Unusable(what, type_name(given), f"{type_name(flaw)}: {words(flaw)}")
    error.__cause__ = flaw
    return error


def _raised(error: BaseException, name: str | None) -> BaseException | None:
    """Give an error to subscribers; None for one with a name, which nobody raised."""
    return error if name is None else None


def _said(record: ErrorRecord) -> str:
    return f"{record.type.rpartition('.')[2]}: {record.message}"
