"""The errors that are not about runs; `__init__.py` draws the tree of all."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar

from holdfast.values import urls
from holdfast.values.urls import redact as redact
from holdfast.values.words import install_hint

if TYPE_CHECKING:
    from holdfast.values.views import JobView

BusyReason = Literal["deadlock", "serialisation", "busy", "lock_timeout"]

_URLS = ("url", "listen_url", "HOLDFAST_URL", "HOLDFAST_LISTEN_URL")


def shown(value: object, limit: int = 200) -> str:
    """Render a value for a message, without passwords and at bounded length."""
    try:
        text = repr(redact(value)) if isinstance(value, str) else redact(repr(value))
    except Exception:
        text = f"<{type(value).__name__} that cannot be shown>"
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _type_name(value: object) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


# What names the database in a command; `module:attribute` is where the application has its Holdfast.
_APP = "--app module:attribute"


class HoldfastError(Exception):
    """The root of everything that Holdfast raises."""

    def __reduce__(self) -> tuple[Any, ...]:
        # The constructors take fields, not the message, so calling the class with `args` cannot rebuild them.
        return _rebuild, (type(self), self.args, vars(self))


ErrorT = TypeVar("ErrorT", bound=HoldfastError)


def _rebuild(cls: type[ErrorT], args: tuple[Any, ...], fields: dict[str, Any]) -> ErrorT:
    error = cls.__new__(cls, *args)
    error.args = args  # what is also an OSError leaves them to its constructor, which takes fields
    vars(error).update(fields)
    return error


class ConfigError(HoldfastError, ValueError):
    """A setting breaks a rule."""

    def __init__(self, field: str, rule: str, value: object) -> None:
        if isinstance(value, str):
            value = urls.shown(value) if field in _URLS else redact(value)
        super().__init__(f"{field}: {rule}; got {shown(value)}")
        self.field = field
        self.rule = rule
        self.value = value


class DriverMissing(HoldfastError, ImportError):
    """The driver that speaks to the database cannot be imported."""

    def __init__(self, driver: str, extra: str, why: str) -> None:
        super().__init__(f"The driver {driver} cannot be imported: {why}. Run: {install_hint(extra)}")
        self.driver = driver
        self.extra = extra
        self.why = why


class UnknownKind(HoldfastError):
    """No handler has this name."""

    def __init__(self, kind: str, known: Iterable[str]) -> None:
        self.kind = kind
        self.known = tuple(sorted(known))
        super().__init__(f"No handler is registered for kind {shown(kind)}. {self._advice()}")

    def _advice(self) -> str:
        if not self.known:
            return "No handlers are registered at all: import the modules that hold them."
        if close := get_close_matches(self.kind, self.known, n=1):
            return f"Did you mean {close[0]!r}?"
        more = ", …" if len(self.known) > 10 else ""
        return f"Known kinds: {', '.join(self.known[:10])}{more}. Import the module that registers it."


class PayloadError(HoldfastError):
    """A payload cannot be kept or read."""


class InvalidPayload(PayloadError):
    """An argument does not fit the handler or is not JSON.

    `argument` is None when the payload as a whole is at fault; `subject` names what is not a handler's payload.
    """

    def __init__(self, kind: str, argument: str | None, reason: str, subject: str | None = None) -> None:
        subject = subject or (f"argument {argument!r} of {kind!r}" if argument else f"payload of {kind!r}")
        super().__init__(f"Invalid {subject}: {reason}")
        self.kind = kind
        self.argument = argument
        self.reason = reason


class PayloadTooLarge(PayloadError):
    """The payload has more bytes than the store takes."""

    def __init__(self, kind: str, size: int, limit: int) -> None:
        super().__init__(
            f"The payload of {kind!r} has {size:,} bytes, more than the limit of {limit:,}. "
            "Store the data elsewhere and give a reference to it, or raise payload_limit."
        )
        self.kind = kind
        self.size = size
        self.limit = limit


class TransactionError(HoldfastError):
    """What was given as `tx=` cannot be used."""


OVER = "This transaction is over: its block was left. Use it only inside."
UNREAD = (
    "On the connection given as tx= rows of an unbuffered result are still to be read. Read them all or close their "
    "cursor first, or read them on another connection."
)


class UnsupportedConnection(TransactionError):
    """No adapter knows this object."""

    def __init__(self, obj: object) -> None:
        self.type_name = _type_name(obj)
        super().__init__(
            f"tx= does not take {self.type_name}. Give a connection of sqlite3, aiosqlite, psycopg, asyncpg, PyMySQL, "
            "mysqlclient, aiomysql or asyncmy, a SQLAlchemy connection or session, or Django's connection."
        )


class WrongDatabase(TransactionError):
    """The connection belongs to another kind of database than the store."""

    def __init__(self, expected: str, got: str) -> None:
        super().__init__(
            f"This Holdfast keeps its jobs in {redact(expected)}, but tx= is a connection to {redact(got)}. "
            "Give a connection to the database that holds the jobs, or leave out tx=."
        )
        self.expected = expected
        self.got = got


class WrongColour(TransactionError):
    """A sync connection was given to an async call, or the reverse."""

    def __init__(self, call: str, use: str) -> None:
        super().__init__(f"{call} cannot use this connection: one is async and the other is not. Call {use} instead.")
        self.call = call
        self.use = use


class ConnectionClosed(TransactionError):
    """The connection given as `tx=` is closed."""

    def __init__(self) -> None:
        super().__init__("The connection given as tx= is closed. Enqueue before it is closed, or leave out tx=.")


class NoTransaction(TransactionError):
    """The connection given as `tx=` is in autocommit, outside any transaction."""

    def __init__(self, kind: str) -> None:
        super().__init__(
            f"The connection given as tx= has no open transaction, so {kind!r} would be visible at once. "
            "Open a transaction first, or leave out tx=."
        )
        self.kind = kind


class TransactionAborted(TransactionError):
    """A statement in the transaction has already failed, so the database refuses every further one."""

    def __init__(self) -> None:
        super().__init__(
            "The transaction has already failed: an earlier statement in it did. Roll it back and repeat all of it "
            "(job.transaction() does both when the error leaves its block). "
            "Put a statement that may fail into a savepoint."
        )


class ConnectionInUse(TransactionError):
    """Another statement still runs on the connection."""

    def __init__(self) -> None:
        super().__init__(
            "Another statement still runs on this connection: wait for it, a connection runs one statement at a time. "
            "When a part of asyncio.gather fails, the other parts run on; asyncio.TaskGroup waits for them."
        )


class TransactionEnded(TransactionError):
    """The transaction that `job.transaction()` opened was over before the end of its block."""

    def __init__(self) -> None:
        super().__init__(
            "The transaction that job.transaction() opened is over already, so the job cannot be completed in it. "
            "Either the database ended it (a deadlock, INSERT OR ROLLBACK, DDL on MySQL): let such an error leave the "
            "block, and the attempt is repeated. Or the handler did (COMMIT, ROLLBACK, BEGIN): leave that to the "
            "block. On PostgreSQL RESET ALL looks the same, because it takes the transaction's mark away: reset the "
            "settings that you mean, by their names."
        )


class SharedTransactionUndone(TransactionError):
    """The transaction that a job shared with others was rolled back, because of another of them or at its commit."""

    def __init__(self, cause: BaseException | None = None) -> None:
        why = "" if cause is None else f" ({type(cause).__name__})"
        super().__init__(
            f"The transaction that this job shared with others was rolled back{why}, and its effect with it. Let this "
            "error leave the handler: the job runs again, and no attempt is used."
        )


class StoreError(HoldfastError):
    """The database refused or failed; `detail` holds its words, without passwords."""

    summary: ClassVar[str] = "The database failed."
    # Whether it was this very data that was refused, so that repeating the write cannot help.
    data_refused = False

    def __init__(self, detail: str = "") -> None:
        self.detail = redact(detail)
        super().__init__(f"{self.summary} ({self.detail})" if detail else self.summary)


class DatabaseUnavailable(StoreError):
    """The connection was refused or lost."""

    exit_code: ClassVar[int] = 4
    summary = "The database cannot be reached. Check that it runs, and that host and port are right."


class AccessRefused(DatabaseUnavailable):
    """The server runs, and does not let this user in, or has no such database; another try is refused, too."""

    summary = "The database server refuses the connection. Check user, password and the name of the database."


class DatabaseBusy(StoreError):
    """The database gave up on the transaction because of others; the same transaction may succeed when repeated."""

    summary = "The database was busy. Repeat the whole transaction."

    def __init__(self, reason: BusyReason, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason: BusyReason = reason


class UniqueViolation(StoreError):
    """A row with the same unique key exists."""

    summary = "A row with this unique key already exists."
    data_refused = True


class SchemaMissing(StoreError):
    """The database has no Holdfast tables."""

    exit_code: ClassVar[int] = 3
    summary = f"The database has no Holdfast tables under this prefix. Run `holdfast migrate apply {_APP}`."


class ForeignTablesMissing(SchemaMissing):
    """Tables that programs in other languages share are not there."""

    def __init__(self, store: str, tables: Iterable[str], cure: str = "") -> None:
        self.store = store
        self.tables = tuple(tables)
        cure = cure or (
            f"Call create_schema() on it, run `holdfast migrate apply --store {store}`, or start the program that "
            "shares them and makes them."
        )
        self.detail = f"There is no table {' and no '.join(self.tables)}, which {store} needs. {cure}"
        HoldfastError.__init__(self, self.detail)


class SchemaMismatch(StoreError):
    """The tables have another version than this library, or differ otherwise (`why`, of foreign tables)."""

    exit_code: ClassVar[int] = 3
    summary = "The tables do not fit this version of holdfast."

    def __init__(self, found: int, expected: int, why: str = "") -> None:
        cure = f"run `holdfast migrate apply {_APP}`" if found < expected else "upgrade holdfast"
        super().__init__(why or f"they are at version {found}, it needs {expected}: {cure}")
        self.found = found
        self.expected = expected


class UnknownFollowers(StoreError):
    """The end of a job has consequences that this process does not know, so it is not written."""

    summary = "A job's end has consequences that this process does not know."
    # For this job, not for the others of its batch: a repeat cannot help it.
    data_refused = True

    def __init__(self, job_id: str, bit: int) -> None:
        super().__init__(f"job {job_id}, bit {bit}: upgrade holdfast here, or import the part that it belongs to")
        self.job_id = job_id
        self.bit = bit


class QueryFailed(StoreError):
    """The database refused a statement for a reason of its own."""

    summary = "The database refused a statement; the cause below says why."

    def __init__(self, detail: str = "", *, data_refused: bool = False) -> None:
        super().__init__(detail)
        self.data_refused = data_refused


class LeaseLost(HoldfastError):
    """A newer claim, or nobody, holds the job; nothing was written."""

    def __init__(self, job_id: str, fence: int) -> None:
        super().__init__(
            f"The lease with fence {fence} on job {job_id} is lost: it was reaped, claimed again, settled or deleted. "
            "Nothing was written. Stop work on it; use a longer lease if this repeats."
        )
        self.job_id = job_id
        self.fence = fence


class LeasesLost(HoldfastError):
    """One or more jobs of those that share a transaction have lost their lease, so nothing was written."""

    def __init__(self) -> None:
        super().__init__(
            "A job of those that share this transaction has lost its lease, so nothing was written. The others run "
            "again, without an attempt used. Use a longer lease if this repeats."
        )


class JobNotFound(HoldfastError):
    """No job has this id, or its retention is over; for a row of foreign tables, `store` names them.

    `ended` is True for a job that was there while it was waited for, and of which nothing is left.
    """

    def __init__(self, job_id: str, store: str | None = None, gone: str = "", *, ended: bool = False) -> None:
        text = (
            f"There is no job {shown(job_id)}: its enqueue was never committed, it was discarded, or its queue no "
            "longer keeps it (with retention=0 nothing is kept of done jobs). Check the id, and which database this is."
        )
        if ended:
            text = (
                f"Job {shown(job_id)} has ended, and nothing is left of it: its queue keeps nothing of done jobs "
                "(retention=0), or it was discarded or pruned. To have results, keep done jobs for some minutes, or "
                "say hf.queue(…, retention=0) also where you wait."
            )
        super().__init__(text if store is None else f"There is no row {redact(job_id)} in {store}: {gone}.")
        self.job_id = job_id
        self.store = store
        self.ended = ended


class BatchNotFound(JobNotFound):
    """No batch that could be extended or sealed has this id."""

    def __init__(self, batch: str) -> None:
        HoldfastError.__init__(
            self,
            f"There is no open batch {shown(batch)}: it was never committed, its callback has ended, or this is the id "
            "of another job. Give the id of the batch (batch.id), and check which database this is.",
        )
        self.job_id, self.store, self.ended = batch, None, False


class JobDead(HoldfastError):
    """A job whose result was asked for is a dead letter; `job` is all of it, with the error of every attempt."""

    def __init__(self, job: JobView) -> None:
        last = job.last_error or {"type": "", "message": "no error is recorded"}
        self.job, self.job_id, self.kind = job, job.id, job.kind
        self.error_type, self.error_message = str(last["type"]), str(last["message"])
        why = redact(f"{self.error_type}: {self.error_message}")[:500]
        look, again = f"dead show {job.id} {_APP}", f"dead replay --id {job.id} {_APP}"
        super().__init__(
            f"Job {job.id} ({job.kind}) is dead after {job.attempts} of {job.max_attempts} attempts: {why}. "
            f"`holdfast {look}` has every attempt, and `holdfast {again}` runs it again."
        )


class JobCancelled(HoldfastError):
    """A job whose result was asked for was cancelled; `reason` is empty where that was done before it ran."""

    def __init__(self, job: JobView) -> None:
        last = job.last_error
        self.job, self.job_id, self.kind = job, job.id, job.kind
        ended_by = None if last is None else last["type"]
        self.reason = str(last["message"]) if last is not None and ended_by in ("Cancelled", "Expired") else ""
        why = f": {redact(self.reason)[:500]}" if self.reason else " before it ran"
        if ended_by == "Expired":
            super().__init__(f"Job {job.id} ({job.kind}) has not run{why}. Nothing begins after `expires`.")
            return
        super().__init__(
            f"Job {job.id} ({job.kind}) was cancelled{why}. `holdfast jobs show {job.id} {_APP}` says by whom."
        )


class WouldBlock(HoldfastError):
    """A sync call that waits was made on the thread of an event loop, which could do nothing else meanwhile."""

    def __init__(self, call: str, use: str) -> None:
        super().__init__(f"{call} would block this event loop, and every task on it. Use {use} instead.")


class ScheduleNotFound(HoldfastError):
    """No schedule has this name."""

    def __init__(self, name: str) -> None:
        known = f"`holdfast schedules list {_APP}` names those that there are"
        super().__init__(f"There is no schedule {shown(name)}: {known}.")
        self.schedule = name


class Conflict(HoldfastError):
    """An admin action does not apply in the job's present state."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class NotSupported(Conflict):
    """The tables do not do this at all, whatever the state of their rows."""

    def __init__(self, store: str, action: str, why: str) -> None:
        super().__init__(f"{store} {why}")
        self.store = store
        self.action = action


class TimedOut(HoldfastError, TimeoutError):
    """The attempt took longer than the handler's time-out."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"The attempt took longer than its time-out of {seconds:g} s.")


class Unusable(HoldfastError):
    """What the handler gave cannot be read."""

    def __init__(self, what: str, given: str, flaw: str) -> None:
        super().__init__(f"{what} ({given}) cannot be used: {flaw}")


class WorkerFailed(HoldfastError):
    """A part of the worker broke, which is a defect of Holdfast or of what it was given; the cause says what happened.

    The worker has stopped: what it held was given back, or is taken over when its leases run out.
    """

    def __init__(self, worker: str, part: str) -> None:
        super().__init__(
            f"The worker {worker} has stopped because a part of it failed: {part}. The cause is above. Start another "
            "worker, and report it if it repeats."
        )
        self.worker = worker
        self.part = part


class Fatal(Exception):
    """Raise in a handler to send the job to the dead letters at once, whatever attempts are left."""

    def __init__(self, reason: str = "", code: str | int | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.code = code
