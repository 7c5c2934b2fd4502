"""Upkeep: pruning what is over, the worker registry, the clock and the schema."""

from __future__ import annotations

from datetime import timedelta

import pytest

from holdfast import admin, jobs
from holdfast.admin import JobsDesk
from holdfast.errors import SchemaMismatch
from holdfast.flow import Steps, ask, flow
from holdfast.store import Store, migrate
from holdfast.store.dialects import SCHEMA_VERSION
from holdfast.testing.clock import Clock
from holdfast.testing.look import Do, Look
from holdfast.testing.make import new_job
from holdfast.values.rows import OUTCOMES, Finish, Outcome, when
from holdfast.worker import registry

DAY = timedelta(days=1)
DAY_MS = 86_400_000


def finished(do: Do, count: int = 1, queue: str = "mail", outcome: Outcome = "done") -> set[str]:
    """Make finished jobs and return their ids."""
    do(jobs.enqueue_many([new_job(queue) for _ in range(count)]))
    leases = do(jobs.claim(queue, limit=count))
    return do(jobs.settle([Finish(lease.id, lease.fence, outcome) for lease in leases])).done


def test_prune_deletes_what_is_older_than_its_retention(do: Do, clock: Clock, look: Look) -> None:
    old = finished(do)
    clock.advance(DAY)
    young = finished(do)
    assert do(jobs.prune("done", "mail", DAY_MS)) == 0
    clock.advance(0.001)
    assert do(jobs.prune("done", "mail", DAY_MS)) == 1
    assert {row.id for row in look.over()} == young != old


def test_prune_keeps_to_its_queue_and_outcome(do: Do, clock: Clock, look: Look) -> None:
    for queue in ("mail", "bulk"):
        for outcome in OUTCOMES:
            finished(do, 2, queue, outcome)
    clock.advance(DAY)
    assert do(jobs.prune("dead", "mail", 1)) == 2
    left = {(row.queue, row.outcome) for row in look.over()}
    assert left == {(queue, outcome) for queue in ("mail", "bulk") for outcome in OUTCOMES} - {("mail", "dead")}


def test_prune_works_in_chunks_oldest_first(do: Do, clock: Clock, look: Look) -> None:
    oldest = finished(do, 3)
    clock.advance(1)
    finished(do, 4)
    clock.advance(1)
    assert do(jobs.prune("done", "mail", 1, limit=3)) == 3
    assert not oldest & {row.id for row in look.over()}
    assert [do(jobs.prune("done", "mail", 1, limit=3)) for _ in range(3)] == [3, 1, 0]


def test_prune_touches_no_live_job(do: Do, clock: Clock, look: Look) -> None:
    finished(do)
    do(jobs.enqueue_many([new_job(), new_job()]))
    do(jobs.claim("mail", limit=1))
    before = look.live()
    clock.advance(DAY)
    for outcome in OUTCOMES:
        do(jobs.prune(outcome, "mail", 0))
    assert (look.live(), look.over()) == (before, [])


def test_the_queues_to_prune_are_those_with_finished_jobs(do: Do, clock: Clock) -> None:
    assert do(jobs.prune_queues()) == []
    pairs: list[tuple[Outcome, str]] = [("cancelled", "b"), ("dead", "a"), ("dead", "c"), ("done", "a"), ("done", "b")]
    for outcome, queue in pairs:
        finished(do, 3, queue, outcome)
    do(jobs.enqueue(new_job("only-live")))
    assert sorted(do(jobs.prune_queues())) == pairs


def test_a_beat_registers_a_worker(do: Do, clock: Clock) -> None:
    assert do(registry.beat("w1", '{"host":"a"}')) == "alive"
    born = clock.now
    clock.advance(10)
    assert do(registry.beat("w1", '{"host":"a","jobs":3}')) == "alive"
    clock.advance(2)
    [worker] = do(registry.workers())
    assert (worker.id, worker.status, worker.started_at) == ("w1", "alive", born)
    assert (worker.seen_at, worker.silent_for) == (born + timedelta(seconds=10), timedelta(seconds=2))
    assert worker.info == {"host": "a", "jobs": 3}


