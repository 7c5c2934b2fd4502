"""The example project: its own tests, and its server and worker as processes, on SQLite and PostgreSQL."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.parse import urlsplit
from urllib.request import urlopen

import pytest

from tests.servers import free_port

EXAMPLE = Path(__file__).parents[2] / "examples" / "django"
DATABASES = {"sqlite": "sqlite_url", "postgresql": "pg_url"}
PATIENCE_SECONDS = 60.0


@pytest.fixture(params=DATABASES)
def environment(request: pytest.FixtureRequest) -> dict[str, str]:
    """Name the database to the example, as a deployment would."""
    place = urlsplit(request.getfixturevalue(DATABASES[request.param]))
    if request.param == "sqlite":
        return os.environ | {"SHOP_NAME": place.path[1:]}
    named = {"NAME": place.path[1:], "HOST": place.hostname, "PORT": place.port, "USER": place.username}
    return os.environ | {"SHOP_ENGINE": request.param} | {f"SHOP_{name}": str(value) for name, value in named.items()}


def manage(environment: dict[str, str], *words: str) -> str:
    command = [sys.executable, "-W", "error", "manage.py", *words]
    done = subprocess.run(
        command, cwd=EXAMPLE, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@contextlib.contextmanager
def running(environment: dict[str, str], *words: str) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "manage.py", *words], cwd=EXAMPLE, env=environment)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def ask(url: str, data: bytes | None = None) -> Any:
    """Ask the shop, which may still be starting."""
    until = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            with urlopen(url, data, timeout=PATIENCE_SECONDS) as answer:  # noqa: S310 - of our own server
                return json.load(answer)
        except URLError:
            assert time.monotonic() < until
            time.sleep(0.05)


def test_an_order_gets_its_receipt_from_a_worker(environment: dict[str, str]) -> None:
    manage(environment, "migrate", "--verbosity", "0")
    port = free_port()
    with (
        running(environment, "runserver", "--noreload", f"127.0.0.1:{port}"),
        running(environment, "holdfast", "worker", "--concurrency", "2") as worker,
    ):
        order = ask(f"http://127.0.0.1:{port}/orders", b"email=ada@example.org&total=9.50")["order"]
        until = time.monotonic() + PATIENCE_SECONDS
        while (shown := ask(f"http://127.0.0.1:{port}/orders/{order}"))["receipt"] is None:
            assert time.monotonic() < until
            time.sleep(0.05)
        assert shown == {"order": order, "receipt": 1}
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(PATIENCE_SECONDS) == 0


def test_its_own_tests_pass_and_leave_the_development_database_alone(environment: dict[str, str]) -> None:
    manage(environment, "test", "--verbosity", "0", "--noinput")
    if "SHOP_ENGINE" not in environment:
        assert not Path(environment["SHOP_NAME"]).exists()
