"""Schedules: each tick one job by the whole fleet, and none lost, as far as the catch-up policy goes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from holdfast import jobs, schedules
from holdfast.errors import ConfigError
from holdfast.flow import Steps, flow
from holdfast.schedules import Schedule, Stored
from holdfast.testing.clock import Clock
from holdfast.testing.look import Do, Live, Look
from holdfast.testing.make import new_job
from holdfast.values.ids import tick_id
from holdfast.values.rows import NewJob
from holdfast.worker import registry

HOUR, DAY = timedelta(hours=1), timedelta(days=1)


def schedule(name: str = "nightly", job: NewJob | None = None, **said: Any) -> Schedule:
    """Make a schedule; at two at night by default."""
    if "every" not in said:
        said.setdefault("cron", "0 2 * * *")
    return Schedule.of(name, job or new_job(kind="report"), **said)


def at(text: str) -> datetime:
    """Read a time in UTC."""
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def stored(do: Do, name: str = "nightly") -> Stored:
    [one] = do(schedules.listed(name))
    return one


def ticks(look: Look) -> list[str]:
    """Read which ticks have a live job, in their order."""
    return sorted(headers(row)[schedules.TICK_HEADER].removesuffix("+00:00") for row in look.live())


def headers(row: Live) -> dict[str, str]:
    return msgspec.json.decode(row.headers or "{}", type=dict[str, str])


def alive(do: Do, worker: str, *declared: Schedule) -> None:
    """Give a worker's sign of life, with what its application declares."""
    info = {"kinds": ["report"], "schedules": schedules.fingerprints(declared)}
    do(registry.beat(worker, msgspec.json.encode(info).decode()))


# Ticks


def test_a_tick_adds_its_job_and_moves_the_schedule_on(do: Do, clock: Clock, look: Look) -> None:
    clock.now = at("2026-01-01 12:00")
    assert do(schedules.sync([schedule()])) == {"nightly": "created"}
    assert stored(do).next_at == at("2026-01-02 02:00")
    assert do(schedules.tick("nightly")) is None
    clock.now = at("2026-01-02 02:00")
    ticked = do(schedules.tick("nightly"))
    assert ticked is not None
    [row] = look.live()
    assert (row.kind, row.queue, row.state, row.available_at) == ("report", "mail", "pending", clock.now)
    assert row.id == tick_id("nightly", at("2026-01-02 02:00"))
    assert headers(row) == {"holdfast-schedule": "nightly", "holdfast-tick": "2026-01-02T02:00:00+00:00"}
    assert [(tick, added.id, added.created) for tick, added in ticked.jobs] == [(clock.now, row.id, True)]
    after = stored(do)
    assert (after.last_at, after.next_at) == (clock.now, at("2026-01-03 02:00"))


def test_two_processes_same_name_one_tick(do: Do, clock: Clock, look: Look) -> None:
    clock.now = at("2026-01-01 12:00")
    assert [do(schedules.sync([schedule()], "worker"))["nightly"] for _ in range(2)] == ["created", "same"]
    clock.now = at("2026-01-02 02:00:01")
    assert [do(schedules.tick("nightly")) is None for _ in range(3)] == [False, True, True]
    assert ticks(look) == ["2026-01-02T02:00:00"]


def test_a_tick_whose_reply_was_lost_adds_nothing_when_it_is_repeated(do: Do, clock: Clock, look: Look) -> None:
    clock.now = at("2026-01-01 12:00")
    do(schedules.sync([schedule()]))
    clock.now = at("2026-01-02 02:00")
    work = schedules.tick("nightly")
    do(work)
    [lease] = do(jobs.claim("mail", limit=1))
    do(jobs.complete(lease))
    assert do(work) is None
    assert (len(look.live()), len(look.over())) == (0, 1)


def test_a_tick_that_is_rolled_back_is_still_owed(do: Do, clock: Clock, look: Look) -> None:
    @flow
    def failing() -> Steps[None]:
        yield from schedules.tick("nightly")
        raise ZeroDivisionError

    clock.now = at("2026-01-01 12:00")
    do(schedules.sync([schedule()]))
    clock.now = at("2026-01-02 02:00")
    with pytest.raises(ZeroDivisionError):
        do(failing())
    assert (look.live(), stored(do).next_at) == ([], clock.now)
    assert do(schedules.tick("nightly")) is not None
    assert len(look.live()) == 1


