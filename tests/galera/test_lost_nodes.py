"""A node dies or is cut off in the middle of commits: their callers do not know, and the other nodes may have them.

The other nodes are frozen, commits are sent through the third, and it is killed before anybody can answer: the write
sets lie in the others' sockets, and they take them when they wake. A worker that repeats the work there must find it.
"""

import asyncio
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import pytest

from holdfast import jobs
from holdfast.errors import DatabaseUnavailable, LeaseLost
from holdfast.events import DatabaseLost, DatabaseRegained
from holdfast.flow import Flow
from holdfast.job import Job
from holdfast.store import Store
from holdfast.testing import Look, empty, failure, new_job
from holdfast.values.rows import Enqueued, Finish, Lease, NewJob, PutBack
from holdfast.worker import Worker
from tests.galera.cluster import Cluster
from tests.races.stepping import PATIENCE, on_thread
from tests.worker.stage import Stage

pytestmark = [pytest.mark.slow, pytest.mark.galera]


@dataclass
class Crash:
    """What was being committed on the third node when it was killed."""

    cluster: Cluster
    stores: list[Store]
    plain: NewJob
    keyed: NewJob
    done: Lease
    dropped: Lease
    retried: Lease
    booked: Lease

    def settle(self) -> Flow[jobs.Settled]:
        return jobs.settle(
            [
                Finish(self.done.id, self.done.fence, "done", '"ok"'),
                Finish(self.dropped.id, self.dropped.fence, "done", keep=False),
                PutBack(self.retried.id, self.retried.fence, 60_000, 0, failure()),
            ]
        )

    def claim(self) -> Flow[list[Lease]]:
        return jobs.claim("claimed", limit=2, worker="w3")

    def book(self) -> None:
        with Job(self.booked, self.stores[2]).transaction() as tx:
            tx.execute("insert into effect values (1)")

    def commits(self) -> list[Callable[[], Any]]:
        flows = [jobs.enqueue(self.plain), jobs.enqueue(self.keyed), self.claim(), self.settle()]
        return [*(lambda work=work: self.stores[2].run_once(work) for work in flows), self.book]  # type: ignore[misc]

    def happen(self) -> list[BaseException | None]:
        """Let all of it be committed, and kill the node before it can say so; return what the callers were told."""
        _, _, third = self.cluster.nodes
        answers: list[Future[Any]] = []
        try:
            self.freeze_others()
            answers += [on_thread(commit) for commit in self.commits()]
            until(lambda: third.committing() == len(answers), "all are committing")
            # That state begins just before the write set is sent.
            time.sleep(0.5)
            third.kill()
        finally:
            self.thaw_others()
        told = [answer.exception(PATIENCE) for answer in answers]
        self.cluster.await_size(2)
        self.cluster.caught_up()
        return told

    def freeze_others(self) -> None:
        for node in self.cluster.nodes[:2]:
            node.freeze()

    def thaw_others(self) -> None:
        for node in self.cluster.nodes[:2]:
            node.thaw()


