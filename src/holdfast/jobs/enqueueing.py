"""Adding jobs, as flows: one, many, each idempotency key once, one live job per unique key, and debounced calls."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from itertools import groupby
from operator import attrgetter
from typing import Any, NamedTuple, TypeVar

from holdfast import chains
from holdfast.errors import DatabaseBusy, DatabaseUnavailable
from holdfast.flow import Columns, Flow, Row, Rows, Statement, Steps, ask, flow, text_of
from holdfast.jobs.chunks import chunks
from holdfast.jobs.debouncing import absorb
from holdfast.values.rows import Enqueued, NewJob, when

T = TypeVar("T")

# Rows a single statement carries: 10,000 jobs of 200 bytes are 2 MB on the wire.
CHUNK_ROWS = 10_000
# A key or a unique job may vanish between two statements; each try looks again.
TRIES_PER_KEY = 10
# Later than this after its first try an enqueue is not repeated: what says that its job has run may be gone by then.
REPEAT_SECONDS = 900.0
# How long the ids of jobs that left no finished row are noted: twice as long, so that no clock need be exact.
NOTED_SECONDS = 2 * REPEAT_SECONDS
# How far the database's clock may be put forward between the end of a job and the repeat of its enqueue.
SLACK_SECONDS = 10.0

# The parameters of `enqueue` and `enqueue_many`, in the order of NewJob's fields.
_PARAMS = (*NewJob._fields[:12], "unique_key")
# What no two jobs share, or hardly ever.
_OWN = ("id", "payload")
# What each job of an ordered queue has of its own beside these.
_KEYED = ("key", "bucket")
# And what jobs that are otherwise alike may differ in.
_OWN_OF_ONE = (*_OWN, "headers", "key", "bucket")


class Drawn(NamedTuple):
    """When ids were drawn, by two clocks of this process, of which one stands while the machine sleeps."""

    monotonic: float
    wall: float

    @classmethod
    def now(cls) -> Drawn:
        return cls(time.monotonic(), time.time())

    def age(self) -> float:
        """Return the seconds since then: the longer of what the clocks say, because to look too far back does no harm.

        Raises: DatabaseUnavailable when that is too long for a repeat.
        """
        age = max(time.monotonic() - self.monotonic, time.time() - self.wall)
        if age > REPEAT_SECONDS:
            raise DatabaseUnavailable(
                f"the answer to an enqueue was lost, and {age:.0f} s after its first try it is too late to repeat it: "
                "it is not known whether its jobs were added"
            )
        return age


def again(add: Callable[..., Flow[T]], new: Any, drawn: Drawn) -> Flow[T]:
    """Make the repeat of an `enqueue` or `enqueue_many` of which it is not known whether it was committed.

    Raises: DatabaseUnavailable when it is too late for that.
    """
    drawn.age()
    return add(new, drawn=drawn)


@flow
def enqueue(job: NewJob, *, fresh: bool = False, drawn: Drawn | None = None) -> Steps[Enqueued]:
    """Add one job; `fresh` and `drawn` as in `enqueue_many`.

    Commits: with the caller's transaction when one is given, else its own.
    After a crash: before commit nothing happened; running it again with the same id adds nothing.
    """
    if not is_plain(job):
        [answer] = yield from enqueue_many([job], fresh=fresh, drawn=drawn)
        return answer
    yield adding_one(job, fresh)
    if not fresh:
        yield from _take_back([job.id], drawn)
    return Enqueued(job.id)


def is_plain(job: NewJob) -> bool:
    """Tell whether one statement adds such a job, and its answer is known before: no key, and it waits for none."""
    return job.idempotency_key is None and job.unique is None and job.debounce is None and not job.after


def _take_back(ids: list[str], drawn: Drawn | None) -> Steps[None]:
    """Delete what a worker had finished before a repeat added it again.

    The insert has waited for a transaction that was about to delete the jobs, so statements after it see their end.
    """
    yield from ask("take_back", ids=ids)
    [[now]] = yield from ask("clock")
    # Measured after the database read its clock: however long an answer takes, the moment found is not too late.
    age = NOTED_SECONDS if drawn is None else drawn.age()
    yield from ask("take_back_dropped", ids=ids, since=when(now) - timedelta(seconds=age + SLACK_SECONDS))


def adding_one(job: NewJob, alone: bool, followers: int | None = None, notify: bool | None = None) -> Statement:
    """Say how to add one job, and which jobs are added alike. Written out: each call takes time here."""
    job_id, queue, kind, payload, headers, priority, run_at, delay_ms, attempts, lease_ms, key, bucket, unique, *_ = job
    params = {
        "id": job_id,
        "queue": queue,
        "kind": kind,
        "payload": payload,
        "headers": headers,
        # Left out like NULLs.
        "priority": priority or None,
        "run_at": run_at,
        "delay_ms": delay_ms or None,
        "max_attempts": attempts,
        "lease_ms": lease_ms,
        "key": key,
        "bucket": bucket,
        "unique_key": unique,
    }
    if followers is not None:
        return Statement("enqueue", params | {"followers": followers}, None, alone, notify=notify)
    if run_at is not None or unique is not None:
        return Statement("enqueue", params, None, alone, notify=notify)
    like = (queue, kind, headers is None, priority, delay_ms, attempts, lease_ms, key is None, bucket is None)
    return Statement("enqueue", params, None, alone, None, False, like, notify, None, _OWN_OF_ONE)


@flow
def enqueue_many(
    jobs: Sequence[NewJob], *, fresh: bool = False, drawn: Drawn | None = None, followers: int | None = None
) -> Steps[list[Enqueued]]:
    """Add many jobs and answer in their order; a job that a key already names is found, not added.

    `fresh` says that the ids were drawn for this run, so that no worker can have finished the jobs already: then a
    look among the finished is spared. A repeat must not say so; `drawn` tells it how far back to look for jobs that
    left no finished row, else it looks as far back as there is something to see.
    `followers` are bits for what follows their ends (`life/door.py`); a job that has some is never taken back, so they
    are for jobs that are known to be new.
    Commits: with the caller's transaction when one is given, else its own; all or none.
    After a crash: before commit nothing happened; running it again with the same ids adds nothing.
    """
    keyed = [job for job in jobs if job.idempotency_key is not None or job.debounce is not None]
    found: dict[str, str] = {}
    if keyed:
        jobs, found = yield from _found(jobs, keyed, fresh)
    new = [job for job in jobs if job.id not in found] if found else jobs
    unique = [job for job in new if job.unique is not None]
    children = [job for job in new if job.after]
    for chunk in _chunks([job for job in new if job.unique is None] if unique else new):
        yield _adding(chunk, alone=fresh and len(chunk) == len(jobs) and not children, followers=followers)
    if unique:
        live = yield from _add_unique(unique, followers)
        yield from _point_keys([job for job in unique if job.id in live and job.idempotency_key is not None], live)
        # Of two jobs with one idempotency key the second looks to the first, which may have found another in turn.
        found = {mine: live.get(holder, holder) for mine, holder in found.items()} | live
    if jobs and not fresh:
        yield from _take_back([job.id for job in jobs], drawn)
    if children:
        yield from _join([job for job in children if job.id not in found], fresh)
    if not found:
        return [Enqueued(job.id) for job in jobs]
    return [Enqueued(found.get(job.id, job.id), created=job.id not in found) for job in jobs]


def _join(children: Sequence[NewJob], fresh: bool) -> Steps[None]:
    """Note what new jobs wait for; where an earlier try may have done it, only for those of which it is not noted."""
    if not fresh:
        missing = yield from chains.unknown(job.id for job in children)
        children = [job for job in children if job.id in missing]
    if children:
        yield from chains.join([chains.Join(job.id, job.after, job.after_dead) for job in children])


def _found(
    jobs: Sequence[NewJob], keyed: Sequence[NewJob], fresh: bool
) -> Steps[tuple[Sequence[NewJob], dict[str, str]]]:
    """Take the keys of jobs; return all jobs as they are to be added, and by id which stands for those that are not."""
    found: dict[str, str] = {}
    if once := [job for job in keyed if job.idempotency_key is not None]:
        found = yield from take_keys(once)
    if debounced := [job for job in keyed if job.debounce is not None]:
        absorbed = yield from absorb(debounced, fresh=fresh)
        found |= absorbed.found
        jobs = [absorbed.rows.get(job.id, job) for job in jobs]
    return jobs, found


def _chunks(jobs: Sequence[NewJob]) -> Iterator[Sequence[NewJob]]:
    return chunks(jobs, CHUNK_ROWS, _length)


def _length(job: NewJob) -> int:
    return len(job.payload or "") + len(job.headers or "")


def _adding(jobs: Sequence[NewJob], *, alone: bool = False, followers: int | None = None) -> Statement:
    """Say how to add what one statement carries: one job alone is spared the arrays, like jobs are told apart once."""
    if len(jobs) == 1:
        return adding_one(jobs[0], alone, followers)
    params: dict[str, Any] = dict(zip(_PARAMS, jobs[0], strict=False))
    # Left out like NULLs.
    params["priority"], params["delay_ms"] = params["priority"] or None, params["delay_ms"] or None
    columns = dict(zip(_PARAMS, zip(*jobs, strict=True), strict=False))
    own: Columns = {name: list(columns.pop(name)) for name in _OWN}
    if all(column.count(column[0]) == len(jobs) for column in columns.values()):
        alike = {name: params[name] for name in columns}
        return Statement("enqueue_alike", alike if followers is None else alike | {"followers": followers}, own, alone)
    keyed = {name: columns.pop(name) for name in _KEYED}
    if None not in keyed["key"] and all(column.count(column[0]) == len(jobs) for column in columns.values()):
        alike = {name: params[name] for name in columns} | ({} if followers is None else {"followers": followers})
        return Statement("enqueue_keyed", alike, own | {name: list(keyed[name]) for name in _KEYED}, alone)
    columns |= keyed
    each: Columns = {name: own.get(name) or list(columns[name]) for name in _PARAMS}
    unique = params["unique_key"] is not None or None
    return Statement("enqueue_many", {"unique": unique, "followers": followers}, each, alone)


Pair = tuple[str, str]


def take_keys(jobs: Sequence[NewJob]) -> Steps[dict[str, str]]:
    """Take each job's idempotency key; map the ids of jobs that came second to the id that holds the key."""

    def take(takers: list[NewJob], pairs: Columns) -> Steps[Rows]:
        rows: list[Row] = []
        taken = 0
        # Windows that differ are rare. What stands together goes together, so that keys are taken in their order.
        for window_ms, group in groupby(takers, attrgetter("window_ms")):
            ids = [job.id for job in group]
            some: Columns = {name: column[taken : taken + len(ids)] for name, column in pairs.items()}
            rows += yield from ask("keys_take", window_ms=window_ms, batch=some | {"job_id": ids})
            taken += len(ids)
        return rows

    named = [(job, (job.scope or job.kind, str(job.idempotency_key))) for job in jobs]
    return (yield from _held_by(named, take, "keys_find", ("scope", "key")))


