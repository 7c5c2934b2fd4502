"""One answer of several: what the shards of an application say to the same question (`holdfast.placing`).

Answers come in the order of the shards. What is the same thing in several of them, such as a queue or a worker, has a
name by which it is found again, and a rule that makes one of two.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial, reduce
from itertools import chain
from operator import attrgetter
from typing import Any, TypeVar

from holdfast.life.findings import Finding
from holdfast.life.listing import Cancelled, Changed, Count, Drained, Family, Page, Relative, Replays
from holdfast.placing import Every
from holdfast.values.pauses import Pause
from holdfast.values.views import AuditLine, DeadGroup, JobView, Lag, QueueCount, WorkerInfo

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")
Lists = Sequence[list[T]]

# What is done once and written down in every shard has about the same time in each of them.
TOGETHER = timedelta(seconds=30)


# Whatever it is about


def summed_to(most: int, answers: Sequence[int]) -> int:
    """Add up counts that go no further than to a number."""
    return min(most, sum(answers))


def summed(answers: Sequence[int]) -> int:
    return sum(answers)


def any_of(answers: Sequence[bool]) -> bool:
    return any(answers)


def all_of(answers: Sequence[bool]) -> bool:
    return all(answers)


def first(answers: Sequence[T]) -> T:
    """Take the first: what was done is the same in each."""
    return answers[0]


def joined(answers: Lists[T]) -> list[T]:
    """Put lists one behind the other, each thing once."""
    return list(dict.fromkeys(chain.from_iterable(answers)))


def in_all(answers: Lists[T]) -> list[T]:
    """As `joined`, in order."""
    return sorted(joined(answers))  # type: ignore[type-var]


def united(answers: Sequence[Mapping[K, V]]) -> dict[K, V]:
    return {name: value for answer in answers for name, value in answer.items()}


def by_name(
    name: Callable[[T], Any], both: Callable[[T, T], T], answers: Iterable[Iterable[T]], order: Any = None
) -> list[T]:
    """Make one of the things that have the same name, and bring them into order."""
    found: dict[Any, T] = {}
    for one in chain.from_iterable(answers):
        key = name(one)
        found[key] = both(found[key], one) if key in found else one
    return sorted(found.values(), key=order or name)


def page_by(id_of: Callable[[T], str], limit: int, newest: bool, answers: Lists[T]) -> list[T]:
    """Make a page of pages that go by id, the newest or the oldest first."""
    return sorted(chain.from_iterable(answers), key=id_of, reverse=newest)[:limit]


def page_of_jobs(limit: int, newest: bool = True, ids: Sequence[str] = ()) -> Every[list[JobView]]:
    """Say of a list of jobs by id that it belongs on every shard."""
    return Every(partial(page_by, _id, limit, newest), ids=ids)


def pages(limit: int, newest: bool, answers: Sequence[Page]) -> Page:
    """Make one page of those of several shards: it ends where the first of them does."""
    ended = {answer.cursor: answer for answer in answers if answer.cursor is not None}
    end = (max if newest else min)(ended, default=None)
    rows = page_by(_id, limit, newest, [answer.rows for answer in answers])
    found = [row for row in rows if end is None or (row.id >= end if newest else row.id <= end)]
    if len(found) == limit:
        return Page(found, found[-1])
    return Page(found) if end is None else Page(found, ended[end].more, ended[end].at_horizon)


_id: Callable[[JobView], str] = attrgetter("id")


# Counts


def counts(answers: Lists[QueueCount]) -> list[QueueCount]:
    return by_name(attrgetter("queue", "kind"), _counted, answers)


def queues(answers: Lists[Count]) -> list[Count]:
    return by_name(attrgetter("queue"), _counted, answers)


def _counted(one: T, other: T) -> T:
    """Add up what is counted; the oldest counts."""
    numbers = {name: value for name, value in _fields(other).items() if isinstance(value, int)}
    added = {name: value + getattr(one, name) for name, value in numbers.items()}
    if hasattr(one, "oldest_seconds"):
        added["oldest_seconds"] = oldest(one.oldest_seconds, getattr(other, "oldest_seconds"))  # noqa: B009
    return replace(one, **added)  # type: ignore[type-var]


def _fields(one: Any) -> dict[str, Any]:
    return {name: getattr(one, name) for name in one.__dataclass_fields__}


def oldest(one: float | None, other: float | None) -> float | None:
    """Return the longer of two times, where there is one."""
    known = [each for each in (one, other) if each is not None]
    return max(known) if known else None


def lags(answers: Lists[Lag]) -> list[Lag]:
    both = by_name(attrgetter("queue"), _counted, answers)
    return sorted(both, key=lambda lag: -lag.oldest_seconds)


# Dead letters, and what is done by hand


def dead_groups(limit: int, answers: Lists[DeadGroup]) -> list[DeadGroup]:
    found = by_name(attrgetter("group", "kind"), _alike, answers, lambda group: (-group.count, -_stamp(group.last_at)))
    return found[:limit]


def _alike(one: DeadGroup, other: DeadGroup) -> DeadGroup:
    later = max(one, other, key=attrgetter("last_at"))
    return replace(
        later,
        count=one.count + other.count,
        queues=sorted({*one.queues, *other.queues}),
        first_at=min(one.first_at, other.first_at),
    )


def _stamp(moment: datetime) -> float:
    return moment.timestamp()


def replays(answers: Sequence[Replays]) -> Replays:
    return Replays(
        [one for answer in answers for one in answer.ids],
        united([answer.conflicts for answer in answers]),
        united([answer.reasons for answer in answers]),
    )


def cancelled(answers: Sequence[Cancelled]) -> Cancelled:
    done = reduce(Cancelled.with_more, answers)
    return Cancelled(sorted(done.cancelled), sorted(done.requested), done.left)


def changed(answers: Sequence[Changed]) -> Changed:
    done = reduce(Changed.with_more, answers)
    return Changed(sorted(done.changed), done.left)


def drained(answers: Sequence[Drained]) -> Drained:
    asked = joined([answer.asked for answer in answers])
    left: dict[str, str] = {}
    for one, why in chain.from_iterable(answer.left.items() for answer in answers):
        # A shard that does not know a worker has nothing to say of it.
        if one not in asked and left.get(one, "unknown") == "unknown":
            left[one] = why
    return Drained(asked, left)


def audit_lines(limit: int, answers: Lists[AuditLine]) -> list[AuditLine]:
    """Put audit lines in order, the latest first; a line that is in every shard is listed once."""
    found: list[AuditLine] = []
    told: dict[str, list[datetime]] = defaultdict(list)
    for lines in answers:
        new = [line for line in lines if not any(abs(line.at - at) < TOGETHER for at in told[_deed(line)])]
        found += new
        for line in new:
            if line.job_id is None:
                told[_deed(line)].append(line.at)
    return sorted(found, key=attrgetter("at"), reverse=True)[:limit]


def _deed(line: AuditLine) -> str:
    """Name what was done, and by whom; what was done to a job was done in one shard."""
    return repr((line.job_id, line.action, line.actor, line.detail))


def audit_pages(
    limit: int, answers: Sequence[tuple[list[AuditLine], datetime | None]]
) -> tuple[list[AuditLine], datetime | None]:
    """Make a page of pages by time: what one shard has not told of yet comes later, of the others, too."""
    ends = [more for _, more in answers if more is not None]
    since = max(ends, default=None)
    lines = audit_lines(sum(len(found) for found, _ in answers), [found for found, _ in answers])
    if len(lines) > limit:
        since = max(filter(None, [since, lines[limit - 1].at]))
    told = [line for line in lines if since is None or line.at >= since]
    return told, since if ends or len(told) < len(lines) else None


# Workers, pauses, what is wrong, families


def workers(answers: Lists[WorkerInfo]) -> list[WorkerInfo]:
    return by_name(attrgetter("id"), _freshest, answers, attrgetter("started_at", "id"))


def _freshest(one: WorkerInfo, other: WorkerInfo) -> WorkerInfo:
    """Take the later sign of life; a worker that was asked to drain in one shard hears of it."""
    last = max(one, other, key=attrgetter("seen_at"))
    drains = last.status == "alive" and "draining" in (one.status, other.status)
    return replace(last, status="draining") if drains else last


def pauses(answers: Lists[Pause]) -> list[Pause]:
    def earliest(one: Pause, other: Pause) -> Pause:
        return min(one, other, key=attrgetter("since"))

    return by_name(attrgetter("scope", "name"), earliest, answers, lambda one: (one.scope != "queue", one.name))


def findings(answers: Lists[Finding]) -> list[Finding]:
    return joined(answers)


def findings_by_shard(by_shard: Mapping[int, Sequence[Finding]]) -> list[Finding]:
    """Tell what was found in shards: once where every one of them has it, else with those that do."""
    where: dict[Finding, list[int]] = {}
    for number, told in by_shard.items():
        for one in told:
            where.setdefault(one, []).append(number)
    return [one if len(numbers) == len(by_shard) else _found_in(one, numbers) for one, numbers in where.items()]


def _found_in(one: Finding, numbers: Sequence[int]) -> Finding:
    named = f"shard {numbers[0]}" if len(numbers) == 1 else f"shards {', '.join(map(str, numbers))}"
    return replace(one, seen=f"{named}: {one.seen}")


def families(answers: Sequence[Family]) -> Family:
    """Take that of the shard which knows most of them: a job's relatives are where it is."""
    return max(answers, key=lambda family: sum(map(_known, [*family.before, *family.after])))


def _known(one: Relative) -> int:
    return (one.state != "gone") + sum(map(_known, one.after))
