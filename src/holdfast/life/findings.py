"""What an examination finds: how bad it is, what was seen, and what to do about it."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from holdfast.values.views import DeadGroup
from holdfast.values.words import age, one_line, plural

Severity = Literal["ok", "warning", "problem"]
GROUPS_SHOWN = 5
# Stands among the kinds that live workers handle where one of them does not say which.
ANY_KIND = "*"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at: how bad it is, what was seen, and what to do about it."""

    check: str
    severity: Severity
    seen: str
    do: str = ""


def of_letters(found: Sequence[DeadGroup], now: datetime, option: str = "") -> Iterator[Finding]:
    """Tell of groups of dead letters, the largest first; `option` is what names the store on the command line."""
    for group in found[:GROUPS_SHOWN]:
        error = one_line(f"{group.error_type}: {group.error_message}", 100)
        seen = f"{group.count:,} × {group.kind}, last {age(now - group.last_at)} ago: {error}"
        replay = f"`holdfast dead replay {_only(group)}{option}` (or discard)"
        do = f"`holdfast dead show {group.sample_id}{option}`; once fixed, {replay}"
        yield Finding("dead-letters", "warning", seen, do)
    if rest := found[GROUPS_SHOWN:]:
        seen = f"{plural(len(rest), 'more group')} with {plural(sum(g.count for g in rest), 'dead letter')}"
        yield Finding("dead-letters", "warning", seen, f"`holdfast dead groups{option}` lists them")


def _only(group: DeadGroup) -> str:
    """Name one line of `dead groups`: several kinds that fail alike share the id of their group."""
    return f"--kind {shlex.quote(group.kind)} --group {group.group}"
