"""What was said of queues, as it is stored: the stored word wins over what a deployment's code says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from operator import attrgetter
from typing import Any

from holdfast.flow import Rows, Steps, ask, flow, number_of, text_of
from holdfast.life import merging
from holdfast.lines.leaving import FAIR, LIMIT, LINE_BITS
from holdfast.lines.upkeep import dissolve, go_over, recount_lines
from holdfast.placing import on_every
from holdfast.values.queues import PLAIN, QueueSettings, Share
from holdfast.values.rows import when
from holdfast.values.shards import ShardMap
from holdfast.values.views import plain


@dataclass(frozen=True, slots=True)
class Stored:
    """What is stored of one queue, by whom and when; `held` is how many jobs count for its limit now."""

    name: str
    settings: QueueSettings
    version: int
    changed_by: str | None
    held: int
    changed_at: datetime

    def with_more(self, more: Stored) -> Stored:
        """Put it together with what is stored in another shard: what was said last counts."""
        last = max(self, more, key=attrgetter("changed_at"))
        return replace(last, version=max(self.version, more.version), held=self.held + more.held)

    def to_dict(self) -> dict[str, Any]:
        return plain(self) | {"settings": self.settings.to_dict()}


def _by_queue(answers: Sequence[Mapping[str, Stored]]) -> dict[str, Stored]:
    merged = merging.by_name(attrgetter("name"), Stored.with_more, [answer.values() for answer in answers])
    return {one.name: one for one in merged}


@on_every(_by_queue)
@flow
def stored(name: str | None = None) -> Steps[dict[str, Stored]]:
    """Read what is stored of queues, by name; queues of which nothing was said are not among them."""
    return stored_of((yield from ask("queue_settings", alone=True, name=name)))


def stored_of(rows: Rows) -> dict[str, Stored]:
    """Read the rows of queues. Raises: ConfigError for settings that this version cannot read."""
    return {
        str(queue): Stored(str(queue), QueueSettings.from_json(text), int(version), actor, int(held), when(at))
        for queue, text, version, actor, held, at in rows
    }


@flow
def declare(said: Mapping[str, QueueSettings], actor: str | None = None) -> Steps[dict[str, Stored]]:
    """Store what a deployment says of its queues where nothing is stored yet, and return what is stored of all queues.

    Where the code says that limits are split over shards, its jobs go to all of them, so that counts at once.
    Commits: its own. After a crash: safe to repeat; what is there stays.
    """
    there = yield from stored().start()
    new = {name: settings for name, settings in said.items() if name not in there and not settings.is_plain}
    split = [name for name in sorted(there) if there[name].settings.is_split or (name in said and said[name].is_split)]
    for name in sorted(new):
        settings = yield from parted(new[name])
        yield from ask("queue_declare", name=name, settings=settings.to_json(), actor=actor)
        yield from _count_what_runs(name, settings)
    changed = False
    for name in split:
        before = there[name].settings
        now = yield from parted(before.changed(across="split"))
        if (now.across, now.share) != (before.across, before.share):
            yield from change(name, {"across": "split"}, actor)
            changed = True
    return (yield from stored()) if new or changed else there


def parted(settings: QueueSettings, shards: int = 0) -> Steps[QueueSettings]:
    """Return settings with the part that this shard has of limits that are split.

    shards: how many there are at least; those that the map knows. Raises: ConfigError for limits that are too small.
    """
    rows = (yield from ask("shard_map_read")) if settings.is_split else ()
    if not rows:
        return settings.changed(share=None)
    number, count = number_of(rows[0][0]), max(shards, ShardMap.read(text_of(rows[0][1])).count)
    settings.require_parts(count)
    # One that has no keys yet has no jobs, and no part of what the others share.
    return settings.changed(share=Share(number, max(count, number + 1)))


@flow
def change(
    name: str,
    said: Mapping[str, Any],
    actor: str | None = None,
    shards: int = 0,
    whole: QueueSettings | None = None,
) -> Steps[tuple[QueueSettings, QueueSettings]]:
    """Change what is stored of a queue, and return what was there before and what is there now.

    What is leased already counts for limits and lines from now on. Where the queue has no lines any more, everything
    that waits for one is made due. Where its lines go by other rules, every one of them is looked at. `shards` as in
    `parted`. whole: what the shards have stored of the queue together, for one that may have other settings, or none.
    Commits: its own. Raises: ConfigError. After a crash: nothing happened; safe to repeat.
    """
    yield from ask("queue_declare", name=name, settings=PLAIN.to_json(), actor=actor)
    [[text, _, _, tat, _]] = yield from ask("queue_lock", name=name)
    before = QueueSettings.from_json(text)
    now = yield from parted((whole or before).changed(**said), shards)
    # What a rate has spent is spent, whatever else is changed.
    kept = tat if now.rate == before.rate else None
    yield from ask("queue_change", name=name, settings=now.to_json(), held=0, tat=kept, actor=actor)
    yield from _count_what_runs(name, now)
    if not now.is_lined:
        yield from dissolve(name)
    elif _rules_of_lines(now) != _rules_of_lines(before):
        yield from go_over(name, now)
    return before, now


def _rules_of_lines(settings: QueueSettings) -> tuple[object, ...]:
    return settings.ordered, settings.on_retry, settings.fair, settings.key_concurrency, settings.key_rate


def _count_what_runs(name: str, settings: QueueSettings) -> Steps[None]:
    """Have what is leased count for a limit, and for lines, that are new."""
    if settings.is_limited:
        yield from ask("queue_lock", name=name)
        yield from ask("queue_mark", name=name, bit=LIMIT)
        [[held]] = yield from ask("queue_held", name=name, bit=LIMIT)
        yield from ask("queue_recounted", name=name, held=int(held))
    if settings.is_lined:
        yield from ask("queue_mark_keys", name=name, bit=FAIR, bits=LINE_BITS)
        yield from recount_lines(name, settings)
