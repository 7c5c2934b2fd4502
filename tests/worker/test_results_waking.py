"""What wakes those who wait for results, how they share their looks, and what they leave behind."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from holdfast import (
    Holdfast,
    Job,
    JobCancelled,
    JobDead,
    events,
    jobs,
)
from holdfast.errors import DatabaseUnavailable
from holdfast.values.ids import new_id
from holdfast.values.rows import Finish
from holdfast.waits import board
from tests.proxy import Proxy
from tests.worker.asking import Asker, claimed, is_at_rest, run_soon, scene, waited_for
from tests.worker.processes import crew_on
from tests.worker.stage import DEADLINE, Stage


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let looks come at once and then never again, unless something wakes those who wait."""
    monkeypatch.setattr(board, "FIRST_PAUSE_SECONDS", 1000.0)
    monkeypatch.setattr(board, "LONGEST_PAUSE_SECONDS", 1000.0)


# Waking


@pytest.mark.usefixtures("patient")
def test_a_worker_of_the_same_process_wakes_those_who_wait_at_once(stage: Stage, asker: Asker) -> None:
    hf = stage.app(notify=False)
    begun = threading.Event()

    @hf.job
    def act(n: int) -> int:
        assert begun.wait(DEADLINE)
        return n

    @hf.job
    async def effect(job: Job) -> None:
        await asyncio.to_thread(begun.wait, DEADLINE)
        job.result = "done by itself"
        async with job.transaction():
            pass

    async def body(_: Any) -> None:
        mine: list[Any] = [*(act.enqueue(n) for n in range(3)), effect.enqueue()]
        asking = [asker.asking(hf, job) for job in mine]
        for job in mine:
            await waited_for(hf, job)
        begun.set()
        assert await asyncio.gather(*asking) == [0, 1, 2, "done by itself"]

    began = time.monotonic()
    stage.work(body, hf)
    assert time.monotonic() - began < DEADLINE / 2


@contextmanager
def heard_on(url: str, channel: str) -> Iterator[Callable[[], list[str]]]:
    """Listen, and tell what was heard so far."""
    with psycopg.connect(url, autocommit=True) as ear:
        ear.execute(f"listen {channel}")  # type: ignore[call-overload]
        yield lambda: [note.payload for note in ear.notifies(timeout=0.3)]


