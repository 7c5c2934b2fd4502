"""What `holdfast.django` promises, told by Django's own test runner on each database."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.django import django6

ROOT = Path(__file__).parents[2]
# Not named test_…, because they are Django's to run.
PROMISES = tuple(f"tests.django.promises.{name}" for name in ("inside", "committed", "requests"))
DATABASES = {"sqlite": "sqlite_url", "postgresql": "pg_url", "mariadb": "mariadb_url"}


def manage(url: str, *words: str, python: str = sys.executable, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command of Django's in the project of the tests."""
    command = [python, "-W", "error", "-m", "django", *words, "--settings", "tests.django.settings"]
    environ = os.environ | {"DJANGO_TEST_URL": url} | environment
    return subprocess.run(command, capture_output=True, text=True, timeout=240, check=False, env=environ)


@pytest.mark.parametrize("database", DATABASES)
def test_a_projects_own_tests_see_every_promise_kept(database: str, request: pytest.FixtureRequest) -> None:
    url = request.getfixturevalue(DATABASES[database])
    done = manage(url, "test", *PROMISES, "--noinput")
    assert done.returncode == 0, done.stderr[-5000:]
    [ran] = re.findall(r"Ran (\d+) tests", done.stderr)
    assert int(ran) > 20  # an empty run would prove nothing


@pytest.mark.slow
@pytest.mark.parametrize("version", django6.VERSIONS)
def test_a_projects_own_tests_see_every_promise_kept_on_django_6(sqlite_url: str, version: str) -> None:
    path = os.pathsep.join([str(ROOT), str(ROOT / "src")])
    done = manage(sqlite_url, "test", *PROMISES, "--noinput", python=django6.python(version), PYTHONPATH=path)
    assert done.returncode == 0, done.stderr[-5000:]
    [ran] = re.findall(r"Ran (\d+) tests", done.stderr)
    assert int(ran) > 20


def test_a_test_without_a_database_is_kept_from_the_one_of_development(sqlite_url: str) -> None:
    done = manage(sqlite_url, "test", "tests.django.promises.simple")
    assert done.returncode == 0, done.stderr[-5000:]
    assert "Ran 1" in done.stderr
