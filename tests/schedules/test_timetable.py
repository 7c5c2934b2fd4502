"""When schedules tick: worked out from the timetable alone, the same by everyone who asks."""

import zoneinfo
from datetime import UTC, datetime, timedelta
from itertools import islice, takewhile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import ConfigError
from holdfast.schedules.timetable import Timetable
from holdfast.values.ids import parse_id, tick_id

NEW_YEAR = datetime(2026, 1, 1, tzinfo=UTC)
EXPRESSIONS = ("0 2 * * *", "30 2 * * *", "*/15 * * * *", "0 * * * *", "30 1,2,3 * * *", "0 0 1 * *", "0 */2 * * 1-5")
ZONES = ("UTC", "Europe/Berlin", "America/New_York", "Asia/Kathmandu", "America/Havana")
# Around the changes of the clock in Berlin, New York and Havana.
MOMENTS = st.datetimes(datetime(2026, 3, 1), datetime(2026, 11, 30), timezones=st.just(UTC))


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


@pytest.mark.parametrize(
    "said, field, words",
    [
        ({}, "schedule", "either cron= or every="),
        ({"cron": "0 2 * * *", "every": 60}, "schedule", "either cron= or every="),
        ({"cron": "0 2 * *"}, "cron", "five fields"),
        ({"cron": "0 25 * * *"}, "cron", "bad hour"),
        ({"cron": "0 0 30 2 *"}, "cron", "bad day-of-month"),
        ({"cron": "*/5 * * * * *"}, "cron", "for seconds there is every="),
        ({"cron": "@reboot"}, "cron", "five fields"),
        ({"cron": ""}, "cron", "1 to 200"),
        ({"cron": 5}, "cron", "must be text"),
        ({"cron": "0 2 * * *", "timezone": "Mars/Olympus"}, "timezone", "such as Europe/Berlin"),
        ({"cron": "0 2 * * *", "timezone": "Europe"}, "timezone", "such as Europe/Berlin"),
        ({"cron": "0 2 * * *", "timezone": "../passwd"}, "timezone", "such as Europe/Berlin"),
        ({"every": 0.5}, "every", "from 1 second to 366 days"),
        ({"every": timedelta(days=1000)}, "every", "from 1 second to 366 days"),
        ({"every": "5m"}, "every", "seconds"),
        ({"every": 60, "timezone": "Europe/Berlin"}, "timezone", "belongs to cron="),
    ],
)
def test_what_cannot_be_a_timetable_is_refused_with_what_to_do(said: dict[str, object], field: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as raised:
        Timetable.of(**said)  # type: ignore[arg-type]
    assert raised.value.field == field


def test_a_machine_without_time_zone_data_is_told_which_package_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zoneinfo, "ZoneInfo", _nowhere)
    monkeypatch.setattr(zoneinfo, "available_timezones", set)
    with pytest.raises(ConfigError, match="install the package tzdata"):
        Timetable.of("0 2 * * *", timezone="Europe/Berlin")
    # And needs none for UTC.
    assert Timetable.of("0 2 * * *").first_after(NEW_YEAR) == utc("2026-01-01 02:00")


def _nowhere(name: str) -> None:
    raise zoneinfo.ZoneInfoNotFoundError(name)


@pytest.mark.parametrize("every_ms", [0, -60_000, 10**18, "words", None])
def test_an_interval_written_by_hand_that_cannot_be_one_is_refused(every_ms: object) -> None:
    with pytest.raises(ConfigError, match="every_ms"):
        Timetable(None, every_ms).first_after(NEW_YEAR)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "said, found",
    [
        ("@hourly", "2026-01-01 01:00"),
        ("@daily", "2026-01-02 00:00"),
        ("@weekly", "2026-01-04 00:00"),
        ("@monthly", "2026-02-01 00:00"),
        ("@yearly", "2027-01-01 00:00"),
        ("0 12 * * MON", "2026-01-05 12:00"),
        ("0 0 L * *", "2026-01-31 00:00"),
        ("  0   2 * * *  ", "2026-01-01 02:00"),
        ("0 0 29 2 *", "2028-02-29 00:00"),
    ],
)
def test_expressions_as_people_write_them(said: str, found: str) -> None:
    assert Timetable.of(said).first_after(NEW_YEAR) == utc(found)


