"""Pause and resume queues and kinds by hand, as flows.

A pause gates claims and nothing else: enqueues go on, and handlers that run go on. Every change writes an audit line in
its own transaction.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter
from typing import Any

from holdfast.admin.recording import record
from holdfast.flow import Steps, ask, flow, number_of, text_of
from holdfast.life import merging
from holdfast.placing import on_every
from holdfast.values.options import NAME_LENGTH, text
from holdfast.values.pauses import Scope
from holdfast.values.views import plain

REASON_LENGTH = 1000


@dataclass(frozen=True, slots=True)
class HeldUp:
    """The due jobs of a queue or kind that is paused, and for how many seconds the oldest has been due."""

    scope: Scope
    name: str
    due: int
    oldest_seconds: float

    def with_more(self, more: HeldUp) -> HeldUp:
        return replace(self, due=self.due + more.due, oldest_seconds=max(self.oldest_seconds, more.oldest_seconds))

    def to_dict(self) -> dict[str, Any]:
        return plain(self)


@on_every(merging.any_of, stores=True)
@flow
def pause(scope: Scope, name: str, actor: str | None, reason: str | None = None) -> Steps[bool]:
    """Have workers claim nothing of a queue, or no jobs of a kind; False where it was paused already.

    What was said of the first pause stays: since when, by whom and why. A name that nobody knows is fine.
    Commits: with the caller's transaction when one is given, else its own. Raises: ConfigError.
    After a crash: nothing happened; safe to repeat, and a repeat after a lost reply answers False.
    """
    text(name, scope, NAME_LENGTH)
    if reason is not None:
        text(reason, "reason", REASON_LENGTH)
    rows = yield from ask("pause_add", scope=scope, name=name, actor=actor, reason=reason)
    if rows:
        yield from record(f"{scope}_pause", actor, [(None, {scope: name, "reason": reason})])
    return bool(rows)


@on_every(merging.any_of, stores=True)
@flow
def resume(scope: Scope, name: str, actor: str | None) -> Steps[bool]:
    """Let workers claim from a queue, or jobs of a kind, again; False where it was not paused.

    Commits: with the caller's transaction when one is given, else its own. Raises: ConfigError.
    After a crash: nothing happened; safe to repeat, and a repeat after a lost reply answers False.
    """
    text(name, scope, NAME_LENGTH)
    rows = yield from ask("pause_remove", scope=scope, name=name)
    if rows:
        yield from record(f"{scope}_resume", actor, [(None, {scope: name})])
    return bool(rows)


@on_every(partial(merging.by_name, attrgetter("scope", "name"), HeldUp.with_more))
@flow
def held_up() -> Steps[list[HeldUp]]:
    """Tell how many due jobs wait for each pause to end; pauses that nothing waits for are left out."""
    rows = yield from ask("pauses_due", alone=True)
    return [
        HeldUp("queue" if text_of(scope) == "queue" else "kind", text_of(name), number_of(due), number_of(age) / 1e6)
        for scope, name, due, age in rows
    ]
