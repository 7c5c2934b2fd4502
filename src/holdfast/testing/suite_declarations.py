"""Declared schedules: what takes effect when several versions declare one, and what people change by hand."""

from __future__ import annotations

from datetime import timedelta

import pytest

from holdfast import admin, schedules
from holdfast.errors import Conflict, ScheduleNotFound
from holdfast.testing.clock import Clock
from holdfast.testing.look import Do, Look
from holdfast.testing.make import new_job
from holdfast.testing.suite_schedules import DAY, alive, at, headers, schedule, stored, ticks
from holdfast.values.ids import new_id
from holdfast.worker import registry


def test_changed_or_recreated_schedule_takes_effect(do: Do, clock: Clock, look: Look) -> None:
    clock.now = at("2026-01-01 12:00")
    do(schedules.sync([schedule()], "worker"))
    said = schedule(job=new_job(kind="report", payload='{"day":2}'), cron="0 13 * * *")
    assert do(schedules.sync([said], "worker")) == {"nightly": "changed"}
    clock.now = at("2026-01-01 13:00")
    do(schedules.tick("nightly"))
    do(schedules.remove("nightly", "ada"))
    assert do(schedules.sync([schedule(cron="0 14 * * *")], "worker")) == {"nightly": "created"}
    clock.now = at("2026-01-01 14:00")
    do(schedules.tick("nightly"))
    assert ticks(look) == ["2026-01-01T13:00:00", "2026-01-01T14:00:00"]
    assert [row.payload for row in look.live()] == ['{"day":2}', "{}"]


def test_an_unchanged_schedule_is_not_moved_by_being_declared_again(do: Do, clock: Clock) -> None:
    clock.now = at("2026-01-01 12:00")
    do(schedules.sync([schedule(every=timedelta(days=3))], "worker"))
    before = stored(do)
    clock.advance(DAY)
    assert do(schedules.sync([schedule(every=timedelta(days=3))], "worker")) == {"nightly": "same"}
    assert stored(do)._replace(now=before.now) == before


def test_other_arguments_leave_the_next_tick_where_it_is(do: Do, clock: Clock) -> None:
    clock.now = at("2026-01-01 12:00")
    do(schedules.sync([schedule()], "worker"))
    assert do(schedules.sync([schedule(job=new_job(kind="other"))], "worker")) == {"nightly": "changed"}
    assert (stored(do).kind, stored(do).next_at) == ("other", at("2026-01-02 02:00"))


def test_schedule_of_another_deployment_still_ticks(do: Do, clock: Clock, look: Look) -> None:
    clock.now = at("2026-01-01 12:00")
    do(schedules.sync([schedule("theirs", new_job("far", "unknown-here"))], "worker"))
    do(schedules.sync([schedule("ours")], "worker"))
    do(schedules.sync([schedule("ours", cron="0 3 * * *")], "sync"))
    assert [one.name for one in do(schedules.listed())] == ["ours", "theirs"]
    clock.now = at("2026-01-02 02:00")
    do(schedules.tick("theirs"))
    assert [(row.queue, row.kind) for row in look.live()] == [("far", "unknown-here")]


def test_an_old_worker_that_restarts_does_not_bring_its_definition_back(do: Do, clock: Clock) -> None:
    old, new = schedule(), schedule(cron="0 3 * * *")
    do(schedules.sync([old], "worker"))
    alive(do, "old", old)
    alive(do, "new", new)
    assert do(schedules.sync([new], "worker")) == {"nightly": "changed"}
    for _ in range(3):
        assert do(schedules.sync([old], "worker")) == {"nightly": "kept"}
        assert do(schedules.sync([new], "worker")) == {"nightly": "same"}
    assert stored(do).cron == "0 3 * * *"


def test_a_rollback_takes_effect_once_the_newer_workers_are_gone(do: Do, clock: Clock) -> None:
    old, new = schedule(), schedule(cron="0 3 * * *")
    for one in (old, new):
        do(schedules.sync([one], "worker"))
        alive(do, one.cron or "", one)
    assert do(schedules.sync([old], "worker")) == {"nightly": "kept"}
    do(registry.mark(new.cron or "", "dead"))
    assert do(schedules.sync([old], "worker")) == {"nightly": "changed"}
    # And the other way round: one whose process died counts until it has been silent for a minute.
    assert do(schedules.sync([new], "worker")) == {"nightly": "kept"}
    clock.advance(61)
    assert do(schedules.sync([new], "worker")) == {"nightly": "changed"}


