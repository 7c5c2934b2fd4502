"""How results look on a terminal of 80 columns, in a pipe, and to a program."""

import io
import time
from datetime import UTC, datetime, timedelta

import click
import pytest
from rich.console import Console

from holdfast.admin.desk import typed_id
from holdfast.cli.parse import DURATION, MOMENT
from holdfast.cli.render import Column, age, clean, error_line, moment, plain_lines, write_table
from holdfast.errors import ConfigError
from holdfast.values.ids import new_id


@pytest.mark.parametrize(
    "seconds, shown",
    [(0, "0 s"), (45, "45 s"), (192, "3 m 12 s"), (7500, "2 h 5 m"), (356_400, "4 d 3 h"), (-90, "in 1 m 30 s")],
)
def test_an_age_has_two_units(seconds: int, shown: str) -> None:
    assert age(seconds) == age(timedelta(seconds=seconds)) == shown


COLUMNS = [
    Column("id", whole=True),
    Column("state", whole=True),
    Column("kind"),
    Column("queue"),
    Column("age", whole=True),
]


def test_a_table_fits_80_columns_and_never_cuts_an_id() -> None:
    job_id = new_id()
    out = io.StringIO()
    console = Console(file=out, width=80, force_terminal=True, color_system=None)
    long = "recalculate_the_recommendations_of_every_customer"
    write_table(
        console,
        COLUMNS,
        [[job_id, "cancelled", long, long, "3 m 12 s"], [new_id(), "done", "[red]x[/red]", "q", "0 s"]],
    )
    rows = out.getvalue().splitlines()
    assert all(len(row.rstrip()) <= 80 for row in rows)
    assert len(rows) == 4
    assert job_id in out.getvalue()
    assert "3 m 12 s" in out.getvalue()
    assert "…" in out.getvalue()


SPARING = [Column("id", whole=True), Column("kind"), Column("queue", spare=True), Column("unset"), Column("error")]


@pytest.mark.parametrize("width, titles", [(75, ["id", "kind", "error"]), (120, ["id", "kind", "queue", "error"])])
def test_empty_columns_are_left_out_and_spare_ones_where_there_is_no_room(width: int, titles: list[str]) -> None:
    out = io.StringIO()
    row = [new_id(), "recalculate_it", "recommendations", "", "ValueError: no such order"]
    write_table(Console(file=out, width=width), SPARING, [row, row])
    assert out.getvalue().splitlines()[0].split() == titles
    assert "recalculate_it" in out.getvalue()


@pytest.mark.parametrize(
    "zone, shown", [("UTC", "2026-05-01 12:30:00+00:00"), ("CET-1CEST", "2026-05-01 14:30:00+02:00")]
)
def test_a_time_says_its_zone_and_can_be_given_back(zone: str, shown: str, monkeypatch: pytest.MonkeyPatch) -> None:
    at = datetime(2026, 5, 1, 12, 30, tzinfo=UTC)
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        assert moment(at) == shown
        assert MOMENT.convert(moment(at), None, None) == at
    finally:
        monkeypatch.undo()
        time.tzset()
    assert moment(None) == ""


def test_an_error_of_ours_goes_without_its_module() -> None:
    assert error_line("holdfast.errors.StepFailed", "no\nway") == "StepFailed: no way"
    assert error_line("shop.errors.Lost", "it") == "shop.errors.Lost: it"


def test_markup_in_a_cell_is_text() -> None:
    out = io.StringIO()
    write_table(Console(file=out, width=80), [Column("kind")], [["[red]x[/red]"]])
    assert "[red]x[/red]" in out.getvalue()


def test_a_pipe_gets_whole_cells_without_lines_or_colours() -> None:
    shown = plain_lines([Column("kind"), Column("try", right=True)], [["x" * 200, "1/5"], ["y", "10/5"]])
    assert shown == ["KIND".ljust(200) + "   TRY", "x" * 200 + "   1/5", "y".ljust(200) + "  10/5"]


def test_what_a_terminal_would_obey_is_shown_instead() -> None:
    assert clean("a\x1b[31mred\n\tb\x07") == "a\\x1b[31mred b\\x07"


@pytest.mark.parametrize(
    "text, seconds",
    [("30", 30), ("0.5", 0.5), ("90s", 90), ("1h30m", 5400), ("7d", 604_800), ("250ms", 0.25), ("2 W", 1_209_600)],
)
def test_durations(text: str, seconds: float) -> None:
    assert DURATION.convert(text, None, None) == timedelta(seconds=seconds)


@pytest.mark.parametrize("text", ["", "-1", "soon", "5x", "1h 30", "nan", "inf", "1e3", "٣s", "999999d"])
def test_what_is_not_a_duration(text: str) -> None:
    with pytest.raises(click.BadParameter):
        DURATION.convert(text, None, None)


def test_moments() -> None:
    assert MOMENT.convert("2026-05-01T12:30+02:00", None, None).isoformat() == "2026-05-01T10:30:00+00:00"
    assert MOMENT.convert("2026-05-01", None, None).utcoffset() == timedelta(0)
    earlier = MOMENT.convert("2h", None, None) - MOMENT.convert("1h", None, None)
    assert earlier.total_seconds() == pytest.approx(-3600, abs=1)


@pytest.mark.parametrize("text", ["yesterday", "2026-13-01", "2026", "0001-01-01T00:00+14:00", "9999999999d"])
def test_what_is_not_a_moment(text: str) -> None:
    with pytest.raises(click.BadParameter):
        MOMENT.convert(text, None, None)


def test_job_ids() -> None:
    job_id = new_id()
    assert typed_id(f" {job_id.upper()}") == job_id
    with pytest.raises(ConfigError, match="'12' is not a job id"):
        typed_id("12")
