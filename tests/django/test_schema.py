"""One migration of Django's for each version of our tables."""

import json
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import holdfast.django.migrations as migrations
from holdfast.store import Store
from holdfast.store.dialects import DIALECTS, SCHEMA_VERSION, dialect_named
from holdfast.values.options import StoreOptions

FOLDER = Path(migrations.__file__).parent
NAMES = sorted(file.stem for file in FOLDER.glob("0*.py"))


def test_every_version_of_the_tables_has_its_migration_under_the_same_name() -> None:
    for dialect in DIALECTS:
        known = dialect_named(dialect, StoreOptions()).migrations()
        assert [f"{number:04}_{title}" for number, title, _ in known] == NAMES
    for number, name in enumerate(NAMES, 1):
        made = import_module(f"holdfast.django.migrations.{name}").Migration
        [operation] = [one for one in made.operations if type(one).__name__ == "HoldfastSchema"]
        assert operation.version == number
        assert made.dependencies == ([("holdfast", NAMES[number - 2])] if number > 1 else [])
    assert len(NAMES) == SCHEMA_VERSION


# What is done to one database in one process, one after the other, because Django takes long to start.
SCENE = """
import io, json, django
from django.core.management import call_command
django.setup()
from django.db import connection
from holdfast.django import hf
from holdfast.store import migrate

def version():
    return hf.store.run(migrate.version())

told = {}
call_command("migrate", database="other", verbosity=0)
told["elsewhere"] = version()
call_command("migrate", "holdfast", "0003", verbosity=0)
told["half"] = version()
hf.migrate()
told["by holdfast"] = version()
call_command("migrate", verbosity=0)
told["again"] = version()
call_command("makemigrations", check=True, dry_run=True, verbosity=0)
out = io.StringIO()
call_command("showmigrations", "holdfast", stdout=out)
told["applied"] = out.getvalue().count("[X]")
print(json.dumps(told))
"""


def test_django_and_the_command_line_migrate_the_same_tables(sqlite_url: str) -> None:
    environment = os.environ | {"DJANGO_TEST_URL": sqlite_url, "DJANGO_SETTINGS_MODULE": "tests.django.settings"}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", SCENE],
        capture_output=True,
        text=True,
        timeout=120,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    newest = SCHEMA_VERSION
    assert json.loads(done.stdout) == {
        "elsewhere": 0,
        "half": 3,
        "by holdfast": newest,
        "again": newest,
        "applied": newest,
    }
    store = Store(sqlite_url)
    store.check()
    store.close()
