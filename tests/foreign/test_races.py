"""Two workers, of ours or of others, never both win a row: stepped by hand, and in a storm."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.errors import DatabaseBusy
from holdfast.foreign import DurableSteps, PdoQueue
from holdfast.testing.clock import Clock
from holdfast.values.rows import Finish, Lease
from tests.foreign.conftest import Sql, ids
from tests.foreign.peers import OptimisticPeer, SkippingPeer, SqlPeer
from tests.foreign.test_durable import dispatch
from tests.races.stepping import on_thread, stepped

URN = "urn:babel:x"
STEP = "pipeline.extract"
EACH = 60


@pytest.fixture
def queue(jobs: PdoQueue) -> PdoQueue:
    jobs.handler(URN)(lambda: None)
    return jobs


@pytest.fixture
def served(steps: DurableSteps) -> DurableSteps:
    steps.step(STEP)(lambda: None)
    return steps


@pytest.fixture
def peer(hf: Holdfast) -> Iterator[OptimisticPeer]:
    one = OptimisticPeer(hf.store)
    yield one
    one.close()


@pytest.fixture
def join(hf: Holdfast) -> Iterator[Callable[[Any], Any]]:
    """Make peers that are closed when the test is over."""
    made: list[Any] = []

    def make(kind: Any) -> Any:
        made.append(kind(hf.store))
        return made[-1]

    yield make
    for one in made:
        one.close()


def claim(source: PdoQueue | DurableSteps, limit: int = 1, worker: str = "w") -> Any:
    return source.claim(dict.fromkeys(source.handlers, 1), limit, worker)


# The PHP tables


def test_a_peer_that_took_the_row_between_our_look_and_our_lock_keeps_it(
    hf: Holdfast, queue: PdoQueue, clock: Clock, peer: OptimisticPeer
) -> None:
    first, second = queue.publish(URN, {}), queue.publish(URN, {})
    if hf.store.embedded:
        # Nobody can come in between: the transaction is alone from its start.
        with stepped(hf.store, claim(queue)) as ours:
            ours.step_through("pick")
            peer.link.raw.execute("pragma busy_timeout = 50")
            with pytest.raises(Exception, match="locked"):
                peer.take(first, clock.now)
            assert ids(ours.commit()) == [first]
        return
    with stepped(hf.store, claim(queue)) as ours:
        ours.step_through("pick")
        assert peer.take(first, clock.now)
        assert ids(ours.commit()) == [second]


def test_a_peer_that_looked_before_our_claim_loses(
    hf: Holdfast, queue: PdoQueue, clock: Clock, peer: OptimisticPeer
) -> None:
    row = queue.publish(URN, {})
    assert peer.look(clock.now) == row
    assert ids(hf.store.run(claim(queue))) == [row]
    assert not peer.take(row, clock.now)


@pytest.mark.parametrize("pdo_url", ["emptied_mariadb"], indirect=True)
def test_a_peer_that_waits_for_our_lock_finds_the_row_taken(
    hf: Holdfast, queue: PdoQueue, clock: Clock, peer: OptimisticPeer
) -> None:
    row = queue.publish(URN, {})
    with stepped(hf.store, claim(queue)) as ours:
        ours.step_through("lock")
        taken = on_thread(lambda: peer.take(row, clock.now))
        assert ids(ours.commit()) == [row]
        assert taken.result(timeout=10) is False


@pytest.mark.parametrize("pdo_url", ["emptied_mariadb"], indirect=True)
def test_two_claims_of_ours_lock_only_what_they_take(hf: Holdfast, queue: PdoQueue, clock: Clock) -> None:
    first, second = queue.publish(URN, {}), queue.publish(URN, {})
    with stepped(hf.store, claim(queue)) as one:
        one.step_through("lock")
        assert ids(hf.store.run(claim(queue, limit=5, worker="other"))) == [second]
        assert ids(one.commit()) == [first]


def test_a_reclaim_races_the_late_holders_ack_and_one_of_them_wins(
    hf: Holdfast, queue: PdoQueue, clock: Clock, sql: Sql
) -> None:
    queue.publish(URN, {})
    [late] = hf.store.run(claim(queue))
    clock.advance(90)
    ack = queue.settle([Finish(late.id, late.fence, "done")], "w")
    with stepped(hf.store, ack) as acking:
        acking.step_through("held")
        if hf.store.embedded:
            with pytest.raises(DatabaseBusy):
                _impatient(hf).run_once(claim(queue))
        else:
            assert hf.store.run(claim(queue)) == []
        assert acking.commit().done == {late.job_id}
    assert sql("select id from jobs") == []


def _impatient(hf: Holdfast) -> Any:
    return Holdfast(hf.url, busy_timeout=0.05).store


def test_a_dead_letter_and_its_delete_are_one_transaction(
    hf: Holdfast, queue: PdoQueue, clock: Clock, join: Callable[[Any], Any]
) -> None:
    queue.publish(URN, {})
    [lease] = hf.store.run(claim(queue))
    onlooker = join(SqlPeer)
    bury = queue.settle([Finish(lease.id, lease.fence, "dead")], "w")
    counts = "select (select count(*) from jobs), (select count(*) from jobs_failed)"
    watch_every_step(hf, bury, lambda: onlooker.run(counts)[0][0], before=(1, 0), after=(0, 1))


def watch_every_step(hf: Holdfast, work: Any, look: Callable[[], Any], before: Any, after: Any) -> None:
    """See what others see: before the commit what was, after it what is to be, and never anything in between."""
    with stepped(hf.store, work) as dying:
        while dying.next is not None:
            dying.step()
            assert tuple(look()) == before
    assert tuple(look()) == before
    with stepped(hf.store, work) as living:
        living.commit()
    assert tuple(look()) == after


def test_a_storm_of_two_languages_claims_every_row_once(
    hf: Holdfast, queue: PdoQueue, clock: Clock, join: Callable[[Any], Any]
) -> None:
    rows = {queue.publish(URN, {}) for _ in range(EACH)}
    taken: list[int] = []

    def ours() -> Callable[[], bool]:
        def one() -> bool:
            leases: list[Lease] = hf.store.run(claim(queue, limit=3))
            taken.extend(lease.id for lease in leases)
            return bool(leases)

        return one

    def theirs() -> Callable[[], bool]:
        own = join(OptimisticPeer)

        def one() -> bool:
            row = own.reserve(clock.now)
            taken.extend([] if row is None else [row])
            return row is not None

        return one

    storm(ours(), ours(), theirs(), theirs())
    assert Counter(taken) == Counter(rows)


# Remote steps


def test_two_claims_of_steps_lock_only_what_they_take(
    hf: Holdfast, served: DurableSteps, clock: Clock, sql: Sql
) -> None:
    dispatch(sql, "r1:0", clock)
    dispatch(sql, "r2:0", clock)
    with stepped(hf.store, claim(served)) as one:
        one.step_through("lock")
        assert ids(hf.store.run(claim(served, limit=5, worker="other"))) == ["r2:0"]
        assert ids(one.commit()) == ["r1:0"]


def test_a_peer_skips_the_step_that_we_are_claiming(hf: Holdfast, served: DurableSteps, clock: Clock, sql: Sql) -> None:
    dispatch(sql, "r1:0", clock)
    peer = SkippingPeer(hf.store)
    with stepped(hf.store, claim(served)) as ours:
        ours.step_through("lock")
        assert peer.claim(STEP, int(clock.now.timestamp() * 1000)) == []
        assert ids(ours.commit()) == ["r1:0"]
    assert peer.claim(STEP, int(clock.now.timestamp() * 1000)) == []
    peer.close()


def test_a_step_that_a_peer_claimed_after_our_look_is_the_peers(
    hf: Holdfast, served: DurableSteps, clock: Clock, sql: Sql
) -> None:
    dispatch(sql, "r1:0", clock)
    peer = SkippingPeer(hf.store)
    with stepped(hf.store, claim(served)) as ours:
        ours.step_through("pick")
        assert peer.claim(STEP, int(clock.now.timestamp() * 1000)) == ["r1:0"]
        assert ours.commit() == []
    peer.close()


def test_a_result_and_the_end_of_its_task_are_one_transaction(
    hf: Holdfast, served: DurableSteps, clock: Clock, sql: Sql, join: Callable[[Any], Any]
) -> None:
    dispatch(sql, "r1:0", clock)
    [lease] = hf.store.run(claim(served))
    onlooker = join(SqlPeer)
    end = served.settle([Finish(lease.id, lease.fence, "done", "1")], "w")
    counts = "select (select count(*) from durable_transport_tasks), (select count(*) from durable_transport_results)"
    watch_every_step(hf, end, lambda: onlooker.run(counts)[0][0], before=(1, 0), after=(0, 1))


def test_a_storm_of_two_kinds_of_workers_claims_every_step_once(
    hf: Holdfast, served: DurableSteps, clock: Clock, sql: Sql, join: Callable[[Any], Any]
) -> None:
    for number in range(EACH):
        dispatch(sql, f"r{number}:0", clock, created_at=number)
    taken: list[str] = []

    def ours(name: str) -> Callable[[], bool]:
        def one() -> bool:
            leases: list[Lease] = hf.store.run(claim(served, limit=3, worker=name))
            taken.extend(lease.id for lease in leases)
            return bool(leases)

        return one

    def theirs() -> Callable[[], bool]:
        own = join(SkippingPeer)

        def one() -> bool:
            found = own.claim(STEP, int(clock.now.timestamp() * 1000), limit=3)
            taken.extend(found)
            return bool(found)

        return one

    storm(ours("a"), ours("b"), theirs(), theirs())
    assert Counter(taken) == Counter(f"r{number}:0" for number in range(EACH))


def storm(*claimers: Callable[[], bool]) -> None:
    """Let all of them claim at once, each until it finds nothing three times in a row."""
    gate = threading.Barrier(len(claimers))

    def run(one: Callable[[], bool]) -> None:
        gate.wait()
        empty = 0
        while empty < 3:
            empty = 0 if one() else empty + 1

    answers = [on_thread(lambda one=one: run(one)) for one in claimers]  # type: ignore[misc]
    for answer in answers:
        answer.result(timeout=60)
