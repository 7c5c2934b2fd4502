"""Airlock's outbox table, drained beside Airlock's own relay: neither takes what the other holds.

Safer than the contract asks, in ways that the other relay does not notice: a claim is told from every other one, also
of the same worker (`last_attempt_at`), leases are renewed, a worker that dies counts as a failed attempt, what a claim
may not take is not leased at all, and a payload that cannot be read is a dead letter at once.
"""

from __future__ import annotations

import random as _random
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from holdfast.errors import LeaseLost, SchemaMismatch
from holdfast.flow import Steps, flow
from holdfast.foreign.airlock.messages import (
    ANY_TYPE,
    HOLDER,
    Taken,
    Takes,
    Unreadable,
    holder,
    lease_of,
    micros,
    reason_of,
)
from holdfast.foreign.tables import ForeignTables
from holdfast.life.source import Renewed, Settled, without_parks
from holdfast.values.retry import Retry, whole
from holdfast.values.rows import End, Finish, Lease, PutBack

# The version that Airlock 0.2 writes into its table of meta data, and asks for at its start.
SCHEMA_VERSION = "0"
# What we read and write. Not `payload_size`: one of Airlock's adapters calls it otherwise, and we measure.
COLUMNS = (
    "id",
    "aggregate_type",
    "aggregate_id",
    "event_type",
    "partition_key",
    "payload",
    "idempotency_key",
    "status",
    "retry_count",
    "next_retry_at",
    "locked_by",
    "locked_until",
    "error_reason",
    "created_at",
    "first_attempt_at",
    "last_attempt_at",
    "processed_at",
)
# Rows one claim may lock. Each claim and each settling waits for a commit: with 500 rows, 2,600 messages a second were
# drained where 100 made it 1,100 (two busy cores).
CLAIM_ROWS = 500
# How often a claim looks again after rows that became dead letters.
CLAIM_PAGES = 16
_GONE = "LeaseExpired: The worker that held it did not come back."


@dataclass(frozen=True)
class FullJitter(Retry):
    """Any delay up to the planned one, as Airlock's relay waits."""

    jitter: float = 0.0

    def delay(self, attempt: int, random: Callable[[], float] = _random.random) -> float:
        return random() * super().delay(attempt)


@dataclass(frozen=True)
class AirlockTables(ForeignTables):
    """Where the messages are, and how our relay is set up: the other one need not have the same settings."""

    lease_ms: int = 30_000
    retry: Retry = field(default_factory=FullJitter)
    max_batch_bytes: int = 10 * 1024 * 1024

    def __post_init__(self) -> None:
        whole(self.max_batch_bytes, "max_batch_bytes", 1_024, 2**31 - 1)

    @property
    def table(self) -> str:
        return self.queries.tables[0]


@flow
def create_schema(tables: AirlockTables) -> Steps[None]:
    """Make both tables if they are not there, as Airlock's own migration makes them.

    Commits: its own.
    """
    yield from tables.ask("create")


@flow
def check(tables: AirlockTables) -> Steps[None]:
    """Make sure that the tables are there, and of the version that we know.

    Raises: ForeignTablesMissing, SchemaMismatch.
    """
    yield from tables.queries.check()
    differing = yield from difference(tables)
    if differing is not None:
        why = f"{tables.queries.under}: {differing.seen}. What to do: {differing.do}"
        raise SchemaMismatch(differing.found, int(SCHEMA_VERSION), why)


class Difference(NamedTuple):
    """In what tables differ from those that we know, what to do, and the version that they say: -1 for none."""

    seen: str
    do: str
    found: int


def difference(tables: AirlockTables) -> Steps[Difference | None]:
    """Tell in what tables that are there differ from those we know; None where they do not."""
    table, meta = tables.queries.tables
    there = {name for [name] in (yield from tables.ask("columns", table=table))}
    if absent := [name for name in COLUMNS if name not in there]:
        do = f"add them as `holdfast migrate sql --store {tables.queries.under}` has them"
        return Difference(f"{table} has no column {' and no '.join(absent)}", do, -1)
    found = [value for [value] in (yield from tables.ask("version"))]
    if not found:
        do = f"`holdfast migrate apply --store {tables.queries.under}` writes it, as Airlock's own migration does"
        return Difference(f"{meta} has no schema_version", do, -1)
    if found != [SCHEMA_VERSION]:
        seen = f"{meta} says schema_version {found[0]}, and this Holdfast knows {SCHEMA_VERSION}"
        do = f"upgrade holdfast, or go back to an Airlock whose schema_version is {SCHEMA_VERSION}"
        return Difference(seen, do, int(found[0]) if found[0].isdecimal() else -1)
    return None


