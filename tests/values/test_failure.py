from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from holdfast import Fatal
from holdfast.values.failure import ErrorRecord, fingerprint

TIMES = {"started_at": "2030-01-01T00:00:00+00:00", "failed_at": "2030-01-01T00:00:01+00:00"}


def record(exc: BaseException, limit: int = 10_000) -> ErrorRecord:
    return ErrorRecord.of(exc, attempt=1, worker="w1", limit=limit, **TIMES)


def raised(exc: BaseException) -> BaseException:
    try:
        raise exc
    except BaseException as caught:
        return caught


@pytest.mark.parametrize(
    "one, other",
    [
        ("order 17 not found", "order 9182 not found"),
        ("took 1.5 s", "took 20.75 s"),
        ("at 0x7f19254c4750", "at 0xdeadbeef"),
        ("commit 8f3a2b91c not found", "commit 11aa22bb33 not found"),
        ("job 0190a3b2-0000-7000-8000-000000000000", "job 0190A3B2-1111-7000-8000-00000000FFFF"),
        ("no user 'ann'", "no user 'o\\'hara'"),
        ("can't read 'a.txt'", "can't read 'b'"),
        ('no user "ann"', 'no user "bob smith"'),
        ("cannot open /var/lib/a.txt: denied", "cannot open /home/ann/b: denied"),
        ("GET https://a.example/x?y=1 failed", "GET http://b.example failed"),
        ("one  line", "one\n line"),
    ],
)
def test_failures_that_differ_in_details_share_a_group(one: str, other: str) -> None:
    assert fingerprint("ValueError", one) == fingerprint("ValueError", other)


@pytest.mark.parametrize(
    "one, other",
    [
        (("ValueError", "x"), ("TypeError", "x")),
        (("ValueError", "order 1 not found"), ("ValueError", "user 1 not found")),
        (("ValueError", "connection refused"), ("ValueError", "connection reset")),
    ],
)
def test_different_failures_have_different_groups(one: tuple[str, str], other: tuple[str, str]) -> None:
    assert fingerprint(*one) != fingerprint(*other)


def test_a_group_key_never_changes_between_releases() -> None:
    assert fingerprint("ValueError", "order 17 not found") == "988a0663e274bda8"


@given(st.text(st.characters()), st.text(st.characters()))
def test_a_group_key_is_16_hex_digits_for_any_text(error_type: str, message: str) -> None:
    key = fingerprint(error_type, message)
    assert len(key) == 16
    assert int(key, 16) >= 0


def test_a_record_holds_type_message_and_traceback() -> None:
    found = record(raised(ValueError("order 17 not found")))
    assert (found.type, found.message, found.attempt, found.worker) == ("ValueError", "order 17 not found", 1, "w1")
    assert "in raised" in found.traceback
    assert found.fingerprint == fingerprint("ValueError", "order 17 not found")
    assert json.loads(found.to_json())["failed_at"] == TIMES["failed_at"]


def test_a_long_traceback_keeps_its_end_and_a_long_message_its_beginning() -> None:
    found = record(raised(ValueError("x" * 50_000 + "END")), limit=500)
    assert len(found.traceback) == 500
    assert found.traceback.endswith("END\n")
    assert len(found.message) == 2_000
    assert found.message.startswith("xxx")


@pytest.mark.parametrize("limit", range(5))
def test_any_limit_is_kept(limit: int) -> None:
    assert len(record(raised(ValueError("x")), limit=limit).traceback) == limit


def test_a_shortened_message_stays_in_the_group_of_the_whole() -> None:
    message = "word " * 2_000
    assert record(ValueError(message)).fingerprint == fingerprint("ValueError", message)


class Unreadable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no")

    __repr__ = __str__


def test_an_exception_that_cannot_be_read_is_still_recorded() -> None:
    found = record(raised(Unreadable()))
    assert found.type.endswith("Unreadable")
    assert "RuntimeError" in found.message


def test_an_exception_with_a_wrong_notes_attribute_is_still_recorded() -> None:
    strange = ValueError("x")
    strange.__notes__ = Unreadable()  # type: ignore[assignment]
    assert record(raised(strange)).message == "x"


@given(st.text(st.characters()))
def test_every_record_can_be_stored(message: str) -> None:
    found = record(ValueError(message + "\0\ud800"))
    text = found.message + found.traceback
    assert "\0" not in text
    text.encode()
    json.loads(found.to_json())


@given(st.text(st.characters()))
@example("")
@example("x" * 20_000)
def test_what_a_handler_asked_for_is_recorded_as_an_exception_is_and_has_no_traceback(reason: str) -> None:
    asked = ErrorRecord.asked("Retry", reason, attempt=1, worker="w1", **TIMES)
    assert asked == msgspec.structs.replace(record(Fatal(reason)).named("Retry"), traceback="")
