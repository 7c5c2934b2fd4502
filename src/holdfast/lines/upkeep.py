"""Look after lines and limits: compare what they count with what is leased, and see that no line waits for nobody."""

from __future__ import annotations

from typing import NamedTuple

from holdfast.flow import Steps, ask, flow
from holdfast.lines.leaving import LIMIT, LINE_BITS, locked, settings_of, write_lines
from holdfast.values.queues import QueueSettings

CHUNK = 500


class Difference(NamedTuple):
    """A queue, or a line of it, that counted other than what is leased; it counts right again."""

    queue: str
    key: str | None
    counted: int
    leased: int


@flow
def recount(queue: str) -> Steps[list[Difference]]:
    """Compare what a queue's limit and its lines count with what is leased, and put right what differs.

    Looked at without a lock first; what differs is locked and looked at again.
    Commits: its own. After a crash: nothing happened; safe to repeat.
    """
    found: list[Difference] = []
    settings = yield from settings_of(queue)
    if settings.is_limited:
        rows = yield from ask("queue_lock", name=queue)
        [[leased]] = yield from ask("queue_held", name=queue, bit=LIMIT)
        for row in rows:
            if int(row[2]) != int(leased):
                yield from ask("queue_recounted", name=queue, held=int(leased))
                found.append(Difference(queue, None, int(row[2]), int(leased)))
    if settings.is_lined:
        found += yield from recount_lines(queue, settings)
    return found


def recount_lines(queue: str, settings: QueueSettings) -> Steps[list[Difference]]:
    """Have the lines of a queue count what is leased of their keys; a key without a line gets one."""
    suspects = yield from ask("lines_held", queue=queue, bits=LINE_BITS)
    if not suspects:
        return []
    keys = sorted({str(row[0]) for row in suspects})
    yield from ask("lines_open", queue=queue, keys=keys)
    lines = yield from locked(queue, keys)
    counts = {str(row[0]): int(row[2]) for row in (yield from ask("lines_held", queue=queue, bits=LINE_BITS))}
    wrong = [line for line in lines.values() if line.key in counts]
    # A line that was opened here for what has ended meanwhile goes again.
    right = [line for line in lines.values() if line.key not in counts and not line.held]
    after = [line._replace(held=counts[line.key]) for line in wrong]
    yield from write_lines(queue, settings, [*after, *right])
    return [Difference(queue, line.key, line.held, counts[line.key]) for line in wrong]


@flow
def tidy(queue: str, after: str | None = None) -> Steps[str | None]:
    """Look at the next lines in which nothing is leased: close empty ones, and have the others call their next job.

    Returns where the next look begins; None at the end. The lines of a queue that is to have none go.
    Commits: its own. After a crash: nothing happened; safe to repeat.
    """
    settings = yield from settings_of(queue)
    if not settings.is_lined:
        yield from dissolve(queue)
        return None
    keys = [str(row[0]) for row in (yield from ask("lines_idle", queue=queue, after=after, limit=CHUNK))]
    if not keys:
        return None
    lines = yield from locked(queue, keys)
    # Whom a line has called may be gone without a word, if a hand has taken it away.
    idle = [line._replace(called=None) for line in lines.values() if not line.held and not line.stopped]
    if idle:
        yield from write_lines(queue, settings, idle)
    return keys[-1] if len(keys) == CHUNK else None


def dissolve(queue: str) -> Steps[None]:
    """Make due what waits for the lines of a queue, start those that stand still, delete those that hold nothing."""
    after = None
    while keys := (yield from _next(queue, after)):
        lines = yield from locked(queue, keys)
        while (yield from ask("line_wake", queue=queue, keys=keys, limit=CHUNK)):
            pass
        if empty := [line.key for line in lines.values() if not line.held]:
            yield from ask("lines_close", queue=queue, keys=empty)
        if stopped := [line.key for line in lines.values() if line.held and line.stopped]:
            yield from ask("lines_start", queue=queue, keys=stopped)
        after = keys[-1]


def go_over(queue: str, settings: QueueSettings) -> Steps[None]:
    """Have every line of a queue call its next job by settings that are new."""
    after = None
    while keys := (yield from _next(queue, after)):
        lines = yield from locked(queue, keys)
        yield from write_lines(queue, settings, [line._replace(called=None) for line in lines.values()])
        after = keys[-1]


def _next(queue: str, after: str | None) -> Steps[list[str]]:
    return [str(row[0]) for row in (yield from ask("lines_next", queue=queue, after=after, limit=CHUNK))]


@flow
def queues_in_lines() -> Steps[list[str]]:
    """Name the queues that have lines."""
    return [str(row[0]) for row in (yield from ask("lines_queues", alone=True))]
