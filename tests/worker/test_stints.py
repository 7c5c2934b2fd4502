"""Ordered queues in a worker: one job of a key after the other, whatever becomes of the one before."""

import asyncio
import threading
import time
from collections import defaultdict

import pytest

from holdfast import Cancel, Fatal, Holdfast, Job, Rate, Retry, events, jobs, lines
from holdfast.worker import Worker
from tests.worker.looks import Looks
from tests.worker.stage import Stage


class Trace:
    """What ran, in order, and whether two jobs of a key ever ran at once."""

    def __init__(self) -> None:
        self.ran: dict[str, list[int]] = defaultdict(list)
        self.inside: dict[str, int] = defaultdict(int)
        self.overlaps = 0
        self.most = 0
        self._lock = threading.Lock()

    def enter(self, key: str, n: int) -> None:
        with self._lock:
            self.inside[key] += 1
            self.overlaps += self.inside[key] > 1
            self.most = max(self.most, sum(self.inside.values()))
            self.ran[key].append(n)

    def leave(self, key: str) -> None:
        with self._lock:
            self.inside[key] -= 1

    @property
    def in_order(self) -> bool:
        return all(ran == sorted(ran) for ran in self.ran.values())


def ordered(stage: Stage, **said: object) -> Holdfast:
    hf = stage.hf
    hf.queue("orders", ordered=True, **said)  # type: ignore[arg-type]
    return hf


KEYS = ("a", "b", "c")


@pytest.mark.parametrize("colour", ["async", "def"])
def test_each_key_runs_in_its_order_and_one_at_a_time(stage: Stage, colour: str) -> None:
    hf, trace = ordered(stage), Trace()
    if colour == "async":

        @hf.job(queue="orders", key="k:{key}")
        async def act(key: str, n: int) -> None:
            trace.enter(key, n)
            await asyncio.sleep(0.001 * (n % 3))
            trace.leave(key)
    else:

        @hf.job(queue="orders", key="k:{key}", kind="act")
        def act(key: str, n: int) -> None:
            trace.enter(key, n)
            time.sleep(0.001 * (n % 3))
            trace.leave(key)

    hf.enqueue_many(act.bind(key=key, n=n) for n in range(20) for key in KEYS)
    stage.work(concurrency=8)
    assert trace.in_order
    assert (trace.overlaps, {key: len(ran) for key, ran in trace.ran.items()}) == (0, dict.fromkeys(KEYS, 20))
    assert stage.sql("select count(*) from holdfast_lines")[0][0] == 0


def test_several_workers_keep_the_order_of_each_key(stage: Stage) -> None:
    hf, trace = ordered(stage), Trace()

    @hf.job(queue="orders", key="{key}")
    async def act(key: str, n: int) -> None:
        trace.enter(key, n)
        await asyncio.sleep(0.002)
        trace.leave(key)

    hf.enqueue_many(act.bind(key=key, n=n) for n in range(30) for key in KEYS)

    async def beside(_: Worker) -> None:
        async with hf.worker(concurrency=4), hf.worker(concurrency=4):
            await stage.until_empty()

    stage.work(beside, concurrency=4)
    assert trace.in_order
    assert (trace.overlaps, {key: len(ran) for key, ran in trace.ran.items()}) == (0, dict.fromkeys(KEYS, 30))


def test_a_failed_job_breaks_its_stint_and_the_others_follow_it(stage: Stage) -> None:
    hf, ran = ordered(stage), []

    @hf.job(queue="orders", key="a", retry=Retry(max_attempts=3, first_delay=0.05, max_delay=0.05, jitter=0))
    async def act(n: int, job: Job) -> None:
        ran.append((n, job.attempt))
        if n == 2 and job.attempt == 1:
            raise ValueError("not yet")

    hf.enqueue_many(act.bind(n=n) for n in range(5))
    stage.work(concurrency=4)
    assert ran == [(0, 1), (1, 1), (2, 1), (2, 2), (3, 1), (4, 1)]


