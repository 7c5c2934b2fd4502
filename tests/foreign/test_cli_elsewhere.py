"""The command line where an application's foreign tables are in another database: each command goes there."""

import json
import re
from pathlib import Path

import pytest

from holdfast import Holdfast
from holdfast.foreign import PdoQueue
from tests.cli.conftest import Run, lines, place, run  # noqa: F401 - fixtures
from tests.servers import MariaDB, free_port

APP = """
from holdfast import Holdfast

hf = Holdfast({home!r})
queue = hf.foreign.pdo(url={elsewhere!r})


@hf.job
def greet(name: str) -> None:
    pass


@queue.handler("urn:babel:orders:created")
def created(order_id: int) -> None:
    pass
"""
SECRET = "hunter2-xyzzy"
STORE = ("--store", "pdo:jobs", "--app", "shop:hf")


@pytest.fixture
def bare(run: Run, place: Path, sqlite_url: str, mariadb_url: str) -> Run:  # noqa: F811
    """A keyboard before an application on SQLite, whose PHP tables are to be in MariaDB."""
    (place / "shop.py").write_text(APP.format(home=sqlite_url, elsewhere=mariadb_url))
    run("migrate", "apply", "--app", "shop:hf")
    return run


@pytest.fixture
def queue(mariadb_url: str) -> PdoQueue:
    return Holdfast(mariadb_url).foreign.pdo()


@pytest.fixture
def shop(bare: Run, queue: PdoQueue) -> Run:
    queue.create_schema()
    return bare


def test_migrate_makes_the_tables_where_they_belong(bare: Run, queue: PdoQueue, mariadb: MariaDB) -> None:
    assert "no table jobs and no jobs_failed" in bare("worker", "shop:hf", code=3).stderr
    assert "create table" in bare("migrate", "sql", *STORE).stdout.lower()
    assert "engine" in bare("migrate", "sql", *STORE).stdout.lower(), "in the words of that database"
    assert bare("migrate", "apply", *STORE).stdout == "created jobs\ncreated jobs_failed\n"
    assert "are there" in bare("migrate", "check", *STORE).stdout
    queue.publish("urn:any", {})


def test_commands_with_store_reach_the_database_of_the_tables(shop: Run, queue: PdoQueue) -> None:
    row = queue.publish("urn:any", {"n": 1}, delay=3600)
    assert [each["id"] for each in lines(shop("jobs", "list", "--json", *STORE))] == [str(row)]
    assert "urn:any" in shop("jobs", "show", str(row), *STORE).stdout
    shop("jobs", "retry", str(row), *STORE)
    queue.publish("urn:any", {"n": 2})
    # Times there are whole seconds: what was made due may be so in a moment only.
    assert re.search(r"pdo:jobs: [12] due", shop("jobs", "list", "--app", "shop:hf").stderr)
    assert shop("dead", "list", "--json", *STORE).stdout == ""
    assert re.search(r"pdo:jobs: [12] due", shop("doctor", "--app", "shop:hf").stdout)
    assert [each["check"] for each in lines(shop("doctor", "--json", *STORE))] == ["foreign"]


@pytest.fixture
def away(run: Run, place: Path, sqlite_url: str) -> Run:  # noqa: F811
    """A keyboard before an application whose PHP tables are on a server that is down."""
    elsewhere = f"mysql://app:{SECRET}@127.0.0.1:{free_port()}/php"
    (place / "shop.py").write_text(APP.format(home=sqlite_url, elsewhere=elsewhere))
    run("migrate", "apply", "--app", "shop:hf")
    run("enqueue", "shop:hf", "greet", "name=x")
    return run


def test_a_database_that_is_down_does_not_hide_the_others(away: Run) -> None:
    found = lines(away("doctor", "--json", "--app", "shop:hf", code=7))
    [trouble] = [each for each in found if each["check"] == "foreign"]
    assert trouble["severity"] == "problem"
    assert trouble["seen"].startswith("pdo:jobs: The database cannot be reached")
    assert {"schema", "lag", "leases", "workers"} <= {each["check"] for each in found}
    listed = away("jobs", "list", "--json", "--app", "shop:hf")
    assert [json.loads(line)["kind"] for line in listed.stdout.splitlines()] == ["greet"]
    assert "pdo:jobs: not counted: The database cannot be reached" in listed.stderr


def test_a_database_that_is_down_is_named_without_its_password(away: Run) -> None:
    told = away("jobs", "list", *STORE, code=4)
    assert "the database in use is mysql://app:***@127.0.0.1" in told.stderr
    assert SECRET not in told.output


def test_a_missing_file_of_foreign_tables_is_told_and_not_made(run: Run, place: Path, sqlite_url: str) -> None:  # noqa: F811
    (place / "shop.py").write_text(APP.format(home=sqlite_url, elsewhere="sqlite:///php.db"))
    run("migrate", "apply", "--app", "shop:hf")
    assert "there is no database file php.db" in run("jobs", "list", "--app", "shop:hf").stderr
    assert "there is no database file php.db" in run("doctor", "--app", "shop:hf", code=7).stdout
    assert "there is no database file php.db" in run("worker", "shop:hf", code=3).stderr
    assert not (place / "php.db").exists()
