"""The parts of a worker by themselves: threads, demand, outage, and what counts as a refusal."""

import asyncio
import gc
import sqlite3
import threading
import time
from collections import Counter
from types import SimpleNamespace
from typing import Any

import psycopg
import pymysql
import pytest

from holdfast import events
from holdfast.errors import DatabaseBusy, DatabaseUnavailable, UniqueViolation
from holdfast.jobs.source import JobsSource
from holdfast.store.dialects import dialect_for
from holdfast.values.options import StoreOptions
from holdfast.worker import process
from holdfast.worker.demand import AHEAD_SECONDS, Demand
from holdfast.worker.handler_threads import Threads
from holdfast.worker.outage import Outage, refused
from holdfast.worker.rounds import give_back, reap
from holdfast.worker.slots import Slots


def test_threads_start_as_needed_and_are_used_again() -> None:
    async def scene() -> int:
        threads = Threads(3, "test")
        for _ in range(20):
            calls = [threads.submit(lambda: threading.current_thread().name) for _ in range(3)]
            await asyncio.gather(*(call.future for call in calls))
        names = {thread.name for thread in threading.enumerate() if thread.name.startswith("test-")}
        threads.close()
        return len(names)

    assert asyncio.run(scene()) == 3


def test_an_abandoned_thread_is_replaced_and_ends_with_its_call() -> None:
    """Again and again, with every slot of the worker stuck at once."""
    release = threading.Event()

    async def scene() -> list[str]:
        threads = Threads(2, "test")
        for _ in range(5):
            stuck = [threads.submit(lambda: release.wait(30)) for _ in range(2)]
            await asyncio.wait([call.future for call in stuck], timeout=0.01)
            for call in stuck:
                threads.abandon(call)
            quick = [threads.submit(lambda: "ran") for _ in range(2)]
            ran = await asyncio.wait_for(asyncio.gather(*(call.future for call in quick)), 20)
            assert ran == [("ran", None)] * 2
        release.set()
        threads.close()
        return [await threads_end()]

    async def threads_end() -> str:
        deadline = time.monotonic() + 20
        while any(thread.name.startswith("test-") for thread in threading.enumerate()):
            assert time.monotonic() < deadline
            await asyncio.sleep(0.01)
        return "ended"

    assert asyncio.run(scene()) == ["ended"]


def test_a_call_given_up_on_before_it_starts_never_starts() -> None:
    ran: list[str] = []
    release = threading.Event()

    async def scene() -> None:
        threads = Threads(1, "test")
        first = threads.submit(lambda: release.wait(30))
        second = threads.submit(lambda: ran.append("second"))
        threads.abandon(second)
        release.set()
        await first.future
        await threads.submit(lambda: ran.append("third")).future
        threads.close()

    asyncio.run(scene())
    assert ran == ["third"]


def slots(**fields: Any) -> Any:
    usual = {"count": 20, "finished": 0, "busy": 0.0, "buffer": [], "stints": [], "lingering": [], "occupied": 0}
    return SimpleNamespace(**usual | {"running_of": lambda *_: 0} | fields)


class Hashable(SimpleNamespace):
    __hash__ = object.__hash__


def handler(concurrency: int | None = None, size: int = 1) -> Any:
    return Hashable(options=SimpleNamespace(lease=30.0, concurrency=concurrency), size=size)


SOURCE = JobsSource(["mail"], {"act": handler()})


def planned(demand: Demand) -> int:
    [(_, _, limit)] = demand.plan([SOURCE])
    return limit


def test_slow_handlers_that_end_in_step_are_not_claimed_ahead_for() -> None:
    """Twenty that took a second each and end in the same moment are not two thousand a second."""
    work = slots()
    demand = Demand(work, 2_000)
    time.sleep(0.02)
    work.finished, work.busy = 20, 20.0
    assert planned(demand) == 20 + int(20 * AHEAD_SECONDS)


def test_fast_handlers_are_claimed_ahead_for_up_to_the_limit() -> None:
    work = slots()
    demand = Demand(work, 2_000)
    time.sleep(0.02)
    work.finished, work.busy = 100_000, 0.02
    assert planned(demand) == 2_020
    assert demand.low == 1_500
    work.buffer = [None] * 1_501
    assert planned(demand) == 0
    demand.start_anew()
    work.buffer = []
    assert planned(demand) == 20


def test_limited_kinds_are_planned_by_themselves() -> None:
    work = slots(running_of=lambda *_: 1)
    ours = JobsSource(["mail"], {"free": handler(), "one": handler(1), "three": handler(3)})
    foreign = JobsSource(["other"], {"step": handler()})
    plan = Demand(work, 0).plan([ours, foreign])
    assert plan == [
        (ours, {"free": 30_000}, 20),
        (ours, {"one": 30_000}, 0),
        (ours, {"three": 30_000}, 2),
        (foreign, {"step": 30_000}, 20),
    ]


@pytest.mark.parametrize(
    "rate, occupied, limits",
    [
        (0, 0, [2, 200, 900]),
        (0, 1, [1, 100, 900]),
        (0, 2, [0, 0, 0]),
        # What is claimed ahead for all slots is at least a batch.
        (40, 2, [10, 0, 0]),
        (40, 1, [11, 100, 900]),
        (400, 2, [100, 100, 0]),
        # More than this is left for the next claim.
        (8_000, 2, [2_000, 500, 900]),
    ],
)
def test_a_free_slot_has_room_for_a_whole_batch_of_a_bulk_handler(
    monkeypatch: pytest.MonkeyPatch, rate: float, occupied: int, limits: list[int]
) -> None:
    monkeypatch.setattr(Demand, "_finishing_rate", lambda _: rate)
    source = JobsSource(["mail"], {"free": handler(), "bulk": handler(size=100), "huge": handler(size=900)})
    work = slots(count=2, occupied=occupied, batches=Counter(), waiting_of=lambda *_: 0)
    assert [limit for _, _, limit in Demand(work, 2_000).plan([source])] == limits


