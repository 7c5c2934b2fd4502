"""The door out and jobs that wait, stepped by hand on two connections."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from holdfast import admin, jobs
from holdfast.errors import LeaseLost
from holdfast.flow import Flow, Steps, flow
from holdfast.life import door
from holdfast.life.door import Left
from holdfast.store import Store
from holdfast.testing import Look, new_job
from holdfast.testing.suite_door import BIT, note
from holdfast.values.rows import Finish, Lease, Park
from tests.races.stepping import PATIENCE, blocked, stepped

NEWS = "signal:approved"


@pytest.fixture
def look(pg: Store) -> Look:
    return Look(pg.run, pg)


def held(store: Store, bit: int | None = None) -> Lease:
    store.run(jobs.enqueue(new_job()))
    [lease] = store.run(jobs.claim("mail", limit=1))
    if bit is not None:
        store.run(jobs.follow([lease.job_id], bit))
    return lease


def told(store: Store, action: str = "followed") -> list[str | None]:
    return [line.actor for line in store.run(admin.audit()) if line.action == action]


@pytest.fixture
def noted() -> Iterator[None]:
    """Have each job with a follower noted when it leaves."""
    door.attach(BIT, note)
    yield
    door.detach(BIT)


ENDS: dict[str, Callable[[Lease], Flow[Any]]] = {
    "settle": lambda lease: jobs.settle([Finish(lease.id, lease.fence, "done")]),
    "settle-dropped": lambda lease: jobs.settle([Finish(lease.id, lease.fence, "done", keep=False)]),
    "complete": jobs.complete,
    "complete-and-drop": lambda lease: jobs.complete(lease, keep=False),
    "cancel": jobs.cancel,
}
every_end = pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)


@pytest.mark.usefixtures("noted")
@every_end
def test_a_follower_that_comes_before_the_end_is_seen_by_it(pg: Store, look: Look, end: Any) -> None:
    lease = held(pg)
    with stepped(pg, jobs.follow([lease.job_id], BIT)) as follow, stepped(pg, end(lease)) as ending:
        follow.rest()
        answer = blocked(ending, ending.commit)
        assert follow.commit() == {lease.job_id}
        answer.result(PATIENCE)
    assert look.live() == []
    assert len(told(pg)) == 1


@pytest.mark.usefixtures("noted")
@every_end
def test_a_follower_that_comes_after_the_end_learns_that_it_is_late(pg: Store, look: Look, end: Any) -> None:
    lease = held(pg)
    with stepped(pg, jobs.follow([lease.job_id], BIT)) as follow, stepped(pg, end(lease)) as ending:
        ending.rest()
        answer = blocked(follow, follow.commit)
        ending.commit()
        assert answer.result(PATIENCE) == set()
    assert (look.live(), told(pg)) == ([], [])


@pytest.mark.usefixtures("noted")
@pytest.mark.parametrize("step", ["finish", "followed"])
def test_a_follower_that_comes_at_any_moment_of_a_settle_is_seen_or_late(pg: Store, look: Look, step: str) -> None:
    """Of a settle that runs its first statement alone, as it does by itself."""
    lease, first = held(pg), held(pg, BIT)
    settle = jobs.settle([Finish(one.id, one.fence, "done") for one in (lease, first)])
    with stepped(pg, settle) as settling:
        settling.step()
        settling.link.tell("commit")
        settling.open = False
        if step == "followed":
            settling.step_through("followed")
        # What was plain when it was settled is gone; what was not is still there, and may be locked.
        assert pg.run(jobs.follow([lease.job_id], BIT)) == set()
        assert settling.commit() == jobs.Settled({lease.job_id, first.job_id}, set())
    assert told(pg) == ["done"]


@pytest.mark.usefixtures("noted")
def test_a_settle_that_was_given_up_and_its_repeat_are_followed_once(pg: Store, look: Look) -> None:
    lease = held(pg, BIT)
    settle = jobs.settle([Finish(lease.id, lease.fence, "done")])
    with stepped(pg, settle) as lost, stepped(pg, settle) as again:
        lost.rest()
        answer = blocked(again, again.commit)
        lost.commit()
        assert answer.result(PATIENCE) == jobs.Settled({lease.job_id}, set())
    assert told(pg) == ["done"]


@pytest.mark.usefixtures("noted")
def test_a_completion_that_meets_the_end_of_its_job_by_the_door_is_refused(pg: Store) -> None:
    lease = held(pg, BIT)
    settle = jobs.settle([Finish(lease.id, lease.fence, "done")])
    with stepped(pg, settle) as settling, stepped(pg, jobs.complete(lease)) as completing:
        settling.rest()
        answer = blocked(completing, completing.commit)
        settling.commit()
        with pytest.raises(LeaseLost):
            answer.result(PATIENCE)
    assert told(pg) == ["done"]


# News for a job, and the park of the job that waits for it: the pattern that `jobs/waiting.py` asks for.


def look_for_news(left: Sequence[Left]) -> Steps[None]:
    """Wake a job that parked after its news had come."""
    came = {line.job_id for line in (yield from admin.audit()) if line.action == "news"}
    yield from jobs.wake([row.id for row in left if row.how == "parked" and row.id in came])


@pytest.fixture
def heeded() -> Iterator[None]:
    door.attach(BIT, look_for_news)
    yield
    door.detach(BIT)


@flow
def send_news(lease: Lease) -> Steps[set[str]]:
    """Lock the job's row, store the news, then wake."""
    yield from jobs.follow([lease.job_id], BIT)
    yield from note([Left(lease.job_id, lease.fence, "mail", "noop", None, BIT, "parked")], "news")
    return (yield from jobs.wake([lease.job_id], NEWS))


@pytest.mark.usefixtures("heeded")
@pytest.mark.parametrize("first", ["news", "park"])
def test_no_news_is_lost_on_a_job_that_parks_at_the_same_time(pg: Store, look: Look, first: str) -> None:
    lease = held(pg, BIT)
    with (
        stepped(pg, send_news(lease)) as news,
        stepped(pg, jobs.settle([Park(lease.id, lease.fence, NEWS)])) as park,
    ):
        one, other = (news, park) if first == "news" else (park, news)
        one.rest()
        answer = blocked(other, other.commit)
        one.commit()
        answer.result(PATIENCE)
    assert [(row.state, row.waits_for) for row in look.live()] == [("pending", None)]
    assert len(pg.run(jobs.claim("mail", limit=1))) == 1