@pytest.mark.parametrize("by", ["deployment", "hand"])
def test_what_a_deployment_or_a_person_said_stays_until_something_new_is_declared(do: Do, by: str) -> None:
    old, said = schedule(), schedule(cron="0 3 * * *")
    do(schedules.sync([old], "worker"))
    do(schedules.sync([said]) if by == "deployment" else schedules.add(said, "ada", over=True))
    assert do(schedules.sync([old], "worker")) == {"nightly": "kept"}
    assert do(schedules.sync([schedule(cron="0 4 * * *")], "worker")) == {"nightly": "changed"}
    assert do(schedules.sync([old])) == {"nightly": "changed"}


def test_a_comparison_adds_nothing_that_was_removed(do: Do, look: Look) -> None:
    do(schedules.sync([schedule()], "worker"))
    do(schedules.remove("nightly", None))
    assert do(schedules.sync([schedule()], "worker", create=False)) == {}
    assert do(schedules.listed()) == []


# By hand


def test_a_paused_schedule_does_not_tick_and_makes_up_for_nothing(do: Do, clock: Clock, look: Look) -> None:
    clock.now = at("2026-01-01 12:00")
    do(schedules.sync([schedule(catch_up="all")]))
    do(schedules.pause("nightly", "ada"))
    clock.now = at("2026-01-04 12:00")
    assert do(schedules.tick("nightly")) is None
    do(schedules.sync([schedule(catch_up="all", cron="0 3 * * *")], "worker"))
    assert stored(do).paused_at == at("2026-01-01 12:00")
    with pytest.raises(Conflict, match="paused already"):
        do(schedules.pause("nightly", "ada"))
    do(schedules.resume("nightly", "ada"))
    assert do(schedules.tick("nightly")) is None
    clock.now = at("2026-01-05 03:00")
    do(schedules.tick("nightly"))
    assert ticks(look) == ["2026-01-05T03:00:00"]


def test_a_triggered_job_moves_no_tick(do: Do, clock: Clock, look: Look) -> None:
    clock.now = at("2026-01-01 12:00")
    do(schedules.sync([schedule()]))
    before, job_id = stored(do), new_id()
    work = schedules.trigger("nightly", job_id, "ada")
    assert [do(work).id for _ in range(2)] == [job_id] * 2
    assert [(row.id, headers(row)) for row in look.live()] == [(job_id, {"holdfast-schedule": "nightly"})]
    assert stored(do) == before


def test_a_schedule_is_added_by_hand_once(do: Do, clock: Clock) -> None:
    assert do(schedules.add(schedule(), "ada")) == "created"
    assert do(schedules.add(schedule(), "ada")) == "same"
    with pytest.raises(Conflict, match="another definition"):
        do(schedules.add(schedule(cron="0 3 * * *"), "ada"))
    assert do(schedules.add(schedule(cron="0 3 * * *"), "ada", over=True)) == "changed"
    assert (stored(do).cron, stored(do).declared_by) == ("0 3 * * *", "hand")


def test_what_is_done_by_hand_is_audited_with_its_actor(do: Do, clock: Clock) -> None:
    do(schedules.add(schedule(), "ada"))
    for work in (
        schedules.pause("nightly", "bo"),
        schedules.resume("nightly", "cy"),
        schedules.trigger("nightly", new_id(), "di"),
        schedules.remove("nightly", "ed"),
        schedules.sync([schedule()], actor="fi"),
    ):
        clock.advance(1)
        do(work)
    lines = [(line.action, line.actor, line.detail["schedule"]) for line in do(admin.audit())]
    assert lines == [
        ("schedule_sync", "fi", "nightly"),
        ("schedule_remove", "ed", "nightly"),
        ("schedule_trigger", "di", "nightly"),
        ("schedule_resume", "cy", "nightly"),
        ("schedule_pause", "bo", "nightly"),
        ("schedule_add", "ada", "nightly"),
    ]


@pytest.mark.parametrize("action", ["listed", "pause", "resume", "trigger", "remove"])
def test_an_unknown_schedule_is_said_to_be_unknown(do: Do, action: str) -> None:
    more = {"listed": (), "trigger": (new_id(), None)}.get(action, (None,))
    with pytest.raises(ScheduleNotFound, match="'nightly'"):
        do(getattr(schedules, action)("nightly", *more))
