"""Stop lines and start them: by hand, and for a dead letter that has come back."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from holdfast.flow import Columns, Steps, ask, flow
from holdfast.lines.leaving import locked, settings_of, write_lines


@flow
def stop(queue: str, keys: Sequence[str]) -> Steps[list[str]]:
    """Stop lines until somebody starts them, and return the keys of those that were not stopped before.

    What is leased runs to its end; what is due, and what is enqueued from now on, waits. A key need not have a job yet.
    Commits: its own. After a crash: nothing happened; safe to repeat.
    """
    wanted = sorted(set(keys))
    yield from ask("lines_open", queue=queue, keys=wanted)
    there = yield from locked(queue, wanted)
    batch: Columns = {"key": list(there), "job": [None] * len(there)}
    rows = yield from ask("lines_stop", queue=queue, batch=batch)
    return [str(row[0]) for row in rows]


@flow
def start(queue: str, keys: Sequence[str]) -> Steps[list[str]]:
    """Let stopped lines go on, and return the keys of those that were stopped.

    Commits: its own. After a crash: nothing happened; safe to repeat.
    """
    there = yield from locked(queue, set(keys))
    stopped = [line for line in there.values() if line.stopped]
    if not stopped:
        return []
    yield from ask("lines_start", queue=queue, keys=[line.key for line in stopped])
    settings = yield from settings_of(queue)
    yield from write_lines(queue, settings, [line._replace(stopped=False, stopped_for=None) for line in stopped])
    return [line.key for line in stopped]


def start_for(jobs: Iterable[tuple[str, str, str]]) -> Steps[None]:
    """Start the lines that stopped for these jobs: id, queue and key of dead letters that are live again."""
    by_queue: dict[str, dict[str, str]] = defaultdict(dict)
    for job, queue, key in jobs:
        by_queue[queue][job] = key
    for queue in sorted(by_queue):
        letters = by_queue[queue]
        lines = yield from locked(queue, set(letters.values()))
        stopped = [line.key for line in lines.values() if line.stopped and line.stopped_for in letters]
        if stopped:
            yield from start(queue, stopped)
