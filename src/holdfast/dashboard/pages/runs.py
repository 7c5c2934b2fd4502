"""Durable runs: a list by status, and one as a timeline of what its body was told, with the tree of its children."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from holdfast import runs
from holdfast.dashboard.http import Response
from holdfast.dashboard.rendering import render
from holdfast.dashboard.talk import Talk
from holdfast.dashboard.visit import Visit
from holdfast.runs import STATUSES, Recorded, RunFilter, RunView
from holdfast.values.rows import when

ROWS = 50
CHILDREN = 100
DEEPEST = 4
# Runs whose children are asked for, of one tree: twenty children with twenty each would be thousands of questions.
MOST_ASKED = 50


@dataclass(frozen=True, slots=True)
class Bar:
    """A row of the journal as a bar: where it begins and how long it is, in hundredths of the whole run."""

    row: Recorded
    left: float
    width: float
    took: float | None
    value: Any


@dataclass(frozen=True, slots=True)
class Node:
    """A run with its children."""

    view: RunView
    below: list[Node]


def page(visit: Visit) -> Talk[Response]:
    said = visit.said
    status = said.one("status") if said.one("status") in STATUSES else ""
    wanted = RunFilter(
        workflow=said.one("workflow") or None, status=status or None, waits_for=said.one("waits_for") or None
    )
    found = yield from visit.look(runs.look(wanted, ROWS, said.one("after") or None))
    return render(
        visit,
        "runs.html",
        "Runs",
        found=found,
        statuses=STATUSES,
        status=status,
        workflow=said.one("workflow"),
        waits_for=said.one("waits_for"),
        after=said.one("after"),
    )


def one_page(visit: Visit) -> Talk[Response]:
    key, workflow = visit.said.one("id"), visit.said.one("workflow") or None
    view, journal = yield from visit.look(runs.timeline(key, workflow))
    parent = None
    if view.parent is not None:
        parent = yield from visit.look(runs.show(view.parent))
    tree = yield from tree_of(visit, view)
    shows = visit.setting.redaction
    return render(
        visit,
        "run.html",
        f"Run {view.id}",
        run=view,
        parent=parent,
        bars=bars(view, journal, lambda row: shows.stored(row.value, "journal", row.key)),
        tree=tree,
        attributes=shows.shown(view.attributes, "attributes"),
        when=when,
    )


def tree_of(visit: Visit, view: RunView) -> Talk[Node]:
    """Read a run's children and theirs, the nearest first, as far as a page can show."""
    root = Node(view, [])
    ahead = deque([(root, DEEPEST)])
    for _ in range(MOST_ASKED):
        if not ahead:
            break
        node, depth = ahead.popleft()
        children = yield from visit.look(runs.runs(RunFilter(parent=node.view.job_id), CHILDREN))
        node.below.extend(Node(child, []) for child in reversed(children))
        if depth > 1 and len(children) <= 20:
            ahead.extend((child, depth - 1) for child in node.below)
    return root


def bars(view: RunView, journal: Iterable[Recorded], value: Any) -> list[Bar]:
    """Place the rows of a journal on the time of their run."""
    rows = list(journal)
    if not rows:
        return []
    begin = min(view.created_at.timestamp(), rows[0].at / 1e6)
    end = max([row.at / 1e6 for row in rows] + ([view.ended_at.timestamp()] if view.ended_at else []))
    whole = max(end - begin, 0.001)
    found = []
    for row in rows:
        took = None if row.took_ms is None else row.took_ms / 1000
        until = row.at / 1e6
        since = max(begin, until - (took or 0.0))
        left = 100 * (since - begin) / whole
        found.append(Bar(row, round(left, 2), round(max(100 * (until - since) / whole, 0.8), 2), took, value(row)))
    return found