def until(true: Callable[[], Any], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < deadline, f"in vain: {what}"
        time.sleep(0.02)


@pytest.fixture(scope="module")
def crash(founded: Cluster, urls: list[str]) -> Iterator[Crash]:
    """The crash, once for all tests that look at what came of it; each of them is about jobs of its own."""
    stores = [Store(url) for url in urls]
    third = stores[2]
    founded.whole().nodes[2].execute("create or replace table effect (id integer)", urls[2].rpartition("/")[2])
    third.run(empty(third))
    third.run(jobs.enqueue_many([new_job("claimed") for _ in range(3)] + [new_job("held") for _ in range(4)]))
    leases = third.run(jobs.claim("held", limit=4, worker="w3"))
    crash = Crash(founded, stores, new_job("added"), new_job("keyed", idempotency_key="k", unique="u"), *leases)
    told = crash.happen()
    assert [type(error) for error in told] == [DatabaseUnavailable] * 5
    yield crash
    for store in stores:
        store.close()


def look(crash: Crash, node: int = 0) -> Look:
    return Look(crash.stores[node].run, crash.stores[node])


def queued(crash: Crash, queue: str) -> list[str]:
    return [row.id for row in look(crash).live() if row.queue == queue]


@pytest.mark.parametrize("name", ["plain", "keyed"])
def test_an_enqueue_in_doubt_is_repeated_on_another_node_and_adds_one_job(crash: Crash, name: str) -> None:
    job: NewJob = getattr(crash, name)
    assert queued(crash, job.queue) == [job.id], "the other nodes have it"
    assert crash.stores[0].run(jobs.enqueue(job)) == Enqueued(job.id, created=True)
    assert queued(crash, job.queue) == [job.id]


def test_a_later_request_with_the_same_key_finds_the_job_in_doubt(crash: Crash) -> None:
    again = jobs.enqueue(new_job("keyed", idempotency_key="k"))
    assert crash.stores[1].run(again) == Enqueued(crash.keyed.id, created=False)


def test_a_claim_in_doubt_is_given_back_without_using_an_attempt(crash: Crash) -> None:
    assert sorted(row.state for row in look(crash).live() if row.queue == "claimed") == ["leased", "leased", "pending"]
    assert crash.stores[1].run(jobs.release_strays("w3", [])) == 2
    taken = crash.stores[0].run(jobs.claim("claimed", limit=9, worker="w1"))
    assert [lease.attempt for lease in taken] == [1, 1, 1]


def test_a_settle_in_doubt_is_repeated_on_another_node_and_answered_right(crash: Crash) -> None:
    held = {crash.done.job_id, crash.dropped.job_id, crash.retried.job_id}
    assert crash.stores[1].run(crash.settle()) == jobs.Settled(held, set())
    over = [(row.outcome, row.result) for row in look(crash).over() if row.id in held]
    assert over == [("done", '"ok"')]
    [back] = [row for row in look(crash).live() if row.id in held]
    assert (back.id, back.state, back.attempts, len(back.errors)) == (crash.retried.job_id, "pending", 1, 1)


def test_an_effect_in_doubt_is_there_once_with_its_completion(crash: Crash) -> None:
    assert look(crash).rows("select id from effect") == ((1,),)
    assert [row.outcome for row in look(crash).over() if row.id == crash.booked.job_id] == ["done"]
    with pytest.raises(LeaseLost):
        crash.stores[0].run(jobs.complete(crash.booked))


def test_the_killed_node_comes_back_with_the_same_rows(crash: Crash) -> None:
    crash.cluster.whole()
    crash.cluster.caught_up()
    assert look(crash, 2).live() == look(crash).live() != []
    assert look(crash, 2).over() == look(crash).over() != []


def test_a_node_without_a_majority_is_an_outage_and_its_worker_goes_on_afterwards(
    cluster: Cluster, stores: list[Store], urls: list[str]
) -> None:
    """1047 for whatever is asked of such a node, 1180 for the commit in which it was cut off."""
    stage = Stage(urls[2])
    added = new_job()
    ran: list[int] = []

    @stage.hf.job
    def count(n: int) -> None:
        ran.append(n)

    async def outage(_: Worker) -> None:
        others = cluster.nodes[:2]
        for node in others:
            node.freeze()
        try:
            cut_off = on_thread(lambda: stores[2].run_once(jobs.enqueue(added, fresh=True)))
            await stage.until_said(DatabaseLost)
            with pytest.raises(DatabaseUnavailable, match="1180"):
                cut_off.result(PATIENCE)
            with pytest.raises(DatabaseUnavailable, match="1047"):
                stores[2].run_once(jobs.enqueue(added))
        finally:
            for node in others:
                node.thaw()
        await stage.until_said(DatabaseRegained)
        await asyncio.to_thread(count.enqueue, 1)
        await stage.until(lambda: ran, "the job ran")

    try:
        stage.work(outage)
    finally:
        stage.close()
    assert ran == [1]
    assert stores[2].run(jobs.enqueue(added)) == Enqueued(added.id, created=True)
    cluster.caught_up()
    assert [row.id for row in Look(stores[0].run, stores[0]).live()] == [added.id]
