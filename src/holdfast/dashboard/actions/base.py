"""What every action has: who may, a preview, and what it came to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from holdfast.dashboard.access import Action
from holdfast.dashboard.talk import Talk
from holdfast.dashboard.visit import Visit
from holdfast.values.views import JobView

Pairs = list[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Input:
    """A field that people fill in before they say yes."""

    name: str
    label: str
    kind: Literal["text", "number", "select", "area"] = "text"
    value: str = ""
    hint: str = ""
    choices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Preview:
    """What an action would touch. fields: what the form says again. button: none means that there is nothing to do.

    at_least: there may be more than `total`. store: the foreign tables that `rows` are of.
    """

    title: str
    button: str = ""
    words: str = ""
    facts: Pairs = field(default_factory=Pairs)
    rows: list[JobView] = field(default_factory=list[JobView])
    total: int | None = None
    at_least: bool = False
    notes: list[str] = field(default_factory=list[str])
    fields: Pairs = field(default_factory=Pairs)
    inputs: list[Input] = field(default_factory=list[Input])
    danger: bool = False
    store: str = ""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What an action came to. again: what the form of the next part says, where there is more to do.

    total: None where nobody knows how many there are.
    """

    said: str
    details: list[str] = field(default_factory=list[str])
    links: Pairs = field(default_factory=Pairs)
    again: Pairs | None = None
    done: int = 0
    total: int | None = 0


class Deed(NamedTuple):
    """An action by its parts."""

    permission: Action
    preview: Callable[[Visit], Talk[Preview]]
    carry_out: Callable[[Visit], Talk[Outcome]]
