"""A run's journal as lines to look at."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta

from holdfast.runs.rows import Recorded, RunView
from holdfast.values.rows import when
from holdfast.values.words import age

# A pause of at least this long between two rows is drawn.
PAUSE = timedelta(seconds=1)
_SHOWN = 60
_MARKS = {
    "signal": "◆",
    "child": "◇",
    "timer": "◷",
    "cancel": "✕",
    "undo": "↶",
    "attempt": "○",
    "begin": "┬",
    "fork": "┬",
    "set": "·",
    "patch": "·",
}


def drawn(view: RunView, rows: Sequence[Recorded]) -> Iterator[str]:
    """Draw what a run's body was told, from above to below: steps, attempts, waits, children, and by which worker."""
    yield f"{'':>10}  ┌ {view.kind or view.workflow} started {_moment(view.created_at)}"
    before, worker = view.created_at, None
    # As wide as the longest key, within reason.
    width = min(max((len(row.key) for row in rows), default=0), 50)
    for row in rows:
        at = when(row.at)
        waited = at - timedelta(milliseconds=row.took_ms or 0) - before
        if waited >= PAUSE:
            yield f"{'':>10}  ┊ {age(waited)}"
        if row.worker is not None and row.worker != worker:
            worker = row.worker
            yield f"{'':>10}  │ by {_printable(worker)}"
        yield _line(view, row, width).rstrip()
        before = max(before, at)
    yield _last(view)


def _line(view: RunView, row: Recorded, width: int) -> str:
    since = _since((when(row.at) - view.created_at).total_seconds())
    mark = "✗" if not row.ok and row.kind != "attempt" else _MARKS.get(row.kind, "●")
    took = "" if row.took_ms is None else f"{row.took_ms} ms"
    kind = row.kind if row.ok or row.kind == "attempt" else f"{row.kind} failed"
    nth = f" {row.attempt}" if row.kind == "attempt" else ""
    return f"{since:>10}  {mark} {_printable(row.key):{width}}  {kind + nth:12} {took:>9}  {_short(row)}"


def _since(seconds: float) -> str:
    return f"+{seconds * 1000:,.0f} ms" if seconds < 10 else f"+{age(seconds)}"


def _short(row: Recorded) -> str:
    value = _printable(row.value or "")
    return value if len(value) <= _SHOWN else f"{value[: _SHOWN - 1]}…"


def _last(view: RunView) -> str:
    if view.ended_at is not None:
        return f"{'':>10}  └ {view.status} {_moment(view.ended_at)}"
    due = f", until {_moment(view.due_at)} at the latest" if view.due_at is not None and view.waits_for else ""
    doing = f"waits for {view.waits_for}{due}" if view.waits_for else view.status
    return f"{'':>10}  ┊ {_printable(view.stuck or doing)}"


def _moment(at: datetime) -> str:
    return at.astimezone().strftime("%Y-%m-%d %H:%M:%S")


def _printable(text: str) -> str:
    """Leave out what would do something to a terminal."""
    return "".join(one if one.isprintable() else " " for one in text)
