"""`holdfast workers`, and `holdfast worker` as far as it is the command line's."""

import json
import logging
import re
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from holdfast import admin
from holdfast.admin import Filter
from holdfast.cli import logs, shared
from holdfast.store import Store
from holdfast.worker import registry
from tests.cli.conftest import Run, add, lines

INFO = json.dumps({"host": "web1", "pid": 4821, "queues": ["mail", "default"]})


def silent(store: Store, worker: str, span: timedelta) -> None:
    """Let a worker have beaten last so long ago."""
    store.now = datetime.now(UTC) - span
    store.run(registry.beat(worker, INFO))
    store.now = None


def test_workers_are_listed_with_their_beats(run: Run, app: str, store: Store) -> None:
    store.run(registry.beat("web1-1", INFO))
    silent(store, "web1-2", timedelta(minutes=3, seconds=12))
    shown = run("workers", "--app", app).stdout.splitlines()
    assert shown[1].split("  ")[0] == "web1-2"
    assert "silent" in shown[1]
    assert "3 m 12 s ago" in shown[1]
    assert "alive" in shown[2]
    assert "mail, default" in shown[2]
    assert [w["status"] for w in lines(run("workers", "list", "--json", "--app", app))] == ["silent", "alive"]


def test_a_worker_is_up_until_now_and_one_that_may_be_gone_until_its_last_beat(
    run: Run, app: str, store: Store
) -> None:
    silent(store, "fresh", timedelta(seconds=7))
    silent(store, "gone", timedelta(minutes=10))
    silent(store, "gone", timedelta(minutes=5))
    shown = {line.split()[0]: line for line in run("workers", "--app", app).stdout.splitlines()[1:]}
    # Reading takes a moment, too.
    assert re.search(r"\b(7|8|9) s ago\s+(7|8|9) s\b", shown["fresh"])
    assert re.search(r"\bago\s+5 m 0 s\b", shown["gone"])


def test_no_workers(run: Run, app: str) -> None:
    assert "start one with" in run("workers", "--app", app).stderr


def test_drain_marks_the_worker(run: Run, app: str, store: Store) -> None:
    store.run(registry.beat("web1-1", INFO))
    assert "asked to drain" in run("workers", "drain", "web1-1", "--app", app).stdout
    assert store.run(registry.beat("web1-1", INFO)) == "draining"


def test_an_unknown_worker_is_not_found_and_a_close_one_named(run: Run, app: str, store: Store) -> None:
    store.run(registry.beat("web1-1", INFO))
    assert "did you mean web1-1?" in run("workers", "drain", "web1-2", "--app", app, code=5).stderr


def test_a_dead_worker_cannot_drain(run: Run, app: str, store: Store) -> None:
    store.run(registry.beat("web1-1", INFO))
    store.run(registry.mark("web1-1", "dead"))
    assert "is dead already" in run("workers", "drain", "web1-1", "--app", app, code=6).stderr


def test_a_worker_that_stopped_is_told_from_one_that_died(run: Run, app: str, store: Store) -> None:
    for worker in ("web1-1", "web1-2", "web1-3"):
        store.run(registry.beat(worker, INFO))
    store.run(registry.leave("web1-1"))
    store.run(registry.mark("web1-2", "dead"))
    listed = {one["id"]: one["status"] for one in lines(run("workers", "--app", app, "--json"))}
    assert listed == {"web1-1": "stopped", "web1-2": "dead", "web1-3": "alive"}
    assert "web1-1 is stopped already" in run("workers", "drain", "web1-1", "--app", app, code=6).stderr
    found = run("doctor", "--app", app).stdout
    assert "1 live worker; 1 stopped; 1 dead, the last of them web1-2" in found


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the worker would have been started with."""
    seen: dict[str, Any] = {}

    def main(app: object, **options: Any) -> int:
        seen.update(options, app=app)
        return 0

    monkeypatch.setattr("holdfast.worker.process.main", main)
    monkeypatch.setattr(logging.root, "handlers", list(logging.root.handlers))
    monkeypatch.setattr(logging.root, "level", logging.root.level)
    return seen


@pytest.mark.usefixtures("started")
def test_a_queue_that_the_code_does_not_speak_of_is_told(run: Run, app: str) -> None:
    told = run("worker", app, "--queues", "mial,default").stderr
    assert "WARNING queue mial is not declared, and no handler has it; did you mean mail?" in told
    assert "queue default" not in told


def test_the_options_reach_the_worker(run: Run, app: str, started: dict[str, Any]) -> None:
    words = (
        "--queues mail,default --concurrency 7 --poll 0.5 --drain 2m --processes 2 --name web --lease 45 --no-notify"
    )
    run("worker", app, *words.split())
    holdfast = started.pop("app").worker.func.__self__
    assert started == {
        "queues": ["mail", "default"],
        "concurrency": 7,
        "poll": timedelta(seconds=0.5),
        "drain": timedelta(minutes=2),
        "processes": 2,
        "name": "web",
    }
    assert holdfast.options.notify is False
    assert {handler.options.lease for handler in holdfast.handlers.values()} == {45.0}


def test_what_is_not_said_is_left_to_the_worker(run: Run, app: str, started: dict[str, Any]) -> None:
    run("worker", "--app", app)
    del started["app"]
    assert started == {"drain": timedelta(seconds=30), "processes": 1}


@pytest.mark.parametrize(
    "words",
    [
        "",
        "shop:hf --concurrency 0",
        "shop:hf --processes x",
        "shop:hf --drain never",
        "shop:hf --queues a,,b",
        "shop:hf --log-level loud",
    ],
)
def test_wrong_options_are_wrong_usage(run: Run, app: str, started: dict[str, Any], words: str) -> None:
    run("worker", *words.split(), code=2)
    assert not started


def test_a_worker_without_tables_does_not_start(run: Run, place: Path, app: str, started: dict[str, Any]) -> None:
    for path in place.glob("shop.db*"):
        path.unlink()
    assert "holdfast migrate apply" in run("worker", app, code=3).stderr
    assert not started


def test_log_lines_are_json_with_the_fields_of_the_event(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_URL", "postgresql://app:hunter2-xyzzy@host/db")
    record = logging.LogRecord("holdfast", logging.INFO, "", 0, "lost postgresql://a:b@c with hunter2-xyzzy", (), None)
    record.holdfast = {"worker": "w", "queues": ["a"]}
    line = json.loads(logs.JsonLines().format(record))
    assert (line["level"], line["worker"], line["queues"]) == ("info", "w", ["a"])
    assert line["message"] == "lost postgresql://a:***@c with ***"
    assert "***" in logs.Lines().format(record)


def test_a_worker_runs_jobs_and_stops_when_told(place: Path, app: str, store: Store, run: Run) -> None:
    [first] = add(store, kind="greet", queue="default")
    run("enqueue", app, "greet", "name=Ada")
    source = str(Path(shared.__file__).parents[2])
    code = f"import sys; sys.path.insert(0, {source!r}); from holdfast.cli import main; main()"
    words = [sys.executable, "-u", "-c", code, "worker", app, "--log-json", "--name", "web"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        done = Filter(states=("done",))
        deadline = time.monotonic() + 20
        while not store.run(admin.count_jobs(done)) and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        known = lines(run("workers", "--json", "--app", app))
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=20)
    assert process.returncode == 0, err
    assert "hello, Ada" in out
    [worker] = known
    assert worker["id"].startswith(f"web-{process.pid}-")
    assert all(json.loads(line)["level"] for line in err.splitlines())
    # The one whose payload does not fit its handler is a dead letter at once.
    assert store.run(admin.show(first)).state == "dead"