# Claims


class Picked(NamedTuple):
    """A locked row that is due: the columns of the `pick` query in their order."""

    id: str
    bytes: int
    locked_by: str | None
    retry_count: int


@flow
def claim(
    tables: AirlockTables, takes: Mapping[str, Takes], limit: int, worker: str, busy: Collection[str] = ()
) -> Steps[list[Lease]]:
    """Lease due messages of these types in the order of `next_retry_at`; types in `busy` are left alone.

    With `*` in `takes`, every type that is neither there nor in `busy`. Rows beyond `max_batch_bytes` are not leased;
    what no relay can use becomes a dead letter on the way.
    Commits: its own. After a crash: the rows are free again when the lease is over.
    """
    if not takes:
        return []
    claiming = _Claim(tables, takes, worker)
    named = sorted(set(takes) - {ANY_TYPE})
    asked = {"others": sorted(set(busy) - {ANY_TYPE})} if ANY_TYPE in takes else {"types": named}
    most = min(limit, CLAIM_ROWS)
    yield from tables.ask("walk")
    for _ in range(CLAIM_PAGES):
        room = most - len(claiming.leases)
        rows = yield from tables.ask("pick", limit=room, **asked)
        yield from claiming.page([Picked(*row) for row in rows])
        if claiming.is_full or len(rows) < room or len(claiming.leases) >= most:
            break
    return claiming.leases


class _Claim:
    def __init__(self, tables: AirlockTables, takes: Mapping[str, Takes], worker: str) -> None:
        self.tables = tables
        self.takes = takes
        self.worker = worker
        self.leases: list[Lease] = []
        self.is_full = False
        self._bytes = 0

    def page(self, rows: Sequence[Picked]) -> Steps[None]:
        """Lease those of the locked rows that fit, and make dead letters of what nobody can use."""
        letters: dict[str, str] = {}
        wanted: list[str] = []
        for row in rows:
            if flaw := self._flaw(row):
                letters[row.id] = flaw
            elif self._bytes + row.bytes > self.tables.max_batch_bytes:
                # Not leased, so that any relay may have it as soon as this commits.
                self.is_full = True
                break
            else:
                self._bytes += row.bytes
                wanted.append(row.id)
        for taken in (yield from self._take(wanted)):
            try:
                lease = lease_of(taken, self.takes, self.tables.retry.max_attempts, self.tables.lease_ms)
                self.leases.append(lease)
            except Unreadable as flaw:
                letters[taken.id] = f"Unreadable: {flaw}"
        yield from bury(self.tables, letters)

    def _flaw(self, row: Picked) -> str | None:
        most = self.tables.max_batch_bytes
        if row.bytes > most:
            return f"PayloadTooLarge: The payload has {row.bytes:,} bytes, and max_batch_bytes is {most:,}."
        lost = (row.locked_by or "").startswith(HOLDER)
        return _GONE if lost and row.retry_count + 1 >= self.tables.retry.max_attempts else None

    def _take(self, ids: list[str]) -> Steps[list[Taken]]:
        if not ids:
            return []
        lease_ms = self.tables.lease_ms
        rows = yield from self.tables.ask("take", ids=ids, holder=holder(self.worker), lease_ms=lease_ms)
        place = {row_id: n for n, row_id in enumerate(ids)}
        return sorted((Taken(*row) for row in rows), key=lambda row: place[row.id])


def bury(tables: AirlockTables, letters: Mapping[str, str]) -> Steps[None]:
    """Make dead letters of locked rows, each with its reason."""
    if letters:
        yield from tables.ask("bury", ids=list(letters), reasons=list(letters.values()))


# What a holder writes


class Held(NamedTuple):
    """A locked row: the columns of the `held` query in their order."""

    id: str
    status: str
    locked_by: str | None
    last_attempt_at: Any

    def is_of(self, lease: Lease | End) -> bool:
        """Tell whether no claim has come after that of this lease."""
        return micros(self.last_attempt_at) == lease.fence

    def is_held(self, lease: Lease | End, worker: str) -> bool:
        """Tell whether the row still shows the claim of this lease."""
        return self.is_of(lease) and self.status == "IN_FLIGHT" and self.locked_by == holder(worker)

    def is_written(self, end: Finish | PutBack) -> bool:
        """Tell whether an earlier try wrote this end, and nobody has claimed the row since."""
        expected = "PENDING" if isinstance(end, PutBack) else _STATUS[end.outcome]
        return self.is_of(end) and self.locked_by is None and self.status == expected


