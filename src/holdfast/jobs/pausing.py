"""What is paused, as workers read it: about once a second, and before their first claim."""

from __future__ import annotations

from holdfast.flow import Steps, ask, flow, text_of
from holdfast.life import merging
from holdfast.placing import on_every
from holdfast.values.pauses import Pause
from holdfast.values.rows import when


@on_every(merging.pauses)
@flow
def pauses() -> Steps[list[Pause]]:
    """Read which queues and kinds are paused: queues first, each by name."""
    rows = yield from ask("pauses_list", alone=True)
    return [
        Pause(
            "queue" if text_of(scope) == "queue" else "kind",
            text_of(name),
            when(since),
            None if by is None else text_of(by),
            None if reason is None else text_of(reason),
        )
        for scope, name, since, by, reason in rows
    ]
