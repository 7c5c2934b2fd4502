"""What comes before a job and what comes after it: its parents, its chain, what waits for it. Nothing here writes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from holdfast import chains
from holdfast.admin.jobs import LONGEST_LIST, Filter
from holdfast.admin.looking import list_jobs
from holdfast.flow import Steps, flow
from holdfast.life import merging
from holdfast.life.listing import Family, Relative
from holdfast.placing import on_every
from holdfast.values.ids import next_id
from holdfast.values.rows import CONTINUES_HEADER
from holdfast.values.views import JobView

# The jobs that are read at most, before and after one; more are told as such.
MOST_RELATIVES = 100

Relation = Literal["continues it", "waits for it", "it waits for", "it continues"]


@on_every(merging.families)
@flow
def family(job: JobView) -> Steps[Family]:
    """Read what a job comes after, and the tree of what comes after it, down to a hundred jobs."""
    parents = yield from chains.parents_of(job.id).start()
    before = [] if parents is None else parents.each[:MOST_RELATIVES]
    headers = job.headers or {}
    named = [headers[CONTINUES_HEADER]] if CONTINUES_HEADER in headers else []
    views = yield from _views([*named, *(parent.last for parent in before)])
    came: list[Relative] = [_relative("it continues", one, views) for one in named]
    for parent in before:
        one = _relative("it waits for", parent.last, views)
        came.append(one if parent.outcome is None else one.with_state(parent.outcome))
    after, cut = yield from _after(job.id)
    total = len(came) if parents is None else parents.total + len(named)
    return Family(came, after, total > len(came), cut)


def _after(job_id: str) -> Steps[tuple[list[Relative], bool]]:
    """Read what comes after a job, level by level."""
    root: list[Relative] = []
    level: list[tuple[str, list[Relative]]] = [(job_id, root)]
    seen, left = {job_id}, MOST_RELATIVES
    while level and left > 0:
        found: list[tuple[str, Relation, list[Relative]]] = []
        for parent, into in level:
            children = yield from chains.children_of(parent, MOST_RELATIVES).start()
            found.append((next_id(parent), "continues it", into))
            found += [(child, "waits for it", into) for child in children]
        views = yield from _views(child for child, _, _ in found)
        level = []
        for child, relation, into in found:
            if child in seen or (relation == "continues it" and child not in views) or left <= 0:
                continue
            seen.add(child)
            left -= 1
            into.append(_relative(relation, child, views))
            level.append((child, into[-1].after))
    return root, left <= 0


def _views(ids: Iterable[str]) -> Steps[dict[str, JobView]]:
    wanted = tuple(dict.fromkeys(ids))
    if not wanted:
        return {}
    found = yield from list_jobs(Filter(ids=wanted), limit=min(LONGEST_LIST, len(wanted))).start()
    return {view.id: view for view in found}


def _relative(relation: Relation, job_id: str, views: dict[str, JobView]) -> Relative:
    view = views.get(job_id)
    return Relative(job_id, relation, None if view is None else view.kind, "gone" if view is None else view.state)
