"""Lines as another shard asks for them, while a key goes from one shard to another."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from holdfast.flow import Steps, flow
from holdfast.lines.leaving import heads_of, locked, settings_of

# Enough to see a job that runs behind one that is held.
HEADS_SEEN = 10


class InLine(NamedTuple):
    """Keys with something in their line, or a line that was stopped, and those of them of which a job is leased."""

    live: set[str]
    leased: set[str]


@flow
def in_line(queue: str, keys: Collection[str]) -> Steps[InLine]:
    """Look at the lines of keys. Commits: its own, and writes nothing."""
    wanted = sorted(keys)
    settings = yield from settings_of(queue)
    stopped = {line.key for line in (yield from locked(queue, wanted)).values() if line.stopped}
    heads = yield from heads_of(queue, settings, wanted, HEADS_SEEN)
    leased = {key for key, first in heads.items() if any(head.state == "leased" for head in first)}
    return InLine({*stopped, *(key for key, first in heads.items() if first)}, leased)
