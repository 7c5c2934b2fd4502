"""`--import`, and `worker --reload`: a worker in development, as one starts it at a keyboard."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from holdfast.cli.reload import python_files
from tests.cli.conftest import Run

APP = "from holdfast import Holdfast\n\nhf = Holdfast('sqlite:///shop.db')\n"
JOBS = "from shop import hf\n\n\n@hf.job\ndef act() -> None:\n    print({word!r}, flush=True)\n"


@pytest.fixture
def shop(place: Path, run: Run) -> Path:
    (place / "shop.py").write_text(APP)
    (place / "jobs.py").write_text(JOBS.format(word="one"))
    run("migrate", "apply", "--app", "shop:hf")
    return place


def test_modules_are_imported_for_their_handlers(shop: Path, run: Run) -> None:
    run("enqueue", "shop:hf", "act", code=2)
    run("enqueue", "shop:hf", "act", "--import", "jobs")
    (shop / "broken.py").write_text("1 / 0")
    failed = run("enqueue", "shop:hf", "act", "--import", "jobs", "--import", "broken", code=2)
    assert "importing broken failed: ZeroDivisionError" in failed.stderr
    assert "there is no module 'job'" in run("--import", "job", "worker", "shop:hf", code=2).stderr


def test_changes_are_seen_in_python_files_and_not_in_environments(tmp_path: Path) -> None:
    for name in ("shop/jobs.py", "shop/notes.txt", ".hidden/a.py", "venv/lib/b.py", "shop/__pycache__/c.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "venv" / "pyvenv.cfg").touch()
    before = python_files([tmp_path])
    assert list(before) == [str(tmp_path / "shop" / "jobs.py")]
    (tmp_path / "shop" / "jobs.py").write_text("more")
    assert python_files([tmp_path]) != before


OURS = ("-c", "from holdfast.cli import main; main()", "worker", "shop:hf", "--import", "jobs")


@contextmanager
def reloading(
    place: Path, words: Sequence[str] = OURS, env: Mapping[str, str] = os.environ
) -> Iterator[tuple[subprocess.Popen[bytes], Callable[[str, int], None]]]:
    """A worker that reloads, and what waits until its output has a text that many times."""
    log = place / "log"
    command = [sys.executable, *words, "--reload", "--poll", "0.05"]
    with log.open("wb") as out:
        process = subprocess.Popen(
            command, cwd=place, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
        )

    def until_said(text: str, times: int = 1) -> None:
        deadline = time.monotonic() + 60
        while log.read_text().count(text) < times:
            assert time.monotonic() < deadline, log.read_text()
            assert process.poll() is None, log.read_text()
            time.sleep(0.02)

    try:
        yield process, until_said
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def test_a_worker_starts_again_with_the_new_code_and_survives_a_file_that_is_broken(shop: Path, run: Run) -> None:
    with reloading(shop) as (process, until_said):
        until_said("worker started")
        run("enqueue", "shop:hf", "act", "--import", "jobs")
        until_said("one\n")
        (shop / "jobs.py").write_text(JOBS.format(word="two") + "def (")
        until_said("worker stopped")
        until_said("SyntaxError")
        until_said("it starts again when a file changes")
        # The same second and the same size as a file that was compiled before would be taken for it.
        (shop / "jobs.py").write_text(JOBS.format(word="two"))
        until_said("worker started", 2)
        run("enqueue", "shop:hf", "act", "--import", "jobs")
        until_said("two\n")
        process.terminate()
        assert process.wait(30) == 0
    # The child has ended with it, and said so.
    assert (shop / "log").read_text().count("worker stopped") == 2


def test_a_signal_while_the_old_worker_drains_for_a_change_ends_it(shop: Path, run: Run) -> None:
    handler = (
        "import asyncio\nfrom shop import hf\n\n\n@hf.job\nasync def act() -> None:\n    print('began', flush=True)\n"
    )
    (shop / "jobs.py").write_text(handler + "    await asyncio.Event().wait()\n")
    run("enqueue", "shop:hf", "act", "--import", "jobs")
    with reloading(shop) as (process, until_said):
        until_said("began\n")
        (shop / "jobs.py").write_text(JOBS.format(word="two"))
        until_said("changed: starting again")
        process.terminate()
        assert process.wait(30) == 0
    assert (shop / "log").read_text().count("worker started") == 1


def test_reload_is_for_one_process_and_names_its_application_first(shop: Path, run: Run) -> None:
    assert "--reload is for one process" in run("worker", "shop:hf", "--reload", "--processes", "2", code=2).stderr
    assert "APP is missing" in run("worker", "--reload", code=2).stderr
