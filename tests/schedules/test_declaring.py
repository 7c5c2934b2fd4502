"""`hf.schedule`: what may be declared, and what it becomes."""

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from holdfast import ConfigError, Debounce, Holdfast, Schedule, Throttle, admin
from holdfast.handlers import Handler
from holdfast.testing.inline import run_due
from holdfast.values.ids import new_id


@pytest.fixture
def hf(sqlite_url: str) -> Iterator[Holdfast]:
    with Holdfast(sqlite_url) as app:
        app.migrate()
        yield app


@pytest.fixture
def report(hf: Holdfast) -> Handler[..., None]:
    @hf.job(queue="reports")
    def report(day: str = "today") -> None: ...

    return report


def test_a_declared_schedule_says_when_it_ticks(hf: Holdfast, report: Handler[..., None]) -> None:
    made = hf.schedule("nightly", report.bind(day="yesterday"), cron="0 2 * * *", timezone="Europe/Berlin")
    assert isinstance(made, Schedule)
    assert (made.name, made.kind, made.cron) == ("nightly", "report", "0 2 * * *")
    assert (made.timezone, made.every, made.catch_up) == ("Europe/Berlin", None, "one")
    summer = datetime(2026, 7, 1, tzinfo=UTC)
    assert made.upcoming(2, summer) == [summer + timedelta(days=1), summer + timedelta(days=2)]
    assert len(made.upcoming()) == 5
    with pytest.raises(ConfigError, match="time zone"):
        made.upcoming(1, datetime(2026, 7, 1))
    assert hf.schedule("often", report.bind(), every=timedelta(minutes=5)).every == timedelta(minutes=5)


@pytest.mark.parametrize(
    "said, field, words",
    [
        ({"name": ""}, "schedule", "1 to 100"),
        ({"name": "x" * 101}, "schedule", "1 to 100"),
        ({"catch_up": "some"}, "catch_up", "'skip', 'one', 'all'"),
        ({"cron": "never"}, "cron", "five fields"),
        ({"job": "report"}, "job", "bound job"),
    ],
)
def test_what_cannot_be_declared_is_refused(
    hf: Holdfast, report: Handler[..., None], said: dict[str, object], field: str, words: str
) -> None:
    given = {"name": "nightly", "job": report.bind(), "cron": "0 2 * * *"} | said
    with pytest.raises(ConfigError, match=words) as raised:
        hf.schedule(given.pop("name"), given.pop("job"), **given)  # type: ignore[arg-type]
    assert raised.value.field == field
    assert hf.sync_schedules() == {}


def test_what_is_each_jobs_own_cannot_be_bound(hf: Holdfast, report: Handler[..., None]) -> None:
    with pytest.raises(ConfigError, match="there is unique"):
        hf.schedule("nightly", report.using(idempotency_key="k").bind(), every=60)
    with pytest.raises(ConfigError, match="after: is not for schedules"):
        hf.schedule("nightly", report.using(after=[new_id()]).bind(), every=60)
    with pytest.raises(ConfigError, match="must be a delay"):
        hf.schedule("nightly", report.using(run_after=datetime.now(UTC)).bind(), every=60)


def test_a_name_is_declared_once(hf: Holdfast, report: Handler[..., None]) -> None:
    hf.schedule("nightly", report.bind(), every=60)
    with pytest.raises(ConfigError, match="declared once"):
        hf.schedule("nightly", report.bind(), every=60)


def test_declared_schedules_are_stored_on_demand_in_both_colours(hf: Holdfast, report: Handler[..., None]) -> None:
    hf.schedule("nightly", report.bind(), cron="0 2 * * *")
    assert hf.sync_schedules() == {"nightly": "created"}
    hf.schedule("weekly", report.bind(), cron="@weekly")
    assert asyncio.run(hf.async_schedules()) == {"nightly": "same", "weekly": "created"}


def test_a_definition_is_the_same_from_every_process(hf: Holdfast, report: Handler[..., None]) -> None:
    said = report.using(priority=5, headers={"b": "1", "a": "2"}, lease=60, max_attempts=2, key="k").bind(day="x")
    made = hf.schedule("nightly", said, cron="0 2 * * *", timezone="Europe/Berlin")
    # Written down: a version that reckons otherwise would take every schedule for a changed one.
    assert made.fingerprint == "9009e9723361a215"
    assert hf.schedule("other", said, cron="0 2 * * *", timezone="Europe/Berlin").fingerprint == made.fingerprint
    assert hf.schedule("third", said, cron="0 2 * * *", timezone="UTC").fingerprint != made.fingerprint


@pytest.mark.parametrize(
    "said, field",
    [
        ({"throttle": Throttle("k", window=60)}, "throttle"),
        ({"debounce": Debounce("k", wait=60)}, "debounce"),
        ({"expires": datetime(2030, 1, 1, tzinfo=UTC)}, "expires"),
    ],
)
def test_what_makes_no_sense_for_every_tick_is_refused(
    hf: Holdfast, report: Handler[..., None], said: dict[str, Any], field: str
) -> None:
    with pytest.raises(ConfigError) as raised:
        hf.schedule("nightly", report.using(**said).bind(), every=60)
    assert raised.value.field == field


def test_the_jobs_of_ticks_expire_a_time_after_their_enqueue(hf: Holdfast, report: Handler[..., None]) -> None:
    hf.schedule("nightly", report.using(expires=30, headers={"a": "1"}).bind(), every=60)
    hf.sync_schedules()
    assert len(run_due(hf, ahead=61)) == 1
    [job] = [one for one in hf.store.run(admin.list_jobs()) if one.kind == "report"]
    assert job.expires_at == job.created_at + timedelta(seconds=30)
    assert (job.headers or {})["a"] == "1"
