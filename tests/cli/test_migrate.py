"""`holdfast migrate`."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from holdfast import Holdfast
from holdfast.store import Store
from holdfast.store.dialects import SCHEMA_VERSION
from tests.cli.conftest import Run, lines


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, place: Path) -> str:
    return "sqlite:///shop.db" if request.param == "sqlite" else request.getfixturevalue("pg_url")  # type: ignore[no-any-return]


def test_from_nothing_to_ready(run: Run, url: str) -> None:
    assert "holdfast migrate apply" in run("migrate", "check", "--url", url, code=3).stderr
    assert "0001_initial" in run("migrate", "plan", "--url", url).stdout
    assert "applied 0001_initial" in run("migrate", "apply", "--url", url).stdout
    assert f"version {SCHEMA_VERSION}" in run("migrate", "check", "--url", url).stdout
    assert run("migrate", "apply", "--url", url).stdout.startswith("Nothing to run")
    assert run("migrate", "plan", "--url", url).stdout.startswith("Nothing to run")


def test_a_plan_changes_nothing(run: Run, url: str) -> None:
    [first, *_] = lines(run("migrate", "plan", "--json", "--url", url))
    assert first["name"] == "0001_initial"
    run("migrate", "check", "--url", url, code=3)


def test_looking_creates_no_sqlite_file(run: Run, place: Path) -> None:
    for words in ("plan", "sql", "sql --from current"):
        run("migrate", *words.split(), "--url", "sqlite:///new.db")
    run("migrate", "check", "--url", "sqlite:///new.db", code=3)
    assert not (place / "new.db").exists()


def test_the_printed_sql_leaves_the_same_database(run: Run, place: Path) -> None:
    script = run("migrate", "sql", "--url", "sqlite:///by_hand.db").stdout
    with closing(sqlite3.connect(place / "by_hand.db")) as connection:
        connection.executescript(script)
    run("migrate", "check", "--url", "sqlite:///by_hand.db")
    run("migrate", "apply", "--url", "sqlite:///by_apply.db")
    assert _schema(place / "by_hand.db") == _schema(place / "by_apply.db")


def _schema(path: Path) -> list[tuple[str, str]]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute("select name, sql from sqlite_master order by name").fetchall()


@pytest.mark.parametrize("schema, prefix", [("work", "hf"), ("user", "order"), ("a" * 40, "b" * 40)])
def test_the_printed_sql_runs_on_postgres_in_a_schema(run: Run, pg_url: str, schema: str, prefix: str) -> None:
    where = ("--url", pg_url, "--schema", schema, "--prefix", prefix)
    script = run("migrate", "sql", *where).stdout
    with closing(Store(pg_url)) as store, store.link() as link:
        link.raw.execute(script)
    run("migrate", "check", *where)
    assert "Nothing to run" in run("migrate", "apply", *where).stdout
    run("doctor", *where)
    run("jobs", "list", *where)
    run("migrate", "check", "--url", pg_url, code=3)


def test_sql_from_a_version(run: Run, app: str, url: str) -> None:
    after = run("migrate", "sql", "--url", url, "--from", str(SCHEMA_VERSION))
    assert (after.stdout, after.stderr) == ("", f"Nothing to run after version {SCHEMA_VERSION}.\n")
    assert run("migrate", "sql", "--url", url, "--from", "current").stdout == ""
    for wrong in ("x", "-1", "99", "1.5"):
        assert "is not a version" in run("migrate", "sql", "--url", url, f"--from={wrong}", code=2).stderr


def test_tables_of_another_version_are_told_apart(run: Run, app: str, url: str) -> None:
    with closing(Store(url)) as store, store.link() as link:
        link.raw.execute("update holdfast_meta set value = '99'")
    for words in (("migrate", "check"), ("migrate", "plan"), ("migrate", "apply"), ("jobs", "list"), ("workers",)):
        told = run(*words, "--url", url, code=3).stderr
        assert "version 99" in told
        assert "upgrade holdfast" in told


def test_an_application_named_by_the_environment_keeps_its_own_options(
    run: Run, place: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (place / "shop.py").write_text(f"from holdfast import Holdfast\nhf = Holdfast({url!r}, prefix='shop')\n")
    monkeypatch.setenv("HOLDFAST_APP", "shop:hf")
    assert "applied" in run("migrate", "apply").stdout
    with Holdfast(url, prefix="shop") as app:
        app.store.check()
