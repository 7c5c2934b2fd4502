"""Resume dead runs, ask runs to stop, send them signals."""

from __future__ import annotations

import json
from typing import Any

from holdfast import runs
from holdfast.dashboard.actions.base import Input, Outcome, Pairs, Preview
from holdfast.dashboard.actions.which import again
from holdfast.dashboard.talk import Talk
from holdfast.dashboard.visit import Visit
from holdfast.errors import ConfigError
from holdfast.runs import RunView
from holdfast.values.ids import new_id
from holdfast.workflows import letter, send_by_hand, stop_letter
from holdfast.workflows import resume as resume_run


def preview_resume(visit: Visit) -> Talk[Preview]:
    view = yield from _one(visit)
    words = "The step whose failure ended it is made again, with all its attempts, and the run goes on from there."
    return Preview(f"Resume run {view.id}?", "Resume it", words, _facts(view), fields=again(visit))


def resume(visit: Visit) -> Talk[Outcome]:
    key, workflow = _named(visit)
    yield from visit.act(resume_run(key, visit.actor, workflow))
    return Outcome(f"{key} goes on", links=_links(visit))


def preview_cancel(visit: Visit) -> Talk[Preview]:
    view = yield from _one(visit)
    words = "Its body is told, and may clean up; its children are asked to stop, too."
    return Preview(f"Stop run {view.id}?", "Ask it to stop", words, _facts(view), fields=again(visit), danger=True)


def cancel(visit: Visit) -> Talk[Outcome]:
    key, workflow = _named(visit)
    yield from visit.act(send_by_hand(key, stop_letter(), workflow, visit.actor, "run_cancel"))
    return Outcome(f"{key} was asked to stop", links=_links(visit))


def preview_signal(visit: Visit) -> Talk[Preview]:
    view = yield from _one(visit)
    waits = (view.waits_for or "").removeprefix("signal:").partition(",")[0]
    inputs = [
        Input("name", "Signal", "text", waits if (view.waits_for or "").startswith("signal:") else ""),
        Input("payload", "Payload", "area", hint="JSON; empty for none"),
    ]
    words = "It is kept until the run takes it."
    # A form that is sent twice, by a double click or a reload, sends one signal.
    fields: Pairs = [*again(visit, "name", "payload", "once"), ("once", new_id())]
    return Preview(f"Signal run {view.id}", "Send it", words, _facts(view), fields=fields, inputs=inputs)


def signal(visit: Visit) -> Talk[Outcome]:
    key, workflow = _named(visit)
    name, said = visit.said.one("name"), visit.said.one("payload")
    once = visit.said.one("once") or None
    sent = letter(name, _json(said) if said else None, once, limit=visit.setting.store.options.payload_limit)
    yield from visit.act(send_by_hand(key, sent, workflow, visit.actor))
    return Outcome(f"signal {name} was sent to {key}", links=_links(visit))


def _one(visit: Visit) -> Talk[RunView]:
    key, workflow = _named(visit)
    return visit.look(runs.show(key, workflow))


def _named(visit: Visit) -> tuple[str, str | None]:
    return visit.said.one("id"), visit.said.one("workflow") or None


def _facts(view: RunView) -> Pairs:
    return [("workflow", view.workflow), ("status", view.status), ("waits for", view.waits_for or "–")]


def _links(visit: Visit) -> Pairs:
    key, workflow = _named(visit)
    return [("The run", visit.link("run", id=key, workflow=workflow)), ("Runs", visit.link("runs"))]


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError("payload", "must be JSON", text[:80]) from error
