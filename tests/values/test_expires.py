from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from holdfast.values.expires import counted_from, expiry_in, expiry_of, header_of

MADE = datetime(2030, 1, 1, 12, tzinfo=UTC)


def test_a_time_after_the_enqueue_is_counted_from_it() -> None:
    assert header_of(90.5) == "+90500"
    assert expiry_of({"holdfast-expires": "+90500"}, MADE) == MADE + timedelta(seconds=90.5)


def test_a_moment_is_kept_to_the_microsecond() -> None:
    moment = MADE + timedelta(microseconds=7)
    assert expiry_of({"holdfast-expires": header_of(moment)}, MADE) == moment


@pytest.mark.parametrize(
    "headers",
    [
        None,
        "",
        "no JSON",
        "[]",
        '"holdfast-expires"',
        '{"other": "+5"}',
        '{"holdfast-expires": null}',
        '{"holdfast-expires": 5}',
        '{"holdfast-expires": ""}',
        '{"holdfast-expires": "+"}',
        '{"holdfast-expires": "+soon"}',
        '{"holdfast-expires": "tomorrow"}',
        '{"holdfast-expires": "2030-13-01T00:00:00Z"}',
    ],
)
def test_what_cannot_be_read_never_expires(headers: str | None) -> None:
    assert expiry_in(headers, MADE) is None
    assert counted_from(headers, MADE) == headers


def test_no_number_that_somebody_wrote_is_too_large() -> None:
    assert expiry_in('{"holdfast-expires": "+9999999999999999999999"}', MADE) is not None
    assert expiry_in('{"holdfast-expires": "+9999999999999999999999"}', datetime.max.replace(tzinfo=UTC)) is None


def test_a_moment_without_a_zone_is_in_utc() -> None:
    assert expiry_in('{"holdfast-expires": "2030-01-01T12:00:00"}', MADE) == MADE


def test_a_debounced_call_counts_from_itself() -> None:
    told = counted_from('{"a":"1","holdfast-expires":"+60000"}', MADE)
    assert told == '{"a":"1","holdfast-expires":"2030-01-01T12:01:00+00:00"}'
    assert counted_from(told, MADE + timedelta(hours=1)) == told
