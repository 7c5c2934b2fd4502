"""The real Node engine dispatches and our worker answers, on PostgreSQL and MariaDB."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast
from tests.foreign import engine as engines
from tests.foreign.conftest import Sql
from tests.foreign.engine import Engine

ROOT = Path(__file__).resolve().parents[2]
WORKER = [sys.executable, "-c", "from holdfast.cli import main; main()", "worker"]


class Workers:
    """Worker processes of tests/foreign/engine_app.py."""

    def __init__(self, url: str, notes: Path, lease: int = 2) -> None:
        self.notes = notes
        self.env = {
            **os.environ,
            "CONTRACT_URL": url,
            "CONTRACT_NOTES": str(notes),
            "CONTRACT_LEASE": str(lease),
            "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")])),
        }
        self.running: list[subprocess.Popen[bytes]] = []

    def start(self) -> subprocess.Popen[bytes]:
        command = [*WORKER, "tests.foreign.engine_app:hf", "--poll", "0.1"]
        self.running.append(subprocess.Popen(command, cwd=ROOT, env=self.env, stderr=subprocess.DEVNULL))
        return self.running[-1]

    def noted(self) -> list[str]:
        return self.notes.read_text().splitlines() if self.notes.exists() else []

    def wait_for_note(self, start: str, seconds: float = 20) -> str:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            for line in self.noted():
                if line.startswith(start):
                    return line
            time.sleep(0.02)
        raise AssertionError(f"nobody noted {start!r}: {self.noted()}")

    def close(self) -> None:
        for process in self.running:
            process.kill()
            process.wait()


@pytest.fixture
def prepared(durable_url: str, hf: Holdfast) -> str:
    """A database with our own tables (a worker needs them) and those of the steps."""
    engines.installed()
    hf.migrate()
    hf.foreign.durable().create_schema()
    return durable_url


@pytest.fixture
def workers(prepared: str, tmp_path: Path) -> Iterator[Workers]:
    made = Workers(prepared, tmp_path / "notes")
    yield made
    made.close()


@pytest.fixture
def engine(prepared: str) -> Iterator[Engine]:
    with Engine(prepared) as running:
        yield running


@pytest.mark.slow
def test_results_failures_and_retries_reach_the_engine(engine: Engine, workers: Workers, sql: Sql) -> None:
    workers.start()
    engine.start("r-echo", "echo", {"text": "Çağrı 🎈", "list": [1, 2.5, None], "big": 9007199254740991})
    engine.start("r-null", "nothing", None)
    engine.start("r-colons", "a:b.c", 41)
    engine.start("r-fails", "fails", "once")
    engine.start("r-third", "third_time", "x", retries=5)
    engine.start("r-gives-up", "fails", "twice", retries=2)
    engine.start("r-fatal", "fatal", "x", retries=5)
    engine.start("r-unfit", "a:b.c", "no number", retries=5)

    echo = engine.wait("r-echo")
    assert echo["output"] == {
        "echo": {"text": "Çağrı 🎈", "list": [1, 2.5, None], "big": 9007199254740991},
        "by": "python",
    }
    null = engine.wait("r-null")
    assert (null["status"], null["output"], null["absent"]) == ("completed", None, False)
    assert engine.wait("r-colons")["output"] == {"value": 42, "run": "r-colons", "step": "r-colons:0"}
    failed = engine.wait("r-fails")
    assert failed["status"] == "failed"
    assert failed["error"]["message"] == "attempt 1 of once"
    third = engine.wait("r-third")
    assert (third["output"], third["checkpoints"][0]["attempts"]) == ("after 3", 3)
    gave_up = engine.wait("r-gives-up")
    assert gave_up["error"]["message"] == "attempt 2 of twice"
    fatal = engine.wait("r-fatal")
    assert fatal["error"]["message"] == "no such order"
    kept = fatal["checkpoints"][0]["error"]
    assert (kept["code"], kept["retryable"]) == ("missing", False)
    assert engine.wait("r-unfit")["status"] == "failed"

    assert workers.noted().count("fatal 1") == 1
    assert "fatal 2" not in workers.noted()
    # Each once, or again where a lease ran out on a busy machine: an attempt is made at least once.
    attempts = dict.fromkeys(line for line in workers.noted() if line.startswith("third_time"))
    assert list(attempts) == [f"third_time {n}" for n in (1, 2, 3)]
    checkpoint = echo["checkpoints"][0]
    assert checkpoint["startedAt"] >= checkpoint["enqueuedAt"]
    wait_until_empty(sql)


@pytest.mark.slow
def test_a_step_longer_than_the_lease_runs_once(engine: Engine, workers: Workers, sql: Sql) -> None:
    workers.start()
    workers.start()
    engine.start("r-slow", "slow", 5.0)
    assert engine.wait("r-slow", 20)["output"] == "slow but once"
    assert len([line for line in workers.noted() if line.startswith("slow began")]) == 1
    wait_until_empty(sql)


@pytest.mark.slow
def test_another_worker_finishes_what_a_killed_one_began(engine: Engine, workers: Workers, sql: Sql) -> None:
    victim = workers.start()
    engine.start("r-kill", "hangs_once", {"n": 1})
    workers.wait_for_note(f"hangs_once {victim.pid}")
    workers.start()
    victim.send_signal(signal.SIGKILL)
    assert engine.wait("r-kill", 20)["output"] == "finished by another"
    assert len([line for line in workers.noted() if line.startswith("hangs_once")]) == 2
    wait_until_empty(sql)


@pytest.mark.slow
def test_a_node_worker_and_ours_share_one_group(prepared: str, workers: Workers, sql: Sql) -> None:
    """In MySQL's usual isolation the Node worker's claims deadlock with the Node engine's inserts, also without us."""
    workers.start()
    with Engine(prepared, isolation="read committed") as engine:
        engine.ask("serve", group="echo", step="echo")
        for number in range(40):
            engine.start(f"r{number}", "echo", number)
        ends = [engine.wait(f"r{number}", 30) for number in range(40)]
        assert [end.get("output", end)["echo"] for end in ends] == list(range(40))
        wait_until_empty(sql)


