"""Lines and limits, stepped by hand on two connections: every lock that order and limits rest on."""

from contextlib import suppress
from typing import Any

import pytest

from holdfast import admin, jobs, lines
from holdfast.errors import DatabaseBusy, LeaseLost
from holdfast.store import Store
from holdfast.testing import Clock, Look, failure, new_job
from holdfast.values.queues import QueueSettings
from holdfast.values.rows import Finish, Lease
from tests.races.stepping import PATIENCE, blocked, stepped

ORDERED = QueueSettings(ordered=True)
ONE = QueueSettings(concurrency=1)


@pytest.fixture
def look(pg: Store) -> Look:
    return Look(pg.run, pg)


def add(store: Store, *keys: str | None, **fields: Any) -> list[str]:
    return [store.run(jobs.enqueue(new_job(key=key, **fields))).id for key in keys]


def claim(settings: QueueSettings = ORDERED, limit: int = 9, worker: str = "w") -> Any:
    return lines.claim("mail", settings, limit=limit, worker=worker)


def take(store: Store, settings: QueueSettings = ORDERED, limit: int = 9) -> list[Lease]:
    return store.run(claim(settings, limit)).leases


def settle(*leases: Lease) -> Any:
    return jobs.settle([Finish(lease.id, lease.fence, "done") for lease in leases])


def ids(leases: list[Lease]) -> list[str]:
    return [lease.job_id for lease in leases]


def held(look: Look) -> dict[str, int]:
    return {str(key): int(count) for key, count in look.rows("select key, held from holdfast_lines")}


def test_a_late_commit_of_a_lower_place_never_overlaps(pg: Store, look: Look) -> None:
    """The first of two producers commits last: its job waits while the other runs."""
    pg.run(lines.declare({"mail": ORDERED}))
    with stepped(pg, jobs.enqueue(new_job(key="a"))) as late:
        late.rest()
        [second] = add(pg, "a")
        [running] = take(pg)
        assert running.job_id == second
        first = late.commit().id
    assert take(pg) == []
    assert {row.id: row.state for row in look.live()} == {first: "waiting", second: "leased"}
    pg.run(settle(running))
    assert ids(take(pg)) == [first]


def test_an_enqueue_waits_for_no_claim_and_no_claim_for_an_enqueue(pg: Store) -> None:
    pg.run(lines.declare({"mail": ORDERED}))
    add(pg, "a")
    with stepped(pg, claim()) as claiming, stepped(pg, jobs.enqueue(new_job(key="a"))) as adding:
        claiming.rest()
        adding.rest()
        assert len(claiming.commit().leases) == 1
        later = adding.commit().id
    assert later not in ids(take(pg))


def test_a_stint_of_which_somebody_holds_a_row_is_left_to_the_next_reaper(pg: Store) -> None:
    """Taken back in part, its late holder could still end the rest of it."""
    clock = Clock(pg)
    pg.run(lines.declare({"mail": ORDERED}))
    first, second = add(pg, "a", "a")
    claimed = take(pg)
    clock.pass_lease(claimed[0])
    with stepped(pg, settle(claimed[1])) as settling:
        settling.rest()
        assert pg.run(jobs.reap()) == []
    assert {reaped.id for reaped in pg.run(jobs.reap())} == {first, second}


def test_an_enqueue_waits_for_no_settle_of_its_key(pg: Store) -> None:
    pg.run(lines.declare({"mail": ORDERED}))
    add(pg, "a")
    leases = take(pg)
    with stepped(pg, settle(*leases)) as settling:
        settling.rest()
        [second] = add(pg, "a")
        settling.commit()
    assert ids(take(pg)) == [second]


def test_two_claims_at_once_never_get_jobs_of_one_key(pg: Store, look: Look) -> None:
    pg.run(lines.declare({"mail": ORDERED}))
    mine = add(pg, "a", "a")
    with stepped(pg, claim(limit=1)) as first, stepped(pg, claim(worker="other")) as second:
        first.step_through("lines_lock")
        # The other has the second ticket, and comes to the line that the first has locked.
        answer = blocked(second, second.commit)
        assert ids(first.commit().leases) == mine[:1]
        assert answer.result(PATIENCE).leases == []
    assert held(look) == {"a": 1}
    assert {row.id: row.state for row in look.live()} == {mine[0]: "leased", mine[1]: "waiting"}


