"""What `holdfast queues pause` and `resume` do, and in which words they tell of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from holdfast import admin, jobs
from holdfast.cli.render import plural
from holdfast.cli.shared import Exit, Failure, actor_name
from holdfast.store import Store
from holdfast.values.pauses import Pause, Scope

Done = Literal["paused", "was paused", "would pause", "resumed", "was not paused", "would resume"]


class Told(NamedTuple):
    """What came of one queue or kind; `pause` is the one that is there, or was until now."""

    scope: Scope
    name: str
    done: Done
    pause: Pause | None
    due: int = 0

    def to_dict(self) -> dict[str, Any]:
        paused = None if self.pause is None else self.pause.to_dict()
        return {self.scope: self.name, "done": self.done, "due": self.due, "paused": paused}

    def __str__(self) -> str:
        what, waits = f"{self.scope} {self.name}", f"{plural(self.due, 'due job')} wait{'s' * (self.due == 1)}"
        if self.done == "was paused":
            return f"{self.pause or what}; it was so before"
        if self.done in ("would pause", "would resume"):
            return f"{self.done} {what}"
        says = {"paused": f"is paused: {waits}" if self.due else "is paused", "resumed": "is resumed"}
        return f"{what} {says.get(self.done, self.done)}"


@dataclass(frozen=True)
class Asked:
    """What a command was asked to do, and who asked."""

    meant: tuple[tuple[Scope, str], ...]
    who: str
    dry_run: bool

    @classmethod
    def of(cls, names: tuple[str, ...], kinds: tuple[str, ...], dry_run: bool, actor: str | None) -> Asked:
        """Read the options. Raises: Failure where nothing is named."""
        if not names and not kinds:
            raise Failure("which queues?", Exit.USAGE, "give their names, or --kind for the jobs of a kind")
        queues: list[tuple[Scope, str]] = [("queue", name) for name in dict.fromkeys(names)]
        return cls((*queues, *(("kind", name) for name in dict.fromkeys(kinds))), actor_name(actor), dry_run)

    def pause(self, store: Store, reason: str | None) -> list[Told]:
        before = _paused(store)
        if self.dry_run:
            new = {one: one not in before for one in self.meant}
        else:
            new = {one: store.run(admin.pause(*one, self.who, reason)) for one in self.meant}
        now, due = _paused(store), {(one.scope, one.name): one.due for one in store.run(admin.held_up())}
        told: list[Told] = []
        for one in self.meant:
            done: Done = "was paused" if not new[one] else "would pause" if self.dry_run else "paused"
            told.append(Told(*one, done, now.get(one), due.get(one, 0)))
        return told

    def unpaused(self, store: Store) -> list[tuple[Scope, str]]:
        """Return what is meant and is not paused."""
        paused = _paused(store)
        return [one for one in self.meant if one not in paused]

    def resume(self, store: Store) -> list[Told]:
        before, due = _paused(store), {(one.scope, one.name): one.due for one in store.run(admin.held_up())}
        told: list[Told] = []
        for one in self.meant:
            was = one in before if self.dry_run else store.run(admin.resume(*one, self.who))
            done: Done = "was not paused" if not was else "would resume" if self.dry_run else "resumed"
            told.append(Told(*one, done, before.get(one), due.get(one, 0)))
        return told


def _paused(store: Store) -> dict[tuple[Scope, str], Pause]:
    return {(one.scope, one.name): one for one in store.run(jobs.pauses())}
