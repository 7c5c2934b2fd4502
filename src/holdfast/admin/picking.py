"""Which live jobs an action by hand means: looked up without a lock, then locked in chunks and looked at again.

Locks are taken as workers take them: lines by queue and key, then jobs, and those that somebody has locked are left out
at first. A claim has its tickets locked before it waits for their lines, so an action that waited for a ticket while it
holds the line would wait in a circle. What was left out is gone over in the end, one job at a time, and waited for.
A key that has no line yet has nothing to lock: with a claim that makes the line at this moment it can still come to a
circle, and the one that the database chooses as the victim repeats.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from operator import attrgetter
from typing import Any, NamedTuple, Protocol, TypedDict, TypeVar

from holdfast.admin.jobs import Filter
from holdfast.errors import ConfigError
from holdfast.flow import Flow, Series, Steps, ask, flow, in_turn, number_of, text_of
from holdfast.life import merging
from holdfast.life.door import Left
from holdfast.lines.leaving import as_in_line, locked
from holdfast.placing import Every, placed_by
from holdfast.values.ids import parse_id
from holdfast.values.options import only_options
from holdfast.values.retry import whole
from holdfast.values.rows import Enqueued, when

LIVE = ("pending", "waiting", "leased")
# Jobs in one transaction: large enough to be quick, small enough to hold no lock for long.
CHUNK = 500
# Jobs in one look, which locks nothing.
PAGE = 10_000


class JobFilter(TypedDict, total=False):
    """Which live jobs are meant; all that is given must hold.

    state: pending, waiting or leased, or several of them. worker: holds the lease, or held the last one. error: a part
    of the last error. created_after includes its moment, created_before does not.
    """

    state: str | Sequence[str]
    queue: str
    kind: str
    key: str
    worker: str
    error: str
    created_after: datetime
    created_before: datetime


class LiveJob(NamedTuple):
    """A live job as an action by hand sees it: the columns of `live_look` in their order."""

    id: str
    state: str
    queue: str
    kind: str
    key: str | None
    worker: str | None
    waits_for: str | None
    fence: int
    followers: int
    priority: int
    available_at: datetime

    @property
    def is_held(self) -> bool:
        return self.state == "leased"

    def place(self) -> dict[str, Any]:
        return {"queue": self.queue, "kind": self.kind}


class Answer(Protocol):
    """What a chunk came to."""

    @property
    def seen(self) -> set[str]: ...


A = TypeVar("A", bound=Answer)
Act = Callable[[Sequence[str], bool], Flow[A]]


def meant_by(
    call: str, named: object, everything: bool, which: Mapping[str, Any], *, runs: bool = False
) -> tuple[Filter, list[str] | None]:
    """Read which jobs are meant: by id, by filter, or by both; the ids in their order, None where none were named.

    With `runs`, a text that is not the id of a job names a run.

    Raises: ConfigError where nothing is said, for what is unknown, and for None: a variable that is empty by mistake
    must not mean every job.
    """
    only_options(call, which, JobFilter.__annotations__)
    for name, value in which.items():
        if value is None:
            raise ConfigError(name, "is None: leave it out to mean any", value)
    if everything and (named is not None or which):
        raise ConfigError("everything", "contradicts ids and filters: leave one of them out", everything)
    if not everything and named is None and not which:
        raise ConfigError("job", f"{call} takes ids, a filter (queue=, kind=, key=, …) or everything=True", None)
    ids = None if named is None else _ids(named, runs)
    said = dict(which)
    state = said.pop("state", ())
    states = (state,) if isinstance(state, str) else tuple(state)
    if "state" in which and not states:
        raise ConfigError("state", "is empty: leave it out to mean any", state)
    return live_only(Filter(states=states, **said)), ids


def live_only(meant: Filter) -> Filter:
    """Check that a filter asks for what live jobs have. Raises: ConfigError."""
    if strange := [state for state in meant.states if state not in LIVE]:
        raise ConfigError("state", f"must be among {', '.join(LIVE)} here", strange[0])
    for name in ("group", "finished_after", "finished_before"):
        if (value := getattr(meant, name)) is not None:
            raise ConfigError(name, "is asked of finished jobs, and these are live ones", value)
    return meant


def _ids(named: object, runs: bool) -> list[str]:
    several = [named] if isinstance(named, str | Enqueued) else named
    if not isinstance(several, Iterable):
        raise ConfigError("job", "must be an id, what an enqueue answered, or several of these", named)
    return list(dict.fromkeys(_id(one, runs) for one in several))


def _id(one: object, runs: bool) -> str:
    given = one.id if isinstance(one, Enqueued) else one
    try:
        return parse_id(given.strip().lower() if isinstance(given, str) else given)
    except ConfigError as error:
        if runs and isinstance(given, str) and given:
            return given
        rule = "must be the id of a job (such as 01997a3e-5b1c-7d20-8f4e-0a1b2c3d4e5f), or what its enqueue answered"
        raise ConfigError("job", rule, one) from error


def chosen(meant: Filter, ids: Sequence[str] | None, limit: int | None) -> Series[tuple[list[LiveJob], list[str]]]:
    """Look up the jobs to act on, the oldest first, and those that were named and are to be accounted for."""
    most = None if limit is None else whole(limit, "limit", 1, 2**31 - 1)
    if ids is None:
        return (yield from _found(meant, most)), []
    jobs = yield from _among(meant, ids)
    beyond = {job.id for job in jobs[most:]} if most is not None else set[str]()
    return jobs[:most], [job for job in ids if job not in beyond]


def _found(meant: Filter, most: int | None) -> Series[list[LiveJob]]:
    jobs: list[LiveJob] = []
    after: str | None = None
    while most is None or len(jobs) < most:
        size = PAGE if most is None else min(PAGE, most - len(jobs))
        page = yield from in_turn(look(meant, size, None, after))
        jobs += page
        if len(page) < size:
            break
        after = page[-1].id
    return jobs


def _among(meant: Filter, ids: Sequence[str]) -> Series[list[LiveJob]]:
    jobs: list[LiveJob] = []
    for start in range(0, len(ids), PAGE):
        jobs += yield from in_turn(look(meant, PAGE, ids[start : start + PAGE]))
    return sorted(jobs, key=attrgetter("id"))


def _looked(
    meant: Filter, limit: int, among: Sequence[str] | None = None, after: str | None = None
) -> Every[list[LiveJob]]:
    merge = partial(merging.page_by, attrgetter("id"), limit, False)
    return Every(merge, lenient=False, ids=among or (), otherwise="nothing")


@placed_by(_looked)
@flow
def look(
    meant: Filter, limit: int, among: Sequence[str] | None = None, after: str | None = None
) -> Steps[list[LiveJob]]:
    """Read live jobs by id; `among` these only, and behind `after`."""
    given = meant.params()
    given.pop("ids", None)
    if among is not None:
        given["among"] = sorted(among)
    rows = yield from ask("live_look", alone=True, limit=limit, newer_than=after, **given)
    return [_live(row) for row in rows]


def lock(meant: Filter, ids: Sequence[str], wait: bool) -> Steps[list[LiveJob]]:
    """Lock these jobs, as far as they are still live and meant, with the lines they stand in.

    With `wait`, jobs that somebody has locked are waited for; the lines then come behind them.
    """
    given = meant.params()
    given.pop("ids", None)
    if not wait:
        by_queue: dict[str, set[str]] = defaultdict(set)
        for job in (yield from look(meant, len(ids), ids)):
            if job.key is not None:
                by_queue[job.queue].add(job.key)
        for queue in sorted(by_queue):
            yield from locked(queue, by_queue[queue])
    rows = yield from ask("live_lock", among=sorted(ids), skip_locked=None if wait else True, **given)
    return [_live(row) for row in rows]


def in_chunks(meant: Filter, ids: Sequence[str], act: Act[A]) -> Series[list[A]]:
    """Act on jobs in chunks, each in a transaction of its own; what somebody had locked comes last, one by one."""
    answers: list[A] = []
    missed: list[str] = []
    for start in range(0, len(ids), CHUNK):
        chunk = ids[start : start + CHUNK]
        answers.append((yield from in_turn(act(chunk, False))))
        missed += sorted(set(chunk) - answers[-1].seen)
    # Most of them have ended meanwhile, or are not meant any more.
    for job in (yield from _among(meant, missed)):
        answers.append((yield from in_turn(act([job.id], True))))
    return answers


def left_alone(ids: Sequence[str], seen: set[str]) -> Series[dict[str, str]]:
    """Say of jobs that were named and are not among those seen why they were left alone."""
    rest = [job for job in ids if job not in seen]
    why = dict.fromkeys(rest, "unknown")
    for start in range(0, len(rest), PAGE):
        why |= yield from in_turn(_states(rest[start : start + PAGE]))
    return {job: "no match" if state in LIVE else state for job, state in why.items()}


@placed_by(lambda ids: Every(merging.united, lenient=False, ids=ids))
@flow
def _states(ids: Sequence[str]) -> Steps[dict[str, str]]:
    rows = yield from ask("job_state", ids=sorted(ids), alone=True)
    return {text_of(job): text_of(state) for job, state in rows}


def out_of_line(job: LiveJob, bits: int) -> Left:
    """Say of a job that nobody held and that lives on that it stands where it stood no more."""
    followers = as_in_line(job.key, job.followers) & bits
    return Left(job.id, job.fence, job.queue, job.kind, job.key, followers, "returned", held=False)


def _live(row: Sequence[Any]) -> LiveJob:
    job, state, queue, kind, key, worker, waits_for, fence, followers, priority, available = row
    return LiveJob(
        text_of(job),
        text_of(state),
        text_of(queue),
        text_of(kind),
        None if key is None else text_of(key),
        None if worker is None else text_of(worker),
        None if waits_for is None else text_of(waits_for),
        number_of(fence),
        0 if followers is None else number_of(followers),
        number_of(priority),
        when(float(text_of(available))),
    )


def without_ids(meant: Filter) -> tuple[Filter, list[str] | None]:
    """Part a filter into what is asked of jobs and which are named."""
    return live_only(replace(meant, ids=())), list(meant.ids) or None
