"""Tables for settings that have changed since `manage.py migrate`, or where migrations are switched off."""

import json
import re
from pathlib import Path

from tests.django.test_promises import manage


def told(url: str, *words: str, code: int = 0, **environment: str) -> str:
    done = manage(url, *words, **environment)
    assert done.returncode == code, done.stderr
    return done.stdout + done.stderr


def test_migrate_makes_the_tables_of_another_prefix(sqlite_url: str) -> None:
    told(sqlite_url, "migrate", "--verbosity", "0")
    later = {"DJANGO_TEST_HOLDFAST": json.dumps({"prefix": "later"})}
    assert "Run `manage.py migrate`.\n" in told(sqlite_url, "holdfast", "jobs", "list", code=3, **later)
    # As far as Django's own record says that the tables are: all of it, and so nothing is left for it to apply.
    shown = told(sqlite_url, "migrate", **later)
    assert "No migrations to apply" in shown
    assert "Making Holdfast's tables" in shown
    told(sqlite_url, "holdfast", "jobs", "list", **later)
    told(sqlite_url, "holdfast", "jobs", "list")
    assert "Making" not in told(sqlite_url, "migrate", **later)


def test_migrate_makes_the_tables_of_another_alias_that_was_migrated_before(sqlite_url: str, tmp_path: Path) -> None:
    other = {"DJANGO_TEST_OTHER": str(tmp_path / "other.db")}
    for alias in ("default", "other"):
        told(sqlite_url, "migrate", "--verbosity", "0", "--database", alias, **other)
    moved = other | {"DJANGO_TEST_HOLDFAST": json.dumps({"database": "other"})}
    cure = "`manage.py migrate --database other`"
    assert cure in told(sqlite_url, "holdfast", "jobs", "list", code=3, **moved)
    code = "from tests.django.shop.jobs import count_orders as c; c.enqueue()"
    said = told(sqlite_url, "shell", "--verbosity", "0", "-c", code, code=1, **moved)
    assert f'DATABASES["other"] has no Holdfast tables under the prefix holdfast. Run {cure}.' in said
    told(sqlite_url, "migrate", "--verbosity", "0", **moved)
    told(sqlite_url, "holdfast", "jobs", "list", code=3, **moved)
    told(sqlite_url, "migrate", "--verbosity", "0", "--database", "other", **moved)
    told(sqlite_url, "holdfast", "jobs", "list", **moved)


# A rollback of a transaction takes the job with it where the transaction is on the alias of the tables.
ON_EACH_ALIAS = """
from django.db import connections, transaction
from holdfast.django import hf
from holdfast.testing.inline import enqueued
from tests.django.shop.jobs import count_orders

def is_taken_back(alias):
    before = len(enqueued(hf))
    with transaction.atomic(using=alias):
        count_orders.enqueue()
        transaction.set_rollback(True, using=alias)
    return len(enqueued(hf)) == before

def is_committed(alias):
    before = len(enqueued(hf))
    with transaction.atomic(using=alias):
        count_orders.enqueue()
    return len(enqueued(hf)) == before + 1

for alias in connections:
    print(alias, is_taken_back(alias), is_committed(alias))
"""


def test_a_job_is_part_of_the_transaction_of_the_alias_that_has_the_tables(sqlite_url: str, tmp_path: Path) -> None:
    named = {
        "DJANGO_TEST_OTHER": str(tmp_path / "other.db"),
        "DJANGO_TEST_HOLDFAST": json.dumps({"database": "other"}),
    }
    told(sqlite_url, "migrate", "--verbosity", "0", "--database", "other", **named)
    said = told(sqlite_url, "shell", "--verbosity", "0", "-c", ON_EACH_ALIAS, **named)
    assert said.splitlines() == ["default False True", "other True True"]
    listed = told(sqlite_url, "holdfast", "jobs", "list", "--json", **named)
    # Those of the blocks that were committed, and the one that a rollback elsewhere did not concern.
    assert [json.loads(line)["kind"] for line in listed.splitlines()] == ["count_orders"] * 3


def test_no_table_is_made_beyond_what_was_asked_for(sqlite_url: str) -> None:
    told(sqlite_url, "migrate", "holdfast", "0003", "--verbosity", "0")
    later = {"DJANGO_TEST_HOLDFAST": json.dumps({"prefix": "later"})}
    told(sqlite_url, "migrate", "holdfast", "0003", "--verbosity", "0", **later)
    assert "they are at version 3" in told(sqlite_url, "holdfast", "jobs", "list", code=3, **later)


def test_a_test_database_has_the_tables_without_migrations(sqlite_url: str) -> None:
    done = manage(sqlite_url, "test", "tests.django.promises.inside", "--noinput", DJANGO_TEST_UNMIGRATED="yes")
    assert done.returncode == 0, done.stderr[-5000:]
    assert re.search(r"Ran \d\d tests", done.stderr)
