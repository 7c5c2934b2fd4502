"""`manage.py holdfast …`: the whole command line, with its exit codes and signals."""

import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator

from tests.django.test_promises import manage


def test_every_command_is_there_with_its_exit_code_and_names_itself(sqlite_url: str) -> None:
    missing = manage(sqlite_url, "holdfast", "jobs", "list")
    assert missing.returncode == 3
    assert "`manage.py migrate`" in missing.stderr
    assert "--app" not in missing.stderr
    assert manage(sqlite_url, "migrate", "--verbosity", "0").returncode == 0
    added = manage(sqlite_url, "holdfast", "enqueue", "count_orders")
    assert added.returncode == 0, added.stderr
    seen = manage(sqlite_url, "holdfast", "top", "--once")
    assert "`manage.py holdfast worker --queues default`" in seen.stdout, seen.stderr
    unknown = manage(sqlite_url, "holdfast", "enqueue", "count_ordesr")
    assert (unknown.returncode, "count_orders" in unknown.stderr) == (2, True), unknown.stderr


def test_a_worker_of_several_processes_stops_at_a_signal(sqlite_url: str) -> None:
    assert manage(sqlite_url, "migrate", "--verbosity", "0").returncode == 0
    command = [
        sys.executable,
        "-W",
        "error",
        "-m",
        "django",
        "holdfast",
        "worker",
        "--processes",
        "2",
        "--log-level",
        "info",
    ]
    environment = os.environ | {"DJANGO_TEST_URL": sqlite_url, "DJANGO_SETTINGS_MODULE": "tests.django.settings"}
    worker = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
    try:
        assert worker.stderr is not None
        assert len(list(started(worker.stderr, 2))) == 2
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(60) == 0
    finally:
        worker.kill()
        worker.wait()
        assert worker.stderr is not None
        worker.stderr.close()


def started(lines: Iterable[str], count: int) -> Iterator[str]:
    """Read lines until that many workers have said that they started."""
    return itertools.islice((line for line in lines if "worker started" in line), count)
