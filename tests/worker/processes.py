"""Worker processes for tests: started as a user starts them, watched through their log and the database."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from tests.worker.stage import DEADLINE, Stage

ROOT = Path(__file__).resolve().parent.parent.parent
COMMAND = [sys.executable, "-c", "from holdfast.cli import main; main()", "worker", "tests.worker.apps.shop:hf"]


class Process:
    """A `holdfast worker` with its log as JSON lines."""

    def __init__(self, url: str, log: Path, *options: str, env: Mapping[str, str] | None = None) -> None:
        self._log = log
        with log.open("wb") as out:
            self.popen = subprocess.Popen(
                [*COMMAND, "--poll", "0.1", "--log-json", *options],
                cwd=ROOT,
                env={**os.environ, "HOLDFAST_URL": url, **(env or {})},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self.popen.pid

    def said(self, what: str) -> list[dict[str, Any]]:
        """The events of one name, as in "database lost"."""
        lines = (line for line in self._log.read_bytes().splitlines() if line.startswith(b"{") and line.endswith(b"}"))
        return [line for line in map(msgspec.json.decode, lines) if line["message"].startswith(f"{what}")]

    def text(self) -> str:
        return self._log.read_text(errors="replace")

    def send(self, number: signal.Signals) -> None:
        self.popen.send_signal(number)

    def until_said(self, what: str, count: int = 1) -> list[dict[str, Any]]:
        return until(lambda: found if len(found := self.said(what)) >= count else None, f"{what} in {self.text()}")

    def started(self) -> "Process":
        self.until_said("worker started")
        return self

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal and return the exit code."""
        self.send(number)
        return self.wait()

    def wait(self) -> int:
        return self.popen.wait(DEADLINE)

    def kill(self) -> None:
        if self.popen.poll() is None:
            self.popen.kill()
            self.popen.wait()


class Crew:
    """Starts worker processes on one stage and ends what is left of them."""

    def __init__(self, stage: Stage, folder: Path) -> None:
        self.stage = stage
        self._folder = folder
        self._processes: list[Process] = []

    def start(self, *options: str, url: str | None = None, env: Mapping[str, str] | None = None) -> Process:
        log = self._folder / f"worker-{len(self._processes)}.log"
        process = Process(url or self.stage.url, log, *options, env=env)
        self._processes.append(process)
        return process

    def close(self) -> None:
        for process in self._processes:
            process.kill()


@contextmanager
def crew_on(stage: Stage, folder: Path) -> Iterator[Crew]:
    crew = Crew(stage, folder)
    try:
        yield crew
    finally:
        crew.close()


def until(true: Callable[[], Any], what: str = "", seconds: float = DEADLINE) -> Any:
    """Wait until something is true, and return it."""
    deadline = time.monotonic() + seconds
    while not (value := true()):
        assert time.monotonic() < deadline, f"in vain: {what or true}"
        time.sleep(0.02)
    return value


def alive(pid: int) -> bool:
    """Tell whether a process is there and not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
