"""Drain workers."""

from __future__ import annotations

from holdfast.dashboard.actions.base import Outcome, Preview
from holdfast.dashboard.actions.which import again
from holdfast.dashboard.talk import Talk
from holdfast.dashboard.visit import Visit
from holdfast.errors import ConfigError
from holdfast.values.words import plural
from holdfast.worker.draining import drain as draining


def preview_drain(visit: Visit) -> Talk[Preview]:
    ids, host = _meant(visit)
    seen = yield from visit.look(draining(ids or None, host, None, dry_run=True))
    if not seen.asked:
        return Preview("No worker to drain", words="They drain already, or are gone.")
    count = plural(len(seen.asked), "worker")
    words = "Each gives back what it has not begun, finishes what it runs, and stops. Nothing here starts it again."
    facts = [("worker", one) for one in seen.asked]
    return Preview(f"Drain {count}?", f"Drain {count}", words, facts, fields=again(visit), danger=True)


def drain(visit: Visit) -> Talk[Outcome]:
    ids, host = _meant(visit)
    answer = yield from visit.act(draining(ids or None, host, visit.actor))
    left = [f"{one} was left alone: {why}" for one, why in answer.left.items()]
    said = f"{plural(len(answer.asked), 'worker')} asked to drain"
    return Outcome(said, left, [("Workers", visit.link("workers"))])


def _meant(visit: Visit) -> tuple[list[str], str | None]:
    ids, host = visit.said.many("id"), visit.said.one("host")
    if bool(ids) == bool(host):
        raise ConfigError("id", "name workers, or the host that they run on", host)
    return ids, host or None
