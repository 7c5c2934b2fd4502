"""`holdfast relay` as a process: it delivers, drains at SIGTERM, and says what is missing."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.sinks import Function, Message
from tests.worker.processes import ROOT, until
from tests.worker.stage import DEADLINE, Stage

APP = "tests.worker.apps.events:hf"


def start(stage: Stage, arrived: Path, *words: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", "from holdfast.cli import main; main()", *words],
        cwd=ROOT,
        env={**os.environ, "HOLDFAST_URL": stage.url, "EVENTS_FILE": str(arrived)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


async def nowhere(message: Message) -> None: ...


@pytest.mark.parametrize("command", ["relay", "worker"])
def test_a_process_delivers_events_and_ends_well_at_sigterm(sqlite_stage: Stage, tmp_path: Path, command: str) -> None:
    arrived = tmp_path / "arrived"
    arrived.touch()
    sqlite_stage.hf.route("order.*", to=Function(nowhere), name="orders")
    ids = [sqlite_stage.hf.publish("order.created", n).id for n in range(5)]
    process = start(sqlite_stage, arrived, command, APP, "--poll", "0.1")
    try:
        until(lambda: len(arrived.read_text().splitlines()) == 5, "five events have arrived")
        until(lambda: not sqlite_stage.live(), "all are settled")
        process.send_signal(signal.SIGTERM)
        said, _ = process.communicate(timeout=DEADLINE)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0, said
    assert sorted(arrived.read_text().split()) == sorted(ids)


@pytest.mark.parametrize("command", ["relay", "worker"])
def test_tables_of_another_version_stop_a_relay(sqlite_stage: Stage, tmp_path: Path, command: str) -> None:
    sqlite_stage.sql("update holdfast_meta set value = '999' where key = 'schema_version'")
    process = start(sqlite_stage, tmp_path / "arrived", command, APP)
    said, _ = process.communicate(timeout=DEADLINE)
    assert process.returncode == 3, said


def test_without_its_relay_a_worker_of_routes_alone_has_nothing_to_do(sqlite_stage: Stage, tmp_path: Path) -> None:
    process = start(sqlite_stage, tmp_path / "arrived", "worker", APP, "--no-relay")
    said, _ = process.communicate(timeout=DEADLINE)
    assert process.returncode == 2
    assert b"needs handlers" in said
