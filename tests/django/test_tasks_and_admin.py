"""Django's Tasks and admin on Holdfast: the promises of three modules, each database in a process with a project."""

import re
import subprocess
from pathlib import Path

import pytest

from tests.django import django6
from tests.django.outer import HERE, broken, environment

DATABASES = {"sqlite": "sqlite_url", "postgresql": "pg_url", "mariadb": "mariadb_url"}


@pytest.mark.parametrize("database", DATABASES)
def test_tasks_and_the_admin_keep_every_promise(database: str, request: pytest.FixtureRequest) -> None:
    url = request.getfixturevalue(DATABASES[database])
    assert broken(url, "promises_of_tasks", "promises_of_admin") == ""


def test_models_follow_prefix_schema_and_local_times(pg_url: str) -> None:
    said = {"USE_TZ": False, "HOLDFAST": {"prefix": "work", "schema": "ops"}}
    assert broken(pg_url, "promises_of_names", **said) == ""


@pytest.mark.slow
@pytest.mark.parametrize("version", django6.VERSIONS)
def test_tasks_and_the_admin_keep_every_promise_on_django_6(sqlite_url: str, version: str) -> None:
    assert broken(sqlite_url, "promises_of_tasks", "promises_of_admin", python=django6.python(version)) == ""


@pytest.mark.slow
def test_djangos_own_tests_of_its_tasks_pass_on_our_backend(tmp_path: Path) -> None:
    command = [django6.python(), str(HERE / "django_suite.py"), str(django6.tests())]
    env = environment("sqlite:///unused")
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False, env=env, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    ran = re.search(r"^Ran (\d+) tests", done.stderr, re.MULTILINE)
    left_out = re.search(r"^OK \(skipped=(\d+)\)", done.stderr, re.MULTILINE)
    assert ran, done.stderr
    assert left_out, done.stderr
    # Those that `django_suite.py` names, with the reason for each.
    assert (int(ran[1]) > 70, int(left_out[1])) == (True, 7), done.stderr