def test_with_pass_a_failed_job_is_left_behind(stage: Stage) -> None:
    """Its next attempt is an hour away, so that whatever runs before is not by chance before it."""
    hf, ran = ordered(stage, on_retry="pass"), []

    @hf.job(queue="orders", key="a", retry=Retry(max_attempts=3, first_delay=3_600, max_delay=3_600))
    async def act(n: int) -> None:
        ran.append(n)
        if n == 0:
            raise ValueError("not yet")

    async def body(_: Worker) -> None:
        await stage.until(lambda: stage.live() == 1, "all others are over")

    hf.enqueue_many(act.bind(n=n) for n in range(4))
    stage.work(body, concurrency=4)
    assert ran == [0, 1, 2, 3]


@pytest.mark.parametrize("end", ["dead", "cancel", "timeout"])
def test_a_stint_goes_on_behind_a_job_that_ends_in_another_way(stage: Stage, end: str) -> None:
    hf, ran = ordered(stage), []

    @hf.job(queue="orders", key="a", timeout=0.05 if end == "timeout" else None, retry=Retry(max_attempts=1))
    async def act(n: int) -> Cancel | None:
        ran.append(n)
        if n == 1 and end == "dead":
            raise Fatal("no use")
        if n == 1 and end == "timeout":
            await asyncio.sleep(10)
        return Cancel("not wanted") if n == 1 and end == "cancel" else None

    hf.enqueue_many(act.bind(n=n) for n in range(4))
    stage.work(concurrency=4)
    assert ran == [0, 1, 2, 3]


def test_a_line_that_stops_for_a_dead_letter_runs_nothing_more(stage: Stage) -> None:
    hf, ran = ordered(stage, on_dead="stop"), []

    @hf.job(queue="orders", key="{key}")
    async def act(key: str, n: int) -> None:
        ran.append((key, n))
        if (key, n) == ("a", 1):
            raise Fatal("no use")

    hf.enqueue_many(act.bind(key=key, n=n) for n in range(3) for key in ("a", "b"))

    async def body(_: Worker) -> None:
        await stage.until(lambda: stage.live() == 1)

    stage.work(body, concurrency=4)
    assert [n for key, n in ran if key == "a"] == [0, 1]
    assert [n for key, n in ran if key == "b"] == [0, 1, 2]


def test_a_job_that_waits_in_a_stint_can_be_cancelled(stage: Stage) -> None:
    hf, ran = ordered(stage), []
    go = asyncio.Event()

    @hf.job(queue="orders", key="a", lease=1)
    async def act(n: int) -> None:
        ran.append(n)
        if n == 0:
            await go.wait()

    ids = [one.id for one in hf.enqueue_many(act.bind(n=n) for n in range(3))]

    async def body(_: Worker) -> None:
        await stage.until(lambda: ran == [0])
        stage.sql("update holdfast_jobs set cancel_requested = true where id = ?", ids[1])
        await stage.until_said(events.JobCancelled)
        go.set()
        await stage.until_empty()

    stage.work(body, concurrency=4)
    assert ran == [0, 2]


def test_a_lost_lease_in_a_stint_gives_back_what_is_behind_it(stage: Stage) -> None:
    hf, ran = ordered(stage), []
    go = asyncio.Event()

    @hf.job(queue="orders", key="a", lease=1)
    async def act(n: int) -> None:
        ran.append(n)
        if n == 0:
            await go.wait()

    ids = [one.id for one in hf.enqueue_many(act.bind(n=n) for n in range(4))]

    async def body(worker: Worker) -> None:
        await stage.until(lambda: ran == [0])
        stage.sql("update holdfast_jobs set fence = fence + 2, leased_by = 'thief' where id = ?", ids[1])
        await stage.until_said(events.LeaseWasLost)
        await stage.until(lambda: len(worker.held) == 1, "the rest is given back")
        go.set()
        await stage.until(lambda: 1 <= stage.live() <= 3)

    stage.work(body, concurrency=4)
    # Behind a job that another holder has, nothing of its key runs.
    assert ran == [0]


