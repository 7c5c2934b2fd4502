"""What came of a soak, and which promises do not hold."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median

from holdfast.testing.history import History
from holdfast.testing.rules import check
from tests.histories.log import Event
from tests.soak.app import DEATHS, EFFECTS, ENQUEUER, LINES, RUNS, VETERAN
from tests.soak.samples import Finished, Sample
from tests.soak.trouble import Deeds

# Shorter runs say nothing about growth.
LONG_ENOUGH = 600.0
# How much more the last quarter may have than the second one: what grows without end has twice as much by then.
MORE_MEMORY, MORE_TABLES = 1.3, 1.6


@dataclass
class Outcome:
    """What the application was answered, what the tables held, and what was seen on the way."""

    seconds: float
    rate: float
    answers: list[Event]
    finished: list[Finished]
    # By shard, tag and name.
    effects: dict[tuple[int, str, str], int]
    # Of each job that has not ended, what its row says.
    left: list[str]
    history: History = field(default_factory=History)
    samples: list[Sample] = field(default_factory=list[Sample])
    deeds: Deeds = field(default_factory=Deeds)

    def said(self, what: str) -> dict[str, str]:
        """Give the kind of each enqueue, by its tag, that had this answer."""
        return {event["tag"]: event["kind"] for event in self.answers if event["what"] == what}

    def broken(self) -> list[str]:
        """Name each promise that was not kept, with what shows it."""
        self.learn()
        rules = check(self.history, ordered=[LINES], chains=["first"])
        return [
            *self._jobs(),
            *self._effects(),
            *(str(violation) for violation in rules),
            *self._processes(),
            *self._growth(),
        ]

    def learn(self) -> None:
        """Tell the history how jobs ended. The calls of runs are no attempts: one claim makes several turns."""
        self.history.attempts = [one for one in self.history.attempts if one.queue != RUNS]
        self.history.rows = [one.row for one in self.finished]
        self.history.outcomes = {one.row.id: one.row.state for one in self.finished}

    def _jobs(self) -> Iterator[str]:
        for job in self.left:
            yield f"it has not ended: {job}"
        ended: dict[tuple[str, str], list[Finished]] = defaultdict(list)
        for one in self.finished:
            ended[one.tag, one.row.kind].append(one)
        for (tag, kind), jobs in ended.items():
            if len(jobs) > 1:
                yield f"one enqueue became {len(jobs)} jobs: {kind} {tag}: {', '.join(one.row.id for one in jobs)}"
        for tag, kind in self.said("answered").items():
            if (tag, kind) not in ended:
                yield f"acknowledged, and never ended: {kind} {tag}"
        for one in self.finished:
            wanted = ("dead", DEATHS) if one.row.kind == "doomed" else ("done", one.attempts)
            if (one.row.state, one.attempts) != wanted:
                yield f"{one.row.kind} {one.tag} is {one.row.state} after {one.attempts} attempts: {one.row.id}"

    def _effects(self) -> Iterator[str]:
        times: Counter[tuple[str, str]] = Counter()
        for (_, tag, what), count in self.effects.items():
            times[tag, what] += count
        earned = {(one.tag, what) for one in self.finished for what in EFFECTS.get(one.row.kind, ())}
        for (tag, what), count in times.items():
            if count > 1:
                yield f"a transactional effect happened {count} times: {what} of {tag}"
            if (tag, what) not in earned:
                yield f"an effect without a job that is done: {what} of {tag}"
        for tag, what in sorted(earned - times.keys()):
            yield f"done, and without its effect: {what} of {tag}"

    def _processes(self) -> Iterator[str]:
        for what in ("kill", "cut", "move", "failover"):
            if not self.deeds.count(what):
                yield f"there was no {what}: the run proves less than it should"
        for deed in self.deeds.done:
            if deed.what == "ended by itself" and deed.detail.startswith((VETERAN, ENQUEUER)):
                yield f"{deed.detail}, and nobody had told it to"

    def _growth(self) -> Iterator[str]:
        if self.seconds < LONG_ENOUGH:
            return
        for name in (VETERAN, ENQUEUER):
            found = [(one.at, one.memory[name]) for one in self.samples if name in one.memory]
            yield from self._more(f"the memory of {name}", found, MORE_MEMORY)
        tables = [(one.at, sum(one.sizes.values())) for one in self.samples if one.sizes]
        yield from self._more("the size of the tables", tables, MORE_TABLES)
        rows = [(one.at, one.finished) for one in self.samples if one.finished is not None]
        yield from self._more("the number of finished rows", rows, MORE_TABLES)

    def _more(self, name: str, found: Sequence[tuple[float, int]], most: float) -> Iterator[str]:
        before = [value for at, value in found if 0.25 <= at / self.seconds < 0.5]
        after = [value for at, value in found if 0.75 <= at / self.seconds < 1.0]
        if not before or not after:
            yield f"{name} was not measured"
        elif median(after) > most * median(before):
            yield f"{name} grows: {median(before):,.0f} in the second quarter, {median(after):,.0f} in the last one"