def test_the_job_of_a_tick_is_as_it_was_bound(do: Do, clock: Clock, look: Look) -> None:
    said = {"priority": 7, "key": "k", "bucket": 3, "max_attempts": 2, "lease_ms": 9000, "delay_ms": 60_000}
    job = new_job("slow", "sweep", payload='{"a":"é"}', headers='{"tenant":"x"}', unique="one", **said)
    clock.now = at("2026-01-01 12:00")
    do(schedules.sync([schedule(job=job)]))
    clock.now = at("2026-01-02 02:00")
    do(schedules.tick("nightly"))
    [row] = look.live()
    assert (row.queue, row.kind, row.priority, row.key, row.bucket) == ("slow", "sweep", 7, "k", 3)
    assert (row.max_attempts, row.lease_ms, row.unique_key) == (2, 9000, "one")
    assert row.available_at == clock.now + timedelta(minutes=1)
    assert msgspec.json.decode(row.payload) == {"a": "é"}
    assert headers(row)["tenant"] == "x"


def test_a_tick_adds_nothing_while_a_unique_job_of_it_lives(do: Do, clock: Clock, look: Look) -> None:
    clock.now = at("2026-01-01 12:00")
    do(schedules.sync([schedule(job=new_job(kind="report", unique="nightly"), every=HOUR)]))
    created: list[bool] = []
    for _ in range(3):
        clock.advance(HOUR)
        ticked = do(schedules.tick("nightly"))
        assert ticked is not None
        created.append(ticked.jobs[0][1].created)
    assert created == [True, False, False]
    [lease] = do(jobs.claim("mail", limit=1))
    do(jobs.complete(lease))
    clock.advance(HOUR)
    do(schedules.tick("nightly"))
    assert ticks(look) == ["2026-01-01T16:00:00"]


def test_due_schedules_stand_in_front_and_paused_ones_are_left_out(do: Do, clock: Clock) -> None:
    clock.now = at("2026-01-01 12:00")
    do(schedules.sync([schedule("daily"), schedule("hourly", every=HOUR), schedule("off", every=HOUR)]))
    do(schedules.pause("off", None))
    assert [(one.name, one.seconds) for one in do(schedules.coming())] == [("hourly", 3600), ("daily", 14 * 3600)]
    clock.advance(2 * HOUR)
    assert [one.seconds <= 0 for one in do(schedules.coming())] == [True, False]
    assert [one.name for one in do(schedules.coming(limit=1))] == ["hourly"]


# Missed ticks


@pytest.mark.parametrize(
    "catch_up, ran, left_out",
    [
        ("skip", [], 3),
        ("one", ["2026-01-04T02:00:00"], 2),
        ("all", ["2026-01-02T02:00:00", "2026-01-03T02:00:00", "2026-01-04T02:00:00"], 0),
    ],
)
def test_missed_ticks_are_made_up_for_as_the_policy_says(
    do: Do, clock: Clock, look: Look, catch_up: Any, ran: list[str], left_out: int
) -> None:
    clock.now = at("2026-01-01 12:00")
    do(schedules.sync([schedule(catch_up=catch_up)]))
    clock.now = at("2026-01-04 12:00")
    ticked = do(schedules.tick("nightly"))
    assert ticked is not None
    assert ticks(look) == ran
    assert (0 if ticked.skipped is None else ticked.skipped.number) == left_out
    assert stored(do).next_at == at("2026-01-05 02:00")
    assert do(schedules.tick("nightly")) is None


def test_a_tick_that_is_less_than_a_minute_late_was_not_missed(do: Do, clock: Clock, look: Look) -> None:
    clock.now = at("2026-01-01 12:00")
    do(schedules.sync([schedule(catch_up="skip", every=10)]))
    clock.advance(50)
    ticked = do(schedules.tick("nightly"))
    assert ticks(look) == ["2026-01-01T12:00:50"]
    assert ticked is not None
    assert ticked.skipped == (at("2026-01-01 12:00:10"), at("2026-01-01 12:00:40"), 4)