@pytest.fixture
def told_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let those who wait look often until they listen, and then never again unless they hear something."""
    monkeypatch.setattr(board, "MARK_AFTER_SECONDS", 0.0)
    monkeypatch.setattr(board, "LONGEST_PAUSE_SECONDS", 0.02)
    monkeypatch.setattr(board, "HEARD_PAUSE_SECONDS", 1000.0)


async def listening(hf: Holdfast, job: Any) -> None:
    """Let the scene go on until a job is marked, and all looks at it are put off because its end is told."""
    waits = hf.context.waits
    deadline = time.monotonic() + DEADLINE
    while True:
        assert time.monotonic() < deadline
        boards = [waits._threads.board, *(one.board for one in list(waits._loops.values()))]
        found = [one.jobs[job.id] for one in boards if job.id in one.jobs]
        if any(one.marked and one.next_at > time.monotonic() + 500 for one in found):
            return
        await asyncio.sleep(0.01)


@pytest.mark.usefixtures("told_only")
@pytest.mark.parametrize("end", ["done", "dead", "cancelled"])
def test_a_notification_of_another_process_arrives_without_a_look(pg_stage: Stage, asker: Asker, end: str) -> None:
    stage = pg_stage

    @stage.hf.job
    async def act() -> None: ...

    async def body() -> None:
        job = act.enqueue()
        lease = claimed(stage)
        asking = asker.asking(stage.hf, job)
        await listening(stage.hf, job)
        stage.run(jobs.settle([Finish(lease.id, lease.fence, end, "7" if end == "done" else None)]))  # type: ignore[arg-type]
        if end == "done":
            assert await asking == 7
        else:
            with pytest.raises(JobDead if end == "dead" else JobCancelled):
                await asking
        assert await stage.until(lambda: is_at_rest(stage.hf))

    began = time.monotonic()
    scene(stage, body)
    assert time.monotonic() - began < DEADLINE / 2


@pytest.mark.usefixtures("told_only")
def test_a_worker_process_tells_those_who_wait(pg_stage: Stage, asker: Asker, tmp_path: Path) -> None:
    """From one process to another, as users have it: with looks put off, only a notification brings the answer."""
    stage = pg_stage

    async def body() -> None:
        job = stage.hf.enqueue("quick", {"n": 7}, check=False)
        asking = asker.asking(stage.hf, job)
        await listening(stage.hf, job)
        with crew_on(stage, tmp_path) as crew:
            crew.start()
            assert await asking == 7

    scene(stage, body)


def test_nobody_is_told_of_jobs_that_nobody_waits_for(pg_stage: Stage) -> None:
    stage = pg_stage

    @stage.hf.job
    async def act(n: int) -> int:
        return n

    stage.hf.enqueue_many([act.bind(n) for n in range(50)])
    with heard_on(stage.url, "holdfast_ends") as heard:
        stage.work()
        assert heard() == []
    assert stage.sql("select count(*) from holdfast_finished where followers is not null")[0][0] == 0


def test_ends_of_a_batch_are_told_in_few_notifications(pg_stage: Stage) -> None:
    stage = pg_stage

    @stage.hf.job
    async def act(n: int) -> int:
        return n

    from holdfast import results

    mine = [job.id for job in stage.hf.enqueue_many([act.bind(n) for n in range(450)])]
    stage.run(results.mark(mine))
    leases = stage.run(jobs.claim("default", limit=450))
    with heard_on(stage.url, "holdfast_ends") as heard:
        stage.run(jobs.settle([Finish(lease.id, lease.fence, "done") for lease in leases]))
        told = heard()
    assert sorted(" ".join(told).split()) == sorted(mine)
    assert len(told) == 3


def test_without_notifications_nothing_is_marked_and_looks_carry_alone(pg_stage: Stage, asker: Asker) -> None:
    stage = pg_stage
    hf = stage.app(notify=False)

    @hf.job
    async def act() -> None: ...

    async def body() -> None:
        job = act.enqueue()
        lease = claimed(stage)
        asking = asker.asking(hf, job)
        await waited_for(hf, job)
        await asyncio.sleep(0.05)
        assert stage.sql("select followers from holdfast_jobs") == [(None,)]
        stage.run(jobs.complete(lease, "7"))
        assert await asking == 7

    scene(stage, body, hf)


def listeners(stage: Stage) -> list[int]:
    rows = stage.sql(
        "select pid from pg_stat_activity where application_name = 'holdfast-listener' and datname = current_database()"
    )
    return [pid for [pid] in rows]


@pytest.mark.usefixtures("told_only")
def test_a_listener_that_is_cut_off_heals_and_looks_carry_meanwhile(
    pg_stage: Stage, asker: Asker, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = pg_stage
    # Long enough for the job to end while nobody listens.
    monkeypatch.setattr("holdfast.store.dialects.postgres.waker.FIRST_PAUSE_SECONDS", 1000.0)

    @stage.hf.job
    async def act() -> None: ...

    async def body() -> None:
        job = act.enqueue()
        lease = claimed(stage)
        asking = asker.asking(stage.hf, job)
        await listening(stage.hf, job)
        [pid] = listeners(stage)
        stage.sql("select pg_terminate_backend(?)", pid)
        await stage.until_said(events.ListenerLost)
        stage.run(jobs.complete(lease, "7"))
        assert await asking == 7

    scene(stage, body)
    assert not stage.heard(events.ListenerRegained)


@pytest.mark.usefixtures("told_only")
def test_a_listener_that_comes_back_is_relied_on_again(pg_stage: Stage, asker: Asker) -> None:
    stage = pg_stage

    @stage.hf.job
    async def act() -> None: ...

    async def body() -> None:
        job = act.enqueue()
        lease = claimed(stage)
        asking = asker.asking(stage.hf, job)
        await listening(stage.hf, job)
        [pid] = listeners(stage)
        stage.sql("select pg_terminate_backend(?)", pid)
        await stage.until_said(events.ListenerRegained)
        await listening(stage.hf, job)
        stage.run(jobs.complete(lease, "7"))
        assert await asking == 7

    scene(stage, body)


# Many who wait


class Counted:
    """Counts what is run on a store, by the name of the flow."""

    def __init__(self, hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
        self.names: list[str] = []
        self.at_once = self.most = 0
        store, run, arun = hf.store, hf.store.run_once, hf.store.arun_once

        def run_once(work: Any) -> Any:
            self.names.append(work.name)
            return run(work)

        async def arun_once(work: Any) -> Any:
            self.names.append(work.name)
            self.at_once += 1
            self.most = max(self.most, self.at_once)
            try:
                return await arun(work)
            finally:
                self.at_once -= 1

        monkeypatch.setattr(store, "run_once", run_once)
        monkeypatch.setattr(store, "arun_once", arun_once)


def test_a_thousand_who_wait_share_each_look(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    @stage.hf.job
    async def act(n: int) -> int:
        return n

    async def body() -> None:
        mine = stage.hf.enqueue_many([act.bind(n) for n in range(1000)])
        leases = {lease.job_id: lease for lease in stage.run(jobs.claim("default", limit=1000))}
        counted = Counted(stage.hf, monkeypatch)
        asking = [asyncio.create_task(stage.hf.aresult(job, DEADLINE)) for job in mine]
        await waited_for(stage.hf, mine[-1])
        for part in (mine[:400], mine[400:]):
            ends = [Finish(leases[job.id].id, leases[job.id].fence, "done", str(n)) for n, job in enumerate(part)]
            await asyncio.to_thread(stage.run, jobs.settle(ends))
        assert await asyncio.gather(*asking) == [*range(400), *range(600)]
        # One at a time, each for all of them; how many looks there were is a matter of time, not of how many wait.
        assert counted.most == 1
        assert len(counted.names) < 300
        assert await stage.until(lambda: is_at_rest(stage.hf))

    scene(stage, body)


def test_threads_that_wait_share_each_look(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    @stage.hf.job
    async def act(n: int) -> int:
        return n

    mine = stage.hf.enqueue_many([act.bind(n) for n in range(30)])
    leases = {lease.job_id: lease for lease in stage.run(jobs.claim("default", limit=30))}
    at_once = most = 0
    store, run = stage.hf.store, stage.hf.store.run_once

    def run_once(work: Any) -> Any:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        try:
            return run(work)
        finally:
            at_once -= 1

    monkeypatch.setattr(store, "run_once", run_once)
    given: dict[str, Any] = {}
    threads = [
        threading.Thread(target=lambda job=job: given.update({job.id: stage.hf.result(job, DEADLINE)})) for job in mine
    ]
    for thread in threads:
        thread.start()
    waits = stage.hf.context.waits
    deadline = time.monotonic() + DEADLINE
    while len(waits._threads.board.jobs) < 30:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    stage.run(
        jobs.settle([Finish(leases[job.id].id, leases[job.id].fence, "done", str(n)) for n, job in enumerate(mine)])
    )
    for thread in threads:
        thread.join(DEADLINE)
    assert given == {job.id: n for n, job in enumerate(mine)}
    assert most == 1
    assert (waits.any, waits._threads._leader) == (False, None)


def test_a_thread_that_looks_for_others_hands_that_on_when_its_time_is_over(stage: Stage) -> None:
    @stage.hf.job
    async def act(n: int) -> int:
        return n

    first, second = act.enqueue(1), act.enqueue(2)
    leases = {lease.job_id: lease for lease in stage.run(jobs.claim("default", limit=2))}

    async def body() -> None:
        waits = stage.hf.context.waits
        leading = asyncio.create_task(asyncio.to_thread(stage.hf.result, first, 0.4))
        await stage.until(lambda: waits._threads._leader)
        leader = waits._threads._leader
        following = asyncio.create_task(asyncio.to_thread(stage.hf.result, second, DEADLINE))
        with pytest.raises(TimeoutError):
            await leading
        await stage.until(lambda: waits._threads._leader not in (None, leader))
        lease = leases[second.id]
        stage.run(jobs.complete(lease, "2"))
        assert await following == 2

    scene(stage, body)


def test_jobs_of_a_moment_and_of_long_ago_are_looked_at_each_in_its_time() -> None:
    """Those who have waited long are not asked for again and again because of one who has just come."""
    places = board.Board(lambda queue: False, lambda: False, listens=False)
    old = [board.Waiter(new_id(), lambda: None) for _ in range(50)]
    for waiter in old:
        places.join(waiter, 0.0)
    seen = board.Seen("leased", "default", "act", False, None)
    now, looked = 0.0, 0
    while now < 30:
        plan = places.take(now)
        if plan is None:
            now += places.rest(now)
            continue
        looked += 1
        assert len(plan.ids) == 50
        places.learn(plan, board.Looked(dict.fromkeys(plan.ids, seen), {}), now)
    assert looked < 60
    while places.take(now) is not None:
        places.learn(
            board.Plan([one.job_id for one in old], [], [], False),
            board.Looked({one.job_id: seen for one in old}, {}),
            now,
        )
    young = board.Waiter(new_id(), lambda: None)
    places.join(young, now)
    plan = places.take(now)
    assert plan is not None
    assert plan.ids == [young.job_id]


SEEN = board.Seen("leased", "default", "act", False, None)


def places() -> board.Board:
    return board.Board(lambda queue: False, lambda: False, listens=False)


@pytest.mark.parametrize("news", ["hint", "joined"])
def test_news_that_comes_during_a_look_brings_another_look(news: str) -> None:
    """The look under way may have seen the job before it ended."""
    place, waiter = places(), board.Waiter(new_id(), lambda: None)
    place.join(waiter, 0.0)
    plan = place.take(0.0)
    assert plan is not None
    if news == "hint":
        assert place.hint([waiter.job_id], 0.1)
    else:
        place.join(board.Waiter(waiter.job_id, lambda: None), 0.1)
    place.learn(plan, board.Looked({waiter.job_id: SEEN}, {}), 0.2)
    assert place.rest(0.2) == 0
    assert place.take(0.2) == board.Plan([waiter.job_id], [], [], True)


def test_a_hint_about_jobs_that_nobody_waits_for_changes_nothing() -> None:
    place = places()
    place.join(board.Waiter(new_id(), lambda: None), 0.0)
    plan = place.take(0.0)
    assert plan is not None
    place.learn(plan, board.Looked(dict.fromkeys(plan.ids, SEEN), {}), 0.0)
    assert not place.hint([new_id()], 0.0)
    assert place.take(0.0) is None


def test_a_large_crowd_is_looked_at_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(board, "MOST_AT_ONCE", 3)
    place = places()
    for _ in range(8):
        place.join(board.Waiter(new_id(), lambda: None), 0.0)
    sizes = []
    while (plan := place.take(0.0)) is not None:
        sizes.append(len(plan.ids))
        place.learn(plan, board.Looked(dict.fromkeys(plan.ids, SEEN), {}), 0.0)
    assert sizes == [3, 3, 2]


# Leaving


def test_a_cancelled_wait_leaves_nothing_behind(stage: Stage) -> None:
    @stage.hf.job
    async def act() -> None: ...

    async def body() -> None:
        job = act.enqueue()
        asking = asyncio.create_task(stage.hf.aresult(job))
        await waited_for(stage.hf, job)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        await stage.until(lambda: is_at_rest(stage.hf))
        with pytest.raises(TimeoutError, match=r"^$"):
            async with asyncio.timeout(0.05):
                await stage.hf.aresult(job)
        await stage.until(lambda: is_at_rest(stage.hf))
        # The others go on.
        other = asyncio.create_task(stage.hf.aresult(job, DEADLINE))
        asking = asyncio.create_task(stage.hf.aresult(job, DEADLINE))
        await waited_for(stage.hf, job)
        asking.cancel()
        stage.run(jobs.complete(claimed(stage), "7"))
        assert await other == 7

    scene(stage, body)


@pytest.mark.usefixtures("patient")
def test_who_leaves_does_not_wait_for_the_next_look(stage: Stage, asker: Asker) -> None:
    @stage.hf.job
    async def act() -> None: ...

    async def body() -> None:
        job = act.enqueue()
        cancelled = asyncio.create_task(stage.hf.aresult(job))
        await waited_for(stage.hf, job)
        cancelled.cancel()
        async with asyncio.timeout(DEADLINE / 2):
            await asyncio.gather(cancelled, return_exceptions=True)
            with pytest.raises(TimeoutError, match="has not ended within"):
                await asker.result(stage.hf, job, 0.05)
            await stage.until(lambda: is_at_rest(stage.hf))

    scene(stage, body)


@pytest.mark.usefixtures("told_only")
def test_a_listening_connection_is_closed_with_the_last_one_who_waits(pg_stage: Stage, asker: Asker) -> None:
    stage = pg_stage

    @stage.hf.job
    async def act() -> None: ...

    async def body() -> None:
        job = act.enqueue()
        first, second = asker.asking(stage.hf, job), asker.asking(stage.hf, act.enqueue(), 0.3)
        await listening(stage.hf, job)
        assert len(listeners(stage)) == 1
        with pytest.raises(TimeoutError):
            await second
        assert len(listeners(stage)) == 1
        stage.run(jobs.complete(claimed(stage), "7"))
        assert await first == 7
        await stage.until(lambda: not listeners(stage))
        await stage.until(lambda: not [one for one in threading.enumerate() if one.name == "holdfast-results-listener"])

    scene(stage, body)


def test_one_loop_after_the_other_may_wait(stage: Stage) -> None:
    @stage.hf.job
    def act() -> int:
        return 7

    for _ in range(3):
        job = act.enqueue()

        async def body(job: Any = job) -> None:
            asking = asyncio.create_task(stage.hf.aresult(job, DEADLINE))
            await waited_for(stage.hf, job)
            await run_soon(stage.hf)
            assert await asking == 7

        scene(stage, body)
    assert not stage.hf.context.waits._loops


# Outages


def cut(proxy: Proxy) -> None:
    """Lose every connection, and let no other come."""
    proxy.blackhole()
    proxy.reset_all()


def test_an_outage_is_outlived_while_there_is_time(
    pg_stage: Stage, pg_proxy: Proxy, asker: Asker, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = pg_stage
    monkeypatch.setattr(board, "LONGEST_PAUSE_SECONDS", 0.05)
    hf = stage.app(pg_proxy.url(stage.url), connect_timeout=1)

    @hf.job
    async def act() -> None: ...

    async def body() -> None:
        job = act.enqueue()
        lease = claimed(stage)
        asking = asker.asking(hf, job)
        await waited_for(hf, job)
        cut(pg_proxy)
        await asyncio.sleep(0.05)
        stage.run(jobs.complete(lease, "7"))
        assert not asking.done()
        pg_proxy.heal()
        assert await asking == 7
        cut(pg_proxy)
        with pytest.raises(DatabaseUnavailable):
            await asker.result(hf, job, 0.2)
        monkeypatch.setattr(board, "OUTAGE_SECONDS", 0.1)
        with pytest.raises(DatabaseUnavailable):
            await asker.result(hf, job, None)
        pg_proxy.heal()

    scene(stage, body, hf)


def test_missing_tables_are_told_at_once(sqlite_url: str, asker: Asker) -> None:
    from holdfast import SchemaMissing

    hf = Holdfast(sqlite_url)

    async def body() -> None:
        with pytest.raises(SchemaMissing):
            await asker.result(hf, new_id())
        await hf.aclose()

    asyncio.run(body())
