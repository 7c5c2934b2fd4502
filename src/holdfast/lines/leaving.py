"""What follows when a job of a queue with order or limits leaves: its limit gets a place back, its line goes on.

The lease says by the bits in `followers` what it counts for. It gives back what it counted, once: the fence lets one
holder write its end, and what follows is in the same transaction. A job that was cancelled while it was pending gives
nothing back, but its line may have waited for it.

Crash windows, all of them: before the commit the job is still leased, and line and limit count it; after it they do
not.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from holdfast.flow import Columns, Steps, ask, text_of
from holdfast.life.door import Left, attach
from holdfast.lines.heads import Call, Head, Line, call
from holdfast.values.queues import PLAIN, QueueSettings

# Where each lease counts; the table in `life/door.py` has these bits. The queue's row is locked before lines are, so
# its bit is the lowest.
LIMIT = 1 << 0
ORDER = 1 << 1
FAIR = 1 << 2
LINE_BITS = ORDER | FAIR

# How far to look for a job that can be called: behind those that other workers hold in another way.
HEADS_SEEN = 8


def give_places_back(left: Sequence[Left]) -> Steps[None]:
    """Let limited queues forget the jobs that gave their lease back."""
    counts = Counter(row.queue for row in left if row.held)
    for queue in sorted(counts):
        yield from ask("queue_release", name=queue, count=counts[queue])


def let_lines_go_on(left: Sequence[Left]) -> Steps[None]:
    """Let lines forget the jobs that gave their lease back, stop for a dead one if they should, and call the next."""
    by_queue: dict[str, list[Left]] = defaultdict(list)
    for row in left:
        if row.key is not None:
            by_queue[row.queue].append(row)
    for queue in sorted(by_queue):
        yield from _leave(queue, by_queue[queue])


def _leave(queue: str, left: Sequence[Left]) -> Steps[None]:
    lines = yield from locked(queue, {str(row.key) for row in left})
    if not lines:
        return
    settings = yield from settings_of(queue)
    stops = {str(row.key): row.id for row in left if row.how == "dead" and settings.on_dead == "stop"}
    discarded = {row.id for row in left if row.how == "discarded"}
    released = Counter(str(row.key) for row in left if row.held)
    gone = {row.id for row in left}
    after: list[Line] = []
    for line in lines.values():
        line = line._replace(held=max(0, line.held - released[line.key]))
        if line.called in gone:
            line = line._replace(called=None)
        if line.stopped_for in discarded:
            yield from ask("lines_start", queue=queue, keys=[line.key])
            line = line._replace(stopped=False, stopped_for=None)
        after.append(line._replace(stopped=True, called=None) if line.key in stops else line)
    yield from write_lines(queue, settings, after)
    if stops:
        batch: Columns = {"key": list(stops), "job": list(stops.values())}
        yield from ask("lines_stop", queue=queue, batch=batch)


attach(LIMIT, give_places_back)
attach(ORDER, let_lines_go_on)
attach(FAIR, let_lines_go_on)


def as_in_line(key: str | None, followers: int | None) -> int:
    """Return what follows when a job leaves that is not leased: its line, too, though the line may not have called it.

    A ticket that is due brings its line up by itself, and the line relies on that.
    """
    bits = followers or 0
    return bits if key is None or bits & LINE_BITS else bits | FAIR


def settings_of(queue: str) -> Steps[QueueSettings]:
    """Read what is stored of a queue."""
    rows = yield from ask("queue_settings", name=queue)
    return QueueSettings.from_json(text_of(rows[0][1])) if rows else PLAIN


def locked(queue: str, keys: Iterable[str]) -> Steps[dict[str, Line]]:
    """Lock lines in the order of keys, and read them; those that are not there are left out."""
    rows = yield from ask("lines_lock", queue=queue, keys=sorted(keys))
    return {line.key: line for line in map(_line, rows)}


def _line(row: Sequence[object]) -> Line:
    key, held, tat, called, stopped, stopped_for, now = row
    if type(key) is str and type(held) is int and type(now) is int:
        return Line._make(row)
    # A caller's connection may give texts and numbers in a way of its own.
    return Line(
        text_of(key),
        int(text_of(held)),
        None if tat is None else int(text_of(tat)),
        None if called is None else text_of(called),
        text_of(stopped) not in ("False", "0", "f"),
        None if stopped_for is None else text_of(stopped_for),
        int(text_of(now)),
    )


def heads_of(queue: str, settings: QueueSettings, keys: Sequence[str], limit: int) -> Steps[Mapping[str, list[Head]]]:
    """Read the first jobs in lines, by key."""
    heads: dict[str, list[Head]] = defaultdict(list)
    if keys:
        holds = bool(settings.ordered) and settings.on_retry == "hold"
        rows = yield from ask(
            "line_heads",
            queue=queue,
            keys=list(keys),
            limit=limit,
            hold=True if holds else None,
            passing=None if holds else True,
            fair=None if settings.ordered else True,
            bits=LINE_BITS,
        )
        if rows and type(rows[0][0]) is str and type(rows[0][5]) is int:
            # One connection gives all of them alike. Written out: a call for each takes a hundredth of a job's time.
            for row in rows:
                heads[row[0]].append(tuple.__new__(Head, row))  # pyright: ignore[reportUnknownMemberType]
            return heads
        for row in rows:
            head = _head(row)
            heads[head.key].append(head)
    return heads


def _head(row: Sequence[object]) -> Head:
    # A caller's connection may give texts and numbers in a way of its own.
    key, job, kind, state, due, attempts, lapses, waits_for = row
    return Head(
        text_of(key),
        text_of(job),
        text_of(kind),
        text_of(state),
        text_of(due) not in ("False", "0", "f"),
        int(text_of(attempts)),
        int(text_of(lapses)),
        None if waits_for is None else text_of(waits_for),
    )


def write_lines(queue: str, settings: QueueSettings, lines: Sequence[Line]) -> Steps[list[Call]]:
    """Store lines whose rows are locked; those with room call their next job, and those with nothing in them go."""
    idle = [line for line in lines if line.called is None and line.room(settings) != 0]
    heads = yield from heads_of(queue, settings, [line.key for line in idle], HEADS_SEEN)
    calls: dict[str, Call] = {}
    empty: list[str] = []
    for line in idle:
        called = call(settings, line, heads.get(line.key, ()))
        if called is not None:
            calls[line.key] = called
        elif line.key not in heads and line.may_go(settings):
            empty.append(line.key)
    gone = set(empty)
    kept = [
        line._replace(called=calls[line.key].id) if line.key in calls else line
        for line in lines
        if line.key not in gone
    ]
    if empty:
        yield from ask("lines_close", queue=queue, keys=sorted(empty))
    if kept:
        yield from ask("lines_write", queue=queue, batch=_columns(kept))
    if calls:
        yield from _call(settings, list(calls.values()))
    return list(calls.values())


def _call(settings: QueueSettings, calls: Sequence[Call]) -> Steps[None]:
    ordered = sorted(calls)
    batch: Columns = {"id": [one.id for one in ordered], "delay_us": [one.delay_us for one in ordered]}
    yield from ask("line_call", bit=ORDER if settings.ordered else FAIR, batch=batch)


def _columns(lines: Iterable[Line]) -> Columns:
    ordered = sorted(lines)
    return {
        "key": [line.key for line in ordered],
        "held": [line.held for line in ordered],
        "tat": [line.tat for line in ordered],
        "called": [line.called for line in ordered],
    }
