"""What people do to jobs by hand, as flows: look, retry, replay, discard.

The command line, `doctor` and the dashboard call these. A filter never becomes SQL text: the queries hold a line for
each of its fields, and the dialect leaves out the lines whose field is not given.
Every action writes one audit line per job, in the transaction that changes the job.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial, reduce
from typing import Any, Literal, NamedTuple

from holdfast.admin.filters import ALL as ALL
from holdfast.admin.filters import LIVE_STATES as LIVE_STATES
from holdfast.admin.filters import STATES as STATES
from holdfast.admin.filters import Filter as Filter
from holdfast.admin.reading import view_of
from holdfast.admin.recording import record as _record
from holdfast.admin.windows import WINDOW, behind, horizon
from holdfast.chains import CHILD, JOINED, pardon, wait_again
from holdfast.errors import ConfigError, Conflict, DatabaseBusy, JobNotFound
from holdfast.flow import Columns, Flow, Steps, ask, flow, number_of, text_of
from holdfast.jobs import follow
from holdfast.life import merging
from holdfast.life.door import Left, consequences
from holdfast.lines.leaving import LINE_BITS
from holdfast.lines.stopping import start_for
from holdfast.observe import COUNTED
from holdfast.placing import Every, InTurn, on_every, placed_by, where_id_is
from holdfast.runs import RUN, go_on
from holdfast.values.ids import parse_id
from holdfast.values.retry import whole
from holdfast.values.rows import when
from holdfast.values.views import AuditLine, DeadGroup, JobView, Lag, QueueCount, decoded

__all__ = [
    "LONGEST_LIST",
    "STATES",
    "AuditLine",
    "DeadGroup",
    "Filter",
    "JobView",
    "Lag",
    "QueueCount",
    "Replayed",
    "any_live",
    "audit",
    "count_jobs",
    "counts",
    "dead_groups",
    "discard",
    "expired_leases",
    "oldest_pending",
    "replay",
    "retry",
    "run_now",
    "show",
]

REPLAYABLE = ("dead", "cancelled")
LONGEST_LIST = 100_000
_COUNTED = ("pending", "due", "scheduled", "leased", "done", "dead", "cancelled", "waiting")
# A job may move between a write that missed it and the read that asks why; each try looks again.
TRIES_PER_JOB = 10


def _counting(filter: Filter = ALL, most: int | None = None) -> Every[int]:
    return Every(merging.summed if most is None else partial(merging.summed_to, most), ids=filter.ids)


@placed_by(_counting)
@flow
def count_jobs(filter: Filter = ALL, most: int | None = None) -> Steps[int]:
    """Count the jobs that a list without limit would hold; with `most`, no further than to that number."""
    given = filter.params() | ({} if most is None else {"most": most})
    [[count]] = yield from ask("jobs_count", alone=True, **given)
    return int(count) if most is None else min(most, int(count))


@on_every(merging.counts)
@flow
def counts() -> Steps[list[QueueCount]]:
    """Count jobs by queue, kind and state.

    Of finished jobs the latest are counted, by queue and outcome, up to one more than `observe.COUNTED`.
    """
    found: dict[tuple[str, str], dict[str, int]] = defaultdict(lambda: dict.fromkeys(_COUNTED, 0))
    for queue, kind, *numbers in (yield from ask("queue_counts", alone=True)):
        found[queue, kind] |= zip(("pending", "due", "scheduled", "leased", "waiting"), map(int, numbers), strict=True)
    for outcome, queue in (yield from ask("prune_queues", alone=True)):
        rows = yield from ask("finished_counts", outcome=outcome, queue=queue, limit=COUNTED + 1, alone=True)
        for kind, number in rows:
            found[queue, kind][outcome] = int(number)
    return [QueueCount(queue, kind, **numbers) for (queue, kind), numbers in sorted(found.items())]


@on_every(merging.any_of)
@flow
def any_live() -> Steps[bool]:
    """Tell whether there is a live job."""
    return bool((yield from ask("live_any", alone=True)))


@where_id_is
@flow
def show(job_id: str) -> Steps[JobView]:
    """Read one job, live or finished.

    Raises: JobNotFound.
    """
    rows = yield from ask("jobs_list", alone=True, limit=1, ids=[one_id(job_id)])
    if not rows:
        raise JobNotFound(job_id)
    return view_of(rows[0])


def _lines(
    job_id: str | None = None,
    limit: int = 50,
    *,
    actor: str | None = None,
    since: datetime | None = None,
    before: datetime | None = None,
) -> Every[list[AuditLine]]:
    return Every(partial(merging.audit_lines, limit), ids=() if job_id is None else (job_id,))


@placed_by(_lines)
@flow
def audit(
    job_id: str | None = None,
    limit: int = 50,
    *,
    actor: str | None = None,
    since: datetime | None = None,
    before: datetime | None = None,
) -> Steps[list[AuditLine]]:
    """Read what was done by hand, the latest first; by whom, from when on (included), before when."""
    one = None if job_id is None else one_id(job_id)
    asked: dict[str, Any] = {
        "job_id": one,
        "by_time": True if one is None else None,
        "actor": actor,
        "since": since,
        "before": before,
    }
    rows = yield from ask("audit_list", alone=True, limit=_limit(limit), **asked)
    return [
        AuditLine(when(at), action, None if job is None else str(job), actor, decoded(detail) or {})
        for at, action, job, actor, detail in rows
    ]


@on_every(merging.lags)
@flow
def oldest_pending(unpaused: bool = False) -> Steps[list[Lag]]:
    """Tell how far each queue is behind, the furthest first; queues with nothing due are left out.

    unpaused: leave out what is paused.
    """
    rows = yield from ask("queue_lags", alone=True, unpaused=unpaused or None)
    return [Lag(queue, int(due), int(age_us) / 1e6) for queue, due, age_us in rows]


def _oldest(limit: int = 50) -> Every[list[JobView]]:
    return merging.page_of_jobs(limit, newest=False)


@placed_by(_oldest)
@flow
def expired_leases(limit: int = 50) -> Steps[list[JobView]]:
    """Read leases that ran out and that no reaper has taken back yet, the oldest first."""
    rows = yield from ask("jobs_list", alone=True, limit=_limit(limit), expired=True)
    return [view_of(row) for row in rows]


def _grouping(filter: Filter | None = None, limit: int = 50) -> Every[list[DeadGroup]]:
    # A group that is small in one shard may be large in all of them: each is asked for all that it has.
    return Every(partial(merging.dead_groups, limit), instead=_dead_groups(filter, LONGEST_LIST))


@flow
def _dead_groups(filter: Filter | None = None, limit: int = 50) -> Steps[list[DeadGroup]]:
    """Group dead letters by kind and likeness of their last error, the largest group first.

    Where there are more than `LONGEST_LIST`, the newest are looked at: the counts are of those, in each shard.
    """
    meant, given = _letters(filter or ALL, ("dead",))
    edge = yield from horizon(meant, given, LONGEST_LIST - 1, newest=True)
    if edge is not None:
        given["newer_than"] = behind(edge, newest=False)
    rows = yield from ask("dead_groups", alone=True, limit=_limit(limit), **given)
    return [
        DeadGroup(
            group, kind, int(count), sorted(decoded(queues)), error, message, when(first), when(last), str(sample)
        )
        for group, kind, count, queues, error, message, first, last, sample in rows
    ]


dead_groups = placed_by(_grouping)(_dead_groups)


@where_id_is
@flow
def run_now(job_id: str, actor: str | None) -> Steps[None]:
    """Make a job due now, whatever backoff or schedule it had, and whatever it waits for.

    Commits: its own. Raises: JobNotFound; Conflict unless the job is pending or waiting.
    After a crash: nothing happened; safe to repeat.
    """
    job = one_id(job_id)
    for _ in range(TRIES_PER_JOB):
        if (yield from _made_due(job, actor)):
            return
        state = yield from state_of(job)
        if state not in ("pending", "waiting"):
            raise Conflict(f"Job {job} is {state}, and only a pending or waiting job can be made due. {_ADVICE[state]}")
    raise restless(job)


@where_id_is
@flow
def retry(job_id: str, actor: str | None) -> Steps[Literal["due", "replayed"]]:
    """Run a job again as soon as possible: a pending or waiting one becomes due, a dead or cancelled one is replayed.

    Commits: its own. Raises: JobNotFound; Conflict for a leased or done job, and where a live job holds its unique key.
    After a crash: nothing happened; safe to repeat.
    """
    job = one_id(job_id)
    for _ in range(TRIES_PER_JOB):
        if (yield from _made_due(job, actor)):
            return "due"
        letters = yield from _pick(Filter(ids=(job,), states=REPLAYABLE), REPLAYABLE, 1)
        if letters:
            answer = yield from _put_live(letters, actor)
            if answer.ids:
                return "replayed"
            raise Conflict(f"Job {job} cannot be replayed: {_held_by(answer.conflicts[job])}")
        state = yield from state_of(job)
        if state in ("leased", "done"):
            raise Conflict(f"Job {job} is {state} and cannot be retried. {_ADVICE[state]}")
    raise restless(job)


@dataclass(frozen=True, slots=True)
class Replayed:
    """Which jobs went back to their queue, and which could not: by id, the live job that holds their unique key.

    The holder is None where it ended in the meantime: the same replay may succeed now.
    """

    ids: list[str]
    conflicts: dict[str, str | None] = field(default_factory=dict)

    @property
    def size(self) -> int:
        return len(self.ids) + len(self.conflicts)

    def with_more(self, more: Replayed) -> Replayed:
        return Replayed([*self.ids, *more.ids], self.conflicts | more.conflicts)


def _replaying(filter: Filter, limit: int, actor: str | None, dry_run: bool = False) -> InTurn[Replayed]:
    def make(left: int) -> Flow[Replayed]:
        return replay(filter, left, actor, dry_run)

    return InTurn(make, limit, lambda done: done.size, partial(reduce, Replayed.with_more), filter.ids)


@placed_by(_replaying)
@flow
def replay(filter: Filter, limit: int, actor: str | None, dry_run: bool = False) -> Steps[Replayed]:
    """Send up to `limit` dead letters back to their queue, the oldest first; cancelled jobs too when `states` says so.

    They start over: no attempts, due now, a higher fence; their errors are kept. With `dry_run` nothing changes.
    Commits: its own, all or none. Of two replays at once exactly one gets each job; the other waits and goes on behind.
    After a crash: nothing happened. When only the reply was lost, a repeat takes the jobs that come next.
    """
    letters = yield from _pick(filter, REPLAYABLE, limit)
    if not letters:
        return Replayed([])
    if dry_run:
        holders = yield from _holders(letters)
        return _foreseen(letters, holders)
    return (yield from _put_live(letters, actor))


def _discarding(filter: Filter, limit: int, actor: str | None, dry_run: bool = False) -> InTurn[list[str]]:
    return InTurn(lambda left: discard(filter, left, actor, dry_run), limit, len, merging.joined, filter.ids)


@placed_by(_discarding)
@flow
def discard(filter: Filter, limit: int, actor: str | None, dry_run: bool = False) -> Steps[list[str]]:
    """Delete up to `limit` dead letters, the oldest first; cancelled jobs too when `states` says so.

    The audit keeps kind, queue and last error. With `dry_run` nothing changes.
    Commits: its own, all or none. After a crash: as `replay`.
    """
    letters = yield from _pick(filter, REPLAYABLE, limit)
    if not letters or dry_run:
        return [letter.job_id for letter in letters]
    rows = yield from ask("discard", ids=[letter.id for letter in letters])
    gone = {str(row[0]) for row in rows}
    if rows:
        # An enqueue that is still being repeated must not bring them back.
        yield from ask("dropped_add", ids=[row[0] for row in rows])
    lines = [(letter.job_id, letter.detail()) for letter in letters if letter.job_id in gone]
    yield from _record("discard", actor, lines)
    yield from consequences([letter.left() for letter in letters if letter.followers and letter.job_id in gone])
    return [job_id for job_id, _ in lines]


class _Letter(NamedTuple):
    """A finished job that an action may take: the columns of `finished_pick` in their order."""

    id: Any
    outcome: str
    queue: str
    kind: str
    unique: str | None
    attempts: int
    replays: int
    error_type: str | None
    error_message: str | None
    key: str | None
    fence: int
    followers: int | None

    @property
    def job_id(self) -> str:
        return str(self.id)

    def left(self) -> Left:
        """Say that it was discarded, for what follows."""
        return Left(
            self.job_id,
            number_of(self.fence),
            self.queue,
            self.kind,
            self.key,
            number_of(self.followers or 0),
            "discarded",
            held=False,
        )

    def detail(self) -> dict[str, Any]:
        error = None if self.error_type is None else {"type": self.error_type, "message": self.error_message}
        return _place((self.queue, self.kind)) | {"was": self.outcome, "attempts": self.attempts, "error": error}


def _pick(filter: Filter, allowed: Sequence[str], limit: int) -> Steps[list[_Letter]]:
    """Lock the oldest that fit, in looks at a bounded number of finished jobs each."""
    meant, given = _letters(filter, allowed)
    left, found = _limit(limit), list[_Letter]()
    while True:
        edge = yield from horizon(meant, given, WINDOW, newest=False, finished=True, alone=False)
        bound = {} if edge is None else {"older_than": edge}
        rows = yield from ask("finished_pick", limit=left - len(found), **(given | bound))
        found += [_Letter(*row) for row in rows]
        if edge is None or len(found) >= left:
            return found
        given["newer_than"] = behind(edge, newest=False)


def _letters(filter: Filter, allowed: Sequence[str]) -> tuple[Filter, dict[str, Any]]:
    """Return a filter of finished jobs with its parameters; without states it means the dead letters."""
    if strange := [state for state in filter.states if state not in allowed]:
        raise ConfigError("states", f"must be among {', '.join(allowed)} here", strange[0])
    meant = filter if filter.states else replace(filter, states=("dead",))
    return meant, meant.params()


def _put_live(letters: Sequence[_Letter], actor: str | None) -> Steps[Replayed]:
    rows = yield from ask("replay", ids=[letter.id for letter in letters])
    back = {str(row[0]) for row in rows}
    replayed = [letter for letter in letters if letter.job_id in back]
    held = [letter for letter in letters if letter.job_id not in back]
    lines = [(letter.job_id, letter.detail() | {"replays": letter.replays + 1}) for letter in replayed]
    yield from _record("replay", actor, lines)
    in_line = [letter for letter in replayed if letter.key is not None and (letter.followers or 0) & LINE_BITS]
    yield from start_for([(letter.job_id, letter.queue, str(letter.key)) for letter in in_line])
    if replayed:
        told = {letter.job_id for letter in replayed if (letter.followers or 0) & JOINED}
        waited_for = yield from wait_again([letter.job_id for letter in replayed])
        if untold := [job for job in waited_for if job not in told]:
            yield from follow(untold, JOINED)
    children = [letter.job_id for letter in replayed if (letter.followers or 0) & CHILD]
    if children:
        yield from pardon(children)
    gone_on = [letter.job_id for letter in replayed if (letter.followers or 0) & RUN]
    if gone_on:
        yield from go_on(gone_on)
    holders = yield from _holders(held)
    conflicts = {letter.job_id: holders.get((letter.kind, letter.unique)) for letter in held}
    return Replayed([letter.job_id for letter in replayed], conflicts)


def _holders(letters: Sequence[_Letter]) -> Steps[dict[tuple[str, str | None], str]]:
    """Map kind and unique key to the live job that holds them."""
    named = [letter for letter in letters if letter.unique is not None]
    if not named:
        return {}
    pairs: Columns = {"kind": [letter.kind for letter in named], "unique_key": [letter.unique for letter in named]}
    rows = yield from ask("unique_find", batch=pairs)
    return {(named[place - 1].kind, named[place - 1].unique): text_of(job_id) for place, job_id in rows}


def _foreseen(letters: Sequence[_Letter], holders: dict[tuple[str, str | None], str]) -> Replayed:
    """Tell what a replay would do: of two letters with the same unique key, the first goes back."""
    answer = Replayed([])
    for letter in letters:
        name = (letter.kind, letter.unique)
        if letter.unique is not None and name in holders:
            answer.conflicts[letter.job_id] = holders[name]
        else:
            holders[name] = letter.job_id
            answer.ids.append(letter.job_id)
    return answer


def _made_due(job: str, actor: str | None) -> Steps[bool]:
    rows = yield from ask("run_now", id=job)
    yield from _record("run_now", actor, [(job, _place(row)) for row in rows])
    return bool(rows)


def _place(row: Sequence[Any]) -> dict[str, Any]:
    return {"queue": row[0], "kind": row[1]}


_ADVICE = {
    "leased": "A worker runs it: cancel it, or wait until it ends.",
    "done": "Enqueue it again to run it once more.",
    "dead": "Replay or discard it.",
    "cancelled": "Replay or discard it.",
}


def _held_by(holder: str | None) -> str:
    if holder is None:
        return "a job with its unique key was live until now. Try again."
    return f"job {holder} is live and holds its unique key. Wait for its end, or cancel it."


def state_of(job: str) -> Steps[str]:
    rows = yield from ask("job_state", ids=[job])
    if not rows:
        raise JobNotFound(job)
    return text_of(rows[0][1])


def restless(job: str) -> DatabaseBusy:
    return DatabaseBusy("busy", f"job {job} changed its state each time it was looked at")


def one_id(job_id: str) -> str:
    """Read an id that somebody typed; what cannot be one names no job."""
    try:
        return parse_id(job_id.strip().lower())
    except ConfigError as error:
        raise JobNotFound(job_id) from error


def _limit(limit: int) -> int:
    return whole(limit, "limit", 1, LONGEST_LIST)
