"""`holdfast sql`."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from holdfast.store.catalogue import own_queries
from holdfast.store.dialects import DIALECTS
from tests.cli.conftest import Run, lines


@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_query_is_listed_with_what_it_does(run: Run, dialect: str) -> None:
    told = lines(run("sql", "--list", "--dialect", dialect, "--json"))
    names = [one["name"] for one in told]
    assert set(own_queries(dialect)) <= set(names)
    assert any(name.startswith("foreign/") for name in names)
    assert all(one["about"].endswith(".") for one in told)
    assert [one["name"] for one in told if " " not in one["about"]] == []
    assert "claim" in run("sql", "--list", "--dialect", dialect).stdout


@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_listed_query_is_printed(run: Run, dialect: str) -> None:
    for one in lines(run("sql", "--list", "--dialect", dialect, "--json")):
        [told] = lines(run("sql", one["name"], "--dialect", dialect, "--json"))
        assert told["statements"]
        assert told["comments"][0].endswith(one["about"])


def test_what_is_printed_runs_and_says_why(run: Run, place: Path) -> None:
    run("migrate", "apply", "--url", "sqlite:///shop.db")
    text = run("sql", "claim", "--url", "sqlite:///shop.db", "--prefix", "holdfast", "--given", "unsuspected").stdout
    assert text.startswith("-- claim: lease the next due jobs")
    assert "-- Optional lines: buckets, leases, unsuspected." in text
    assert "lapses = 0\n" in text
    assert "-- when" not in text
    first = text.partition(";\n")[0]
    with closing(sqlite3.connect(place / "shop.db")) as connection:
        names = ("queues", "kinds", "limit", "lease_ms", "now")
        values = dict.fromkeys(names) | {"queues": '["mail"]', "limit": 1, "now": 0}
        assert connection.execute(first, values).fetchall() == []


def test_optional_lines_are_shown_chosen_or_left_out(run: Run) -> None:
    where = ("sql", "claim", "--dialect", "postgres")
    assert "-- when lane_queues:" in run(*where).stdout
    [queues] = lines(run(*where, "--given", "queues", "--json"))
    assert "queues" in queues["parameters"]
    assert "lane_queues" not in queues["parameters"]
    [bare] = lines(run(*where, "--given", "none", "--json"))
    assert "queues" not in bare["parameters"]
    assert "lane_queues" in bare["optional"]


def test_prefix_schema_and_clock_are_filled_in(run: Run) -> None:
    text = run("sql", "beat", "--dialect", "postgres", "--schema", "work", "--prefix", "hf").stdout
    assert 'into "work".hf_workers' in text
    assert "statement_timestamp()" in text
    assert ":now" not in text


def test_an_unknown_name_is_told_with_those_that_are_near(run: Run) -> None:
    failed = run("sql", "clame", "--dialect", "mysql", code=5)
    assert "there is no query 'clame' on mysql" in failed.stderr
    assert "did you mean claim" in failed.stderr
    assert "--list" in run("sql", "zzzzzzzz", "--dialect", "mysql", code=5).stderr


def test_what_cannot_be_meant_is_told(run: Run) -> None:
    assert "--list" in run("sql", "--dialect", "mysql", code=2).stderr
    assert "it may be" in run("sql", "claim", "--dialect", "mysql", "--given", "colour", code=2).stderr
    assert "no optional lines" in run("sql", "beat", "--dialect", "mysql", "--given", "colour", code=2).stderr


def test_without_a_database_all_are_listed_and_the_way_to_name_one_is_told(run: Run) -> None:
    told = [one["name"] for one in lines(run("sql", "--list", "--json"))]
    each = {one["name"] for dialect in DIALECTS for one in lines(run("sql", "--list", "--dialect", dialect, "--json"))}
    assert len(told) == len(each)
    assert set(told) == each
    failed = run("sql", "beat", code=2)
    assert "no kind of database was named" in failed.stderr
    assert "--dialect postgres" in failed.stderr


def test_a_part_of_a_name_finds_it(run: Run) -> None:
    assert "did you mean foreign/pdo/" in run("sql", "pdo", "--dialect", "mysql", code=5).stderr
