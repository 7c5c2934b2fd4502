"""One look at the jobs that are waited for, as flows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from holdfast import admin, results
from holdfast.flow import Flow, Steps, flow
from holdfast.results import MOVED_ON, Seen
from holdfast.values.ids import next_id
from holdfast.values.rows import OUTCOMES
from holdfast.waits.board import Looked, Plan

# How far along a chain one look goes for a job that is not there, because nothing of it was kept.
STEPS_AHEAD = 32
# How often a look goes on to the next of chains; what is left is for the next look.
MOST_STEPS = 100


def marking(plan: Plan, queues: Sequence[str] | None) -> list[Flow[set[str]]]:
    """Make the flows that mark what a plan says, each a short transaction of its own.

    queues: those that keep nothing of done jobs; None where any may be one. Their jobs are marked before they are
    looked at for the first time: between a look and a mark one could end, and nothing would be left of it.
    """
    flows = [results.mark(plan.marks)] if plan.marks else []
    if plan.fresh and queues is None:
        flows.append(results.mark(plan.fresh))
    elif plan.fresh and queues:
        flows.append(results.mark(plan.fresh, queues))
    return flows


@flow
def looking(plan: Plan) -> Steps[Looked]:
    """Look at jobs: one statement, and one more where some of them are over, or have moved on along their chains."""
    places = {job_id: plan.places.get(job_id, job_id) for job_id in plan.ids}
    seen: dict[str, Seen] = {}
    todo = set(places)
    for _ in range(MOST_STEPS):
        found = yield from results.look(sorted({places[job_id] for job_id in todo})).start()
        seen |= {job_id: found[places[job_id]] for job_id in todo if places[job_id] in found}
        todo = {job_id for job_id in todo if places[job_id] not in found or found[places[job_id]].state == MOVED_ON}
        ahead = (yield from _ahead({job_id: places[job_id] for job_id in todo})) if todo else {}
        todo = set(ahead)
        if not todo:
            break
        places |= ahead
    over = sorted({places[job_id] for job_id, one in seen.items() if one.state in OUTCOMES})
    views = (yield from admin.read(over).start()) if over else {}
    by_id = {job_id: views[place] for job_id, place in places.items() if place in views}
    return Looked(seen, by_id, {job_id: place for job_id, place in places.items() if place != job_id})


def _ahead(places: Mapping[str, str]) -> Steps[dict[str, str]]:
    """Say where the chains of these jobs go on: the furthest job of each that is known, if one is."""
    chains: dict[str, list[str]] = {}
    for job_id, place in places.items():
        chain = [place]
        for _ in range(STEPS_AHEAD):
            chain.append(next_id(chain[-1]))
        chains[job_id] = chain[1:]
    found = yield from results.look(sorted({one for chain in chains.values() for one in chain})).start()
    known = {job_id: [one for one in chain if one in found] for job_id, chain in chains.items()}
    return {job_id: chain[-1] for job_id, chain in known.items() if chain}