def test_a_limit_of_a_bulk_handler_is_one_of_calls() -> None:
    bulk = handler(2, size=100)
    source = JobsSource(["mail"], {"bulk": bulk})
    work = slots(batches=Counter(), waiting_of=lambda *_: 30)
    demand = Demand(work, 0)
    for calls, limit in ((0, 170), (1, 70), (2, -30)):
        work.batches[bulk] = calls
        assert demand.plan([source]) == [(source, {"bulk": 30_000}, limit)]


def test_an_outage_is_said_once_and_only_a_later_answer_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.worker.outage.FIRST_OUTAGE_PAUSE_SECONDS", 0.001)
    monkeypatch.setattr("holdfast.worker.outage.LONGEST_OUTAGE_PAUSE_SECONDS", 0.001)
    said: list[events.Event] = []
    outage = Outage("w", said.append)

    async def scene() -> None:
        asked_before = time.monotonic()
        await outage.pause(DatabaseUnavailable("stale"), 1)
        await outage.pause(DatabaseBusy("busy"), 9)
        assert said == []
        for tries in range(2, 12):
            await outage.pause(DatabaseUnavailable("gone"), tries)
        outage.over(asked_before)
        await outage.pause(DatabaseUnavailable("gone"), 12)
        outage.over(time.monotonic())
        outage.over(time.monotonic())

    asyncio.run(scene())
    assert [event.name for event in said] == ["DatabaseLost", "DatabaseRegained"]


def translated(url: str, cause: Exception) -> Exception:
    error = dialect_for(url, StoreOptions()).translate(cause)
    assert error is not None
    return error


def on_postgres(sqlstate: str) -> Exception:
    return translated("postgresql://localhost/x", psycopg.errors.lookup(sqlstate)("because"))


def on_mysql(code: int) -> Exception:
    return translated("mysql://localhost/x", pymysql.err.OperationalError(code, "because"))


def on_sqlite(error: sqlite3.Error) -> Exception:
    return translated("sqlite:///:memory:", error)


@pytest.mark.parametrize(
    "error, expected",
    [
        (UniqueViolation("there"), True),
        (on_postgres("22P05"), True),
        (on_postgres("P0001"), True),
        (on_postgres("53100"), False),
        (on_postgres("25006"), False),
        (on_postgres("57014"), False),
        (on_sqlite(sqlite3.IntegrityError("CHECK constraint failed")), True),
        (on_sqlite(sqlite3.OperationalError("malformed JSON")), True),
        (on_sqlite(sqlite3.OperationalError("database or disk is full")), False),
        (on_sqlite(sqlite3.OperationalError("attempt to write a readonly database")), False),
        (on_mysql(1406), True),
        (on_mysql(1290), False),
        (on_mysql(1142), False),
        (DatabaseUnavailable("gone"), False),
        (DatabaseBusy("busy"), False),
        (ValueError("not the database's"), False),
    ],
)
def test_a_refusal_of_the_data_is_told_from_trouble_that_passes(error: Exception, expected: bool) -> None:
    assert refused(error) is expected


def test_an_outage_that_was_waited_out_does_not_put_off_reaping(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([100.0, 700.0])
    monkeypatch.setattr(reap, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    part = reap.Reap(SimpleNamespace(sources=[]))  # type: ignore[arg-type]

    asyncio.run(part.run())

    assert part.due == 700.0 + reap.LONGEST_REAP_PAUSE_SECONDS


@pytest.mark.parametrize("before, after", [((700, 10, 10), (5_000, 10, 10)), ((0, 10, 10),) * 2, ((50_000, 5, 5),) * 2])
def test_a_worker_process_collects_garbage_less_often_unless_the_application_chose(
    before: tuple[int, int, int], after: tuple[int, int, int]
) -> None:
    default = gc.get_threshold()
    gc.set_threshold(*before)
    try:
        process._collect_less_often()
        assert gc.get_threshold() == after
    finally:
        gc.set_threshold(*default)


def test_waiting_jobs_are_looked_at_again_when_the_oldest_has_waited_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(give_back, "time", SimpleNamespace(monotonic=lambda: now))
    slots = Slots(1, lambda _: None, lambda: None)
    given: list[Any] = []
    holdings = SimpleNamespace(
        take_back=slots.take_back,
        give_back=lambda works, **_: given.extend(works),
        oldest_waiting=lambda otherwise: min((work.ready for work in slots.waiting()), default=otherwise),
    )
    demand = SimpleNamespace(start_anew=lambda: None)
    part = give_back.GiveBack(SimpleNamespace(holdings=holdings, demand=demand))  # type: ignore[arg-type]

    def next_in() -> float:
        asyncio.run(part.run())
        return part.next_in

    assert next_in() == give_back.LONGEST_WAIT_SECONDS
    slots.buffer.extend(
        Hashable(ready=ready, slot=None, next=None, lease=SimpleNamespace(lapses=0)) for ready in (99.5, 99.0, 97.0)
    )  # type: ignore[misc]
    assert next_in() == give_back.LONGEST_WAIT_SECONDS - 1.0
    assert [work.ready for work in given] == [97.0]
    now += give_back.LONGEST_WAIT_SECONDS - 1.0
    assert next_in() == give_back.LEAST_PAUSE_SECONDS
    now += give_back.LEAST_PAUSE_SECONDS
    next_in()
    assert [work.ready for work in given] == [97.0, 99.0]
