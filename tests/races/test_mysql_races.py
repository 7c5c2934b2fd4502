"""Races that InnoDB runs its own way, stepped by hand on two connections to MariaDB, and to MySQL."""

import pytest

from holdfast import admin, jobs
from holdfast.errors import Conflict, LeaseLost
from holdfast.flow import Steps, flow
from holdfast.store import Store
from holdfast.testing import Look, failure, new_job
from holdfast.testing.suite_chains import child_of
from holdfast.values.rows import Lease
from tests.races.stepping import PATIENCE, blocked, stepped

pytestmark = pytest.mark.parametrize("race_url", ["mariadb", "mysql"], indirect=True)


def claimed(store: Store, count: int = 1, **fields: object) -> list[Lease]:
    store.run(jobs.enqueue_many([new_job(**fields) for _ in range(count)]))
    return store.run(jobs.claim("mail", limit=count))


def test_a_deadlock_runs_the_whole_flow_again(pg: Store) -> None:
    left, right = claimed(pg, 2)
    starts: list[str] = []
    waiting = []

    @flow
    def both(first: Lease, second: Lease, value: str) -> Steps[None]:
        starts.append(value)
        yield from jobs.progress(first, value)
        if value == '"ours"' and not waiting:
            waiting.append(blocked(other, other.commit))
        yield from jobs.progress(second, value)

    # The one with fewer rows written is the victim: the other has a row of its own beside.
    with stepped(pg, both(right, left, '"other"')) as other:
        other.step()
        for job in (new_job("elsewhere") for _ in range(20)):
            other.link.session.run(next(iter(jobs.enqueue(job))))
        pg.run(both(left, right, '"ours"'))
        waiting[0].result(PATIENCE)
    assert starts.count('"ours"') == 2
    assert [row.progress for row in Look(pg.run, pg).live() if row.queue == "mail"] == ['"ours"'] * 2


def test_a_cancel_that_meets_the_end_of_the_job_waits_and_is_a_conflict(pg: Store) -> None:
    [lease] = claimed(pg)
    with stepped(pg, jobs.complete(lease)) as end, stepped(pg, admin.cancel(lease.job_id, "a")) as cancel:
        end.step()
        answer = blocked(cancel, cancel.commit)
        end.commit()
        with pytest.raises(Conflict, match="done"):
            answer.result(PATIENCE)


def test_a_unique_job_cannot_end_while_it_is_looked_for(pg: Store) -> None:
    [lease] = claimed(pg, unique="u")
    with stepped(pg, jobs.enqueue(new_job(unique="u"))) as enqueue, stepped(pg, jobs.complete(lease)) as end:
        enqueue.step_through("enqueue")
        answer = blocked(end, end.commit)
        assert enqueue.commit().id == lease.job_id
        answer.result(PATIENCE)


def test_a_reaper_passes_by_what_is_being_settled(pg: Store) -> None:
    leases = claimed(pg, 3, lease_ms=1)
    with stepped(pg, jobs.complete(leases[0])) as end:
        end.rest()
        reaped = pg.run(jobs.reap())
        end.commit()
    assert {one.id for one in reaped} == {lease.job_id for lease in leases[1:]}
    with pytest.raises(LeaseLost):
        pg.run(jobs.retry(leases[1], 0, failure()))


def test_a_claim_passes_by_what_is_being_enqueued(pg: Store) -> None:
    pg.run(jobs.enqueue(new_job()))
    with stepped(pg, jobs.enqueue(new_job(priority=100))) as adding:
        adding.rest()
        assert len(pg.run(jobs.claim("mail", limit=9))) == 1
        adding.commit()
    assert len(pg.run(jobs.claim("mail", limit=9))) == 1


def test_an_end_in_a_repeatable_read_that_began_before_the_child_lets_it_go(pg: Store) -> None:
    """Its join is younger than the snapshot: it must be read as it is now, or the child waits for ever."""
    [parent] = claimed(pg)
    with stepped(pg, jobs.complete(parent)) as end:
        end.link.tell("set session transaction isolation level repeatable read")
        end.begin()
        end.link.tell("select count(*) from holdfast_joins")
        child = pg.run(jobs.enqueue(child_of(parent.job_id))).id
        assert pg.run(jobs.meet(pg.run(jobs.claim("mail", limit=9)))) == []
        end.commit()
        end.link.tell("set session transaction isolation level read committed")
    assert [lease.job_id for lease in pg.run(jobs.meet(pg.run(jobs.claim("mail", limit=9))))] == [child]


@pytest.mark.parametrize("level", ["read committed", "repeatable read"])
def test_a_running_parent_ends_while_a_child_of_it_is_enqueued(pg: Store, level: str) -> None:
    """InnoDB keeps rows locked that a statement has read and not meant; all in one isolation, the last in the other."""
    [parent] = claimed(pg)
    with stepped(pg, jobs.enqueue(child_of(parent.job_id), fresh=True)) as enqueue:
        enqueue.link.tell(f"set session transaction isolation level {level}")
        enqueue.rest()
        pg.run(jobs.complete(parent))
        enqueue.commit()
        enqueue.link.tell("set session transaction isolation level read committed")
