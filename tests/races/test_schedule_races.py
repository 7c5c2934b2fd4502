"""Ticks and changes of schedules, stepped by hand on two connections: of those who saw the same, one writes."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from holdfast import schedules
from holdfast.errors import DatabaseBusy
from holdfast.flow import Flow
from holdfast.store import Store
from holdfast.testing import Clock, Look, new_job
from holdfast.testing.suite_schedules import schedule, stored, ticks
from holdfast.values.ids import new_id
from tests.races.stepping import PATIENCE, blocked, on_thread, stepped

TICK = "2026-01-02T02:00:00"


@pytest.fixture
def look(pg: Store) -> Look:
    return Look(pg.run, pg)


@pytest.fixture
def due(pg: Store) -> Store:
    """A store with one schedule, whose tick is due."""
    clock = Clock(pg)
    clock.now = datetime(2026, 1, 1, 12, tzinfo=UTC)
    pg.run(schedules.sync([schedule()], "worker"))
    clock.now = datetime(2026, 1, 2, 2, 0, 1, tzinfo=UTC)
    return pg


def test_two_workers_at_one_tick_add_one_job(due: Store, look: Look) -> None:
    with stepped(due, schedules.tick("nightly")) as one, stepped(due, schedules.tick("nightly")) as other:
        one.step_through("schedule_tick")
        answer = blocked(other, other.commit)
        assert one.commit() is not None
        assert answer.result(PATIENCE) is None
    assert ticks(look) == [TICK]


def test_a_worker_that_saw_the_schedule_before_the_tick_adds_nothing_after_it(due: Store, look: Look) -> None:
    with stepped(due, schedules.tick("nightly")) as slow:
        assert slow.step() == "schedules_list"
        slow.link.tell("commit")
        slow.open = False
        due.run(schedules.tick("nightly"))
        assert slow.commit() is None
    assert ticks(look) == [TICK]


def test_a_worker_that_dies_in_the_middle_of_a_tick_leaves_it_to_the_next(due: Store, look: Look) -> None:
    with stepped(due, schedules.tick("nightly")) as dying, stepped(due, schedules.tick("nightly")) as next_one:
        dying.rest()
        answer = blocked(next_one, next_one.commit)
        dying.rollback()
        assert answer.result(PATIENCE) is not None
    assert ticks(look) == [TICK]


CHANGES: dict[str, Callable[[], Flow[Any]]] = {
    "pause": lambda: schedules.pause("nightly", None),
    "resume": lambda: schedules.resume("nightly", None),
    "remove": lambda: schedules.remove("nightly", None),
    "sync": lambda: schedules.sync([schedule(cron="0 9 * * *")]),
    "add": lambda: schedules.add(schedule(cron="0 9 * * *"), None, over=True),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_change_before_the_tick_is_committed_keeps_the_old_one_from_running(
    due: Store, look: Look, change: Callable[[], Flow[Any]]
) -> None:
    with stepped(due, schedules.tick("nightly")) as ticking, stepped(due, change()) as changing:
        ticking.step()
        # Only what it has seen: on MySQL its snapshot must not outlive the change.
        ticking.link.tell("commit")
        ticking.open = False
        changing.rest()
        answer = blocked(ticking, ticking.commit)
        changing.commit()
        assert answer.result(PATIENCE) is None
    assert look.live() == []


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_change_that_comes_while_a_tick_is_committed_is_made_after_it(
    due: Store, look: Look, change: Callable[[], Flow[Any]]
) -> None:
    with stepped(due, schedules.tick("nightly")) as ticking:
        ticking.rest()
        # The store runs a change again that finds another revision than it saw.
        answer = on_thread(lambda: due.run(change()))
        assert ticking.commit() is not None
        answer.result(PATIENCE)
    assert ticks(look) == [TICK]
    left = {one.name: (one.cron, one.paused_at is not None) for one in due.run(schedules.listed())}
    assert left == {
        **({"nightly": ("0 2 * * *", True)} if change is CHANGES["pause"] else {}),
        **({"nightly": ("0 2 * * *", False)} if change is CHANGES["resume"] else {}),
        **({"nightly": ("0 9 * * *", False)} if change in (CHANGES["sync"], CHANGES["add"]) else {}),
    }


def test_two_workers_that_start_at_once_store_a_schedule_once(pg: Store, look: Look) -> None:
    def declare() -> Flow[Any]:
        return schedules.sync([schedule()], "worker")

    with stepped(pg, declare()) as one, stepped(pg, declare()) as other:
        one.rest()
        other.step()
        other.step()
        answer = blocked(other, other.rest)
        assert one.commit() == {"nightly": "created"}
        with pytest.raises(DatabaseBusy):
            answer.result(PATIENCE)
    assert pg.run(declare()) == {"nightly": "same"}
    assert stored(pg.run).revision == 1


def test_a_trigger_beside_a_tick_moves_nothing_and_waits_for_nobody(due: Store, look: Look) -> None:
    with stepped(due, schedules.tick("nightly")) as ticking:
        ticking.rest()
        due.run(schedules.trigger("nightly", new_id(), "ada"))
        ticking.commit()
    assert len(look.live()) == 2
    assert stored(due.run).next_at == datetime(2026, 1, 3, 2, tzinfo=UTC)


def test_many_workers_and_many_schedules_add_each_job_once(pg: Store, look: Look) -> None:
    clock = Clock(pg)
    clock.now = datetime(2026, 1, 1, 12, tzinfo=UTC)
    names = [f"s{n}" for n in range(10)]
    pg.run(schedules.sync([schedule(name, new_job(kind=name), every=60, catch_up="all") for name in names]))
    clock.advance(timedelta(minutes=5))

    def work(order: list[str]) -> None:
        for name in order:
            pg.run(schedules.tick(name))

    answers = [on_thread(lambda order=order: work(order)) for order in (names, names[::-1], names[5:] + names[:5])]
    for answer in answers:
        answer.result(PATIENCE)
    assert len(look.live()) == len({row.id for row in look.live()}) == 50