@pytest.mark.slow
def test_our_claims_never_break_the_engines_inserts(engine: Engine, workers: Workers, sql: Sql) -> None:
    workers.start()
    workers.start()
    for number in range(60):
        engine.start(f"r{number}", "echo", number)
    ends = [engine.wait(f"r{number}", 30) for number in range(60)]
    assert {end["status"] for end in ends} == {"completed"}
    wait_until_empty(sql)


@pytest.mark.slow
def test_first_use_raced_by_both_sides_makes_the_tables(durable_url: str, hf: Holdfast, sql: Sql) -> None:
    """The engine may die of this race (it does so beside its own kind, too); we never do, and its next start works."""
    engines.installed()
    deaths = 0
    for number in range(6):
        prefix = f"race{number}_{time.time_ns() % 1_000_000}"
        source = hf.foreign.durable(prefix=prefix)
        source.step("echo")(lambda value: value)
        running = Engine(durable_url, prefix)  # it makes its tables in the background from now on
        source.create_schema()
        time.sleep(0.1)
        if not running.alive:
            deaths += 1
            running.close()
            running = Engine(durable_url, prefix)
        with running:
            running.start("r1", "echo", 1)
            deadline = time.monotonic() + engines.PATIENCE
            leases: list[Any] = []
            while not leases and time.monotonic() < deadline:
                leases = hf.store.run(source.claim({"echo": 1}, 1, "w"))
            assert [lease.id for lease in leases] == ["r1:0"]
    print(f"the engine died {deaths} times of 6")


def wait_until_empty(sql: Sql) -> None:
    deadline = time.monotonic() + engines.PATIENCE
    left: tuple[Any, ...] = ()
    while time.monotonic() < deadline:
        left = sql.one(
            "select (select count(*) from durable_transport_tasks), (select count(*) from durable_transport_results)"
        )
        if left == (0, 0):
            return
        time.sleep(0.02)
    raise AssertionError(f"tasks and results that are left: {left}")
