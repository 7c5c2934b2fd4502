"""A user at a keyboard: `run("jobs", "list")` in a directory that holds a small application."""

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from holdfast import jobs
from holdfast.cli import main
from holdfast.store import Store
from holdfast.values.failure import ErrorRecord
from holdfast.values.ids import new_ids
from holdfast.values.rows import Lease, NewJob

APP = """
from holdfast import Holdfast

hf = Holdfast({url!r})
hf.queue("mail", retention={{"done": 0, "dead": 3600, "cancelled": 0}})
number = 5


@hf.job(queue="mail")
def send_receipt(order_id: int, note: str = "") -> None:
    pass


@hf.job
def greet(name: str) -> None:
    print(f"hello, {{name}}")
"""

Run = Callable[..., Result]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty directory to work in, with an environment that says nothing about Holdfast."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = {name: value for name, value in os.environ.items() if name.startswith("HOLDFAST_")}
    modules = set(sys.modules)
    for name in before:
        del os.environ[name]
    yield tmp_path
    for name in [name for name in os.environ if name.startswith("HOLDFAST_")]:
        del os.environ[name]
    os.environ.update(before)
    for name in set(sys.modules) - modules:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


@pytest.fixture
def run(place: Path) -> Run:
    def run(*args: str, code: int = 0, **options: Any) -> Result:
        result = CliRunner().invoke(main, list(args), prog_name="holdfast", **options)
        assert result.exit_code == code, f"exit code {result.exit_code}: {result.output}"
        return result

    return run


@pytest.fixture
def url(place: Path) -> str:
    return "sqlite:///shop.db"


@pytest.fixture
def app(run: Run, place: Path, url: str) -> str:
    """The name of an application whose tables are there."""
    (place / "shop.py").write_text(APP.format(url=url))
    run("migrate", "apply", "--url", url)
    return "shop:hf"


@pytest.fixture
def store(app: str, url: str) -> Iterator[Store]:
    with closing(Store(url)) as store:
        yield store


def lines(result: Result) -> list[dict[str, Any]]:
    """Read what --json printed."""
    return [json.loads(line) for line in result.stdout.splitlines()]


def add(store: Store, count: int = 1, kind: str = "send_receipt", queue: str = "mail", **more: Any) -> list[str]:
    ids = new_ids(count)
    store.run(jobs.enqueue_many([NewJob(each, queue, kind, '{"order_id":1}', **more) for each in ids]))
    return ids


def claim(store: Store, count: int = 1, queue: str = "mail", lease_ms: int = 30_000) -> list[Lease]:
    return store.run(jobs.claim([queue], limit=count, worker="worker-1", lease_ms=lease_ms))


def kill(store: Store, count: int = 1, message: str = "no such order", **more: Any) -> list[str]:
    """Add jobs and send them to the dead letters."""
    add(store, count, **more)
    killed = claim(store, count, more.get("queue", "mail"))
    for lease in killed:
        error = ErrorRecord(
            1, "ValueError", message, "Traceback …", "worker-1", "2026-05-01T00:00:00", "2026-05-01T00:00:01"
        )
        store.run(jobs.kill(lease, error.to_json(), error.fingerprint))
    return [lease.job_id for lease in killed]
