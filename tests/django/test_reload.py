"""`manage.py holdfast worker --reload`: Django has imported the whole project before, so each worker begins afresh."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.test_reload import reloading

SETTINGS = """
SECRET_KEY = "of no use to anybody"
USE_TZ = True
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "shop.sqlite3"}}
INSTALLED_APPS = ["holdfast.django", "shop"]
"""
JOBS = "from holdfast.django import hf\n\n\n@hf.job\ndef act() -> None:\n    print({word!r}, flush=True)\n"
WORKER = ("-m", "django", "holdfast", "worker")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "__init__.py").touch()
    (tmp_path / "shop" / "jobs.py").write_text(JOBS.format(word="one"))
    (tmp_path / "settings.py").write_text(SETTINGS)
    return tmp_path


def environment() -> dict[str, str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
    return clean | {"DJANGO_SETTINGS_MODULE": "settings"}


def manage(project: Path, *words: str) -> None:
    command = [sys.executable, "-m", "django", *words]
    done = subprocess.run(command, cwd=project, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_worker_has_the_new_code_and_survives_a_file_that_is_broken(project: Path) -> None:
    jobs = project / "shop" / "jobs.py"
    manage(project, "migrate", "--verbosity", "0")
    with reloading(project, WORKER, environment()) as (process, until_said):
        until_said("worker started")
        manage(project, "holdfast", "enqueue", "act")
        until_said("one\n")
        jobs.write_text(JOBS.format(word="two") + "def (")
        until_said("worker stopped")
        until_said("SyntaxError")
        until_said("it starts again when a file changes")
        jobs.write_text(JOBS.format(word="two"))
        until_said("worker started", 2)
        manage(project, "holdfast", "enqueue", "act")
        until_said("two\n")
        process.terminate()
        assert process.wait(30) == 0
    assert (project / "log").read_text().count("worker stopped") == 2


def test_a_worker_ends_with_the_command_that_began_it(project: Path) -> None:
    manage(project, "migrate", "--verbosity", "0")
    with reloading(project, WORKER, environment()) as (process, until_said):
        until_said("worker started")
        process.kill()
        process.wait()
        log = project / "log"
        while "its parent process is gone" not in log.read_text():
            pass  # the test's own time-out ends this