def test_a_job_that_is_enqueued_while_the_one_before_it_ends_is_not_stuck(pg: Store, look: Look) -> None:
    pg.run(lines.declare({"mail": ORDERED}))
    add(pg, "a")
    leases = take(pg)
    [second] = add(pg, "a")
    with stepped(pg, settle(*leases)) as settling, stepped(pg, claim(worker="other")) as claiming:
        settling.step_through("lines_lock")
        answer = blocked(claiming, claiming.commit)
        settling.commit()
        got = ids(answer.result(PATIENCE).leases)
    assert got + ids(take(pg)) == [second]


def test_a_claim_that_parks_before_the_line_is_free_leaves_nothing_behind(pg: Store, look: Look) -> None:
    pg.run(lines.declare({"mail": ORDERED}))
    add(pg, "a")
    leases = take(pg)
    [second] = add(pg, "a")
    with stepped(pg, claim(worker="other")) as claiming, stepped(pg, settle(*leases)) as settling:
        claiming.step_through("lines_lock")
        answer = blocked(settling, settling.commit)
        assert claiming.commit().leases == []
        answer.result(PATIENCE)
    # It was put aside under the lock of the line, so the end that came after it called it.
    assert [(row.id, row.state) for row in look.live()] == [(second, "pending")]
    assert ids(take(pg)) == [second]


def test_a_line_that_is_being_deleted_is_made_anew(pg: Store, look: Look) -> None:
    pg.run(lines.declare({"mail": ORDERED}))
    add(pg, "a")
    leases = take(pg)
    with stepped(pg, settle(*leases)) as settling:
        settling.rest()
        [second] = add(pg, "a")
        with stepped(pg, claim(worker="other")) as claiming:
            answer = blocked(claiming, claiming.commit)
            settling.commit()
            assert ids(answer.result(PATIENCE).leases) == [second]
    assert held(look) == {"a": 1}


def test_two_claims_at_once_never_exceed_a_limit(pg: Store, look: Look) -> None:
    pg.run(lines.declare({"mail": ONE}))
    add(pg, None, None)
    with stepped(pg, claim(ONE)) as first, stepped(pg, claim(ONE, worker="other")) as second:
        first.rest()
        answer = blocked(second, second.commit)
        assert len(first.commit().leases) == 1
        assert answer.result(PATIENCE).leases == []
    assert len([row for row in look.live() if row.state == "leased"]) == 1


def test_a_claim_beside_a_settle_of_a_full_queue_sees_it_or_not(pg: Store, look: Look) -> None:
    pg.run(lines.declare({"mail": ONE}))
    add(pg, None, None)
    leases = take(pg, ONE)
    with stepped(pg, settle(*leases)) as settling, stepped(pg, claim(ONE)) as claiming:
        settling.rest()
        answer = blocked(claiming, claiming.commit)
        settling.commit()
        assert len(answer.result(PATIENCE).leases) == 1
    assert [int(row[0]) for row in look.rows("select held from holdfast_queues")] == [1]


def test_two_ends_of_one_lease_give_back_once(pg: Store, look: Look) -> None:
    both = QueueSettings(ordered=True, concurrency=5)
    pg.run(lines.declare({"mail": both}))
    add(pg, "a", "a", "a")
    first, *_ = take(pg, both)
    with stepped(pg, settle(first)) as one, stepped(pg, settle(first)) as two:
        one.rest()
        answer = blocked(two, two.commit)
        assert one.commit().done == {first.job_id}
        # The repeat recognises its own write.
        assert answer.result(PATIENCE).done == {first.job_id}
    assert held(look) == {"a": 2}
    assert [int(row[0]) for row in look.rows("select held from holdfast_queues")] == [2]


def completion(first: Lease, second: Lease) -> Any:
    """Complete the second job of a stint as its handler does, while the end of the first is not written yet."""
    return jobs.complete(second, before=[Finish(first.id, first.fence, "done")])


def test_a_settle_beside_a_completion_that_took_its_end_along_finds_it_written(pg: Store, look: Look) -> None:
    pg.run(lines.declare({"mail": ORDERED}))
    add(pg, "a", "a", "a")
    first, second, _ = take(pg)
    with stepped(pg, completion(first, second)) as completing, stepped(pg, settle(first)) as settling:
        completing.rest()
        answer = blocked(settling, settling.commit)
        completing.commit()
        assert answer.result(PATIENCE).done == {first.job_id}
    assert {row.id for row in look.over()} == {first.job_id, second.job_id}
    assert held(look) == {"a": 1}


