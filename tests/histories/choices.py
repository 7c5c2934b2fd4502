"""Which job to enqueue, drawn at random: its kind, what its attempts do, and what is said about it."""

import random
import time
from typing import Any

from tests.histories import acts
from tests.histories.calls import Wanted

# By kind, how often it is drawn.
KINDS = {
    "plain": 3,
    "plain_def": 2,
    "book": 5,
    "book_def": 3,
    "parent": 1,
    "parent_def": 1,
    "own": 1,
    "own_def": 1,
    "hasty": 1,
    "hasty_def": 1,
    "few": 1,
    "few_def": 1,
    "shared": 4,
    "shared_def": 3,
}
# What can be left out beside acts: the queue that keeps nothing, and transactions that see one snapshot.
OTHERS = ("brief", "repeatable")
WITHOUT_EFFECT = frozenset({"plain", "plain_def"})
# Rare ones: they take the process along, or stop a whole worker for a while.
RARE = frozenset({*acts.KILLERS, "block"})
RARE_EVERY = (1.0, 5.0)


def acts_of(kind: str) -> tuple[str, ...]:
    """List what handlers of this kind know to do."""
    if kind in WITHOUT_EFFECT:
        return (*acts.PLAIN, *acts.SPAWN)
    if kind.startswith("own"):
        return (*acts.PLAIN, *acts.INSIDE)
    late = acts.LATE if kind.startswith("hasty") else ()
    return (*acts.PLAIN, *acts.INSIDE, *acts.BROKEN, *late)


class Choices:
    """Draws jobs; what `without` names is never drawn."""

    def __init__(self, seed: str, without: frozenset[str] = frozenset()) -> None:
        self.random = random.Random(seed)
        self._without = without
        self._rare_due = time.monotonic() + self.random.uniform(*RARE_EVERY)

    def job(self, tag: str) -> Wanted:
        kind = self.random.choices(list(KINDS), list(KINDS.values()))[0]
        queue = "brief" if "brief" not in self._without and self.random.random() < 0.2 else "default"
        acts, options = self._acts(kind), self._options()
        if acts[-1] in RARE:
            # It does so in every attempt, and each costs a process.
            options["max_attempts"] = self.random.randint(1, 3)
        return {"tag": tag, "kind": kind, "queue": queue, "acts": acts, "options": options}

    def key(self) -> str:
        """Draw an idempotency key: one that others draw at about the same time."""
        return f"key-{int(time.time() * 2) - self.random.randrange(4)}"

    def unique(self) -> str:
        return f"unique-{self.random.randrange(6)}"

    def _acts(self, kind: str) -> list[str]:
        known = [act for act in acts_of(kind) if act not in self._without]
        rare = [act for act in known if act in RARE]
        if rare and time.monotonic() > self._rare_due:
            self._rare_due = time.monotonic() + self.random.uniform(*RARE_EVERY)
            # Once, or in every attempt that it has.
            return [self.random.choice(rare)] + (["ok"] if self.random.random() < 0.5 else [])
        usual = [act for act in known if act not in RARE]
        count = self.random.choices((0, 1, 2), (6, 3, 1))[0]
        return [*self.random.choices(usual, k=count), "ok"] if usual else ["ok"]

    def _options(self) -> dict[str, Any]:
        options: dict[str, Any] = {"max_attempts": self.random.choice((1, 2, 3, 5, 20))}
        if self.random.random() < 0.3:
            options["priority"] = self.random.choice((-5, 5, 10))
        if self.random.random() < 0.2:
            options["run_after"] = round(self.random.uniform(0.1, 2.0), 2)
        if self.random.random() < 0.2:
            options["lease"] = 1.0
        return options
