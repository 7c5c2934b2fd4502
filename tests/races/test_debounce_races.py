"""Debounced calls against claims, cancels, prunes and each other, stepped by hand on two connections."""

import pytest

from holdfast import admin, jobs, lines
from holdfast.store import Store
from holdfast.testing import Clock, Look
from holdfast.testing.suite_debounce import call, keyed, said
from holdfast.testing.suite_order import ORDERED, say
from holdfast.values.rows import Enqueued, NewJob
from tests.races.stepping import PATIENCE, blocked, stepped

pytestmark = pytest.mark.parametrize("race_url", ["postgres", "mariadb", "mysql"], indirect=True)


@pytest.fixture
def look(pg: Store) -> Look:
    return Look(pg.run, pg)


def payloads(look: Look) -> dict[str, str]:
    return {row.id: said(row) for row in look.live()}


def due(n: int) -> NewJob:
    return call(n, wait=0, max_wait=0)


# Against a claim


def test_a_claim_that_comes_after_the_key_was_locked_and_before_the_update_makes_a_new_job(
    pg: Store, look: Look
) -> None:
    first = pg.run(jobs.enqueue(due(1)))
    with stepped(pg, jobs.enqueue(due(2), fresh=True)) as calling:
        calling.step_through("debounce_take")
        [lease] = pg.run(jobs.claim("mail", limit=9))
        second = calling.commit()
    assert lease.payload == '{"n":1}'
    assert second.created
    assert payloads(look) == {first.id: '{"n":1}', second.id: '{"n":2}'}
    assert pg.run(jobs.enqueue(due(3), fresh=True)) == Enqueued(second.id, created=False)


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_a_call_waits_for_a_claim_under_way_and_then_knows_whether_the_job_has_begun(
    pg: Store, look: Look, end: str
) -> None:
    first = pg.run(jobs.enqueue(due(1)))
    with stepped(pg, jobs.claim("mail", limit=1)) as claim, stepped(pg, jobs.enqueue(due(2), fresh=True)) as calling:
        claim.rest()
        answer = blocked(calling, calling.commit)
        getattr(claim, end)()
        second = answer.result(PATIENCE)
    assert second.created is (end == "commit")
    expected = {first.id: '{"n":1}', second.id: '{"n":2}'} if end == "commit" else {first.id: '{"n":2}'}
    assert payloads(look) == expected


def test_a_claim_passes_by_a_job_that_an_open_transaction_has_changed_and_waits_for_nobody(
    pg: Store, look: Look
) -> None:
    first = pg.run(jobs.enqueue(due(1)))
    with stepped(pg, jobs.enqueue(due(2), fresh=True)) as calling:
        calling.rest()
        assert pg.run(jobs.claim("mail", limit=9)) == []
        calling.commit()
    [lease] = pg.run(jobs.claim("mail", limit=9))
    assert (lease.job_id, lease.payload) == (first.id, '{"n":2}')


@pytest.mark.parametrize("kept", [True, False], ids=["kept", "dropped"])
def test_the_worker_of_a_job_that_runs_waits_for_no_caller(pg: Store, look: Look, kept: bool) -> None:
    pg.run(jobs.enqueue(due(1)))
    [lease] = pg.run(jobs.claim("mail", limit=1))
    with stepped(pg, jobs.enqueue(due(2), fresh=True)) as calling:
        calling.rest()
        assert pg.run(jobs.renew([(lease, 60_000)])).kept == {lease.job_id}
        pg.run(jobs.complete(lease, keep=kept))
        second = calling.commit()
    assert payloads(look) == {second.id: '{"n":2}'}


def test_what_a_rolled_back_call_said_is_not_run(pg: Store) -> None:
    pg.run(jobs.enqueue(due(1)))
    with stepped(pg, jobs.enqueue(due(2), fresh=True)) as calling:
        calling.rest()
        calling.rollback()
    [lease] = pg.run(jobs.claim("mail", limit=9))
    assert lease.payload == '{"n":1}'


def test_a_line_goes_on_while_an_open_transaction_says_something_to_a_job_that_stands_in_it(
    pg: Store, look: Look
) -> None:
    clock = Clock(pg)
    say(pg.run)
    first = pg.run(jobs.enqueue(keyed(1)))
    clock.advance(5)
    with stepped(pg, jobs.enqueue(keyed(2), fresh=True)) as calling:
        calling.rest()
        [lease] = pg.run(lines.claim("mail", ORDERED, limit=9)).leases
        pg.run(jobs.complete(lease))
        second = calling.commit()
    assert (lease.job_id, lease.payload) == (first.id, '{"n":1}')
    assert payloads(look) == {second.id: '{"n":2}'}


