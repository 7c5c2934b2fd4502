"""Pause and resume queues and kinds, change order and limits, stop and start lines."""

from __future__ import annotations

from typing import Any

from holdfast import admin, jobs, lines
from holdfast.dashboard.actions.base import Input, Outcome, Pairs, Preview
from holdfast.dashboard.actions.which import again
from holdfast.dashboard.talk import Talk
from holdfast.dashboard.visit import Visit
from holdfast.errors import ConfigError
from holdfast.store import Shards
from holdfast.values.pauses import Scope
from holdfast.values.queues import QueueSettings, Rate
from holdfast.values.reserved import is_route
from holdfast.values.spoken import seconds_in
from holdfast.values.words import age

_RATE_HINT = "100/1s or 5/1m; empty for none"


def preview_pause(visit: Visit) -> Talk[Preview]:
    scope, name = _meant(visit)
    facts = yield from _due(visit, name) if scope == "queue" else _none()
    words = "Workers claim nothing of it until it is resumed. Enqueues go on, and what runs now goes on."
    reason = Input("reason", "Why?", hint="for those who find it paused")
    return Preview(f"Pause {scope} {name}?", "Pause it", words, facts, fields=again(visit), inputs=[reason])


def pause(visit: Visit) -> Talk[Outcome]:
    scope, name = _meant(visit)
    new = yield from visit.act(admin.pause(scope, name, visit.actor, visit.said.one("reason") or None))
    return Outcome(f"{scope} {name} {'is paused' if new else 'was paused already'}", links=_links(visit, name))


def preview_resume(visit: Visit) -> Talk[Preview]:
    scope, name = _meant(visit)
    there = {(one.scope, one.name): one for one in (yield from visit.look(jobs.pauses()))}
    facts = yield from _due(visit, name) if scope == "queue" else _none()
    notes = [str(there[scope, name])] if (scope, name) in there else [f"{scope} {name} is not paused"]
    words = "Workers claim from it again, within about a second."
    return Preview(f"Resume {scope} {name}?", "Resume it", words, facts, notes=notes, fields=again(visit))


def resume(visit: Visit) -> Talk[Outcome]:
    scope, name = _meant(visit)
    was = yield from visit.act(admin.resume(scope, name, visit.actor))
    return Outcome(f"{scope} {name} {'goes on' if was else 'was not paused'}", links=_links(visit, name))


def preview_limits(visit: Visit) -> Talk[Preview]:
    name = _name(visit)
    there = (yield from visit.look(lines.stored(name))).get(name)
    now = QueueSettings() if there is None else there.settings
    inputs = [
        Input("concurrency", "At once, over all workers", "number", _number(now.concurrency), "empty for no limit"),
        Input("rate", "Starts, over all workers", "text", _rate(now.rate), _RATE_HINT),
        Input("key_concurrency", "At once of each key", "number", _number(now.key_concurrency), "empty for no limit"),
        Input("key_rate", "Starts of each key", "text", _rate(now.key_rate), _RATE_HINT),
        Input("fair", "Keys take turns", "select", "yes" if now.fair else "no", choices=("no", "yes")),
    ]
    words = "The stored word wins over what the code says; workers hear of it within about a second."
    return Preview(f"Limits of {name}", "Store them", words, [("now", str(now))], fields=again(visit), inputs=inputs)


def limits(visit: Visit) -> Talk[Outcome]:
    name = _name(visit)
    said: dict[str, Any] = {"fair": visit.said.one("fair") == "yes"}
    for field in ("concurrency", "key_concurrency"):
        said[field] = _read_number(field, visit.said.one(field))
    for field in ("rate", "key_rate"):
        said[field] = _read_rate(field, visit.said.one(field))
    # A shard that no worker has served yet has nothing stored, and must not keep what is said now alone.
    there = (yield from visit.look(lines.stored(name))).get(name) if isinstance(visit.setting.store, Shards) else None
    whole = None if there is None else there.settings
    before, now = yield from visit.act(admin.change_queue(name, said, visit.actor, whole=whole))
    return Outcome(f"{name}: {now}", [f"before: {before}"], _links(visit, name))


def preview_stop(visit: Visit) -> Talk[Preview]:
    yield from ()
    name, key = _line(visit)
    words = "What runs of it ends; what is due or comes later waits until the line is started."
    return Preview(f"Stop line {key} of {name}?", "Stop it", words, fields=again(visit))


def stop(visit: Visit) -> Talk[Outcome]:
    name, key = _line(visit)
    done = yield from visit.act(admin.stop_lines(name, [key], visit.actor))
    return Outcome(
        f"line {key} of {name} {'stands still' if done else 'stood still already'}", links=_links(visit, name)
    )


def preview_start(visit: Visit) -> Talk[Preview]:
    name, key = _line(visit)
    found = yield from visit.look(admin.list_lines(name, key))
    facts = [("waiting", f"{line.waiting:,}") for line in found]
    words = "What waits of it goes on. A dead letter that stopped it stays where it is."
    return Preview(f"Start line {key} of {name}?", "Start it", words, facts, fields=again(visit))


def start(visit: Visit) -> Talk[Outcome]:
    name, key = _line(visit)
    done = yield from visit.act(admin.start_lines(name, [key], visit.actor))
    return Outcome(f"line {key} of {name} {'goes on' if done else 'was not stopped'}", links=_links(visit, name))


def _meant(visit: Visit) -> tuple[Scope, str]:
    if kind := visit.said.one("kind"):
        return "kind", kind
    return "queue", _name(visit)


def _name(visit: Visit) -> str:
    if name := visit.said.one("queue"):
        return name
    raise ConfigError("queue", "must be named", "")


def _line(visit: Visit) -> tuple[str, str]:
    if key := visit.said.one("key"):
        return _name(visit), key
    raise ConfigError("key", "must be named", "")


def _none() -> Talk[Pairs]:
    yield from ()
    return []


def _due(visit: Visit, name: str) -> Talk[Pairs]:
    for lag in (yield from visit.look(admin.oldest_pending())):
        if lag.queue == name:
            return [("due", f"{lag.due:,}"), ("oldest", age(lag.oldest_seconds))]
    return [("due", "0")]


def _links(visit: Visit, name: str) -> Pairs:
    return [("Outbox", visit.link("outbox"))] if is_route(name) else [("Queues", visit.link("queues"))]


def _number(value: int | None) -> str:
    return "" if value is None else str(value)


def _rate(rate: Rate | None) -> str:
    return "" if rate is None else f"{rate.count}/{rate.period:g}s"


def _read_number(name: str, text: str) -> int | None:
    if not text:
        return None
    if not (text.isascii() and text.isdigit()):
        raise ConfigError(name, "must be a whole number, or empty for no limit", text)
    return int(text[:19])


def _read_rate(name: str, text: str) -> Rate | None:
    if not text:
        return None
    count, _, per = text.partition("/")
    period = seconds_in(per)
    if not (count.isascii() and count.isdigit()) or not period:
        raise ConfigError(name, "must be written like 100/1s or 5/1m, or empty for none", text)
    return Rate(int(count[:19]), period)
