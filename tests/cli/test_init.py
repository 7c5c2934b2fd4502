"""`holdfast init`: what it writes must run."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from holdfast.cli import shared
from tests.cli.conftest import Run, lines


def test_it_writes_an_application_and_says_what_is_next(run: Run, place: Path) -> None:
    shown = run("init", "shop").stdout
    assert "cd shop" in shown
    assert "holdfast worker shop:hf" in shown
    readme = (place / "shop" / "README.md").read_text()
    assert "holdfast worker shop:hf" in readme
    assert "holdfast jobs list --app shop:hf" in readme


def test_it_overwrites_nothing(run: Run, place: Path) -> None:
    (place / "README.md").write_text("mine")
    assert "README.md already" in run("init", code=6).stderr
    assert (place / "README.md").read_text() == "mine"
    assert not (place / "shop.py").exists()


def test_the_hint_names_a_directory_that_is_free(run: Run) -> None:
    run("init", "shop")
    assert "`holdfast init shop2`" in run("init", "shop", code=6).stderr
    run("init", "shop2")
    assert "`holdfast init shop3`" in run("init", "shop2", code=6).stderr


def test_a_file_in_the_way_is_wrong_usage(run: Run, place: Path) -> None:
    (place / "shop").write_text("a file")
    run("init", "shop", code=2)


def test_what_it_writes_runs(run: Run, place: Path, monkeypatch: object) -> None:
    run("init", "here")
    source = str(Path(shared.__file__).parents[2])
    environment = os.environ | {"PYTHONPATH": source, "PYTHONUNBUFFERED": "1"}
    os.chdir("here")
    placed = subprocess.run([sys.executable, "shop.py"], env=environment, capture_output=True, text=True, check=True)
    assert placed.stdout.count("placed") == 3
    cli = [sys.executable, "-c", "from holdfast.cli import main; main()"]
    with subprocess.Popen([*cli, "worker", "shop:hf"], env=environment, stdout=subprocess.PIPE, text=True) as worker:
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline and worker.poll() is None:
            if len(lines(run("jobs", "list", "--app", "shop:hf", "--state", "done", "--json"))) == 4:
                break
            time.sleep(0.02)
        worker.send_signal(signal.SIGINT)
        said, _ = worker.communicate(timeout=20)
    assert worker.returncode == 0
    assert "receipt sent for order 3" in said
    assert "hello, Ada" in said
    listed = subprocess.run(
        [*cli, "jobs", "list", "--app", "shop:hf", "--json"],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert {json.loads(line)["state"] for line in listed.stdout.splitlines()} == {"done"}
