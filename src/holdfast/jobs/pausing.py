"""What is paused, as workers read it: before their first claim, and each second beside what is stored of queues."""

from __future__ import annotations

from typing import NamedTuple

from holdfast.flow import Row, Rows, Steps, ask, flow, text_of
from holdfast.life import merging
from holdfast.lines import Stored, stored_of
from holdfast.placing import on_every
from holdfast.values.pauses import Pause
from holdfast.values.rows import when


class Said(NamedTuple):
    """What people have said to workers: what is paused, and what is stored of queues, not read yet."""

    pauses: list[Pause]
    queues: Rows

    def stored(self) -> dict[str, Stored]:
        """Read what is stored of queues, by name. Raises: ConfigError for what another version has stored."""
        return stored_of(self.queues)


@on_every(merging.pauses)
@flow
def pauses() -> Steps[list[Pause]]:
    """Read which queues and kinds are paused: queues first, each by name."""
    rows = yield from ask("pauses_list", alone=True)
    return [_pause(row) for row in rows]


@flow
def said() -> Steps[Said]:
    """Read what is paused, and what is stored of queues: one statement, because every worker asks each second."""
    rows = yield from ask("said_look", alone=True)
    paused: list[Pause] = []
    queues: list[Row] = []
    for what, name, at, by, reason, settings, version, held in rows:
        if text_of(what) == "stored":
            queues.append((name, settings, version, by, held, at))
        else:
            paused.append(_pause((what, name, at, by, reason)))
    return Said(paused, queues)


def _pause(row: Row) -> Pause:
    scope, name, since, by, reason = row
    return Pause(
        "queue" if text_of(scope) == "queue" else "kind",
        text_of(name),
        when(since),
        None if by is None else text_of(by),
        None if reason is None else text_of(reason),
    )
