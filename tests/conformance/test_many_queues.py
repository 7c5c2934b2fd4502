"""Claims from many queues: the most urgent jobs first, of the kinds that were asked for, and no due one left behind."""

import random
import time

import pytest

from holdfast import jobs
from holdfast.jobs import lanes
from holdfast.jobs.source import JobsSource
from holdfast.life.source import LearningFlow
from holdfast.store import Store
from holdfast.store.dialects.mysql import claim
from holdfast.testing import new_job
from holdfast.values.rows import Lease, NewJob

QUEUES = [f"q{n}" for n in range(3 * claim.MANY_QUEUES)]
LEASES = {"a": 30_000, "b": 30_000}


@pytest.fixture(params=["few", "many"], autouse=True)
def _sample(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let MySQL take the jobs of these kinds for few, so that it knows their queues, or for too many."""
    if request.param == "many":
        monkeypatch.setattr(claim, "NARROW_SAMPLE_ROWS", 1)


def some_jobs(dice: random.Random, count: int) -> list[NewJob]:
    return [
        new_job(
            dice.choice(QUEUES),
            dice.choice("abc"),
            priority=dice.choice([-5, 0, 0, 0, 7]),
            delay_ms=dice.choice([0, 0, 0, 3_600_000]),
        )
        for _ in range(count)
    ]


def due(new: list[NewJob], kinds: str) -> dict[str, int]:
    return {job.id: job.priority for job in new if job.kind in kinds and not job.delay_ms}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("limit", [1, 7, 1000])
def test_the_most_urgent_come_first_whatever_their_queue(store: Store, seed: int, limit: int) -> None:
    new = some_jobs(random.Random(seed), 60)
    store.run(jobs.enqueue_many(new))
    claimed: list[Lease] = []
    while batch := store.run(jobs.claim(QUEUES, limit=limit, leases=LEASES)):
        assert len(batch) <= limit
        claimed += batch
    assert {lease.job_id: lease.priority for lease in claimed} == due(new, "ab")
    assert [lease.priority for lease in claimed] == sorted((lease.priority for lease in claimed), reverse=True)


def test_every_kind_is_claimed_when_none_is_named(store: Store) -> None:
    new = some_jobs(random.Random(5), 60)
    store.run(jobs.enqueue_many(new))
    claimed = store.run(jobs.claim(QUEUES, limit=1000))
    assert {lease.job_id for lease in claimed} == due(new, "abc").keys()


@pytest.mark.parametrize("seed", range(3))
def test_a_worker_that_knows_where_it_was_finds_what_is_new(
    store: Store, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """New queues, new priorities, and old ones again, with claims that begin at their floors."""
    # A level behind one that is not due is found by a claim from the front: once a minute where such a claim is slow,
    # as any claim may be on a busy machine.
    monkeypatch.setattr(lanes, "FRONT_EVERY_SECONDS", 0.5)
    dice = random.Random(seed)
    source = JobsSource(QUEUES, dict.fromkeys(LEASES), floors=store.dialect.keeps_dead_rows)
    found: dict[str, int] = {}
    wanted: dict[str, int] = {}
    for _ in range(6):
        new = some_jobs(dice, 20)
        store.run(jobs.enqueue_many(new))
        wanted |= due(new, "ab")
        deadline = time.monotonic() + 100
        while found != wanted and time.monotonic() < deadline:
            claiming = source.claim(LEASES, 5, "w")
            claimed = store.run(claiming)
            if isinstance(claiming, LearningFlow):
                claiming.learn(claimed)
            found |= {lease.job_id: lease.priority for lease in claimed}
        assert found == wanted


def test_queues_that_are_empty_or_hold_other_kinds_give_nothing(store: Store) -> None:
    assert store.run(jobs.claim(QUEUES, limit=9, leases=LEASES)) == []
    store.run(jobs.enqueue_many([new_job(queue, "c") for queue in QUEUES]))
    assert store.run(jobs.claim(QUEUES, limit=9, leases=LEASES)) == []
