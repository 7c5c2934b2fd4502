"""What people do to queues and lines by hand, as flows: change settings, list lines, stop and start them.

Every action writes an audit line in its own transaction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from operator import attrgetter
from typing import Any

from holdfast import lines
from holdfast.admin.recording import record
from holdfast.flow import Steps, ask, flow
from holdfast.life import merging
from holdfast.placing import Every, on_every, placed_by
from holdfast.values.options import KEY_LENGTH, NAME_LENGTH, text
from holdfast.values.queues import QueueSettings
from holdfast.values.rows import when
from holdfast.values.views import plain


@dataclass(frozen=True, slots=True)
class LineView:
    """A line as people see it: how many of its jobs are leased and wait, since when it stands still, and for whom."""

    queue: str
    key: str
    held: int
    waiting: int
    called: str | None
    stopped_at: datetime | None
    stopped_for: str | None

    def with_more(self, more: LineView) -> LineView:
        """Put it together with the line of the same key in another shard, from which the key goes away."""
        stopped = [one for one in (self, more) if one.stopped_at is not None]
        told = stopped[0] if stopped else self
        held, waiting = self.held + more.held, self.waiting + more.waiting
        return replace(told, held=held, waiting=waiting, called=self.called or more.called)

    def to_dict(self) -> dict[str, Any]:
        return plain(self)


def _listed(
    queue: str | None = None,
    key: str | None = None,
    *,
    stopped: bool = False,
    limit: int = 50,
    after: tuple[str, str] | None = None,
) -> Every[list[LineView]]:
    def merge(answers: Sequence[list[LineView]]) -> list[LineView]:
        return merging.by_name(attrgetter("queue", "key"), LineView.with_more, answers)[:limit]

    return Every(merge)


@placed_by(_listed)
@flow
def list_lines(
    queue: str | None = None,
    key: str | None = None,
    *,
    stopped: bool = False,
    limit: int = 50,
    after: tuple[str, str] | None = None,
) -> Steps[list[LineView]]:
    """Read lines by queue and key; keys in which nothing is leased or waits have none."""
    given: dict[str, Any] = {"queue": queue, "key": key, "stopped": stopped or None}
    given["after_queue"], given["after_key"] = after or (None, None)
    rows = yield from ask("lines_list", alone=True, limit=limit, **given)
    return [
        LineView(name, its_key, int(held), int(waiting), called, None if at is None else when(at), stopped_for)
        for name, its_key, held, at, stopped_for, called, waiting in rows
    ]


@on_every(merging.first, stores=True)
@flow
def change_queue(
    name: str,
    said: Mapping[str, Any],
    actor: str | None,
    dry_run: bool = False,
    whole: QueueSettings | None = None,
) -> Steps[tuple[QueueSettings, QueueSettings]]:
    """Change what is stored of a queue, and return what was there before and what is there now.

    whole: with shards, what they have stored of it together (`lines.stored`): a shard that no worker has served yet has
    nothing, and would keep what is said now alone.
    Commits: its own. Raises: ConfigError. After a crash: nothing happened; safe to repeat.
    """
    text(name, "queue", NAME_LENGTH)
    if dry_run:
        there = (yield from lines.stored(name)).get(name)
        before = QueueSettings() if there is None else there.settings
        return before, (yield from lines.parted((whole or before).changed(**said)))
    before, now = yield from lines.change(name, said, actor, whole=whole)
    detail = {"queue": name, "before": before.to_dict(), "now": now.to_dict()}
    yield from record("queue_settings", actor, [(None, detail)])
    return before, now


@on_every(merging.in_all, stores=True)
@flow
def stop_lines(queue: str, keys: Sequence[str], actor: str | None) -> Steps[list[str]]:
    """Stop lines until somebody starts them, and return the keys of those that were not stopped before.

    Commits: its own. Raises: ConfigError. After a crash: nothing happened; safe to repeat.
    """
    for key in keys:
        text(key, "key", KEY_LENGTH)
    stopped = yield from lines.stop(text(queue, "queue", NAME_LENGTH), keys)
    yield from record("line_stop", actor, [(None, {"queue": queue, "key": key}) for key in stopped])
    return stopped


@on_every(merging.in_all, stores=True)
@flow
def start_lines(queue: str, keys: Sequence[str], actor: str | None) -> Steps[list[str]]:
    """Let stopped lines go on, and return the keys of those that were stopped.

    Commits: its own. After a crash: nothing happened; safe to repeat.
    """
    started = yield from lines.start(queue, keys)
    yield from record("line_start", actor, [(None, {"queue": queue, "key": key}) for key in started])
    return started
