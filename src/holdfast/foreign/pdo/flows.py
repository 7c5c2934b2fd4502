"""The PHP queue tables `jobs` and `jobs_failed`, shared to the byte with InitPHP Queue's PDO transport.

Safer than the contract asks, in ways its other programs do not notice: every write of a holder is fenced by the
reservation it wrote, reservations are renewed, a stale one counts as an attempt, a malformed body is kept.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Literal, NamedTuple
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from holdfast.errors import ConfigError, PayloadTooLarge
from holdfast.flow import Steps, ask, flow
from holdfast.foreign.pdo.dead_letter_format import Death, death_of, letter_text, malformed_text, rewritten, size
from holdfast.foreign.pdo.envelope import LONGEST_BODY_BYTES, Envelope, Malformed, new, read, write
from holdfast.foreign.tables import ForeignTables, Holding
from holdfast.life.source import Renewed, Settled, without_parks
from holdfast.values.options import text
from holdfast.values.retry import Duration, Retry, seconds, whole
from holdfast.values.rows import End, Finish, Lease, PutBack, when

Unknown = Literal["fail", "delete", "release", "dead_letter"]
UNKNOWN: tuple[Unknown, ...] = ("fail", "delete", "release", "dead_letter")

# A release without a delay would put the row back at the head of the queue and starve what is behind it.
UNKNOWN_DELAY_SECONDS = 60.0
# Rows one claim may lock, and how many it looks at: a transaction on somebody else's tables stays short.
CLAIM_ROWS = 100
CLAIM_PAGES = 16
# The INT column is only a copy for looking at; the payload has the number.
MOST_ATTEMPTS = 2**31 - 1
_FORMAT = "%Y-%m-%d %H:%M:%S"
_NOT_DIGITS = str.maketrans("", "", "-: ")


@dataclass(frozen=True)
class Backoff(Retry):
    """A list of delays, the last of which repeats."""

    delays: tuple[float, ...] = (0.0,)

    @classmethod
    def of(cls, max_attempts: int, delays: Sequence[Duration]) -> Backoff:
        if not delays:
            raise ConfigError("backoff", "must hold at least one delay", delays)
        return cls(max_attempts=max_attempts, delays=tuple(seconds(delay, "backoff") for delay in delays))

    def delay(self, attempt: int, random: object = None) -> float:
        return self.delays[min(max(attempt, 1), len(self.delays)) - 1]


@dataclass(frozen=True)
class PdoTables(ForeignTables):
    """Where the rows are and how the PHP side is set up; `retry_after` and `timezone` must be the same everywhere."""

    queue: str = "default"
    retry_after: int = 90
    timezone: str = "UTC"
    backoff: Backoff = field(default_factory=Backoff)
    unknown: Unknown = "fail"

    def __post_init__(self) -> None:
        text(self.queue, "queue", 255)
        # Times are whole seconds, cut: one that says 1 second ago may be a millisecond old.
        whole(self.retry_after, "retry_after", 2, 86_400 * 365)
        if self.unknown not in UNKNOWN:
            raise ConfigError("unknown", f"must be one of {', '.join(UNKNOWN)}", self.unknown)
        try:
            ZoneInfo(self.timezone)
        except (ZoneInfoNotFoundError, ValueError, OSError, TypeError) as error:
            raise ConfigError("timezone", "must be an IANA name such as Europe/Berlin", self.timezone) from error

    @property
    def lease_ms(self) -> int:
        """How long a reservation holds at least."""
        return (self.retry_after - 1) * 1000

    def stamp(self, moment: datetime) -> str:
        """Write a time as PHP does: whole seconds, in its own zone, cut and never rounded."""
        return moment.astimezone(ZoneInfo(self.timezone)).strftime(_FORMAT)

    def stale(self, now: datetime) -> str:
        """Write the time at or before which a reservation is stale.

        When clocks go back, the last `retry_after` seconds are in an hour that the clock shows again: a fresh
        reservation would look an hour old. The earlier of both readings makes an abandoned row wait, and no fresh one
        be taken.
        """
        wall = now.astimezone(ZoneInfo(self.timezone)).replace(tzinfo=None) - timedelta(seconds=self.retry_after)
        return min(self.stamp(now - timedelta(seconds=self.retry_after)), wall.strftime(_FORMAT))

    def moment(self, stamp: object) -> datetime | None:
        """Read such a time; None for what is not one."""
        try:
            return datetime.strptime(str(stamp)[:19], _FORMAT).replace(tzinfo=ZoneInfo(self.timezone))
        except ValueError:
            return None

    def now(self, alone: bool = False) -> Steps[datetime]:
        """Read the database's clock; `alone` where what follows needs no transaction with it."""
        [[stored]] = yield from ask("clock", alone=alone)
        return when(stored)


