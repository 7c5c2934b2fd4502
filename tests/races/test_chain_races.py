"""Chains, stepped by hand on two connections: every lock that continuations and fan-in rest on."""

import time
from typing import Any

import pytest

from holdfast import admin, chains, jobs
from holdfast.errors import Conflict
from holdfast.store import Store
from holdfast.testing import Look, new_job
from holdfast.testing.suite_chains import MARK, child_of
from holdfast.values.ids import next_id
from holdfast.values.rows import Continued, Finish, Lease
from tests.races.stepping import PATIENCE, blocked, stepped


@pytest.fixture
def look(pg: Store) -> Look:
    return Look(pg.run, pg)


def add(store: Store, *new: Any) -> list[str]:
    return [store.run(jobs.enqueue(one)).id for one in new]


def claim(store: Store) -> dict[str, Lease]:
    leases = store.run(jobs.meet(store.run(jobs.claim("mail", limit=9))))
    return {lease.job_id: lease for lease in leases}


def soon(store: Store) -> dict[str, Lease]:
    """Claim what a look has put off for a moment."""
    time.sleep(0.3)
    return claim(store)


def settle(*leases: Lease, outcome: Any = "done") -> Any:
    return jobs.settle([Finish(lease.id, lease.fence, outcome) for lease in leases])


def open_parents(store: Store, child: str) -> int:
    found = store.run(chains.parents_of(child))
    assert found is not None
    return found.open


def test_two_last_parents_let_their_child_go_once(pg: Store, look: Look) -> None:
    """Each ends while the other's end is not committed: the second waits, counts what the first wrote, and is last."""
    one, other = add(pg, new_job(), new_job())
    [child] = add(pg, child_of(one, other))
    leases = claim(pg)
    with stepped(pg, settle(leases[one])) as first, stepped(pg, settle(leases[other])) as second:
        first.rest()
        answer = blocked(second, second.commit)
        first.commit()
        answer.result(PATIENCE)
    assert open_parents(pg, child) == 0
    assert [*claim(pg)] == [child]
    assert claim(pg) == {}


def test_a_parent_that_ends_while_its_child_is_looked_at_finds_it_waiting(pg: Store) -> None:
    """The look has told the parent and not committed: the parent's end waits for it, and then wakes the child."""
    [one] = add(pg, new_job())
    [running] = claim(pg).values()
    [child] = add(pg, child_of(one))
    claimed = pg.run(jobs.claim("mail", limit=9))
    with stepped(pg, jobs.meet(claimed)) as looking, stepped(pg, settle(running)) as ending:
        looking.rest()
        answer = blocked(ending, ending.commit)
        assert looking.commit() == []
        answer.result(PATIENCE)
    assert [*claim(pg)] == [child]


def test_a_child_that_is_looked_at_while_its_parent_ends_is_looked_at_again(pg: Store) -> None:
    """The parent's row is locked: nobody waits for the one that has it, and the next look sees the end."""
    [one] = add(pg, new_job())
    [running] = claim(pg).values()
    [child] = add(pg, child_of(one))
    claimed = pg.run(jobs.claim("mail", limit=9))
    with stepped(pg, settle(running)) as ending, stepped(pg, jobs.meet(claimed)) as looking:
        ending.rest()
        assert looking.commit() == []
        ending.commit()
    [found] = pg.run(admin.list_jobs(admin.Filter(ids=(child,))))
    assert (found.state, found.waits_for) == ("pending", "parents")
    assert [*soon(pg)] == [child]


def test_a_look_does_not_wait_for_a_transaction_that_enqueues_another_child(pg: Store) -> None:
    [one] = add(pg, new_job("elsewhere"))
    with stepped(pg, jobs.enqueue(child_of(one), fresh=True)) as enqueue:
        enqueue.rest()
        add(pg, child_of(one))
        assert claim(pg) == {}
        enqueue.commit()
    assert soon(pg) == {}
    assert all(job.state == "waiting" for job in pg.run(admin.list_jobs(admin.Filter(queue="mail"))))


def test_a_running_parent_ends_while_a_transaction_enqueues_its_child(pg: Store) -> None:
    [one] = add(pg, new_job())
    [running] = claim(pg).values()
    with stepped(pg, jobs.enqueue(child_of(one), fresh=True)) as enqueue:
        enqueue.rest()
        pg.run(settle(running))
        enqueue.commit()
    assert len(claim(pg)) == 1


def test_a_child_is_woken_while_a_transaction_enqueues_a_child_of_its_own(pg: Store) -> None:
    [one] = add(pg, new_job())
    [child] = add(pg, child_of(one))
    [running] = claim(pg).values()
    with stepped(pg, jobs.enqueue(child_of(child), fresh=True)) as enqueue:
        enqueue.rest()
        pg.run(settle(running))
        assert [*claim(pg)] == [child]
        enqueue.commit()