def test_making_up_for_all_ticks_is_bounded_and_goes_on_after_a_crash(do: Do, clock: Clock, look: Look) -> None:
    clock.now = at("2026-01-01 12:00")
    do(schedules.sync([schedule(catch_up="all", every=60)]))
    clock.now = at("2026-01-03 12:00")
    first = do(schedules.tick("nightly"))
    assert first is not None
    assert first.skipped is not None
    assert (len(first.jobs), first.skipped.number) == (100, 1000)
    assert first.skipped[:2] == (at("2026-01-01 12:01"), clock.now - timedelta(minutes=1000))
    # Another worker goes on where this one was stopped.
    rest: list[int] = []
    while (more := do(schedules.tick("nightly"))) is not None:
        assert more.skipped is None
        rest.append(len(more.jobs))
    assert rest == [100] * 9
    assert len(ticks(look)) == len(set(ticks(look))) == 1000
    assert ticks(look)[-1] == "2026-01-03T12:00:00"


def test_years_of_missed_ticks_take_no_longer_than_days(do: Do, clock: Clock, look: Look) -> None:
    clock.now = at("2020-01-01 12:00")
    do(schedules.sync([schedule(cron="* * * * *")]))
    clock.now = at("2026-01-01 12:00:30")
    ticked = do(schedules.tick("nightly"))
    assert ticks(look) == ["2026-01-01T12:00:00"]
    assert ticked is not None
    assert ticked.skipped == (at("2020-01-01 12:01"), at("2026-01-01 11:59"), 1000)


def test_weekly_schedule_survives_daily_restarts(do: Do, clock: Clock, look: Look) -> None:
    clock.now = at("2026-01-01 12:00")
    weekly = [schedule("cron", cron="0 3 * * 1"), schedule("interval", every=timedelta(days=7))]
    for _ in range(21):
        do(schedules.sync(weekly, "worker"))
        for one in do(schedules.coming()):
            do(schedules.tick(one.name))
        clock.advance(DAY)
    # Mondays for the one; Thursdays, which 1970 began with, for the other.
    assert [tick[8:10] for tick in ticks(look)] == ["05", "08", "12", "15", "19"]


# Clocks and time zones


@pytest.mark.parametrize("step", [timedelta(seconds=5), HOUR, DAY])
def test_a_clock_that_is_put_back_repeats_no_tick(do: Do, clock: Clock, look: Look, step: timedelta) -> None:
    clock.now = at("2026-01-01 12:00")
    do(schedules.sync([schedule(every=60, catch_up="all")]))
    clock.advance(60)
    do(schedules.tick("nightly"))
    clock.advance(-step)
    do(schedules.sync([schedule(every=60, catch_up="all")], "worker"))
    for _ in range(3):
        clock.advance(1)
        assert do(schedules.tick("nightly")) is None
    clock.now = at("2026-01-01 12:02")
    do(schedules.tick("nightly"))
    assert ticks(look) == ["2026-01-01T12:01:00", "2026-01-01T12:02:00"]


def test_a_clock_that_is_put_forward_is_a_missed_tick(do: Do, clock: Clock, look: Look) -> None:
    clock.now = at("2026-01-01 12:00")
    do(schedules.sync([schedule()]))
    clock.now = at("2027-01-01 12:00")
    do(schedules.tick("nightly"))
    assert ticks(look) == ["2027-01-01T02:00:00"]


def test_a_schedule_that_ran_ahead_with_a_wrong_clock_can_be_brought_back(do: Do, clock: Clock, look: Look) -> None:
    clock.now = at("2026-01-01 12:00")
    do(schedules.sync([schedule()]))
    clock.now = at("2027-01-01 12:00")
    do(schedules.tick("nightly"))
    clock.now = at("2026-01-01 12:01")
    assert do(schedules.resume("nightly", "ada")).next_at == at("2026-01-02 02:00")
    clock.now = at("2026-01-02 02:00")
    do(schedules.tick("nightly"))
    assert ticks(look) == ["2026-01-02T02:00:00", "2027-01-01T02:00:00"]