def _add_unique(jobs: Sequence[NewJob], followers: int | None) -> Steps[dict[str, str]]:
    """Add jobs of which one may be live per key; map the ids of those not added to the live job's id."""

    def add(new: list[NewJob], pairs: Columns) -> Steps[Rows]:
        added: list[Row] = []
        for chunk in _chunks(new):
            added += yield _adding(chunk, followers=followers)
        return added

    named = [(job, (job.kind, str(job.unique))) for job in jobs]
    return (yield from _held_by(named, add, "unique_find", ("kind", "unique_key")))


def _held_by(
    named: Sequence[tuple[NewJob, Pair]],
    take: Callable[[list[NewJob], Columns], Steps[Rows]],
    find: str,
    columns: tuple[str, str],
) -> Steps[dict[str, str]]:
    """Take each key for the first job that it names; map the ids of the others to the id that holds it.

    A database that can say whose key it has taken is believed; only what it did not take is looked up. A look could see
    a snapshot of the caller's from before, and in it a row that is no longer there beside the one just written.
    """
    wanted: dict[Pair, NewJob] = {}
    for job, pair in named:
        wanted.setdefault(pair, job)
    holders: dict[Pair, str] = {}
    for _ in range(TRIES_PER_KEY):
        # Sorted, so that two batches with the same keys wait for each other and never in a circle.
        missing = sorted(wanted.keys() - holders.keys())
        if not missing:
            break
        takers = [wanted[pair] for pair in missing]
        rows = yield from take(takers, _pairs(columns, missing))
        taken = {text_of(row[0]) for row in rows if row[0] is not None}
        holders |= {pair: wanted[pair].id for pair in missing if wanted[pair].id in taken}
        sought = [pair for pair in missing if pair not in holders]
        rows = (yield from ask(find, batch=_pairs(columns, sought))) if sought else ()
        holders |= {sought[int(place) - 1]: text_of(job_id) for place, job_id in rows}
    else:
        raise DatabaseBusy("busy", "keys were free and taken by turns while they were read")
    return {job.id: holders[pair] for job, pair in named if holders[pair] != job.id}


def _pairs(columns: tuple[str, str], pairs: list[Pair]) -> Columns:
    return {column: [pair[place] for pair in pairs] for place, column in enumerate(columns)}


def _point_keys(jobs: Sequence[NewJob], live: Mapping[str, str]) -> Steps[None]:
    """Let the idempotency keys of jobs that were not added name the unique jobs that were found instead."""
    if jobs:
        yield from ask(
            "keys_point",
            batch={
                "scope": [job.scope or job.kind for job in jobs],
                "key": [job.idempotency_key for job in jobs],
                "job_id": [job.id for job in jobs],
                "holder": [live[job.id] for job in jobs],
            },
        )
