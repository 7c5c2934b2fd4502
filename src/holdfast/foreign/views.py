"""What people see of foreign tables: counts, rows and dead letters. Of all here only `make_due` writes."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

from holdfast.admin import Asked
from holdfast.errors import ConfigError, Conflict, JobNotFound
from holdfast.flow import Flow, Steps, flow
from holdfast.foreign.durable.flows import DurableTables, Task
from holdfast.foreign.pdo.dead import Failed
from holdfast.foreign.pdo.envelope import Malformed, read
from holdfast.foreign.pdo.flows import PdoTables, Stored, decoded
from holdfast.values.failure import fingerprint
from holdfast.values.rows import Outcome, State
from holdfast.values.views import JobView, plain

# What the tables hold more of than this is listed by its first so many.
LONGEST_LIST = 10_000
LARGEST_ID = 2**63 - 1


@dataclass(frozen=True, slots=True)
class ForeignCount:
    """How many rows a foreign queue holds; `oldest_seconds` is how long the first ready one has waited.

    ready: may be claimed. waiting: delayed. leased: held by a worker of any language. stale: its holder is silent for
    longer than the lease. dead: dead letters. unread: results that no engine has taken.
    """

    source: str
    queue: str
    ready: int = 0
    waiting: int = 0
    leased: int = 0
    stale: int = 0
    dead: int = 0
    unread: int = 0
    oldest_seconds: float | None = None

    def to_dict(self) -> dict[str, Any]:
        return plain(self)


@dataclass(frozen=True)
class Wanted(Asked):
    """Which rows are meant, as `admin.Filter` says it of our own; what a store does not keep is refused, by name.

    `ids` are what the store has for ids. `worker` and `error` are parts: of who holds a row, of "type: message".
    """

    def given(self, store: str, known: Collection[str]) -> dict[str, Any]:
        """Return what is asked for. Raises: ConfigError for what the store does not keep."""
        said = {each.name: getattr(self, each.name) for each in fields(self)}
        said = {name: value for name, value in said.items() if value not in (None, ())}
        for name in said.keys() - set(known):
            raise ConfigError(name, f"{store} keeps no such thing here; leave it out", said[name])
        return said

    def fits(self, job: JobView) -> bool:
        """Ask of a row what its table cannot be asked."""
        error = job.last_error or {}
        words = f"{error.get('type')}: {error.get('message')}".lower()
        return (
            (self.group is None or job.group == self.group)
            and (self.worker is None or self.worker in (job.leased_by or ""))
            and (self.error is None or self.error.lower() in words)
        )


ANY = Wanted()
After = str | JobView | None
_ASKED = ("queue", "kind", "ids", "states", "created_after", "created_before")
_ASKED_OF_LETTERS = ("queue", "kind", "ids", "finished_after", "finished_before", "group", "error")


class Shown(Protocol):
    """What both kinds of source have for these views."""

    @property
    def name(self) -> str: ...
    @property
    def tables(self) -> PdoTables | DurableTables: ...


def overview(source: Shown) -> Flow[list[ForeignCount]]:
    """Count the rows of each queue of a source."""
    tables = source.tables
    return _pdo_counts(source.name, tables) if isinstance(tables, PdoTables) else _task_counts(source.name, tables)


def list_rows(
    source: Shown, wanted: Wanted = ANY, *, limit: int = 50, after: After = None, newest: bool = False
) -> Flow[list[JobView]]:
    """Read rows that wait or run, by age; `after` is the last row of the page before, or its id.

    What `Wanted.fits` asks is left to the caller, who so knows whether there is a next page.
    """
    tables = source.tables
    if isinstance(tables, PdoTables):
        given = _pdo_params(tables, wanted.given(source.name, _ASKED))
        return _pdo_rows(tables, given | _page(tables, limit, after, newest))
    given = _task_params(wanted.given(source.name, (*_ASKED, "key", "worker")))
    return _task_rows(tables, given | {"limit": min(limit, LONGEST_LIST)}, after, newest)


def list_failed(
    source: Shown, wanted: Wanted = ANY, *, limit: int = 50, after: After = None, newest: bool = False
) -> Flow[list[JobView]]:
    """Read dead letters, as `list_rows`; there are none where an engine keeps its own."""
    tables = source.tables
    if isinstance(tables, DurableTables):
        return _failed_rows(tables, {})
    given = _pdo_params(tables, wanted.given(source.name, _ASKED_OF_LETTERS))
    return _failed_rows(tables, given | _page(tables, limit, after, newest))


def _pdo_params(tables: PdoTables, said: dict[str, Any]) -> dict[str, Any]:
    given = {name: tables.stamp(value) if isinstance(value, datetime) else value for name, value in said.items()}
    if "ids" in given:
        given["row_ids"] = [row_number(tables, row_id) for row_id in given.pop("ids")]
    return _stated(given)


def _task_params(said: dict[str, Any]) -> dict[str, Any]:
    given: dict[str, Any] = {name: _ms(v) if isinstance(v, datetime) else v for name, v in said.items()}
    if "ids" in given:
        given["row_ids"] = list(given.pop("ids"))
    return _stated(given)


def _stated(given: dict[str, Any]) -> dict[str, Any]:
    """Say a state as a line of the query; both of them are all rows."""
    states = set(given.pop("states", ()))
    return given | {state: True for state in states if len(states) == 1}


def _page(tables: PdoTables, limit: int, after: After, newest: bool) -> dict[str, Any]:
    page: dict[str, Any] = {"limit": min(limit, LONGEST_LIST)} | ({"newest": True} if newest else {})
    if after is not None:
        last = after.id if isinstance(after, JobView) else after
        page["older_than" if newest else "newer_than"] = row_number(tables, last)
    return page


def row_number(tables: PdoTables, row_id: str) -> int:
    """Read an id that somebody typed. Raises: ConfigError."""
    if not row_id.isascii() or not row_id.isdigit() or int(row_id) > LARGEST_ID:
        raise ConfigError("id", f"rows of {tables.queries.under} have whole numbers for ids", row_id)
    return int(row_id)


@flow
def check(source: Shown) -> Steps[None]:
    """Make sure that the tables are there.

    Raises: ForeignTablesMissing.
    """
    yield from source.tables.queries.check()


@flow
def missing(source: Shown) -> Steps[list[str]]:
    """Name the tables that are not there."""
    return (yield from source.tables.queries.missing())


@flow
def make_due(source: Shown, row_id: str) -> Steps[None]:
    """Let a row be claimed that waits for its time.

    Commits: its own. Raises: JobNotFound; Conflict for a row that somebody holds. After a crash: safe to repeat.
    """
    rows = yield from list_rows(source, Wanted(ids=(row_id,)), limit=1)
    if not rows:
        raise JobNotFound(row_id)
    if rows[0].state == "leased":
        raise Conflict(f"Row {row_id} of {source.name} is held by a worker: it is free again when its lease ends.")
    tables = source.tables
    if isinstance(tables, PdoTables):
        # Not in this second: a reservation of the last holder may carry its stamp.
        at = tables.stamp((yield from tables.now()) + timedelta(seconds=1))
        yield from tables.ask("due", id=row_number(tables, row_id), at=at)
    else:
        yield from tables.ask("due", id=row_id)


@flow
def _pdo_counts(name: str, tables: PdoTables) -> Steps[list[ForeignCount]]:
    now = yield from tables.now()
    rows = yield from tables.ask("counts", at=tables.stamp(now), stale=tables.stale(now))
    dead = {decoded(queue): int(count) for queue, count in (yield from tables.ask("failed_counts"))}
    counts = {}
    for queue, ready, waiting, reserved, stale, oldest in rows:
        since = tables.moment(oldest)
        seconds = None if since is None else max(0.0, (now - since).total_seconds())
        counts[decoded(queue)] = ForeignCount(
            name,
            decoded(queue),
            ready=int(ready),
            waiting=int(waiting),
            leased=int(reserved),
            stale=int(stale),
            dead=dead.pop(decoded(queue), 0),
            oldest_seconds=seconds,
        )
    counts |= {queue: ForeignCount(name, queue, dead=count) for queue, count in dead.items()}
    return [counts[queue] for queue in sorted(counts)]


@flow
def _task_counts(name: str, tables: DurableTables) -> Steps[list[ForeignCount]]:
    now = yield from tables.now()
    rows = yield from tables.ask("counts", stale=now - tables.lease_ms)
    counts = []
    for grp, free, put_off, held, stale, oldest in rows:
        seconds = None if oldest is None else max(0, now - int(oldest)) / 1000
        counts.append(ForeignCount(name, grp, int(free), int(put_off), int(held), int(stale), oldest_seconds=seconds))
    [[unread, oldest]] = yield from tables.ask("unread")
    if unread:
        waiting = max(0, now - int(oldest)) / 1000
        counts.append(ForeignCount(name, "(results)", unread=int(unread), oldest_seconds=waiting))
    return counts


@flow
def _pdo_rows(tables: PdoTables, given: dict[str, Any]) -> Steps[list[JobView]]:
    now = yield from tables.now()
    rows = yield from tables.ask("rows", **given)
    return [_pdo_view(tables, Stored.of(row), now) for row in rows]


def _pdo_view(tables: PdoTables, row: Stored, now: datetime) -> JobView:
    leased_at = None if row.reserved_at is None else tables.moment(row.reserved_at)
    return _view(
        str(row.id),
        "pending" if row.reserved_at is None else "leased",
        queue=row.queue,
        kind=row.urn,
        attempts=row.attempts + (row.reserved_at is not None),
        max_attempts=tables.backoff.max_attempts,
        payload=row.payload,
        headers={"trace_id": row.trace_id} if row.trace_id else None,
        available_at=tables.moment(row.available_at) or now,
        created_at=tables.moment(row.created_at) or now,
        leased_at=leased_at,
        lease_expires_at=None if leased_at is None else leased_at + timedelta(seconds=tables.retry_after),
    )


@flow
def _failed_rows(tables: PdoTables | DurableTables, given: dict[str, Any]) -> Steps[list[JobView]]:
    if isinstance(tables, DurableTables):
        return []
    now = yield from tables.now()
    rows = yield from tables.ask("failed", **given)
    return [_failed_view(tables, Failed.of(row), now) for row in rows]


def _failed_view(tables: PdoTables, row: Failed, now: datetime) -> JobView:
    failed_at = tables.moment(row.failed_at) or now
    letter = _letter(row.payload)
    error: dict[str, Any] = {
        "attempt": row.attempts,
        "type": str(letter.get("exception") or row.reason),
        "message": str(letter.get("error") or ""),
        "reason": row.reason,
        "failed_at": failed_at.astimezone(UTC).isoformat(),
    }
    return _view(
        str(row.id),
        "dead",
        queue=row.queue,
        kind=row.urn,
        attempts=row.attempts,
        max_attempts=tables.backoff.max_attempts,
        payload=row.payload,
        headers={"trace_id": row.trace_id} if row.trace_id else None,
        errors=[error],
        group=fingerprint(error["type"], error["message"]),
        available_at=tables.moment(row.created_at) or now,
        created_at=tables.moment(row.created_at) or now,
        finished_at=failed_at,
    )


def _letter(payload: str) -> Mapping[str, Any]:
    try:
        body = read(payload).body
    except Malformed as flaw:
        body = flaw.body or {}
    letter = body.get("dead_letter")
    return letter if isinstance(letter, dict) else {}


@flow
def _task_rows(tables: DurableTables, given: dict[str, Any], after: After, newest: bool) -> Steps[list[JobView]]:
    page: dict[str, Any] = {"newest": True} if newest else {}
    if isinstance(after, str):
        # Ids say nothing of age, so that of the row is needed too.
        found = yield from tables.ask("rows", row_ids=[after], limit=1)
        if not found:
            raise Conflict(f"Task {after} is gone, so what comes after it cannot be told. Begin at the first page.")
        after = _task_view(tables, Task(*found[0]))
    if after is not None:
        page |= {"after_at": _ms(after.created_at), "older_than" if newest else "newer_than": after.id}
    rows = yield from tables.ask("rows", **given, **page)
    return [_task_view(tables, Task(*row)) for row in rows]


def _task_view(tables: DurableTables, task: Task) -> JobView:
    claimed_at = None if task.claimed_at is None or task.claimed_by is None else _moment(task.claimed_at)
    return _view(
        task.step_id,
        "pending" if claimed_at is None else "leased",
        queue=task.grp,
        kind=task.name,
        attempts=task.attempt,
        max_attempts=task.attempt,
        payload="null" if task.input is None else task.input,
        key=task.run_id,
        available_at=_moment(task.created_at),
        created_at=_moment(task.created_at),
        leased_at=claimed_at,
        lease_expires_at=None if claimed_at is None else claimed_at + timedelta(milliseconds=tables.lease_ms),
        leased_by=task.claimed_by,
    )


def _ms(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)


def _moment(ms: int) -> datetime:
    return datetime.fromtimestamp(int(ms) / 1000, UTC)


_VIEW: dict[str, Any] = {
    "priority": 0,
    "fence": 0,
    "key": None,
    "unique": None,
    "headers": None,
    "progress": None,
    "result": None,
    "errors": [],
    "leased_at": None,
    "lease_expires_at": None,
    "leased_by": None,
    "finished_at": None,
    "group": None,
    "replays": 0,
    "cancel_requested": False,
}


def _view(row_id: str, state: State | Outcome, **fields: Any) -> JobView:
    return JobView(**(_VIEW | {"errors": []} | fields | {"id": row_id, "state": state}))


__all__ = [
    "ANY",
    "ForeignCount",
    "Shown",
    "Wanted",
    "check",
    "list_failed",
    "list_rows",
    "make_due",
    "missing",
    "overview",
]
