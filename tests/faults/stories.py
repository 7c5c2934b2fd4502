"""What the kill test enqueues beside plain jobs: keys in order, limits, rates, chains, children, batches, and ticks.

Each process writes down what it does (`holdfast.testing.history`), and the shipped rules are held against all of it: a
promise that is broken is named.
"""

import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from holdfast import Holdfast, Rate, schedules
from holdfast.app.batching import Batch
from holdfast.bound import Bound
from holdfast.demo.proof import all_jobs
from holdfast.schedules import SCHEDULE_HEADER
from holdfast.testing.history import History, Recorder
from holdfast.testing.rules import Promises, Violation, check
from holdfast.values.rows import CONTINUES_HEADER, Enqueued
from holdfast.values.views import JobView

FOLDER = "HOLDFAST_KILL_FOLDER"
PULSE = "pulse"
PULSE_SECONDS = 1.0
# Few keys, so that they are often held; and none of the handlers here completes its job before it is over.
KEYS = 6
PLAIN_KIND, CHAINED = "post", ("link", "fuse")
PROMISES: Promises = {
    "ordered": ["orders"],
    "concurrency": {"stripe": 3},
    "key_concurrency": {"tenants": 2},
    "rates": {"meter": (10, 1.0)},
    "key_rates": {"meter": (3, 1.0)},
    "chains": CHAINED,
}


class RolledBack(Exception):
    """What the application raises to have its transaction rolled back."""


class Story(NamedTuple):
    """What one transaction enqueues: to which queue and key, after which jobs, and how."""

    queue: str
    key: str | None
    after: list[str]
    add: Callable[[Any], Batch | list[Enqueued]]


def declare(holdfast: Holdfast, tick: Bound) -> None:
    """Say what belongs to the queues, and what comes every second."""
    holdfast.queue("orders", ordered=True)
    holdfast.queue("stripe", concurrency=3)
    holdfast.queue("tenants", fair=True, key_concurrency=2)
    holdfast.queue("meter", rate=Rate(10, per=1), key_rate=Rate(3, per=1))
    holdfast.schedule(PULSE, tick, every=PULSE_SECONDS, catch_up="all")


class Stories:
    """Draws what to enqueue; children wait for jobs of earlier transactions that were committed."""

    def __init__(self, holdfast: Holdfast, recorder: Recorder, pause: Callable[[], float]) -> None:
        self.holdfast = holdfast
        self.recorder = recorder
        self._pause = pause
        self._known: list[str] = []

    @contextmanager
    def told(self, story: Story, tx: Any) -> Iterator[list[str]]:
        """Enqueue what a story says, and write it down with the end of the block, which commits or raises."""
        with self.recorder.enqueue(story.queue, story.key, after=story.after) as noted:
            answer = story.add(tx)
            noted(answer)
            ids = [*answer.ids, answer.id] if isinstance(answer, Batch) else [one.id for one in answer]
            yield ids
        self._known = (self._known + ids)[-200:]

    def draw(self) -> Story:
        if random.random() < 0.05:
            return self.metered()
        return random.choice((self.keyed, self.keyed, self.limited, self.chained, self.child, self.batch))()

    def keyed(self) -> Story:
        queue = random.choice(("orders", "orders", "tenants"))
        key = f"{queue}:{random.randrange(KEYS)}"
        bound = [self._bound(queue=queue, key=key) for _ in range(random.randint(1, 4))]
        return self._many(queue, key, bound)

    def metered(self) -> Story:
        """More than may start at once, and seldom: what waits for its rate keeps the producer from adding more."""
        key = f"meter:{random.randrange(KEYS)}"
        return self._many("meter", key, [self._bound(queue="meter", key=key) for _ in range(5)])

    def limited(self) -> Story:
        return self._many("stripe", None, [self._bound(queue="stripe") for _ in range(random.randint(1, 6))])

    def chained(self) -> Story:
        kinds = random.choices(CHAINED, k=random.randint(1, 4))
        return self._many("default", None, [self.holdfast.bind(kind, {"pause": self._pause()}) for kind in kinds])

    def child(self) -> Story:
        after = random.sample(self._known, min(len(self._known), random.randint(1, 3)))
        if not after:
            return self.limited()
        return self._many("default", None, [self._bound(after=after)], after)

    def batch(self) -> Story:
        queues = random.choices(("default", "orders", "stripe", "tenants"), k=random.randint(0, 8))
        members = [self._bound(queue=queue, key=f"{queue}:{random.randrange(KEYS)}") for queue in queues]
        chained = [self.holdfast.bind("link", {"pause": self._pause()}) for _ in range(random.randint(0, 2))]
        then = self._bound()

        def add(tx: Any) -> Batch:
            with self.holdfast.batch(then=then, tx=tx) as batch:
                batch.add_many([*members, *chained])
            return batch

        return Story("default", None, [], add)

    def _many(self, queue: str, key: str | None, bound: list[Bound], after: list[str] | None = None) -> Story:
        return Story(queue, key, after or [], lambda tx: self.holdfast.enqueue_many(bound, tx=tx))

    def _bound(self, **said: Any) -> Bound:
        return self.holdfast.bind(PLAIN_KIND, {"pause": self._pause()}, **said)


def recorder_of_this_process() -> Recorder | None:
    """Write to a file of this process's own, where the run has a folder for it."""
    folder = os.environ.get(FOLDER)
    return None if folder is None else Recorder(Path(folder) / f"{os.getpid()}.jsonl")


def born(job: JobView) -> bool:
    """Tell whether a job was enqueued by another, or by a tick, and not by the application."""
    return not {CONTINUES_HEADER, SCHEDULE_HEADER}.isdisjoint(job.headers or {})


def stop_ticks(holdfast: Holdfast, first: datetime) -> list[datetime]:
    """Have the schedule tick no more, and return the ticks that it has owed since the first one."""
    holdfast.store.run(schedules.pause(PULSE, None))
    [stored] = holdfast.store.run(schedules.listed(PULSE))
    owed, tick = [], first
    while tick < stored.next_at:
        owed.append(tick)
        tick = stored.timetable.first_after(tick)
    return owed


def judged(holdfast: Holdfast, folder: Path, owed: list[datetime]) -> tuple[History, list[Violation]]:
    """Put together what all processes wrote and what the tables hold, and hold the rules against it."""
    history = History.read(folder.glob("*.jsonl"))
    history.learn(all_jobs(holdfast.store))
    return history, check(history, **PROMISES, schedules={PULSE: owed})
