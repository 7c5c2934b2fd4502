"""The text of a traceback is what `traceback.format_exception` gives, also when most of it was kept from before."""

import gc
import importlib.util
import linecache
import sys
import time
import traceback
import types
import weakref
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from holdfast import Fatal
from holdfast.values import tracebacks
from holdfast.values.failure import ErrorRecord, iso
from holdfast.values.tracebacks import MOST_FRAMES, MOST_PLACES, formatted
from tests.values.odd_exceptions import (
    MAKERS,
    Homeless,
    Make,
    Plain,
    Restless,
    Unreadable,
    caught,
    caused,
    division,
    long_chain,
    recursive,
    throw,
)


@pytest.fixture(autouse=True)
def nothing_known() -> Iterator[None]:
    tracebacks.forget()
    yield
    tracebacks.forget()


def by_traceback(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_the_text_is_what_traceback_gives_the_first_time_and_later(make: Make) -> None:
    for _ in range(3):
        error = make()
        assert formatted(error) == by_traceback(error)


def test_one_place_does_not_stand_in_for_another() -> None:
    for _ in range(2):
        for make in MAKERS.values():
            error = make()
            assert formatted(error) == by_traceback(error)


def test_an_exception_that_never_says_the_same_is_asked_as_often_as_traceback_asks() -> None:
    formatted(caught(throw, Plain("so that the place is known")))
    assert formatted(caught(throw, Restless())).endswith("Restless: for the 1. time\n")


def test_a_class_without_a_module_fails_as_it_does_in_traceback() -> None:
    def attempt(form: Callable[[BaseException], str]) -> str:
        try:
            return form(caught(throw, Homeless("x")))
        except TypeError as error:
            return str(error)

    # Python 3.11 cannot write such a class.
    assert [attempt(formatted), attempt(formatted)] == [attempt(by_traceback)] * 2


@st.composite
def chains(draw: st.DrawFn) -> BaseException:
    """Several exceptions, raised here or there or not at all, chained in any way, to themselves and in circles, too."""
    classes = st.sampled_from([Plain, ValueError, KeyError, OSError, AttributeError, SyntaxError, Unreadable, Fatal])
    errors: list[Any] = []
    for _ in range(draw(st.integers(1, 4))):
        error: Any = draw(classes)(draw(st.text(st.characters(), max_size=5)))
        if draw(st.integers(0, 9)) == 0:
            error = BaseExceptionGroup("group", [error, *errors[:1]])
        if draw(st.integers(0, 9)) == 0:
            error.add_note(draw(st.text(max_size=5)))
        raising: Callable[[BaseException], None] | None = draw(st.sampled_from([None, throw, lambda one: throw(one)]))
        errors.append(error if raising is None else caught(raising, error))
    some = st.none() | st.sampled_from(errors)
    for error in errors:
        error.__cause__, error.__context__ = draw(some), draw(some)
        error.__suppress_context__ = draw(st.booleans())
    return errors[0]  # type: ignore[no-any-return]


@given(chains())
def test_any_chain_is_written_as_traceback_does(error: BaseException) -> None:
    expected = by_traceback(error)
    assert [formatted(error), formatted(error)] == [expected, expected]


# What it saves


def test_a_storm_from_one_place_is_formatted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    formatted(caught(caused))
    asked: list[Any] = []
    monkeypatch.setattr(tracebacks.traceback, "format_exception", asked.append)
    texts = {formatted(caught(caused, f"number {n}")) for n in range(100)}
    assert (len(texts), asked) == (100, [])


def test_two_classes_raised_at_one_place_are_told_apart() -> None:
    for error in (Plain("x"), KeyError("x"), ValueError("y"), AttributeError("z")):
        error = caught(throw, error)
        assert formatted(error) == by_traceback(error)
    assert len(tracebacks._places) == 1


def test_a_record_has_what_traceback_gives() -> None:
    for make in MAKERS.values():
        error = make()
        record = ErrorRecord.of(error, attempt=1, worker="w", started_at="", failed_at="", limit=100_000)
        assert record.traceback == tracebacks_text(error)


def tracebacks_text(error: BaseException) -> str:
    return "".join("\ufffd" if c == "\0" or 0xD800 <= ord(c) <= 0xDFFF else c for c in by_traceback(error))


# Source that changes


def loaded(file: Path) -> types.ModuleType:
    spec = importlib.util.spec_from_file_location("changing", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_source_that_changes_on_disk_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracebacks, "SOURCES_LIVE_SECONDS", 0.0)
    file = tmp_path / "changing.py"
    file.write_text("def run():\n    raise ValueError('as it was')\n")
    module = loaded(file)
    for change in ("", "# longer", "# another length", None):
        if change is None:
            file.unlink()
        else:
            file.write_text(f"def run():\n    raise ValueError('as it was') {change}\n")
        for _ in range(2):
            error = caught(module.run)
            text = formatted(error)
            assert text == by_traceback(error)
            assert (change in text) if change else True


def test_a_change_is_seen_after_a_moment_at_the_latest(tmp_path: Path) -> None:
    file = tmp_path / "changing.py"
    file.write_text("def run():\n    raise ValueError('as it was')\n")
    module = loaded(file)
    assert "as it was" in formatted(caught(module.run))
    file.write_text("def run():\n    raise ValueError('as it is now')\n")
    time.sleep(tracebacks.SOURCES_LIVE_SECONDS + 0.005)
    error = caught(module.run)
    assert formatted(error) == by_traceback(error)


def test_source_that_somebody_gives_to_linecache_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracebacks, "SOURCES_LIVE_SECONDS", 0.0)
    space: dict[str, Any] = {}
    exec(compile("def run():\n    raise ValueError('x')\n", "<made>", "exec"), space)
    try:
        for line in (None, "    raise ValueError('x')  # one\n", "    raise ValueError('x')  # two\n", None):
            linecache.cache.pop("<made>", None)
            if line is not None:
                linecache.cache["<made>"] = (1, None, ["def run():\n", line], "<made>")
            for _ in range(2):
                error = caught(space["run"])
                assert formatted(error) == by_traceback(error)
    finally:
        linecache.cache.pop("<made>", None)