def test_an_interval_counts_from_1970_whenever_it_was_declared() -> None:
    quarter = Timetable.of(every=timedelta(minutes=15))
    assert quarter.first_after(utc("2026-01-01 12:00:00.000001")) == utc("2026-01-01 12:15")
    assert quarter.first_after(utc("2026-01-01 12:15")) == utc("2026-01-01 12:30")
    assert Timetable.of(every=timedelta(days=7)).first_after(NEW_YEAR).strftime("%A %H:%M") == "Thursday 00:00"


@pytest.mark.parametrize(
    "said, shown",
    [
        ({"cron": "0 2 * * *", "timezone": "Europe/Berlin"}, "0 2 * * * Europe/Berlin"),
        ({"cron": "@daily"}, "0 0 * * * UTC"),
        ({"every": 90}, "every 1m30s"),
        ({"every": timedelta(days=1, hours=1)}, "every 1d1h"),
        ({"every": 1.5}, "every 1s500ms"),
    ],
)
def test_a_timetable_is_shown_as_people_write_it(said: dict[str, object], shown: str) -> None:
    assert str(Timetable.of(**said)) == shown  # type: ignore[arg-type]


@given(expression=st.sampled_from(EXPRESSIONS), zone=st.sampled_from(ZONES), start=MOMENTS, ahead=st.floats(0, 90_000))
def test_the_ticks_are_the_same_wherever_one_begins_to_look(
    expression: str, zone: str, start: datetime, ahead: float
) -> None:
    timetable = Timetable.of(expression, timezone=zone)
    later = start + timedelta(seconds=ahead)
    walked = next(tick for tick in timetable._ticks(start) if tick > later)
    assert timetable.first_after(later) == walked > later


@given(
    timetable=st.builds(Timetable.of, st.sampled_from(EXPRESSIONS), timezone=st.sampled_from(ZONES))
    | st.builds(Timetable.of, every=st.integers(1, 100_000).map(float)),
    start=MOMENTS,
    span=st.timedeltas(timedelta(0), timedelta(days=3)),
    most=st.integers(1, 20),
)
def test_the_newest_ticks_are_found_from_the_end(
    timetable: Timetable, start: datetime, span: timedelta, most: int
) -> None:
    walked = list(islice(takewhile(lambda tick: tick <= start + span, timetable._ticks(start)), 300_000))
    assert timetable.newest(start, start + span, most) == walked[-most:]
    assert timetable.count(start, start + span, most) == min(len(walked), most)


def test_the_vectors_of_the_guide_are_what_is_computed() -> None:
    """Each line of the table has an expression in Berlin's time, a day, and the ticks of that day in UTC."""
    guide = (Path(__file__).parents[2] / "docs" / "guides" / "schedules.md").read_text("utf-8")
    rows = [line.strip("| ").split(" | ") for line in guide.splitlines() if line.startswith("| `") and "2026-" in line]
    assert len(rows) >= 6
    for said, day, *_, told in rows:
        midnight = datetime.fromisoformat(day).replace(tzinfo=zoneinfo.ZoneInfo("Europe/Berlin"))
        next_day = (midnight + timedelta(days=1)).astimezone(UTC)
        timetable = Timetable.of(said.strip("`"), timezone="Europe/Berlin")
        found = timetable.newest(midnight.astimezone(UTC) - timedelta(seconds=1), next_day - timedelta(seconds=1), 100)
        assert [tick.strftime("%H:%M") for tick in found] == told.split(", "), said


def test_the_id_of_a_tick_is_its_own_and_sorts_by_time() -> None:
    ticks = [NEW_YEAR + timedelta(hours=n) for n in range(20)]
    ids = [parse_id(tick_id("nightly", tick)) for tick in ticks]
    assert ids == sorted(set(ids)) == [tick_id("nightly", tick) for tick in ticks]
    assert tick_id("weekly", NEW_YEAR) != tick_id("nightly", NEW_YEAR)
    # Written down: other versions must make the same.
    assert tick_id("nightly", NEW_YEAR) == "019b76da-a800-8ab6-85ef-b53fb7702819"