def test_a_drain_ends_the_running_job_and_gives_the_rest_of_its_stint_back(stage: Stage) -> None:
    hf, ran = ordered(stage), []
    go = asyncio.Event()

    @hf.job(queue="orders", key="a")
    async def act(n: int) -> None:
        ran.append(n)
        if n == 0:
            await go.wait()

    hf.enqueue_many(act.bind(n=n) for n in range(4))

    async def body(worker: Worker) -> None:
        await stage.until(lambda: ran == [0])
        worker.stop()
        go.set()

    stage.work(body, concurrency=4)
    assert ran == [0]
    assert stage.sql("select state, attempts from holdfast_jobs order by id") == [("pending", 0)] * 3
    again = stage.app()
    again.handlers.update(hf.handlers)
    stage.work(hf=again)
    assert ran == [0, 1, 2, 3]


def test_a_poison_job_spares_the_rest_of_its_stint(stage: Stage) -> None:
    """A process dies in the second job of a stint: that one pays, and those behind it keep their attempts."""
    hf = ordered(stage)

    @hf.job(queue="orders", key="a")
    async def act(n: int) -> None: ...

    hf.enqueue_many(act.bind(n=n) for n in range(4))
    settings = stage.run(lines.declare({"orders": hf.queue_options("orders").settings}))["orders"].settings
    leases = stage.run(lines.claim("orders", settings, limit=9, worker="dead", lease_ms=1)).leases
    stage.run(jobs.complete(leases[0]))
    time.sleep(0.01)
    reaped = stage.run(jobs.reap())
    assert [one.outcome for one in sorted(reaped)] == ["retry", "released", "released"]


def test_bulk_handlers_take_one_job_of_a_key_in_a_call(stage: Stage) -> None:
    hf, calls = ordered(stage), []

    @hf.bulk(queue="orders", size=10)
    async def act(items: list[str]) -> None:
        calls.append(list(items))

    hf.enqueue_many(act.using(key=key).bind(f"{key}{n}") for n in range(3) for key in KEYS)
    stage.work(concurrency=2)
    for call in calls:
        assert len({item[0] for item in call}) == len(call)
    for key in KEYS:
        assert [item for call in calls for item in call if item[0] == key] == [f"{key}{n}" for n in range(3)]


def test_transactions_that_commit_together_keep_the_order(stage: Stage) -> None:
    hf, trace = ordered(stage), Trace()

    @hf.job(queue="orders", key="{key}", commit="together")
    async def act(key: str, n: int, job: Job) -> None:
        async with job.transaction():
            trace.enter(key, n)
            trace.leave(key)

    hf.enqueue_many(act.bind(key=key, n=n) for n in range(10) for key in KEYS)
    stage.work(concurrency=8)
    assert trace.in_order
    assert (trace.overlaps, sum(map(len, trace.ran.values()))) == (0, 30)


# Limits


def test_a_fleet_runs_no_more_at_once_than_the_queue_may(stage: Stage) -> None:
    hf, trace = stage.hf, Trace()
    hf.queue("stripe", concurrency=3)

    @hf.job(queue="stripe")
    async def act(n: int) -> None:
        trace.enter(str(n), n)
        await asyncio.sleep(0.005)
        trace.leave(str(n))

    hf.enqueue_many(act.bind(n=n) for n in range(40))

    async def beside(_: Worker) -> None:
        async with hf.worker(concurrency=8), hf.worker(concurrency=8):
            await stage.until_empty()

    stage.work(beside, concurrency=8)
    assert (len(trace.ran), trace.most) == (40, 3)
    assert stage.sql("select held from holdfast_queues")[0][0] == 0


def test_a_fleet_starts_no_more_in_a_time_than_the_queue_may(stage: Stage) -> None:
    hf, starts = stage.hf, []
    hf.queue("stripe", rate=Rate(20, per=0.5))

    @hf.job(queue="stripe")
    async def act(n: int) -> None:
        starts.append(n)

    hf.enqueue_many(act.bind(n=n) for n in range(30))
    began = time.monotonic()

    async def beside(_: Worker) -> None:
        async with hf.worker(concurrency=8):
            await stage.until_empty()

    stage.work(beside, concurrency=8)
    # 30 starts take the time of 29 pauses: what the rate gives at once is one here.
    assert time.monotonic() - began >= 29 * 0.5 / 20
    assert sorted(starts) == list(range(30))


