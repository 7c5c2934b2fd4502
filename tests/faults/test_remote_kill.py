"""Runs with remote steps while workers on both sides are killed: each ends with the right values, nothing is left."""

import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.flow import Rows, Statement, Steps, flow
from tests.faults import remote_app

ROOT = Path(__file__).resolve().parents[2]
WORKER = [sys.executable, "-c", "from holdfast.cli import main; main()", "worker", "tests.faults.remote_app:hf"]
RUNS = int(os.environ.get("REMOTE_KILL_RUNS", "30"))
SECONDS = float(os.environ.get("REMOTE_KILL_SECONDS", "6"))
WORKERS = 2
PATIENCE = 90.0


@flow
def statement(sql: str) -> Steps[Rows]:
    return (yield Statement("test", {}, text=sql))


@pytest.fixture(params=["sqlite", "pg", "mariadb", "mysql"], ids=["sqlite", "postgres", "mariadb", "mysql"])
def url(request: pytest.FixtureRequest) -> str:
    found: str = request.getfixturevalue(f"{request.param}_url")
    return found


class Crew:
    """Worker processes, some of which are killed and replaced."""

    def __init__(self, url: str) -> None:
        paths = filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")])
        self._env = {**os.environ, "FAULTS_URL": url, "PYTHONPATH": os.pathsep.join(paths)}
        self.running = [self._start() for _ in range(WORKERS)]

    def _start(self) -> subprocess.Popen[bytes]:
        command = [*WORKER, "--poll", "0.1", "--concurrency", "20"]
        return subprocess.Popen(command, cwd=ROOT, env=self._env, stderr=subprocess.DEVNULL)

    def kill_one(self) -> None:
        place = random.randrange(len(self.running))
        self.running[place].kill()
        self.running[place].wait()
        self.running[place] = self._start()

    def close(self) -> None:
        for process in self.running:
            process.kill()
            process.wait()


@pytest.fixture
def crew(url: str) -> Iterator[Crew]:
    with Holdfast(url) as app:
        app.migrate()
        app.remote_engine("durable").create_schema()
    made = Crew(url)
    yield made
    made.close()


@pytest.mark.slow
def test_runs_with_remote_steps_outlive_kills_on_both_sides(url: str, crew: Crew) -> None:
    with Holdfast(url) as app:
        compute = app.workflow(name="compute", lease=4, retry=remote_app.compute.options.retry)(remote_app.compute.fn)
        handles = [compute.start(n=n, id=f"r-{n}") for n in range(RUNS)]
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            # A worker needs most of a second to start; some are killed before they have done anything.
            time.sleep(random.uniform(0.4, 1.5))
            crew.kill_one()
        found = [_result(app, handle) for handle in handles]
        assert found == [remote_app.expected(n) for n in range(RUNS)]
        deadline = time.monotonic() + PATIENCE
        while (left := _left(app)) != [0, 0, 0] and time.monotonic() < deadline:
            time.sleep(0.1)
        assert left == [0, 0, 0]


def _result(app: Holdfast, handle: Any) -> Any:
    try:
        return handle.result(timeout=PATIENCE)
    except TimeoutError as error:
        rows = "\n".join(
            f"{row.seq} {row.key} {row.kind} {row.attempt} {row.worker} {row.at}" for row in handle.history()
        )
        names = ("durable_transport_tasks", "durable_transport_results", "holdfast_dispatches", "holdfast_signals")
        rest = {name: app.store.run(statement(f"select * from {name}")) for name in names}  # noqa: S608
        raise AssertionError(f"{handle.get()}\n{rows}\n{rest}") from error


def _left(app: Holdfast) -> list[int]:
    tables = ("durable_transport_tasks", "durable_transport_results", "holdfast_dispatches")
    return [int(app.store.run(statement(f"select count(*) from {name}"))[0][0]) for name in tables]  # noqa: S608
