"""Trigger, pause and resume schedules."""

from __future__ import annotations

from holdfast import schedules
from holdfast.dashboard.actions.base import Outcome, Pairs, Preview
from holdfast.dashboard.actions.which import again
from holdfast.dashboard.rendering import clock
from holdfast.dashboard.talk import Talk
from holdfast.dashboard.visit import Visit
from holdfast.schedules import Stored
from holdfast.values.ids import new_id


def preview_trigger(visit: Visit) -> Talk[Preview]:
    one = yield from _one(visit)
    # Made here, so that a form that is sent twice adds one job.
    fields: Pairs = [*again(visit, "job"), ("job", new_id())]
    words = "Its job is added now. The next tick stays where it is; a paused schedule stays paused."
    return Preview(f"Trigger {one.name}?", "Add its job now", words, _facts(one), fields=fields)


def trigger(visit: Visit) -> Talk[Outcome]:
    name = visit.said.one("name")
    added = yield from visit.act(schedules.trigger(name, visit.said.one("job") or new_id(), visit.actor))
    said = f"{name}: a job was added" if added.created else f"{name}: a job with its unique key is there already"
    return Outcome(said, links=[("The job", visit.link("job", id=added.id)), ("Schedules", visit.link("schedules"))])


def preview_pause(visit: Visit) -> Talk[Preview]:
    one = yield from _one(visit)
    words = "It ticks no more until it is resumed, through restarts and deployments. Jobs it has added stay."
    return Preview(f"Pause schedule {one.name}?", "Pause it", words, _facts(one), fields=again(visit))


def pause(visit: Visit) -> Talk[Outcome]:
    name = visit.said.one("name")
    yield from visit.act(schedules.pause(name, visit.actor))
    return Outcome(f"{name} is paused", links=[("Schedules", visit.link("schedules"))])


def preview_resume(visit: Visit) -> Talk[Preview]:
    one = yield from _one(visit)
    words = "It ticks from now on. What was missed in the pause stays missed."
    return Preview(f"Resume schedule {one.name}?", "Resume it", words, _facts(one), fields=again(visit))


def resume(visit: Visit) -> Talk[Outcome]:
    name = visit.said.one("name")
    stored = yield from visit.act(schedules.resume(name, visit.actor))
    said = f"{name} goes on; its next tick is at {clock(stored.next_at)} UTC"
    return Outcome(said, links=[("Schedules", visit.link("schedules"))])


def _one(visit: Visit) -> Talk[Stored]:
    [one] = yield from visit.look(schedules.listed(visit.said.one("name")))
    return one


def _facts(one: Stored) -> Pairs:
    facts = [("when", str(one.timetable)), ("adds", one.kind), ("to queue", one.queue)]
    return [*facts, ("next", "paused" if one.paused_at else f"{clock(one.next_at)} UTC")]
