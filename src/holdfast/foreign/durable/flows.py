"""Remote steps over two tables shared with a durable engine in another language: the worker's side.

Safer than the other workers on these tables, in ways the engine does not notice: claims are renewed while a step runs,
the result and the end of the task are one commit, both are guarded by the claim that this worker wrote, a step that
kills its workers fails in the end, and no attempt starts before the result of the one before it is gone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from holdfast.flow import Steps, ask, flow
from holdfast.foreign.tables import ForeignTables, Holding
from holdfast.life.source import Renewed, Settled, without_parks
from holdfast.remote import group_of
from holdfast.values.options import storable
from holdfast.values.retry import whole
from holdfast.values.rows import End, Finish, Lease, PutBack, when

# Rows one claim may lock, and how many it looks at.
CLAIM_ROWS = 100
_BEYOND_ASCII = re.compile(r"[^\x00-\x7f]+")
_HOLDER = re.compile(r"/(\d+)/(\d+)$")


@dataclass(frozen=True)
class DurableTables(ForeignTables):
    """Where the tasks and results are, and how long a claim holds without renewal."""

    partition: str | None = None
    lease_ms: int = 30_000
    # How many workers may vanish with one attempt of a step before that attempt fails.
    max_losses: int = 3

    def __post_init__(self) -> None:
        whole(self.lease_ms, "lease", 1_000, 86_400_000)
        whole(self.max_losses, "max_losses", 1, 1_000_000)
        if self.partition is not None:
            storable(self.partition, "partition")

    def group(self, step: str) -> str:
        """Return the queue token of a step: colons become dashes, a partition is added behind @."""
        return group_of(step, self.partition)

    def now(self, *, look: bool = False) -> Steps[int]:
        """Read the database's clock in milliseconds."""
        [[stored]] = yield from ask("clock", look=look)
        return int(when(stored).timestamp() * 1000)


class Task(NamedTuple):
    """A row of the tasks table: the columns of the `lock` query in their order."""

    step_id: str
    run_id: str
    seq: int
    name: str
    grp: str
    input: str | None
    attempt: int
    claimed_by: str | None
    claimed_at: int | None
    created_at: int

    @property
    def losses(self) -> int:
        """How many of our workers in a row have vanished with this task."""
        found = _HOLDER.search(self.claimed_by or "")
        return int(found[2]) + 1 if found else 0


class Takes(NamedTuple):
    """What a step's handler takes: the name of its one parameter ("" for none), and whether that has a default."""

    parameter: str = ""
    optional: bool = False

    def payload(self, given: str | None) -> str:
        text = "null" if given is None else given
        if not self.parameter or (self.optional and text.strip() == "null"):
            return "{}"
        return f"{{{json.dumps(self.parameter)}:{text}}}"


def holder(worker: str, fence: int, losses: int = 0) -> str:
    """Name one claim of one worker; others read it as the owner's name, and only for debugging."""
    return f"{_token(worker, fence)}{losses}"


def _token(worker: str, fence: int) -> str:
    # The time of the claim in it makes it the claim's own: also against a later claim of the same worker.
    return f"{worker[:140]}/{fence}/"


class _Holding(Holding[Task, int]):
    """Tasks that a worker has claimed."""

    tables: DurableTables

    def __init__(self, tables: DurableTables, worker: str) -> None:
        super().__init__(tables)
        self._worker = worker

    def read(self, row: Sequence[Any]) -> Task:
        return Task(*row)

    def is_ours(self, row: Task, lease: Lease | End) -> bool:
        return (row.claimed_by or "").startswith(_token(self._worker, lease.fence))

    def is_free(self, row: Task) -> bool:
        return row.claimed_by is None

    def put_off(self, lease: Lease, now: int) -> Steps[None]:
        yield from self.tables.ask("renew", id=lease.id, at=now)

    def end(self, row: Task, end: Finish | PutBack, now: int) -> Steps[None]:
        yield from _end(self.tables, row, end, now)


@flow
def create_table(tables: DurableTables, name: str) -> Steps[None]:
    """Make one table or the index if it is not there: `create_tasks`, `create_results` or `create_index`.

    Each commits by itself, to be quick: a program that takes no lock may be making them at this moment.
    Raises: UniqueViolation or QueryFailed when such a program was first; try again.
    """
    yield from tables.ask(name)


@flow
def claim(
    tables: DurableTables, steps: Mapping[str, Takes], limit: int, worker: str, busy: Collection[str] = ()
) -> Steps[list[Lease]]:
    """Claim free tasks of these steps, oldest first; steps in `busy` are left alone.

    Commits: its own. After a crash: the tasks are free again when the lease is over.
    """
    if not steps:
        return []
    now = yield from tables.now()
    groups = sorted({tables.group(step) for step in steps})
    stale = now - tables.lease_ms
    rows = yield from tables.ask("pick", queues=groups, stale=stale, limit=CLAIM_ROWS)
    leases: list[Lease] = []
    for step_id, name in rows:
        if len(leases) >= limit:
            break
        if name not in busy:
            found = yield from tables.ask("lock", id=step_id, stale=stale)
            for row in found:
                leases += yield from _take(tables, Task(*row), steps, now, worker)
    return leases


