"""Connections that a server has cut: looked after on the thread that uses them, before and after each attempt."""

import json
import os
import subprocess
import sys

CALLS = ("def", "async", "bulk", "bulk, async", "step of a run")


def test_a_cut_connection_fails_no_job_or_one_and_never_those_behind_it(pg_url: str) -> None:
    environment = os.environ | {
        "DJANGO_TEST_URL": pg_url,
        "DJANGO_SETTINGS_MODULE": "tests.django.settings",
        "DJANGO_KEEPS_CONNECTIONS": "1",
    }
    command = [sys.executable, "-m", "tests.django.dropped"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        # Django's health checks find it before the handler does.
        **{call: ["done", "done", "done"] for call in CALLS},
        # Without them one job pays for the cut, and the next has a new connection.
        "unchecked": ["done", "dead", "done"],
        # What the care is for; the day this differs, it is not needed any more.
        **{f"{call}, without care": "dead" for call in CALLS},
    }
