"""Remote steps as plain data: tasks, results, dispatches, and the names by which both sides know a step."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple
from uuid import UUID, uuid5

from holdfast.errors import ConfigError
from holdfast.flow import Columns, number_of, text_of
from holdfast.values.options import storable

# What fits into the columns of every transport.
NAME_LENGTH = 191
_LETTERS = UUID("6b0f6d3e-5d0b-4c43-9d55-3f1c2a7e8b14")
_STEP = re.compile(r"([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}):([0-9]{1,9})")


class Task(NamedTuple):
    """A step as its workers get it; input is JSON."""

    step_id: str
    run_id: str
    seq: int
    name: str
    grp: str
    input: str
    attempt: int


class Result(NamedTuple):
    """What a worker says of a step: texts as they came; times in milliseconds since 1970, by the clock of its own."""

    step_id: str
    status: str
    output: str | None
    error: str | None
    started_at: int | None
    created_at: int | None


class Dispatch(NamedTuple):
    """A step that was sent and has no result yet: the columns of `dispatches_of` in their order."""

    run_id: str
    seq: int
    key: str
    engine: str
    name: str
    grp: str
    input: str
    attempt: int
    lost: int = 0
    again: int = 0
    # Whether it is time to look after it.
    due: int = 0

    @classmethod
    def of(cls, row: Sequence[Any]) -> Dispatch:
        """Read a row, whatever a caller's connection makes of texts and numbers."""
        run_id, seq, key, engine, name, grp, given, attempt, *numbers = row
        texts = (text_of(key), text_of(engine), text_of(name), text_of(grp), text_of(given))
        return cls(text_of(run_id), number_of(seq), *texts, number_of(attempt), *map(number_of, numbers))

    @property
    def step_id(self) -> str:
        return step_id(self.run_id, self.seq)

    @property
    def task(self) -> Task:
        return Task(self.step_id, self.run_id, self.seq, self.name, self.grp, self.input, self.attempt)


def step_id(run_id: str, seq: int) -> str:
    """Name a step for those who do it."""
    return f"{run_id}:{seq}"


def parts_of(step: str) -> tuple[str, int] | None:
    """Read the run and the place out of a step's id; None for one that cannot be ours."""
    found = _STEP.fullmatch(step)
    return None if found is None else (found[1], int(found[2]))


def letter_id(step: str) -> str:
    """Name what lies in a run's inbox once the result of this step is there: there is never more than one."""
    return str(uuid5(_LETTERS, step))


def places(steps: Iterable[str]) -> Columns:
    """Make a batch of runs and places from the ids of steps, in their order."""
    pairs = sorted(pair for pair in map(parts_of, steps) if pair is not None)
    return {"run_id": [run for run, _ in pairs], "seq": [seq for _, seq in pairs]}


def group_of(step: str, partition: str | None = None) -> str:
    """Return the queue token of a step: colons become dashes, a partition is added behind @."""
    suffix = f"@{partition}" if partition and partition != "default" else ""
    token = storable(step, "step").replace(":", "-") + suffix
    if not step or len(token) > NAME_LENGTH:
        rule = f"must be text of 1 to {NAME_LENGTH} characters, its partition included"
        raise ConfigError("step", rule, step)
    return token
