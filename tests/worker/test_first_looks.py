"""A worker whose first look at a store failed: it claims nothing before it knows what is stored of its queues."""

import asyncio
from typing import Any

from holdfast import jobs, lines
from holdfast.flow import Steps
from holdfast.jobs.source import JobsSource
from holdfast.life.source import LearningFlow
from holdfast.store import Store, migrate
from holdfast.testing.make import new_job
from holdfast.values.queues import QueueSettings
from holdfast.values.rows import Finish
from holdfast.worker.outage import Outage
from holdfast.worker.patience import Patience

ORDERED = QueueSettings(ordered=True)


def looking(source: JobsSource) -> LearningFlow[Any]:
    """Make what a branch does first, where it could not at the worker's start."""

    def steps() -> Steps[Any]:
        return (yield from lines.declare({"mail": ORDERED}).start())

    def learn(stored: Any) -> None:
        source.learn_settings({name: one.settings for name, one in stored.items()})

    return LearningFlow("check", steps, learn)


def test_the_first_claim_after_an_outage_keeps_the_order_of_keys(sqlite_url: str) -> None:
    """It was made before the first look, when every queue is plain: it took a job whose key another worker holds."""
    store = Store(sqlite_url)
    store.run(migrate.apply(store.migrations))
    store.run(jobs.enqueue_many([new_job(key="order:1", bucket=1) for _ in range(2)], fresh=True))
    [held] = store.run(lines.claim("mail", ORDERED, limit=1)).leases
    source = JobsSource(["mail"], {})

    async def scene() -> list[str]:
        patience = Patience(store, Outage("late", lambda event: None), first=looking(source))
        taken: list[str] = []
        for _ in range(3):
            for turn in source.turns():
                claiming = source.claim({"noop": 30_000}, 10, "late", turn=turn)
                taken += [] if claiming is None else [str(one.id) for one in await patience.claim(claiming)]
        return taken

    try:
        assert asyncio.run(scene()) == []
        store.run(jobs.settle([Finish(held.id, held.fence, "done")], [held]))
        assert len(asyncio.run(scene())) == 1
    finally:
        store.close()