def test_source_that_is_missing_may_come_later(tmp_path: Path) -> None:
    file = tmp_path / "later.py"
    space: dict[str, Any] = {}
    source = "def run():\n    raise ValueError('x')\n"
    exec(compile(source, str(file), "exec"), space)
    for _ in range(2):
        assert formatted(caught(space["run"])) == by_traceback(caught(space["run"]))
    file.write_text(source)
    assert "raise ValueError('x')" in formatted(caught(space["run"]))


def test_a_limit_set_on_tracebacks_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    error = caught(long_chain)
    assert formatted(error) == by_traceback(error)
    monkeypatch.setattr(sys, "tracebacklimit", 1, raising=False)
    assert formatted(error) == by_traceback(error)


# What is kept


def function(name: str) -> Callable[[], None]:
    space: dict[str, Any] = {}
    exec(compile(f"def {name}():\n    raise ValueError", f"<{name}>", "exec"), space)
    return space[name]  # type: ignore[no-any-return]


def test_no_more_places_are_kept_than_the_limit_says() -> None:
    for n in range(2 * MOST_PLACES + 10):
        error = caught(function(f"number_{n}"))
        assert formatted(error) == by_traceback(error)
        assert len(tracebacks._places) <= MOST_PLACES


def test_code_that_is_gone_is_not_taken_for_new_code_at_its_address() -> None:
    for n in range(200):
        if n % 20 == 0:
            tracebacks.forget()
        error = caught(function(f"number_{n}"))
        assert f"number_{n}" in formatted(error)
        del error


def test_what_is_too_long_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    formatted(caught(recursive, MOST_FRAMES + 1))
    assert not tracebacks._places
    monkeypatch.setattr(tracebacks, "MOST_CHARACTERS", 100)
    formatted(caught(division))
    assert list(tracebacks._places.values()) == [None]


class Argument:
    pass


def test_no_exception_and_nothing_that_hangs_on_it_is_kept_alive() -> None:
    def handler(argument: Argument) -> None:
        class Local(Exception):
            def __str__(self) -> str:
                return f"with {type(argument).__name__}"

        raise Local(argument)

    def attempt() -> list[weakref.ref[Any]]:
        argument = Argument()
        error = caught(handler, argument)
        assert formatted(error) == formatted(error) == by_traceback(error)
        return [weakref.ref(one) for one in (argument, error, type(error))]

    seen = attempt()
    # A class is in a circle with itself.
    gc.collect()
    assert [one() for one in seen] == [None, None, None]
    assert tracebacks._places


# Times


@given(st.floats(0, 4e9))
@example(1_800_000_000.0)
@example(1_800_000_000.9999996)
def test_a_moment_is_written_as_datetime_writes_it(moment: float) -> None:
    written = datetime.fromisoformat(iso(moment))
    assert written.isoformat() == iso(moment)
    assert abs(written.timestamp() - moment) < 2e-6