def test_plain_queues_and_others_are_served_side_by_side(stage: Stage) -> None:
    hf, ran = ordered(stage), []
    hf.queue("stripe", concurrency=1)

    @hf.job
    async def plain(n: int) -> None:
        ran.append("plain")

    @hf.job(queue="stripe")
    async def limited(n: int) -> None:
        ran.append("limited")

    @hf.job(queue="orders", key="a")
    async def in_order(n: int) -> None:
        ran.append("ordered")

    hf.enqueue_many(handler.bind(n=n) for n in range(20) for handler in (plain, limited, in_order))
    stage.work(concurrency=4)
    assert {kind: ran.count(kind) for kind in set(ran)} == {"plain": 20, "limited": 20, "ordered": 20}


# Settings


def test_stored_settings_win_and_the_worker_says_so(stage: Stage) -> None:
    stage.run(lines.change("stripe", {"concurrency": 1}, "ada"))
    hf = stage.hf
    hf.queue("stripe", concurrency=5)

    @hf.job(queue="stripe")
    async def act() -> None: ...

    async def body(_: Worker) -> None:
        [event] = await stage.until_said(events.QueueSettingsDiffer)
        assert (event.queue, event.stored, event.said) == ("stripe", "concurrency 1", "concurrency 5")

    stage.work(body)


def test_changed_settings_count_from_the_next_look_without_a_restart(stage: Stage, looks: Looks) -> None:
    hf, inside, most = stage.hf, set(), []
    go = asyncio.Event()

    @hf.job(queue="stripe")
    async def act(n: int) -> None:
        inside.add(n)
        most.append(len(inside))
        await go.wait()

    hf.queue("stripe", concurrency=1)
    hf.enqueue_many(act.bind(n=n) for n in range(4))
    looks.until(hf, events.QueueSettingsChanged)

    async def body(_: Worker) -> None:
        # What differs at the first look is told as that; a second one has begun when the first is over.
        await stage.until(lambda: len(inside) == 1 and looks.now().total() > 1)
        await asyncio.to_thread(stage.run, lines.change("stripe", {"concurrency": 3}))
        before = looks.now()
        await stage.until(lambda: len(inside) == 3)
        await stage.until_said(events.QueueSettingsChanged)
        assert looks.saw_it_at_once(before)
        go.set()
        await stage.until_empty()

    stage.work(body)


def test_a_job_without_a_key_in_an_ordered_queue_is_told_once_for_each_kind(stage: Stage) -> None:
    hf = stage.hf
    hf.queue("orders", ordered=True)

    @hf.job(queue="orders")
    async def ship(n: int) -> None: ...

    @hf.job(queue="orders")
    async def bill(n: int) -> None: ...

    async def body(_: Worker) -> None:
        for handler in (ship, bill, ship):
            # A job of a second claim must not be told again.
            await stage.until_empty()
            handler.enqueue(1)
            handler.using(key="a").enqueue(2)
        await stage.until(lambda: len(stage.heard(events.KeyMissing)) >= 2)
        await stage.until_empty()

    stage.work(body)
    told = [(event.queue, event.kind, event.settings) for event in stage.heard(events.KeyMissing)]
    assert sorted(told) == [("orders", "bill", "ordered yes"), ("orders", "ship", "ordered yes")]


def test_a_miscounted_limit_is_told_and_put_right(stage: Stage) -> None:
    hf = stage.hf
    hf.queue("stripe", concurrency=2)

    @hf.job(queue="stripe")
    async def act() -> None: ...

    async def body(_: Worker) -> None:
        await stage.until(lambda: stage.sql("select held from holdfast_queues") != [])
        stage.sql("update holdfast_queues set held = 2")
        act.using().enqueue()
        [event] = await stage.until_said(events.LimitMiscounted)
        assert (event.queue, event.key, event.counted, event.leased) == ("stripe", None, 2, 0)
        await stage.until_empty()

    stage.work(body)
