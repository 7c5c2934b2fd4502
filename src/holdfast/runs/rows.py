"""What is kept of runs, as plain data: rows of a journal, what a run waits for, how a run is."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Literal, NamedTuple

import msgspec

from holdfast.flow import number_of, text_of
from holdfast.values.options import KEY_LENGTH

# What rows of jobs say in `followers` of a job that is a run; the table in `life/door.py` has this bit. The queries of
# this room and `prune` name it as 128.
RUN = 1 << 7
# What the headers of a job say of the run that it is: its key.
RUN_HEADER = "holdfast-run"

# The kinds of rows in a journal.
Kind = Literal[
    "fork",
    "begin",
    "step",
    "attempt",
    "tx",
    "undo",
    "timer",
    "signal",
    "child",
    "set",
    "patch",
    "cancel",
    "dispatch",
    "remote",
]

# Names in inboxes that no signal can have. All ends of children have the same one, and all results of remote steps:
# one probe of an index then tells whether there is any, and the oldest are read in their order, however many there are.
CANCEL = "!cancel"
CHILD = "!child"
REMOTE = "!remote"
# What a run says it waits for that cannot go on.
STUCK = "stuck"
_SIGNAL = "signal:"
_CHILDREN = "children"
_REMOTES = "remote"


class Recorded(NamedTuple):
    """A row of a journal: the columns of `journal_read` in their order; `at` is in microseconds since 1970."""

    seq: int
    key: str
    kind: Kind
    ok: int = 1
    value: str | None = None
    digest: int | None = None
    attempt: int = 1
    worker: str | None = None
    took_ms: int | None = None
    ref: str | None = None
    at: int = 0

    @classmethod
    def of(cls, row: Sequence[Any]) -> Recorded:
        """Read a row, whatever a caller's connection makes of texts and numbers."""
        seq, key, kind, ok, value, digest, attempt, worker, took_ms, ref, at = row
        return cls(
            number_of(seq),
            text_of(key),
            text_of(kind),  # type: ignore[arg-type]
            number_of(ok),
            None if value is None else text_of(value),
            None if digest is None else number_of(digest),
            number_of(attempt),
            None if worker is None else text_of(worker),
            None if took_ms is None else number_of(took_ms),
            None if ref is None else text_of(ref),
            number_of(at),
        )


class Wanted(NamedTuple):
    """What an operation of a run waits for: a name in the inbox, and the row that it becomes."""

    name: str
    key: str
    kind: Kind


class ChildLetter(msgspec.Struct, frozen=True):
    """How a child ended, as it lies in its parent's inbox: the child's key, and what the journal will say of it."""

    key: str
    end: msgspec.Raw


class Awaits(NamedTuple):
    """What a parked run waits for, as its row keeps it in `waits_for`."""

    signals: frozenset[str] = frozenset()
    children: bool = False
    remotes: bool = False

    def text(self) -> str | None:
        """Write it; None where it does not fit, and the run has to look by itself."""
        others = [_CHILDREN] * self.children + [_REMOTES] * self.remotes
        named = ",".join([_SIGNAL + name for name in sorted(self.signals)] + others)
        return None if len(named) > KEY_LENGTH else named or "timer"

    @classmethod
    def of(cls, text: str | None) -> Awaits:
        parts = (text or "").split(",")
        signals = frozenset(part.removeprefix(_SIGNAL) for part in parts if part.startswith(_SIGNAL))
        return cls(signals, _CHILDREN in parts, _REMOTES in parts)

    def names(self) -> set[str]:
        """Name what is to be looked for in its inbox."""
        others = [CHILD] * self.children + [REMOTE] * self.remotes
        return {CANCEL, *self.signals, *others}


def names_for(waits_for: str | None) -> set[str]:
    """Name what a parked run is woken for, by what its row says."""
    if waits_for == STUCK:
        # It could take nothing: the next minute's try, or a deploy, is what it waits for.
        return set()
    return Awaits.of(waits_for).names()


class RunView(msgspec.Struct, frozen=True):
    """A run as people see it; `status` is pending, running, waiting, stuck, done, dead or cancelled."""

    id: str
    job_id: str
    workflow: str
    kind: str | None
    status: str
    waits_for: str | None
    stuck: str | None
    stuck_at: datetime | None
    parent: str | None
    created_at: datetime
    ended_at: datetime | None
    attempts: int
    due_at: datetime | None
    attributes: dict[str, Any] = {}