def test_what_one_worker_does_for_all_is_its_own_until_its_time_is_over(do: Do, clock: Clock) -> None:
    assert do(registry.take_round("prune", "w1", 1_000))
    assert not do(registry.take_round("prune", "w2", 1_000))
    assert do(registry.take_round("stuck", "w2", 1_000))
    clock.advance(0.9)
    assert do(registry.take_round("prune", "w1", 1_000)), "it keeps what it has"
    clock.advance(0.9)
    assert not do(registry.take_round("prune", "w2", 1_000))
    clock.advance(0.1)
    assert do(registry.take_round("prune", "w2", 1_000)), "a silent worker loses it"
    assert not do(registry.take_round("prune", "w1", 1_000))


def test_a_beat_never_un_drains(do: Do, clock: Clock) -> None:
    do(registry.beat("w1", "{}"))
    assert do(registry.mark("w1", "draining")) is True
    for _ in range(3):
        clock.advance(10)
        assert do(registry.beat("w1", "{}")) == "draining"


def test_a_worker_nobody_knows_cannot_be_marked(do: Do, clock: Clock) -> None:
    assert do(registry.mark("nobody", "draining")) is False
    assert do(registry.workers()) == []


def test_silent_workers_are_buried_once(do: Do, clock: Clock) -> None:
    for worker in ("silent", "drained", "beating"):
        do(registry.beat(worker, "{}"))
    do(registry.mark("drained", "draining"))
    clock.advance(30)
    do(registry.beat("beating", "{}"))
    assert do(registry.bury(timedelta(seconds=30))) == []
    clock.advance(0.001)
    assert do(registry.bury(timedelta(seconds=30))) == ["silent"]
    assert do(registry.bury(timedelta(seconds=30))) == []
    assert {worker.id: worker.status for worker in do(registry.workers())} == {
        "silent": "dead",
        "drained": "draining",
        "beating": "alive",
    }


def test_a_draining_worker_stays_so_however_long_it_was_silent(do: Do, clock: Clock) -> None:
    do(registry.beat("w1", "{}"))
    do(registry.mark("w1", "draining"))
    clock.advance(3600)
    do(registry.bury(timedelta(seconds=30)))
    assert do(registry.beat("w1", "{}")) == "draining"


def test_a_worker_that_was_buried_too_soon_is_alive_again_at_its_next_beat(do: Do, clock: Clock) -> None:
    do(registry.beat("w1", "{}"))
    clock.advance(60)
    assert do(registry.bury(timedelta(seconds=30))) == ["w1"]
    assert do(registry.beat("w1", "{}")) == "alive"


def test_a_worker_that_stopped_is_told_from_one_that_died(do: Do, clock: Clock, look: Look) -> None:
    for worker in ("stopped", "silent", "old"):
        do(registry.beat(worker, "{}"))
    assert do(registry.leave("stopped")) is True
    assert do(registry.leave("nobody")) is False
    # A worker of the version before says so when it stops; nothing tells that from a death.
    do(registry.mark("old", "dead"))
    clock.advance(60)
    assert do(registry.bury(timedelta(seconds=30))) == ["silent"]
    found = {worker.id: (worker.status, worker.is_gone) for worker in do(registry.workers())}
    assert found == {"stopped": ("stopped", True), "silent": ("dead", True), "old": ("dead", True)}
    # What the version before asks for.
    assert [row[0] for row in look.rows("select id from holdfast_workers where status <> 'dead'")] == []
    assert do(registry.beat("stopped", "{}")) == "alive", "one that beats has not stopped"
    assert [worker.status for worker in do(registry.workers()) if worker.id == "stopped"] == ["alive"]


