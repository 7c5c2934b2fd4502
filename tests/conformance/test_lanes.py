"""Claims that begin at floors find what they must: near the floor at once, below it in time, new priorities at once."""

import math
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from typing import TypeVar

import pytest

from holdfast import jobs
from holdfast.flow import Flow, drive
from holdfast.jobs.lanes import Lanes, Start, Width
from holdfast.jobs.source import JobsSource
from holdfast.life.source import LearningFlow
from holdfast.store import Store, migrate
from holdfast.testing import new_job
from holdfast.values.rows import Finish, Lease, PutBack, when

T = TypeVar("T")


@pytest.fixture(params=["pg_url", "mariadb_url", "mysql_url"])
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    store = Store(request.getfixturevalue(request.param))
    store.run(migrate.apply(store.migrations))
    yield store
    store.close()


@pytest.fixture
def last(store: Store) -> Lease:
    """A job that was claimed and is done: the floor."""
    store.run(jobs.enqueue(new_job()))
    [lease] = store.run(jobs.claim("mail", limit=1))
    store.run(jobs.settle([Finish(lease.id, lease.fence, "done")]))
    return lease


def known(last: Lease) -> Lanes:
    lanes = Lanes(["mail"])
    lanes.learn(Start("all"), [last], 10, 0.0, 1.0)
    return lanes


def run(store: Store, work: Flow[T]) -> T:
    """Run a flow of a source and let that learn from the answer, as a worker does."""
    answer = store.run(work)
    if isinstance(work, LearningFlow):
        work.learn(answer)
    return answer


def before(last: Lease, seconds: float) -> dict[str, object]:
    return {"run_at": when(last.available_at) - timedelta(seconds=seconds)}


@pytest.mark.parametrize("width, below", [("deep", 8), ("slice", 100), ("all", 100)])
def test_what_turns_up_below_the_floor_is_found(store: Store, last: Lease, width: Width, below: float) -> None:
    """By one kind of wider claim alone."""
    source = JobsSource(["mail"], {"noop": None}, floors=True)
    lanes = source._lanes[("noop",), True] = known(last)
    lanes._due = {"all": math.inf, "deep": math.inf, "slice": math.inf, width: 0.0}
    late = new_job(**before(last, below))
    store.run(jobs.enqueue(late))

    found = [lease.id for _ in range(3) for lease in run(store, source.claim({"noop": 30_000}, 10, "w"))]

    assert found == [late.id]


def test_a_claim_near_its_floor_leaves_what_is_far_below(store: Store, last: Lease) -> None:
    """Otherwise the tests above would prove nothing."""
    store.run(jobs.enqueue(new_job(**before(last, 8))))

    assert store.run(jobs.claim("mail", limit=10, leases={"noop": 1}, lanes=known(last)._columns("near"))) == []


def test_a_new_priority_is_found_at_once(store: Store, last: Lease) -> None:
    added = [new_job(priority=priority) for priority in (7, -7)]
    store.run(jobs.enqueue_many(added))

    claimed = store.run(jobs.claim("mail", limit=10, leases={"noop": 1}, lanes=known(last)._columns("near")))

    assert [lease.id for lease in claimed] == [job.id for job in added]


def test_jobs_that_go_back_to_their_place_are_claimed_again_at_once(store: Store, last: Lease) -> None:
    source = JobsSource(["mail"], {"noop": None}, floors=True)
    source._lanes[("noop",), True] = known(last)
    store.run(jobs.enqueue(new_job(**before(last, 100))))
    [lease] = store.run(jobs.claim("mail", limit=1))
    run(store, source.settle([PutBack(lease.id, lease.fence, None, 1)], "w"))

    assert [again.id for again in run(store, source.claim({"noop": 30_000}, 10, "w"))] == [lease.id]


def test_lanes_are_served_by_priority_then_age_and_no_further_than_the_limit(store: Store, last: Lease) -> None:
    low, high = new_job(priority=-1), new_job(priority=1)
    old, new = new_job(**before(last, 0.1)), new_job()
    store.run(jobs.enqueue_many([low, new, old, high]))
    lanes = known(last)._columns("near")

    claimed = store.run(jobs.claim("mail", limit=3, leases={"noop": 1}, lanes=lanes))

    assert [lease.id for lease in claimed] == [high.id, old.id, new.id]


@pytest.mark.parametrize("width", ["near", "slice", "deep", "all"])
@pytest.mark.parametrize("below", [0, 0.1, 0.25])
def test_no_claim_gives_a_job_twice(store: Store, last: Lease, width: Width, below: float) -> None:
    """Stretches that met at a job gave it twice where each is a statement: two attempts under one fence."""
    source = JobsSource(["mail"], {"noop": None}, floors=True)
    lanes = source._lanes[("noop",), True] = known(last)
    lanes._due = {"all": math.inf, "deep": math.inf, "slice": math.inf, width: 0.0}
    late = [new_job(**before(last, below)) for _ in range(3)]
    store.run(jobs.enqueue_many(late))

    claimed = run(store, source.claim({"noop": 30_000}, 10, "w"))

    assert sorted(lease.id for lease in claimed) == sorted(job.id for job in late)


def test_strays_that_went_back_are_claimed_again_at_once(store: Store, last: Lease) -> None:
    source = JobsSource(["mail"], {"noop": None}, floors=True)
    an_hour_ago = last._replace(available_at=when(last.available_at) - timedelta(hours=1))
    lanes = source._lanes[("noop",), True] = known(an_hour_ago)
    lanes._due = dict.fromkeys(lanes._due, math.inf)
    store.run(jobs.enqueue_many([new_job(**before(last, 60 * minutes)) for minutes in (30, 20, 0)]))
    assert len(run(store, source.claim({"noop": 30_000}, 10, "w"))) == 3

    run(store, source.release_strays("w", []))

    assert len(run(store, source.claim({"noop": 30_000}, 10, "w"))) == 3


class Undone(Exception):
    pass


def test_a_claim_that_was_rolled_back_taught_nothing_and_its_repeat_did(store: Store) -> None:
    job = new_job()
    store.run(jobs.enqueue(job))
    source = JobsSource(["mail"], {"noop": None}, floors=True)
    claiming = source.claim({"noop": 30_000}, 10, "w")
    lanes = source._lanes[("noop",), True]

    with suppress(Undone), store.transaction() as link:
        assert len(drive(claiming, link.session)) == 1
        raise Undone
    assert lanes._floors == {}

    [lease] = run(store, claiming)
    assert lanes._floors == {("mail", 0): when(lease.available_at)}


def test_a_reap_or_a_return_that_was_rolled_back_taught_nothing(store: Store, last: Lease) -> None:
    source = JobsSource(["mail"], {"noop": None}, floors=True)
    lanes = source._lanes[("noop",), True] = known(last)
    floors = dict(lanes._floors)
    store.run(jobs.enqueue(new_job()))
    [lease] = store.run(jobs.claim("mail", limit=1))

    with suppress(Undone), store.transaction() as link:
        drive(source.reap([], 10, lambda *_: 0.0), link.session)
        drive(source.settle([PutBack(lease.id, lease.fence, None, 1)], "w"), link.session)
        drive(source.release_strays("w", []), link.session)
        raise Undone
    assert (lanes._floors, source._look_back._clean_at) == (floors, None)