def test_a_completion_waits_for_a_settle_of_the_end_before_it(pg: Store, look: Look) -> None:
    pg.run(lines.declare({"mail": ORDERED}))
    add(pg, "a", "a", "a")
    first, second, _ = take(pg)
    with stepped(pg, settle(first)) as settling, stepped(pg, completion(first, second)) as completing:
        settling.rest()
        answer = blocked(completing, completing.commit)
        assert settling.commit().done == {first.job_id}
        answer.result(PATIENCE)
    assert {row.id for row in look.over()} == {first.job_id, second.job_id}
    assert held(look) == {"a": 1}


def test_a_completion_of_a_stint_that_was_reaped_writes_no_end(pg: Store, look: Look) -> None:
    clock = Clock(pg)
    pg.run(lines.declare({"mail": ORDERED}))
    add(pg, "a", "a")
    first, second = take(pg)
    clock.pass_lease(first)
    with stepped(pg, jobs.reap()) as reaping, stepped(pg, completion(first, second)) as completing:
        reaping.rest()
        answer = blocked(completing, completing.commit)
        reaping.commit()
        with pytest.raises(LeaseLost):
            answer.result(PATIENCE)
    assert look.over() == []
    assert [row.state for row in look.live()] != ["leased", "leased"]


def test_a_recount_beside_a_settle_finds_no_difference(pg: Store) -> None:
    both = QueueSettings(ordered=True, concurrency=5)
    pg.run(lines.declare({"mail": both}))
    add(pg, "a", "a")
    leases = take(pg, both)
    with stepped(pg, settle(leases[0])) as settling, stepped(pg, lines.recount("mail")) as counting:
        settling.step_through("followed")
        settling.step()
        counting.step_through("queue_lock")
        answer = blocked(settling, settling.commit)
        assert counting.commit() == []
        answer.result(PATIENCE)
    assert pg.run(lines.recount("mail")) == []


def test_a_job_that_is_cancelled_by_hand_while_a_claim_leases_it_is_gone_or_leased(pg: Store, look: Look) -> None:
    pg.run(lines.declare({"mail": ORDERED}))
    first, second = add(pg, "a", "a")
    with stepped(pg, admin.cancel(first, "ada")) as cancelling:
        cancelling.step_through("cancel_pending")
        # Its row is locked, so it is no ticket; the other one is, and its line begins with the locked one.
        with stepped(pg, claim()) as claiming:
            answer = blocked(claiming, claiming.commit)
            # Each has what the other wants: the victim of the deadlock repeats.
            with suppress(DatabaseBusy):
                cancelling.commit()
            cancelling.rollback()
            with suppress(DatabaseBusy):
                answer.result(PATIENCE)
    if first in {row.id for row in look.live() if row.state == "pending"}:
        pg.run(admin.cancel(first, "ada"))
    take(pg)
    assert {row.id for row in look.live() if row.state == "leased"} in ({first}, {second}, {first, second})
    assert sum(held(look).values()) == len([row for row in look.live() if row.state == "leased"])


def test_producers_in_opposite_orders_of_keys_do_not_wait_for_each_other(pg: Store) -> None:
    pg.run(lines.declare({"mail": ORDERED}))
    orders = ([new_job(key="a"), new_job(key="b")], [new_job(key="b"), new_job(key="a")])
    with (
        stepped(pg, jobs.enqueue_many(orders[0], fresh=True)) as one,
        stepped(pg, jobs.enqueue_many(orders[1], fresh=True)) as other,
    ):
        one.rest()
        other.rest()
        one.commit()
        other.commit()
    assert len(take(pg)) == 4


def test_a_retry_beside_a_claim_of_its_key_keeps_the_order(pg: Store) -> None:
    pg.run(lines.declare({"mail": ORDERED}))
    first, second = add(pg, "a", "a")
    [lease] = take(pg, limit=1)
    with stepped(pg, jobs.retry(lease, 0, failure())) as returning, stepped(pg, claim(worker="other")) as claiming:
        returning.step_through("lines_lock")
        answer = blocked(claiming, claiming.commit)
        returning.commit()
        got = ids(answer.result(PATIENCE).leases)
    assert got in ([], [first])
    assert (got or ids(take(pg))) == [first]
    assert second
