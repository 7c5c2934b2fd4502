"""Races on PostgreSQL, stepped by hand on two connections."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from psycopg import sql

from holdfast import Job, jobs
from holdfast.errors import DatabaseBusy, LeaseLost
from holdfast.flow import Steps, flow
from holdfast.store import Store, migrate
from holdfast.testing import Clock, Look, failure, new_job
from holdfast.values.rows import Enqueued, Finish, Lease, PutBack
from tests.races.stepping import PATIENCE, Stepped, again_and_again, blocked, on_postgres, on_thread, stepped


def claimed(store: Store, count: int = 1, **fields: Any) -> list[Lease]:
    store.run(jobs.enqueue_many([new_job(**fields) for _ in range(count)]))
    return store.run(jobs.claim("mail", limit=count))


def expired(store: Store, count: int = 1, **fields: Any) -> list[Lease]:
    clock = Clock(store)
    leases = claimed(store, count, **fields)
    for lease in leases:
        store.run(jobs.begin(lease))
    clock.pass_lease(leases[0])
    return leases


@pytest.fixture
def look(pg: Store) -> Look:
    return Look(pg.run, pg)


# Claims


def test_two_claims_at_once_never_get_the_same_job_and_never_wait(pg: Store) -> None:
    pg.run(jobs.enqueue_many([new_job() for _ in range(5)]))
    with stepped(pg, jobs.claim("mail", limit=3)) as one, stepped(pg, jobs.claim("mail", limit=3)) as two:
        one.step()
        two.step()
        first, second = one.commit(), two.commit()
    assert (len(first), len(second)) == (3, 2)
    assert len({lease.id for lease in first + second}) == 5


def test_two_claims_of_several_queues_at_once_never_get_the_same_job(pg: Store) -> None:
    pg.run(jobs.enqueue_many([new_job(queue) for queue in "abc" for _ in range(4)]))
    with stepped(pg, jobs.claim(list("abc"), limit=5)) as one, stepped(pg, jobs.claim(list("cba"), limit=5)) as two:
        one.step()
        two.step()
        taken = [lease.id for lease in one.commit() + two.commit()]
    rest = pg.run(jobs.claim(list("abc"), limit=99))
    assert len(taken) == len(set(taken))
    assert len(set(taken) | {lease.id for lease in rest}) == 12


def test_a_claim_that_rolls_back_took_nothing(pg: Store) -> None:
    pg.run(jobs.enqueue(new_job()))
    with stepped(pg, jobs.claim("mail", limit=1)) as one:
        assert len(one.rest()) == 1
        one.rollback()
    [lease] = pg.run(jobs.claim("mail", limit=1))
    assert (lease.attempt, lease.fence) == (1, 1)


def test_a_job_is_claimed_only_after_its_enqueue_committed(pg: Store) -> None:
    with stepped(pg, jobs.enqueue(new_job())) as adding:
        adding.rest()
        assert pg.run(jobs.claim("mail", limit=1)) == []
        adding.commit()
    assert len(pg.run(jobs.claim("mail", limit=1))) == 1


def test_a_claim_passes_jobs_that_a_slow_enqueue_of_the_same_queue_has_not_committed(pg: Store) -> None:
    with stepped(pg, jobs.enqueue_many([new_job(priority=9) for _ in range(3)])) as slow:
        slow.rest()
        ready = new_job()
        pg.run(jobs.enqueue(ready))
        assert [lease.job_id for lease in pg.run(jobs.claim("mail", limit=9))] == [ready.id]
        slow.commit()
    assert len(pg.run(jobs.claim("mail", limit=9))) == 3


# Reaping against everything else


def test_a_claim_gets_nothing_of_what_a_reaper_is_taking_back(pg: Store) -> None:
    expired(pg)
    with stepped(pg, jobs.reap(backoff=lambda *_: 0)) as reaper:
        # Its look, which locks nothing, and its pick.
        reaper.step_through("reap_pick")
        reaper.step_through("reap_pick")
        assert pg.run(jobs.claim("mail", limit=1)) == []
        reaper.rest()
        assert pg.run(jobs.claim("mail", limit=1)) == []
        reaper.commit()
    assert [(lease.attempt, lease.lapses) for lease in pg.run(jobs.claim("mail", limit=1))] == [(1, 1)]


def test_a_reaper_gets_nothing_of_what_a_claim_is_taking(pg: Store) -> None:
    clock = Clock(pg)
    pg.run(jobs.enqueue(new_job()))
    with stepped(pg, jobs.claim("mail", limit=1)) as claim:
        claim.rest()
        clock.advance(3_600)
        assert pg.run(jobs.reap()) == []
        claim.commit()


def test_two_reapers_at_once_share_the_expired_leases(pg: Store, look: Look) -> None:
    leases = expired(pg, 4)
    with stepped(pg, jobs.reap(limit=3)) as one, stepped(pg, jobs.reap(limit=3)) as two:
        one.step()
        two.step()
        first, second = one.commit(), two.commit()
    assert (len(first), len(second)) == (3, 1)
    assert {reaped.id for reaped in first + second} == {lease.job_id for lease in leases}
    assert [len(row.errors) for row in look.live()] == [1, 1, 1, 1]


def test_a_begin_that_meets_a_reaper_is_refused(pg: Store, look: Look) -> None:
    clock = Clock(pg)
    [lease] = claimed(pg, max_attempts=1)
    clock.pass_lease(lease)
    with stepped(pg, jobs.reap()) as reaper, stepped(pg, jobs.begin(lease)) as begin:
        reaper.rest()
        answer = blocked(begin, begin.commit)
        assert [one.outcome for one in reaper.commit()] == ["released"]
        with pytest.raises(LeaseLost):
            answer.result(PATIENCE)
    assert [(row.state, row.attempts, row.began) for row in look.live()] == [("pending", 0, False)]


def test_a_reaper_that_comes_after_a_begin_knows_of_it(pg: Store, look: Look) -> None:
    clock = Clock(pg)
    [lease] = claimed(pg, max_attempts=1)
    clock.pass_lease(lease)
    with stepped(pg, jobs.begin(lease)) as begin:
        begin.rest()
        assert pg.run(jobs.reap()) == []
        begin.commit()
    assert [one.outcome for one in pg.run(jobs.reap())] == ["dead"]


@pytest.mark.parametrize("attempts", [1, 5], ids=["to-the-dead-letters", "to-the-queue"])
@pytest.mark.parametrize("how", ["done", "dropped", "retry"])
def test_a_settle_that_meets_a_reaper_waits_and_is_refused(pg: Store, look: Look, how: str, attempts: int) -> None:
    [lease] = expired(pg, max_attempts=attempts)
    done = Finish(lease.id, lease.fence, "done", keep=how == "done")
    end = PutBack(lease.id, lease.fence, 0, 0, failure()) if how == "retry" else done
    with stepped(pg, jobs.reap()) as reaper, stepped(pg, jobs.settle([end])) as settle:
        reaper.rest()
        answer = blocked(settle, settle.commit)
        reaper.commit()
        assert answer.result(PATIENCE) == jobs.Settled(set(), {lease.job_id})
    rows = look.live() if attempts > 1 else look.over()
    assert [[error["type"] for error in row.errors] for row in rows] == [["LeaseExpired"]]


@on_postgres
def test_a_completion_that_meets_a_reaper_is_refused_and_its_effect_with_it(pg: Store) -> None:
    [lease] = expired(pg)
    with stepped(pg, jobs.reap()) as reaper, stepped(pg, jobs.complete(lease)) as complete:
        reaper.step_through("reap_mark")
        complete.begin()
        complete.link.raw.execute("create table effect ()")
        answer = blocked(complete, complete.commit)
        reaper.commit()
        with pytest.raises(LeaseLost):
            answer.result(PATIENCE)
        complete.rollback()
        assert complete.link.raw.execute("select to_regclass('effect')").fetchone() == (None,)


def test_a_settle_that_meets_a_reaper_who_gives_up_is_written(pg: Store, look: Look) -> None:
    [lease] = expired(pg)
    with (
        stepped(pg, jobs.reap()) as reaper,
        stepped(pg, jobs.settle([Finish(lease.id, lease.fence, "done")])) as settle,
    ):
        reaper.rest()
        answer = blocked(settle, settle.commit)
        reaper.rollback()
        assert answer.result(PATIENCE) == jobs.Settled({lease.job_id}, set())
    assert [row.outcome for row in look.over()] == ["done"]


def test_a_reaper_passes_a_lease_that_is_being_settled(pg: Store, look: Look) -> None:
    [lease] = expired(pg)
    with stepped(pg, jobs.settle([Finish(lease.id, lease.fence, "done")])) as settle:
        settle.rest()
        assert pg.run(jobs.reap()) == []
        settle.commit()
    assert pg.run(jobs.reap()) == []
    assert [row.outcome for row in look.over()] == ["done"]


def test_a_reaper_passes_a_lease_that_is_being_renewed(pg: Store) -> None:
    [lease] = expired(pg)
    with stepped(pg, jobs.renew([(lease, 30_000)])) as renew:
        renew.rest()
        assert pg.run(jobs.reap()) == []
        renew.commit()
    assert pg.run(jobs.reap()) == []
    pg.run(jobs.complete(lease))


def test_a_renewal_that_meets_a_reaper_is_left_out(pg: Store) -> None:
    [lease] = expired(pg)
    with stepped(pg, jobs.reap()) as reaper, stepped(pg, jobs.renew([(lease, 30_000)])) as renew:
        reaper.rest()
        answer = blocked(renew, renew.commit)
        reaper.commit()
        assert answer.result(PATIENCE) == jobs.Renewed(set(), set())


def test_two_settles_of_one_lease_write_once(pg: Store, look: Look) -> None:
    [lease] = claimed(pg)
    done = jobs.settle([Finish(lease.id, lease.fence, "done", '"mine"')])
    retry = jobs.settle([PutBack(lease.id, lease.fence, 0, 0, failure())])
    with stepped(pg, done) as one, stepped(pg, retry) as two:
        one.rest()
        answer = blocked(two, two.commit)
        one.commit()
        assert answer.result(PATIENCE) == jobs.Settled(set(), {lease.job_id})
    assert look.live() == []
    assert [row.result for row in look.over()] == ['"mine"']


def test_strays_are_not_given_back_while_a_settle_writes_them(pg: Store, look: Look) -> None:
    [lease] = claimed(pg)
    with stepped(pg, jobs.settle([Finish(lease.id, lease.fence, "done")])) as settle:
        settle.rest()
        with stepped(pg, jobs.release_strays("worker", [])) as strays:
            answer = blocked(strays, strays.commit)
            settle.commit()
            answer.result(PATIENCE)
    assert look.live() == []
    assert len(look.over()) == 1


# Idempotency keys


@pytest.fixture
def two_with_one_key(pg: Store) -> Iterator[tuple[Stepped[Enqueued], Stepped[Enqueued]]]:
    first, second = (jobs.enqueue(new_job(idempotency_key="k")) for _ in range(2))
    with stepped(pg, first) as one, stepped(pg, second) as two:
        yield one, two


def test_the_second_of_two_enqueues_with_one_key_waits_and_finds_the_first(
    two_with_one_key: tuple[Stepped[Enqueued], Stepped[Enqueued]], look: Look
) -> None:
    one, two = two_with_one_key
    one.step_through("keys_take")
    answer = blocked(two, two.commit)
    first = one.commit()
    assert answer.result(PATIENCE) == Enqueued(first.id, created=False)
    assert [row.id for row in look.live()] == [first.id]


def test_the_second_of_two_enqueues_with_one_key_creates_when_the_first_rolls_back(
    two_with_one_key: tuple[Stepped[Enqueued], Stepped[Enqueued]], look: Look
) -> None:
    one, two = two_with_one_key
    one.rest()
    answer = blocked(two, two.commit)
    one.rollback()
    second = answer.result(PATIENCE)
    assert second.created
    assert [row.id for row in look.live()] == [second.id]
    assert look.key_rows() == [("noop", "k", second.id)]


def test_two_enqueues_that_take_one_expired_key_add_one_job(pg: Store, look: Look) -> None:
    clock = Clock(pg)
    pg.run(jobs.enqueue(new_job(idempotency_key="k", window_ms=1_000)))
    clock.advance(2)
    flows = [jobs.enqueue(new_job(idempotency_key="k")) for _ in range(2)]
    with stepped(pg, flows[0]) as one, stepped(pg, flows[1]) as two:
        one.step_through("keys_take")
        answer = blocked(two, two.commit)
        first = one.commit()
        assert answer.result(PATIENCE) == Enqueued(first.id, created=False)
    assert len(look.live()) == 2


def test_two_batches_with_the_same_keys_in_opposite_order_wait_and_never_deadlock(pg: Store, look: Look) -> None:
    names = [f"k{n}" for n in range(20)]
    there = jobs.enqueue_many([new_job(idempotency_key=name) for name in names])
    back = jobs.enqueue_many([new_job(idempotency_key=name) for name in reversed(names)])
    with stepped(pg, there) as one, stepped(pg, back) as two:
        one.step_through("keys_take")
        answer = blocked(two, two.commit)
        first = one.commit()
        assert [found.id for found in answer.result(PATIENCE)] == [found.id for found in reversed(first)]
    assert len(look.live()) == 20


def test_an_enqueue_that_meets_a_prune_of_its_key_takes_the_key(pg: Store, look: Look) -> None:
    clock = Clock(pg)
    pg.run(jobs.enqueue(new_job(idempotency_key="k", window_ms=1_000)))
    clock.advance(2)
    with stepped(pg, jobs.prune_keys()) as prune, stepped(pg, jobs.enqueue(new_job(idempotency_key="k"))) as enqueue:
        assert prune.rest() == 1
        answer = blocked(enqueue, enqueue.commit)
        prune.commit()
        taken = answer.result(PATIENCE)
    assert taken.created
    assert look.key_rows() == [("noop", "k", taken.id)]


def test_a_prune_passes_a_key_that_an_enqueue_is_taking(pg: Store, look: Look) -> None:
    clock = Clock(pg)
    pg.run(jobs.enqueue(new_job(idempotency_key="k", window_ms=1_000)))
    clock.advance(2)
    with stepped(pg, jobs.enqueue(new_job(idempotency_key="k"))) as enqueue:
        enqueue.step_through("keys_take")
        assert pg.run(jobs.prune_keys()) == 0
        taken = enqueue.commit()
    assert pg.run(jobs.prune_keys()) == 0
    assert look.key_rows() == [("noop", "k", taken.id)]


def test_a_prune_passes_a_key_that_an_enqueue_has_found(pg: Store, look: Look) -> None:
    clock = Clock(pg)
    first = pg.run(jobs.enqueue(new_job(idempotency_key="k", window_ms=1_000)))
    with stepped(pg, jobs.enqueue(new_job(idempotency_key="k"))) as enqueue:
        enqueue.step_through("keys_take")
        clock.advance(2)
        # The row stays locked by the one who found it, so it cannot vanish before it is read.
        assert pg.run(jobs.prune_keys()) == 0
        assert enqueue.commit() == Enqueued(first.id, created=False)
    assert pg.run(jobs.prune_keys()) == 1
    assert len(look.live()) == 1


# Unique jobs


def test_the_second_of_two_enqueues_with_one_unique_key_waits_and_finds_the_first(pg: Store, look: Look) -> None:
    with stepped(pg, jobs.enqueue(new_job(unique="u"))) as one, stepped(pg, jobs.enqueue(new_job(unique="u"))) as two:
        one.step_through("enqueue")
        answer = blocked(two, two.commit)
        first = one.commit()
        assert answer.result(PATIENCE) == Enqueued(first.id, created=False)
    assert [row.id for row in look.live()] == [first.id]


def test_the_second_of_two_enqueues_with_one_unique_key_creates_when_the_first_rolls_back(
    pg: Store, look: Look
) -> None:
    with stepped(pg, jobs.enqueue(new_job(unique="u"))) as one, stepped(pg, jobs.enqueue(new_job(unique="u"))) as two:
        one.rest()
        answer = blocked(two, two.commit)
        one.rollback()
        second = answer.result(PATIENCE)
    assert second.created
    assert [row.id for row in look.live()] == [second.id]


def test_an_enqueue_that_meets_the_end_of_a_unique_job_adds_the_next_one(pg: Store, look: Look) -> None:
    [lease] = claimed(pg, unique="u")
    with stepped(pg, jobs.complete(lease)) as complete, stepped(pg, jobs.enqueue(new_job(unique="u"))) as enqueue:
        complete.rest()
        answer = blocked(enqueue, enqueue.commit)
        complete.commit()
        added = answer.result(PATIENCE)
    assert added.created
    assert [row.id for row in look.live()] == [added.id]


@on_postgres
def test_a_unique_job_that_ends_between_two_statements_is_added_in_the_next_round(pg: Store, look: Look) -> None:
    [lease] = claimed(pg, unique="u")
    with stepped(pg, jobs.enqueue(new_job(unique="u"))) as enqueue:
        enqueue.step_through("enqueue")
        pg.run(jobs.complete(lease))
        added = enqueue.commit()
    assert added.created
    assert [row.id for row in look.live()] == [added.id]


def test_two_batches_of_unique_jobs_in_opposite_order_wait_and_never_deadlock(pg: Store, look: Look) -> None:
    names = [f"u{n}" for n in range(20)]
    there = jobs.enqueue_many([new_job(unique=name) for name in names])
    back = jobs.enqueue_many([new_job(unique=name) for name in reversed(names)])
    with stepped(pg, there) as one, stepped(pg, back) as two:
        one.step_through("enqueue_many")
        answer = blocked(two, two.commit)
        first = one.commit()
        assert [found.id for found in answer.result(PATIENCE)] == [found.id for found in reversed(first)]
    assert len(look.live()) == 20


# Upkeep


def test_two_prunes_at_once_share_the_rows(pg: Store, look: Look) -> None:
    clock = Clock(pg)
    leases = claimed(pg, 5)
    pg.run(jobs.settle([Finish(lease.id, lease.fence, "done") for lease in leases]))
    clock.advance(timedelta(days=1))
    with (
        stepped(pg, jobs.prune("done", "mail", 1, limit=3)) as one,
        stepped(pg, jobs.prune("done", "mail", 1, limit=3)) as two,
    ):
        one.step()
        two.step()
        assert (one.commit(), two.commit()) == (3, 2)
    assert look.over() == []


def test_the_second_of_two_migrators_waits_and_finds_nothing_to_do(pg_url: str) -> None:
    store = Store(pg_url)
    with stepped(store, migrate.apply(store.migrations)) as one, stepped(store, migrate.apply(store.migrations)) as two:
        one.step_through("schema_lock")
        answer = blocked(two, two.commit)
        assert [migration.number for migration in one.commit()] == [migration.number for migration in store.migrations]
        assert answer.result(PATIENCE) == []
    store.check()
    store.close()


def test_the_second_of_two_migrators_takes_over_when_the_first_gives_up(pg_url: str) -> None:
    store = Store(pg_url)
    with stepped(store, migrate.apply(store.migrations)) as one, stepped(store, migrate.apply(store.migrations)) as two:
        one.rest()
        answer = blocked(two, two.commit)
        one.rollback()
        assert answer.result(PATIENCE) == store.migrations
    store.check()
    store.close()


@on_postgres
def test_a_deadlock_runs_the_whole_flow_again(pg: Store, look: Look) -> None:
    left, right = claimed(pg, 2)
    # The one that waits last finds the circle; the other is told to look for it later than any test lasts.
    patient = Store(f"{pg.url}?options=-c%20deadlock_timeout%3D60s")
    quick = Store(f"{pg.url}?options=-c%20deadlock_timeout%3D20ms")
    starts, answers = [], []

    @flow
    def both(first: Lease, second: Lease, value: str, meanwhile: Any = None) -> Steps[None]:
        starts.append(value)
        yield from jobs.progress(first, value)
        if meanwhile is not None and starts.count(value) == 1:
            meanwhile()
        yield from jobs.progress(second, value)

    with stepped(patient, both(right, left, '"other"')) as other:
        other.step()
        quick.run(both(left, right, '"ours"', lambda: answers.append(blocked(other, other.commit))))
        answers[0].result(PATIENCE)
    assert starts.count('"ours"') == 2
    assert [row.progress for row in look.live()] == ['"ours"', '"ours"']
    patient.close()
    quick.close()


# SQLite has one writer: who comes second is told so, or waits by running its whole transaction again


def test_sqlite_tells_the_second_writer_that_the_database_is_busy(lite: Store) -> None:
    lite.run(jobs.enqueue(new_job()))
    with stepped(lite, jobs.claim("mail", limit=1)) as one, stepped(lite, jobs.claim("mail", limit=1)) as two:
        one.step()
        with pytest.raises(DatabaseBusy):
            two.step()


def test_a_claim_on_a_busy_sqlite_runs_again_and_gets_the_rest(lite: Store) -> None:
    lite.run(jobs.enqueue_many([new_job() for _ in range(3)]))
    claims = [jobs.claim("mail", limit=2) for _ in range(2)]
    first, second, starts = again_and_again(lite, *claims, "commit")
    assert starts >= 2
    assert (len(first), len(second)) == (2, 1)
    assert len({lease.id for lease in first + second}) == 3


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_an_enqueue_with_a_key_on_a_busy_sqlite_runs_again_and_is_right(lite: Store, end: str) -> None:
    new = [new_job(idempotency_key="k", unique="u") for _ in range(2)]
    _, answer, starts = again_and_again(lite, jobs.enqueue(new[0]), jobs.enqueue(new[1]), end)
    assert starts >= 2
    assert answer == (Enqueued(new[0].id, created=False) if end == "commit" else Enqueued(new[1].id, created=True))
    assert len(Look(lite.run, lite).live()) == 1


def test_a_settle_behind_a_reaper_on_a_busy_sqlite_is_refused(lite: Store) -> None:
    [lease] = expired(lite)
    settle = jobs.settle([Finish(lease.id, lease.fence, "done")])
    _, answer, _ = again_and_again(lite, jobs.reap(), settle, "commit")
    assert answer == jobs.Settled(set(), {lease.job_id})


def test_a_reaper_behind_a_settle_on_a_busy_sqlite_finds_nothing(lite: Store) -> None:
    [lease] = expired(lite)
    settle = jobs.settle([Finish(lease.id, lease.fence, "done")])
    _, answer, _ = again_and_again(lite, settle, jobs.reap(), "commit")
    assert answer == []


def test_a_reader_is_never_kept_waiting_by_a_writer_on_sqlite(lite: Store) -> None:
    with stepped(lite, jobs.enqueue(new_job())) as writer:
        writer.rest()
        assert lite.run_once(jobs.prune_queues()) == []


@pytest.mark.parametrize("keep", [True, False], ids=["kept", "dropped"])
def test_a_repeated_enqueue_that_meets_the_end_of_its_job_does_not_run_it_again(
    pg: Store, look: Look, keep: bool
) -> None:
    job = new_job()
    pg.run(jobs.enqueue(job))
    [lease] = pg.run(jobs.claim("mail", limit=1))
    with stepped(pg, jobs.complete(lease, keep=keep)) as end, stepped(pg, jobs.enqueue(job)) as repeat:
        end.rest()
        answer = blocked(repeat, repeat.commit)
        end.commit()
        assert answer.result(PATIENCE).id == job.id
    assert look.live() == []
    assert [row.id for row in look.over()] == ([job.id] if keep else [])


@pytest.fixture(params=["repeatable read", "serializable"])
def strict(request: pytest.FixtureRequest, pg_url: str) -> Iterator[Store]:
    """A store in a PostgreSQL database whose transactions see a snapshot by default."""
    with psycopg.connect(pg_url, autocommit=True) as connection:
        name = sql.Identifier(connection.info.dbname)
        level = sql.Literal(request.param)
        connection.execute(sql.SQL("alter database {} set default_transaction_isolation = {}").format(name, level))
    store = Store(pg_url)
    store.run(migrate.apply(store.migrations))
    yield store
    store.close()


@pytest.mark.parametrize("keep", [True, False], ids=["kept", "dropped"])
def test_a_repeated_enqueue_sees_the_end_of_its_job_where_transactions_see_a_snapshot_by_default(
    strict: Store, keep: bool
) -> None:
    job = new_job()
    strict.run(jobs.enqueue(job))
    [lease] = strict.run(jobs.claim("mail", limit=1))
    with stepped(strict, jobs.complete(lease, keep=keep)) as end, stepped(strict, jobs.enqueue(job)) as repeat:
        end.rest()
        answer = blocked(repeat, repeat.commit)
        end.commit()
        assert answer.result(PATIENCE).id == job.id
    assert Look(strict.run, strict).live() == []


def test_a_job_completes_in_its_transaction_although_its_lease_was_renewed_meanwhile(strict: Store) -> None:
    [lease] = claimed(strict)
    job = Job(lease, strict)
    with job.transaction() as tx:
        tx.execute("select count(*) from holdfast_jobs")
        strict.run(jobs.renew([(lease, 30_000)]))
    assert job.settled
    assert [row.outcome for row in Look(strict.run, strict).over()] == ["done"]


def test_claims_share_what_there_is_where_transactions_see_a_snapshot_by_default(strict: Store) -> None:
    strict.run(jobs.enqueue_many([new_job() for _ in range(200)]))
    claims = [on_thread(lambda: [strict.run(jobs.claim("mail", limit=5)) for _ in range(10)]) for _ in range(4)]
    taken = [lease.id for claim in claims for batch in claim.result(PATIENCE) for lease in batch]
    rest = [lease.id for lease in strict.run(jobs.claim("mail", limit=200))]
    assert len(taken + rest) == len({*taken, *rest}) == 200