class Stored(NamedTuple):
    """A row of the jobs table: the columns of the `lock` query in their order."""

    id: int
    queue: str
    urn: str
    trace_id: str | None
    attempts: int
    payload: str
    available_at: Any
    reserved_at: Any
    created_at: Any

    @classmethod
    def of(cls, row: Sequence[Any]) -> Stored:
        return cls(*(decoded(value) for value in row))


def decoded(value: Any) -> Any:
    # What is not UTF-8 becomes visible as such, and is not JSON either: the message ends as a dead letter.
    return bytes(value).decode("utf-8", "replace") if isinstance(value, bytes | bytearray | memoryview) else value


def fence_of(stamp: str) -> int:
    """Write the time of a reservation as a number, which a fence is: 2026-05-01 12:30:00 becomes 20260501123000."""
    return int(stamp.translate(_NOT_DIGITS))


def stamp_of(fence: int) -> str:
    """Write a fence as the time that stands in the row."""
    digits = f"{fence:014d}"
    year, (month, day, hour, minute, second) = digits[:4], [digits[at : at + 2] for at in range(4, 14, 2)]
    return f"{year}-{month}-{day} {hour}:{minute}:{second}"


class Stamps:
    """The reservations that we wrote, for leases that were renewed.

    The only fence that the tables have is the time of the reservation, and each renewal changes it. A lease keeps the
    fence of its claim; this remembers what else it may be by now, also when the answer to a renewal was lost.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[str, int], list[str]] = {}

    def of(self, lease: Lease | End) -> list[str]:
        return [stamp_of(lease.fence), *self._known.get((str(lease.id), lease.fence), ())]

    def add(self, lease: Lease, stamp: str) -> None:
        # The last few are enough: only one renewal can be under way, or be repeated, at a time.
        key = (lease.job_id, lease.fence)
        self._known[key] = [*self._known.get(key, ()), stamp][-8:]

    def forget_before(self, stamp: str) -> None:
        """Forget leases whose last renewal is so old that nobody can hold them any more."""
        for key in [key for key, stamps in list(self._known.items()) if stamps[-1] < stamp]:
            self._known.pop(key, None)


@flow
def create_schema(tables: PdoTables) -> Steps[None]:
    """Make both tables if they are not there, as the PHP transport's createSchema() does.

    Commits: its own.
    """
    yield from tables.ask("create")


def message(tables: PdoTables, urn: str, data: Mapping[str, Any], queue: str | None, trace_id: str | None) -> Envelope:
    """Make a new message and check that it fits.

    Raises: ConfigError, InvalidPayload, PayloadTooLarge.
    """
    queue = text(queue or tables.queue, "queue", 255)
    if trace_id is not None:
        text(trace_id, "trace_id", 64)
    envelope = new(text(urn, "urn", 255), data, queue, trace_id)
    if size(envelope.text()) > LONGEST_BODY_BYTES:
        raise PayloadTooLarge(urn, size(envelope.text()), LONGEST_BODY_BYTES)
    return envelope


@flow
def publish(tables: PdoTables, envelope: Envelope, queue: str, delay: float = 0) -> Steps[int]:
    """Add a message that any program on these tables may take, and return the row's id.

    Commits: with the caller's transaction when one is given, else its own.
    After a crash: before commit nothing happened. When the answer to COMMIT was lost, running it again adds a second
    row with the same `meta.id`, by which consumers tell duplicates.
    """
    now = yield from tables.now()
    rows = yield from tables.ask(
        "publish",
        queue=queue,
        urn=envelope.urn[:255],
        trace_id=envelope.trace_id[:64],
        attempts=min(envelope.attempts, MOST_ATTEMPTS),
        payload=envelope.text(),
        available_at=tables.stamp(now + timedelta(seconds=delay)),
        created_at=tables.stamp(now),
    )
    return int(rows[0][0])


Takes = Mapping[str, Collection[str]]


@flow
def reserve(
    tables: PdoTables, queues: Sequence[str], takes: Takes, limit: int, busy: Collection[str] = ()
) -> Steps[list[Lease]]:
    """Reserve ready rows, oldest first; what no worker can use ends on the way as a dead letter.

    `takes` maps the urns to serve to the keys of the data that their handlers take; urns in `busy` are left alone.
    Commits: its own. After a crash: the rows become ready again when `retry_after` is over.
    """
    now = yield from tables.now()
    claim = _Claim(tables, takes, busy, now, tables.stamp(now), tables.stale(now))
    leases: list[Lease] = []
    most = min(limit, CLAIM_ROWS)
    for queue in queues:
        after: Any = 0
        for _ in range(CLAIM_PAGES):
            rows = yield from tables.ask(
                "pick", queue=queue, after=after, at=claim.at, stale=claim.stale, limit=CLAIM_ROWS
            )
            for row_id, urn in rows:
                if len(leases) >= most:
                    return leases
                if decoded(urn) not in busy:
                    leases += yield from claim.take(row_id)
            if len(rows) < CLAIM_ROWS:
                break
            after = rows[-1][0]
    return leases


@dataclass(frozen=True, slots=True)
class _Claim:
    tables: PdoTables
    takes: Takes
    busy: Collection[str]
    now: datetime
    at: str
    stale: str

    def take(self, row_id: int) -> Steps[list[Lease]]:
        """Lock a row and decide what becomes of it; a list of one lease, or of none."""
        tables = self.tables
        rows = yield from tables.ask("lock", id=row_id, at=self.at, stale=self.stale)
        if not rows:
            return []
        row = Stored.of(rows[0])
        try:
            envelope = read(row.payload)
        except Malformed as flaw:
            yield from _fail_malformed(tables, row, flaw, self.now)
            return []
        if envelope.urn in self.busy:
            return []
        if row.reserved_at is not None:
            # Its worker is gone: that was an attempt, else a job that kills its worker would never end.
            envelope = envelope.with_attempts(envelope.attempts + 1)
            if envelope.attempts >= tables.backoff.max_attempts:
                yield from _fail(tables, row, envelope, Death("failed", _GONE, "LeaseExpired"), self.now)
                return []
        if envelope.urn not in self.takes:
            yield from self._unknown(row, envelope)
            return []
        if row.reserved_at is None:
            yield from tables.ask("stamp", id=row.id, at=self.at)
        elif not (yield from self._recount(row, envelope)):
            return []
        return [self._lease(row, envelope)]

    def _recount(self, row: Stored, envelope: Envelope) -> Steps[bool]:
        payload = rewritten(envelope, row.payload)
        if payload is None:
            yield from _fail(self.tables, row, envelope, Death("failed", _GONE, "LeaseExpired"), self.now)
            return False
        attempts = min(envelope.attempts, MOST_ATTEMPTS)
        yield from self.tables.ask("recount", id=row.id, at=self.at, attempts=attempts, payload=payload)
        return True

    def _unknown(self, row: Stored, envelope: Envelope) -> Steps[None]:
        tables, policy = self.tables, self.tables.backoff
        failed = envelope.with_attempts(envelope.attempts + 1)
        if tables.unknown == "delete":
            yield from tables.ask("ack", id=row.id)
        elif tables.unknown == "release":
            yield from _release(tables, row, envelope, self.now, UNKNOWN_DELAY_SECONDS)
        elif tables.unknown == "fail" and failed.attempts < policy.max_attempts:
            delay = policy.delay(failed.attempts) or UNKNOWN_DELAY_SECONDS
            yield from _release(tables, row, failed, self.now, delay)
        else:
            dying = envelope if tables.unknown == "dead_letter" else failed
            why = Death("unknown_urn", f"No handler is registered for {envelope.urn}.", "UnknownUrn")
            yield from _fail(tables, row, dying, why, self.now)

    def _lease(self, row: Stored, envelope: Envelope) -> Lease:
        meta, takes = envelope.meta, self.takes[envelope.urn]
        headers = {"trace_id": envelope.trace_id}
        headers |= {"message_id": str(meta.get("id", "")), "lang": str(meta.get("lang", ""))}
        return Lease(
            id=row.id,
            queue=row.queue,
            kind=envelope.urn,
            # Producers of other languages add keys on their own time: what the handler does not take is not an error.
            payload=write({name: value for name, value in envelope.data.items() if name in takes}),
            headers=write(headers),
            key=None,
            priority=0,
            attempt=envelope.attempts + 1,
            max_attempts=self.tables.backoff.max_attempts,
            fence=fence_of(self.at),
            lease_ms=self.tables.lease_ms,
            available_at=self.tables.moment(row.available_at) or self.now,
            created_at=self.tables.moment(row.created_at) or self.now,
        )


_GONE = "The worker that had reserved it did not come back."


def _release(tables: PdoTables, row: Stored, envelope: Envelope, now: datetime, delay: float) -> Steps[None]:
    payload = rewritten(envelope, row.payload)
    if payload is None:
        why = Death("failed", "The message has no room left for its attempts.", "PayloadTooLarge")
        yield from _fail(tables, row, envelope, why, now)
        return
    # Not before the next second: a reservation written in this one would carry the stamp of the last holder.
    fence = tables.moment(row.reserved_at) if row.reserved_at is not None else None
    ready = max(
        tables.stamp(now + timedelta(seconds=delay)), tables.stamp(fence + timedelta(seconds=1)) if fence else ""
    )
    attempts = min(envelope.attempts, MOST_ATTEMPTS)
    yield from tables.ask("release", id=row.id, payload=payload, attempts=attempts, available_at=ready)


def _fail(tables: PdoTables, row: Stored, envelope: Envelope, why: Death, now: datetime) -> Steps[None]:
    payload = letter_text(envelope, why, row.queue, _ms(now), row.payload)
    yield from tables.ask(
        "fail",
        queue=row.queue[:255],
        urn=envelope.urn[:255],
        trace_id=envelope.trace_id[:64],
        attempts=min(envelope.attempts, MOST_ATTEMPTS),
        payload=payload,
        reason=why.reason[:64],
        failed_at=tables.stamp(now),
        created_at=_told(tables, row.created_at, now),
    )
    yield from tables.ask("ack", id=row.id)


def _fail_malformed(tables: PdoTables, row: Stored, flaw: Malformed, now: datetime) -> Steps[None]:
    """Send a body that is not an envelope to the failed table: attempts unchanged, the text under `dead_letter.raw`."""
    yield from tables.ask(
        "fail",
        queue=row.queue[:255],
        urn=row.urn[:255],
        trace_id=row.trace_id,
        attempts=row.attempts,
        payload=malformed_text(row.payload, flaw, row.queue, row.attempts, _ms(now)),
        reason="poison",
        failed_at=tables.stamp(now),
        created_at=_told(tables, row.created_at, now),
    )
    yield from tables.ask("ack", id=row.id)


def _told(tables: PdoTables, stamp: object, now: datetime) -> str:
    return tables.stamp(tables.moment(stamp) or now)


def _ms(now: datetime) -> int:
    return int(now.timestamp() * 1000)


class _Holding(Holding[Stored, datetime]):
    """Rows that a worker has reserved; `stamps` knows by which times."""

    tables: PdoTables

    def __init__(self, tables: PdoTables, stamps: Stamps) -> None:
        super().__init__(tables)
        self._stamps = stamps

    def read(self, row: Sequence[Any]) -> Stored:
        return Stored.of(row)

    def is_ours(self, row: Stored, lease: Lease | End) -> bool:
        return row.reserved_at is not None and str(row.reserved_at) in self._stamps.of(lease)

    def is_free(self, row: Stored) -> bool:
        return row.reserved_at is None

    def put_off(self, lease: Lease, now: datetime) -> Steps[None]:
        at = self.tables.stamp(now)
        # Known before it is written: an outcome may be settled before the answer to this comes back.
        self._stamps.add(lease, at)
        yield from self.tables.ask("stamp", id=lease.id, at=at)

    def end(self, row: Stored, end: Finish | PutBack, now: datetime) -> Steps[None]:
        yield from _end(self.tables, row, end, now)


@flow
def renew(tables: PdoTables, leases: Sequence[Lease], stamps: Stamps) -> Steps[Renewed]:
    """Write the times of reservations again, so that they do not go stale while their handlers run.

    Commits: its own. After a crash: they go stale `retry_after` after the last renewal.
    """
    now = yield from tables.now()
    stamps.forget_before(tables.stamp(now - timedelta(days=1)))
    return (yield from _Holding(tables, stamps).renew(leases, now))


@flow
def settle(tables: PdoTables, ends: Sequence[End], stamps: Stamps) -> Steps[Settled]:
    """Acknowledge, fail or release reserved rows; a row whose reservation is no longer ours is left alone.

    Commits: its own. Raises: Conflict for a park.
    Safe to repeat: a row that is gone, or released, was settled by a try whose answer was lost.
    After a crash: before commit the rows stay reserved and become ready again later.
    """
    writes = without_parks(ends, "The tables of PHP queues")
    now = yield from tables.now()
    return (yield from _Holding(tables, stamps).settle(writes, now))


def _end(tables: PdoTables, row: Stored, end: Finish | PutBack, now: datetime) -> Steps[None]:
    envelope = read(row.payload)
    if isinstance(end, PutBack):
        attempts = envelope.attempts + 1 - end.attempts_back
        yield from _release(tables, row, envelope.with_attempts(attempts), now, (end.delay_ms or 0) / 1000)
    elif end.outcome == "dead":
        yield from _fail(tables, row, envelope.with_attempts(envelope.attempts + 1), death_of(end.error), now)
    else:
        yield from tables.ask("ack", id=row.id)


@flow
def complete(tables: PdoTables, lease: Lease, stamps: Stamps) -> Steps[None]:
    """Acknowledge one message inside a transaction that also holds its effect.

    Commits: with the caller's transaction. Raises: LeaseLost, also for a row that is gone: the effect would be
    committed a second time.
    """
    yield from _Holding(tables, stamps).held(lease)
    yield from tables.ask("ack", id=lease.id)