def test_burying_a_worker_takes_no_lease_from_it(do: Do, clock: Clock, look: Look) -> None:
    do(registry.beat("w1", "{}"))
    do(jobs.enqueue(new_job(lease_ms=3_600_000)))
    [lease] = do(jobs.claim("mail", limit=1, worker="w1"))
    clock.advance(60)
    do(registry.bury(timedelta(seconds=30)))
    do(jobs.complete(lease))
    assert [row.outcome for row in look.over()] == ["done"]


def test_dead_workers_are_forgotten_and_others_are_not(do: Do, clock: Clock) -> None:
    for worker in ("dead", "stopped", "silent"):
        do(registry.beat(worker, "{}"))
    do(registry.mark("dead", "dead"))
    do(registry.leave("stopped"))
    clock.advance(DAY)
    assert do(registry.forget(DAY)) == 0
    clock.advance(0.001)
    assert do(registry.forget(DAY)) == 2
    assert [worker.id for worker in do(registry.workers())] == ["silent"]


def test_a_worker_may_be_forgotten_while_its_jobs_name_it(do: Do, clock: Clock, look: Look) -> None:
    do(registry.beat("w1", "{}"))
    do(jobs.enqueue_many([new_job(), new_job()]))
    first, _ = do(jobs.claim("mail", limit=2, worker="w1"))
    do(jobs.complete(first))
    do(registry.mark("w1", "dead"))
    clock.advance(DAY)
    assert do(registry.forget(timedelta(hours=1))) == 1
    assert (look.live()[0].leased_by, look.over()[0].leased_by) == ("w1", "w1")


@flow
def read_clock() -> Steps[object]:
    [[moment]] = yield from ask("clock", alone=True)
    return moment


def test_the_store_sees_the_time_the_test_set(do: Do, clock: Clock) -> None:
    assert when(do(read_clock())) == clock.now
    assert when(do(read_clock())) == clock.now


def test_without_a_test_clock_time_goes_on_by_itself(do: Do, store: Store, look: Look) -> None:
    assert store.now is None
    before = when(do(read_clock()))
    do(jobs.enqueue(new_job()))
    after = when(do(read_clock()))
    assert before <= look.live()[0].created_at <= after


def test_the_schema_is_of_this_librarys_version(do: Do, store: Store) -> None:
    assert do(migrate.version()) == SCHEMA_VERSION
    assert do(migrate.pending(store.migrations)) == []
    do(migrate.check(SCHEMA_VERSION))


def test_migrating_a_second_time_changes_nothing(do: Do, store: Store, look: Look) -> None:
    do(jobs.enqueue(new_job()))
    before = look.live()
    assert do(migrate.apply(store.migrations)) == []
    assert look.live() == before


def test_a_newer_schema_is_refused_with_what_to_do(do: Do, store: Store) -> None:
    with pytest.raises(SchemaMismatch, match="upgrade holdfast") as refused:
        do(migrate.check(SCHEMA_VERSION - 1))
    assert (refused.value.found, refused.value.expected) == (SCHEMA_VERSION, SCHEMA_VERSION - 1)
    with pytest.raises(SchemaMismatch, match="holdfast migrate apply"):
        do(migrate.check(SCHEMA_VERSION + 1))


def test_audit_lines_are_pruned_by_age_in_chunks(do: Do, clock: Clock) -> None:
    for name in ("a", "b", "c"):
        do(admin.pause("queue", name, "ann"))
    clock.advance(DAY)
    do(admin.pause("queue", "d", "ann"))
    assert do(admin.prune_audit(DAY_MS)) == 0, "just that old is not older"
    clock.advance(0.001)
    assert do(JobsDesk().count_audit(DAY)) == 3
    assert [do(admin.prune_audit(DAY_MS, limit=2)) for _ in range(3)] == [2, 1, 0]
    assert [line.detail["queue"] for line in do(admin.audit())] == ["d"]
    assert len(do(jobs.pauses())) == 4, "what was done stays done"