def test_a_look_that_is_repeated_lets_nothing_run_that_another_worker_holds(pg: Store) -> None:
    """The reply to the first was lost; since then the parent has ended, and somebody else has claimed the child."""
    [one] = add(pg, new_job())
    [running] = claim(pg).values()
    add(pg, child_of(one))
    claimed = pg.run(jobs.claim("mail", limit=9))
    assert pg.run(jobs.meet(claimed)) == []
    pg.run(settle(running))
    assert len(claim(pg)) == 1
    assert pg.run(jobs.meet(claimed)) == []


def test_an_enqueue_after_a_job_waits_for_no_worker_and_no_worker_for_it(pg: Store, look: Look) -> None:
    """A parent that is about to end, one that runs, and one that is pending, beside an open enqueue of their child."""
    ending, running, pending = add(pg, new_job(), new_job(), new_job(queue="other"))
    leases = claim(pg)
    with stepped(pg, settle(leases[ending])) as settling:
        settling.rest()
        with stepped(pg, jobs.enqueue(child_of(ending, running, pending), fresh=True)) as adding:
            adding.rest()
            # The enqueue has locked the pending one: a claim passes it over.
            assert pg.run(jobs.claim("other", limit=9)) == []
            settling.commit()
            pg.run(settle(leases[running]))
            child = adding.commit().id
    [last] = pg.run(jobs.claim("other", limit=9))
    assert claim(pg) == {}
    pg.run(settle(last))
    assert [*claim(pg)] == [child]
    found = pg.run(chains.parents_of(child))
    assert found is not None
    assert sorted(found.results()) == sorted([ending, running, pending])


def test_an_enqueue_that_is_rolled_back_leaves_its_parents_as_they_were(pg: Store, look: Look) -> None:
    [one] = add(pg, new_job())
    with stepped(pg, jobs.enqueue(child_of(one), fresh=True)) as adding:
        adding.rest()
        adding.rollback()
    assert [row.followers for row in look.live()] == [None]
    [lease] = claim(pg).values()
    pg.run(settle(lease))
    assert look.live() == []


def test_a_holder_that_lost_its_lease_while_it_ended_adds_no_continuation(pg: Store, look: Look) -> None:
    add(pg, new_job())
    [lease] = claim(pg).values()
    following = new_job(id=next_id(lease.job_id))
    with stepped(pg, jobs.release(lease)) as taking:
        taking.rest()
        with stepped(pg, jobs.settle([Continued(lease.id, lease.fence, following)])) as ending:
            answer = blocked(ending, ending.commit)
            taking.commit()
            assert answer.result(PATIENCE).lost == {lease.job_id}
    assert [row.id for row in look.live()] == [lease.job_id]


def test_a_replay_beside_the_end_of_the_last_parent_is_waited_for_or_too_late(pg: Store, look: Look) -> None:
    one, other = add(pg, new_job(), new_job())
    [child] = add(pg, child_of(one, other))
    leases = claim(pg)
    pg.run(settle(leases[one], outcome="dead"))
    with stepped(pg, settle(leases[other])) as ending:
        ending.rest()
        with stepped(pg, admin.replay(admin.Filter(ids=(one,)), 9, None)) as replaying:
            answer = blocked(replaying, replaying.commit)
            ending.commit()
            assert answer.result(PATIENCE).ids == [one]
    assert {*claim(pg)} == {child, one}


def test_a_seal_beside_the_end_of_the_last_member_calls_back_once(pg: Store, look: Look) -> None:
    member, then = new_job(), new_job(headers=MARK, kind="callback")
    pg.run(jobs.add_batch(then, [member], sealed=False, fresh=True))
    [lease] = claim(pg).values()
    with stepped(pg, settle(lease)) as ending, stepped(pg, jobs.seal_batch(then.id)) as sealing:
        ending.rest()
        answer = blocked(sealing, sealing.commit)
        ending.commit()
        assert answer.result(PATIENCE) is True
    assert [*claim(pg)] == [then.id]


def test_an_extension_beside_a_seal_is_counted_or_refused(pg: Store, look: Look) -> None:
    then, late = new_job(headers=MARK, kind="callback"), new_job()
    pg.run(jobs.add_batch(then, [], sealed=False, fresh=True))
    with (
        stepped(pg, jobs.grow_batch(then.id, [late], fresh=True)) as growing,
        stepped(pg, jobs.seal_batch(then.id)) as s,
    ):
        growing.rest()
        answer = blocked(s, s.commit)
        growing.commit()
        assert answer.result(PATIENCE) is True
    [lease] = claim(pg).values()
    assert lease.job_id == late.id
    pg.run(settle(lease))
    assert [*claim(pg)] == [then.id]


def test_a_batch_that_is_sealed_is_left_alone_though_the_callers_transaction_commits(pg: Store, look: Look) -> None:
    then = new_job(headers=MARK)
    pg.run(jobs.add_batch(then, [new_job()], fresh=True))
    with stepped(pg, jobs.grow_batch(then.id, [new_job()], fresh=True)) as growing:
        with pytest.raises(Conflict, match="sealed"):
            growing.rest()
        growing.link.tell("commit")
        growing.open = False
    assert len(look.live()) == 2
