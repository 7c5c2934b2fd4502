"""Marks on jobs that somebody waits for, stepped by hand beside what claims and ends them."""

import threading
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from holdfast import jobs, results
from holdfast.flow import Flow
from holdfast.store import Store
from holdfast.testing import new_job
from holdfast.values.rows import Finish, Lease
from tests.races.stepping import PATIENCE, blocked, on_postgres, stepped

ENDS: dict[str, Callable[[Lease], Flow[Any]]] = {
    "settle": lambda lease: jobs.settle([Finish(lease.id, lease.fence, "done", '"r"')]),
    "settle-dropped": lambda lease: jobs.settle([Finish(lease.id, lease.fence, "done", '"r"', keep=False)]),
    "complete": lambda lease: jobs.complete(lease, '"r"'),
    "complete-and-drop": lambda lease: jobs.complete(lease, '"r"', keep=False),
}
every_end = pytest.mark.parametrize("end", ENDS)


def held(store: Store) -> Lease:
    store.run(jobs.enqueue(new_job()))
    [lease] = store.run(jobs.claim("mail", limit=1))
    return lease


def within_patience(act: Callable[[], Any]) -> Any:
    """Return what something gives, on a thread, so that one which has to wait fails and does not hang."""
    given: list[Any] = []
    thread = threading.Thread(target=lambda: given.append(act()), daemon=True)
    thread.start()
    thread.join(PATIENCE)
    assert given, "it has to wait"
    return given[0]


@every_end
def test_a_mark_waits_for_no_transaction_that_ends_its_job(pg: Store, end: str) -> None:
    """A handler may have completed its job in a transaction that it leaves open for long."""
    lease = held(pg)
    with stepped(pg, ENDS[end](lease)) as ending:
        ending.rest()
        assert within_patience(lambda: pg.run(results.mark([lease.job_id]))) == set()
        assert pg.run(results.look([lease.job_id]))[lease.job_id].state == "leased"
        ending.commit()
    seen = pg.run(results.look([lease.job_id]))
    assert [one.state for one in seen.values()] == ([] if "drop" in end else ["done"])


@every_end
def test_an_end_that_is_rolled_back_leaves_the_job_to_be_marked(pg: Store, end: str) -> None:
    lease = held(pg)
    with stepped(pg, ENDS[end](lease)) as ending:
        ending.rest()
        ending.rollback()
    assert pg.run(results.mark([lease.job_id])) == {lease.job_id}
    pg.run(ENDS[end](lease))
    state = pg.run(results.look([lease.job_id]))[lease.job_id].state
    assert state == (results.LEFT if "drop" in end else "done")


@every_end
def test_an_end_that_meets_a_mark_sees_it(pg: Store, end: str) -> None:
    lease = held(pg)
    with stepped(pg, results.mark([lease.job_id])) as marking, stepped(pg, ENDS[end](lease)) as ending:
        marking.rest()
        answer = blocked(ending, ending.commit)
        assert marking.commit() == {lease.job_id}
        answer.result(PATIENCE)
    state = pg.run(results.look([lease.job_id]))[lease.job_id].state
    assert state == (results.LEFT if "drop" in end else "done")


def test_a_claim_that_meets_a_mark_does_not_wait_for_it(pg: Store) -> None:
    job, other = new_job(), new_job()
    pg.run(jobs.enqueue_many([job, other]))
    with stepped(pg, results.mark([job.id])) as marking:
        marking.rest()
        claimed = within_patience(lambda: pg.run(jobs.claim("mail", limit=2)))
        assert [lease.job_id for lease in claimed] == [other.id]
        marking.commit()
    assert [lease.job_id for lease in pg.run(jobs.claim("mail", limit=2))] == [job.id]


def test_a_mark_that_meets_a_claim_leaves_the_job_to_the_next_look(pg: Store) -> None:
    job = new_job()
    pg.run(jobs.enqueue(job))
    with stepped(pg, jobs.claim("mail", limit=1)) as claiming:
        claiming.rest()
        assert within_patience(lambda: pg.run(results.mark([job.id]))) == set()
        claiming.commit()
    assert pg.run(results.mark([job.id])) == {job.id}


@on_postgres
def test_a_mark_on_a_due_job_lets_the_workers_of_its_queue_look_again(pg: Store) -> None:
    """One of them may have left the job out while it was locked; it would find it with its next poll only."""
    due, later, busy = new_job(), new_job("other", delay_ms=60_000), held(pg)
    pg.run(jobs.enqueue_many([due, later]))
    with psycopg.connect(pg.url, autocommit=True) as ear:
        ear.execute("listen holdfast_wake")
        pg.run(results.mark([later.id, busy.job_id]))
        assert [note.payload for note in ear.notifies(timeout=0.3)] == []
        pg.run(results.mark([due.id]))
        assert [note.payload for note in ear.notifies(timeout=5, stop_after=1)] == ["mail"]


@every_end
def test_a_look_sees_a_job_before_or_after_its_end_and_never_between(pg: Store, end: str) -> None:
    lease = held(pg)
    pg.run(results.mark([lease.job_id]))
    seen: list[list[str]] = []
    with stepped(pg, ENDS[end](lease)) as ending:
        while ending.next is not None:
            ending.step()
            seen.append([one.state for one in pg.run(results.look([lease.job_id])).values()])
        assert seen == [["leased"]] * len(seen)
        ending.commit()
    [after] = pg.run(results.look([lease.job_id])).values()
    assert (after.state, after.result) == ((results.LEFT, '"r"') if "drop" in end else ("done", None))