@pytest.mark.parametrize(
    "cron, found",
    [
        # In the gap of 29 March 2026 there is no half past two: it comes when the gap ends, at three.
        ("30 2 * * *", ["2026-03-28T01:30:00", "2026-03-29T01:00:00", "2026-03-30T00:30:00"]),
        # What goes by the minute or the hour goes by time that passes: no hour is doubled or lost.
        ("0 * * * *", [f"2026-03-29T{hour:02}:00:00" for hour in range(3)]),
        ("*/30 2 * * *", ["2026-03-28T01:00:00", "2026-03-28T01:30:00", "2026-03-30T00:00:00", "2026-03-30T00:30:00"]),
    ],
)
def test_dst_gap_and_fold_in_spring(do: Do, clock: Clock, look: Look, cron: str, found: list[str]) -> None:
    assert _local(do, clock, look, cron, at(f"{found[0][:10]} 00:00") - timedelta(minutes=1), at(found[-1])) == found


@pytest.mark.parametrize(
    "cron, found",
    [
        # The hour from two to three comes twice on 25 October 2026: a time of day counts the first time.
        ("30 2 * * *", ["2026-10-24T00:30:00", "2026-10-25T00:30:00", "2026-10-26T01:30:00"]),
        ("0 * * * *", [f"2026-10-25T{hour:02}:00:00" for hour in range(4)]),
        ("*/30 2 * * *", [f"2026-10-25T{time}:00" for time in ("00:00", "00:30", "01:00", "01:30")]),
    ],
)
def test_dst_gap_and_fold_in_autumn(do: Do, clock: Clock, look: Look, cron: str, found: list[str]) -> None:
    assert _local(do, clock, look, cron, at(f"{found[0][:10]} 00:00") - timedelta(minutes=1), at(found[-1])) == found


def _local(do: Do, clock: Clock, look: Look, cron: str, start: datetime, end: datetime) -> list[str]:
    """Tick every ten minutes by Berlin's time, from one moment to another, and return the ticks."""
    clock.now = start
    do(schedules.sync([schedule(cron=cron, timezone="Europe/Berlin")]))
    clock.now = start + timedelta(minutes=1)
    while clock.now <= end:
        do(schedules.tick("nightly"))
        clock.advance(timedelta(minutes=10))
    return ticks(look)


def test_timezone_change_floods_nothing(do: Do, clock: Clock, look: Look) -> None:
    clock.now = at("2026-01-10 12:00")
    do(schedules.sync([schedule(catch_up="all")]))
    for zone in ("Pacific/Auckland", "America/Los_Angeles", "Europe/Berlin", "UTC"):
        do(schedules.sync([schedule(catch_up="all", timezone=zone)], "sync"))
        assert stored(do).timezone == zone
        assert clock.now < stored(do).next_at <= clock.now + DAY
        assert do(schedules.tick("nightly")) is None
    assert look.live() == []


def test_an_owed_tick_is_still_owed_after_a_change(do: Do, clock: Clock, look: Look) -> None:
    clock.now = at("2026-01-01 12:00")
    do(schedules.sync([schedule()]))
    clock.now = at("2026-01-02 05:00")
    assert do(schedules.sync([schedule(cron="0 9 * * *")]))["nightly"] == "changed"
    do(schedules.tick("nightly"))
    assert (ticks(look), stored(do).next_at) == (["2026-01-02T02:00:00"], at("2026-01-02 09:00"))


def test_a_schedule_whose_time_zone_is_unknown_here_is_left_to_others(do: Do, clock: Clock, look: Look) -> None:
    clock.now = at("2026-01-01 12:00")
    do(schedules.sync([schedule()]))
    look.rows("update holdfast_schedules set timezone = 'Mars/Olympus'")
    clock.now = at("2026-01-02 12:00")
    with pytest.raises(ConfigError, match="timezone"):
        do(schedules.tick("nightly"))
    assert (look.live(), stored(do).next_at) == ([], at("2026-01-02 02:00"))


def test_a_schedule_of_a_newer_version_is_left_to_that(do: Do, clock: Clock, look: Look) -> None:
    clock.now = at("2026-01-01 12:00")
    do(schedules.sync([schedule()]))
    look.rows("""update holdfast_schedules set options = '{"warp": 9}'""")
    clock.now = at("2026-01-02 12:00")
    with pytest.raises(ConfigError, match="warp"):
        do(schedules.tick("nightly"))
    assert look.live() == []