_STATUS = {"done": "PROCESSED", "cancelled": "PROCESSED", "dead": "FAILED"}


def _locked(tables: AirlockTables, ids: Iterable[Any]) -> Steps[dict[str, Held]]:
    rows = yield from tables.ask("held", ids=[str(row_id) for row_id in ids])
    return {row[0]: Held(*row) for row in rows}


@flow
def renew(tables: AirlockTables, leases: Sequence[Lease], worker: str) -> Steps[Renewed]:
    """Put the end of leases off that are still ours, so that no relay takes the messages while they are handled.

    Commits: its own. After a crash: the rows are free again a lease after the last renewal.
    """
    rows = yield from _locked(tables, (lease.id for lease in leases))
    kept = {lease.job_id for lease in leases if lease.job_id in rows and rows[lease.job_id].is_held(lease, worker)}
    if kept:
        yield from tables.ask("renew", ids=sorted(kept), lease_ms=tables.lease_ms)
    return Renewed(kept, set())


@flow
def settle(tables: AirlockTables, ends: Sequence[End], worker: str) -> Steps[Settled]:
    """Write how leases ended, all of a kind in one statement; a row that is no longer ours is left alone.

    Commits: its own. Raises: Conflict for a park.
    Safe to repeat: a row with this end that nobody has claimed since was settled by a try whose answer was lost.
    After a crash: before commit the rows stay leased and are free again later.
    """
    writes = without_parks(ends, "The tables of Airlock")
    settled, ours = Settled(), []
    rows = yield from _locked(tables, (end.id for end in writes))
    for end in writes:
        row = rows.get(str(end.id))
        if row is not None and row.is_held(end, worker):
            ours.append(end)
        elif row is None or not row.is_written(end):
            settled.lost.add(str(end.id))
            continue
        settled.done.add(str(end.id))
    yield from _write(tables, ours)
    return settled


def _write(tables: AirlockTables, ends: Sequence[Finish | PutBack]) -> Steps[None]:
    backs = [end for end in ends if isinstance(end, PutBack)]
    letters = {
        end.id: reason_of(end.error) or "dead" for end in ends if isinstance(end, Finish) and end.outcome == "dead"
    }
    done = [end for end in ends if isinstance(end, Finish) and end.outcome != "dead"]
    if done:
        # A message that its handler no longer wanted is told from one that was delivered by its reason.
        reasons = [reason_of(end.error) if end.outcome == "cancelled" else None for end in done]
        yield from tables.ask("processed", ids=[end.id for end in done], reasons=reasons)
    if backs:
        yield from tables.ask(
            "put_back",
            ids=[end.id for end in backs],
            failures=[1 - end.attempts_back for end in backs],
            delays=[end.delay_ms for end in backs],
            reasons=[reason_of(end.error) for end in backs],
        )
    yield from bury(tables, letters)


@flow
def complete(tables: AirlockTables, lease: Lease, worker: str) -> Steps[None]:
    """Write that one message is done, inside a transaction that also holds its effect.

    Commits: with the caller's transaction. Raises: LeaseLost, also for a row that is gone or done: the effect would be
    committed a second time.
    """
    rows = yield from _locked(tables, [lease.id])
    if lease.job_id not in rows or not rows[lease.job_id].is_held(lease, worker):
        raise LeaseLost(lease.job_id, lease.fence)
    yield from tables.ask("processed", ids=[lease.job_id], reasons=[None])


@flow
def release_strays(tables: AirlockTables, known: Sequence[Lease], worker: str) -> Steps[int]:
    """Give back rows that a lost reply to a claim left leased to a worker that never heard of them.

    Commits: its own. After a crash: they are free again when their lease is over, and count as failed once.
    """
    rows = yield from tables.ask("strays", holder=holder(worker), known=[lease.job_id for lease in known])
    ids = [row_id for [row_id] in rows]
    if ids:
        none = [None] * len(ids)
        yield from tables.ask("put_back", ids=ids, failures=[0] * len(ids), delays=none, reasons=none)
    return len(ids)