def _take(tables: DurableTables, task: Task, steps: Mapping[str, Takes], now: int, worker: str) -> Steps[list[Lease]]:
    """Decide what becomes of a locked task: a list of one lease, or of none."""
    flaw = _flaw(tables, task, steps)
    if flaw is not None:
        yield from _record(tables, task, "failed", None, flaw, now, now)
        return []
    yield from tables.ask("stamp", id=task.step_id, holder=holder(worker, now, task.losses), at=now)
    headers = {"run_id": task.run_id, "seq": str(task.seq), "step_id": task.step_id}
    return [
        Lease(
            id=task.step_id,
            queue=task.grp,
            kind=task.name,
            payload=steps[task.name].payload(task.input),
            headers=json.dumps(headers, ensure_ascii=False),
            key=task.run_id,
            priority=0,
            attempt=task.attempt,
            # The engine counts attempts and decides on retries: to the worker each attempt is the last.
            max_attempts=task.attempt,
            fence=now,
            lease_ms=tables.lease_ms,
            available_at=task.created_at * 1000,
            created_at=task.created_at * 1000,
        )
    ]


def _flaw(tables: DurableTables, task: Task, steps: Mapping[str, Takes]) -> dict[str, Any] | None:
    """Tell why a task cannot be run, as an error for the engine."""
    if task.name not in steps:
        return {"message": f"no handler for {task.name}", "retryable": False}
    if not is_json(task.input):
        return {"message": f"the input of {task.name} is not JSON", "code": "invalid_input", "retryable": False}
    if task.losses >= tables.max_losses:
        # Whether to try again is the engine's to say.
        return {"message": f"{task.losses} workers vanished while they ran {task.name}", "code": "worker_lost"}
    return None


def is_json(given: str | None) -> bool:
    try:
        json.loads("null" if given is None else given, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return False
    return True


def _refuse(constant: str) -> float:
    raise ValueError(constant)


@flow
def renew(tables: DurableTables, leases: Sequence[Lease], worker: str) -> Steps[Renewed]:
    """Write the times of claims again, so that nobody takes the steps while they run.

    Commits: its own. After a crash: the tasks are free again a lease after the last renewal.
    """
    now = yield from tables.now()
    return (yield from _Holding(tables, worker).renew(leases, now))


@flow
def settle(tables: DurableTables, ends: Sequence[End], worker: str) -> Steps[Settled]:
    """Write results and delete their tasks, together; give returned tasks back. A task that is not ours is left alone.

    Commits: its own. Raises: Conflict for a park.
    Safe to repeat: a task that is gone, or free, was settled by an earlier try whose answer was lost.
    After a crash: before commit the tasks are claimed again later; after it the engine has the result.
    """
    writes = without_parks(ends, "The tables of a durable engine")
    now = yield from tables.now()
    return (yield from _Holding(tables, worker).settle(writes, now))


def _end(tables: DurableTables, task: Task, end: Finish | PutBack, now: int) -> Steps[None]:
    if isinstance(end, PutBack):
        # Free when it looks a lease old: a moment in the future works with every reader.
        again = None if end.delay_ms is None else now - tables.lease_ms + end.delay_ms - 1
        yield from tables.ask("release", id=task.step_id, at=again)
    elif end.outcome == "done" and end.error is None:
        yield from _record(tables, task, "completed", end.result or "null", None, now, end.fence)
    else:
        yield from _record(tables, task, "failed", None, wire_error(end), now, end.fence)


def _record(
    tables: DurableTables,
    task: Task,
    status: str,
    output: str | None,
    error: Mapping[str, Any] | None,
    now: int,
    started_at: int,
) -> Steps[None]:
    yield from tables.ask(
        "result",
        id=task.step_id,
        run_id=task.run_id,
        seq=task.seq,
        status=status,
        output=None if output is None else ascii_json(output),
        error=None if error is None else json.dumps(error, allow_nan=False),
        started_at=started_at,
        at=now,
    )
    yield from tables.ask("forget", id=task.step_id)


def ascii_json(text: str) -> str:
    """Write every character beyond ASCII as an escape: the tables have the character set that somebody gave them."""
    return text if text.isascii() else _BEYOND_ASCII.sub(lambda part: json.dumps(part[0])[1:-1], text)


def wire_error(end: Finish) -> dict[str, Any]:
    """Write an error as the engine reads it; only `retryable: false` stops its retries."""
    record: dict[str, Any] = json.loads(end.error) if end.error else {}
    name = str(record.get("type", ""))
    error: dict[str, Any] = {"message": str(record.get("message") or name or end.outcome)}
    if record.get("code") is not None:
        error["code"] = str(record["code"])
    if _is_final(end, record, name):
        error["retryable"] = False
    if record.get("traceback"):
        error["stack"] = str(record["traceback"])
    return error


def _is_final(end: Finish, record: Mapping[str, Any], name: str) -> bool:
    if end.outcome != "dead" or name.endswith("InvalidPayload"):
        # Cancelled, or an output that cannot be written, or an input that does not fit: no better the next time.
        return True
    # A handler that returned Retry asked for the opposite, and is recorded by way of Fatal.
    return bool(record.get("fatal")) and name != "Retry"


@flow
def complete(tables: DurableTables, lease: Lease, result: str | None, worker: str) -> Steps[None]:
    """Write the result of one step inside a transaction that also holds its effect.

    Commits: with the caller's transaction. Raises: LeaseLost.
    """
    task = yield from _Holding(tables, worker).held(lease)
    now = yield from tables.now()
    yield from _record(tables, task, "completed", result or "null", None, now, lease.fence)