# Against each other


@pytest.mark.parametrize("end", ["commit", "rollback"])
@pytest.mark.parametrize("there", [True, False], ids=["known", "new"])
def test_the_second_of_two_calls_waits_for_the_first_and_wins(pg: Store, look: Look, there: bool, end: str) -> None:
    held = pg.run(jobs.enqueue(due(0))) if there else None
    with stepped(pg, jobs.enqueue(due(1), fresh=True)) as one, stepped(pg, jobs.enqueue(due(2), fresh=True)) as two:
        one.rest()
        waiting = blocked(two, two.commit)
        getattr(one, end)()
        second = waiting.result(PATIENCE)
    assert list(payloads(look).values()) == ['{"n":2}']
    assert second.created is (end == "rollback" and not there)
    assert held is None or second.id == held.id


def test_two_batches_with_the_same_keys_in_two_orders_never_wait_in_a_circle(pg: Store, look: Look) -> None:
    keys = ["a", "b", "c"]
    with (
        stepped(pg, jobs.enqueue_many([call(1, key) for key in keys], fresh=True)) as one,
        stepped(pg, jobs.enqueue_many([call(2, key) for key in reversed(keys)], fresh=True)) as two,
    ):
        one.step()
        waiting = blocked(two, two.commit)
        one.commit()
        assert [answer.created for answer in waiting.result(PATIENCE)] == [False] * 3
    assert set(payloads(look).values()) == {'{"n":2}'}


def test_calls_of_other_keys_and_plain_enqueues_wait_for_nobody(pg: Store, look: Look) -> None:
    pg.run(jobs.enqueue(due(0)))
    with stepped(pg, jobs.enqueue(due(1), fresh=True)) as calling:
        calling.rest()
        assert pg.run(jobs.enqueue(call(2, "doc:8"), fresh=True)).created
        assert pg.run(jobs.enqueue(call(3)._replace(debounce=None), fresh=True)).created
        calling.commit()
    assert len(look.live()) == 3


# Against people and rounds


def test_a_job_that_is_cancelled_by_hand_at_the_same_moment_is_followed_by_a_new_one(pg: Store, look: Look) -> None:
    first = pg.run(jobs.enqueue(due(1)))
    with (
        stepped(pg, admin.cancel(first.id, None)) as cancel,
        stepped(pg, jobs.enqueue(due(2), fresh=True)) as calling,
    ):
        cancel.step()
        waiting = blocked(calling, calling.commit)
        cancel.commit()
        second = waiting.result(PATIENCE)
    assert second.created
    assert payloads(look) == {second.id: '{"n":2}'}


def test_a_key_that_is_being_used_is_not_pruned(pg: Store, look: Look) -> None:
    clock = Clock(pg)
    pg.run(jobs.enqueue(due(1)))
    [lease] = pg.run(jobs.claim("mail", limit=1))
    pg.run(jobs.complete(lease))
    clock.advance(3_600)
    with stepped(pg, jobs.enqueue(due(2), fresh=True)) as calling:
        calling.step_through("debounce_take")
        assert pg.run(jobs.prune_debounces()) == 0
        second = calling.commit()
    assert pg.run(jobs.prune_debounces()) == 0
    assert pg.run(jobs.enqueue(due(3), fresh=True)) == Enqueued(second.id, created=False)


def test_a_call_waits_for_the_prune_of_its_key_and_adds_a_job(pg: Store, look: Look) -> None:
    clock = Clock(pg)
    pg.run(jobs.enqueue(due(1)))
    [lease] = pg.run(jobs.claim("mail", limit=1))
    pg.run(jobs.complete(lease))
    clock.advance(3_600)
    with stepped(pg, jobs.prune_debounces()) as prune, stepped(pg, jobs.enqueue(due(2), fresh=True)) as calling:
        assert prune.rest() == 1
        waiting = blocked(calling, calling.commit)
        prune.commit()
        second = waiting.result(PATIENCE)
    assert second.created
    assert pg.run(jobs.enqueue(due(3), fresh=True)) == Enqueued(second.id, created=False)
