"""Worker processes that others kill: hired by name, frozen, killed, dismissed; none outlives its employer."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.worker.process import run_one

if TYPE_CHECKING:
    from holdfast.app import Holdfast

NAME = "HOLDFAST_CREW_NAME"


class Member:
    """One worker process; its worker's id begins with `name`, a dash, its pid and a dash."""

    def __init__(self, name: str, process: subprocess.Popen[bytes]) -> None:
        self.name = name
        self.process = process

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def is_worker(self, worker_id: str | None) -> bool:
        return (worker_id or "").startswith(f"{self.name}-{self.pid}-")

    def freeze(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


class Crew:
    """Starts `python -m module` processes; each ends by itself when the end of its standard input says that we died."""

    def __init__(self, module: str, environment: Mapping[str, str], folder: Path) -> None:
        self._command = [sys.executable, "-m", module]
        self._environment = {**os.environ, **environment}
        self._folder = folder
        self.members: list[Member] = []
        self.hired = 0

    @property
    def log(self) -> Path:
        return self._folder / "workers.log"

    @property
    def alive(self) -> list[Member]:
        return [member for member in self.members if member.alive]

    def hire(self, name: str = "") -> Member:
        self.hired += 1
        name = name or f"worker{self.hired}"
        with self.log.open("ab") as log:
            # A session of its own: Ctrl-C at the terminal is ours to pass on, once.
            process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
                self._command,
                env={**self._environment, NAME: name},
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        member = Member(name, process)
        self.members.append(member)
        return member

    def dismiss(self, patience: float = 10.0) -> None:
        """Ask all to stop, and kill those that do not within `patience` seconds."""
        for member in self.alive:
            member.thaw()
            member.process.terminate()
        deadline = time.monotonic() + patience
        for member in self.members:
            try:
                member.process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                member.kill()
            if member.process.stdin is not None:
                member.process.stdin.close()

    def last_words(self, lines: int = 20) -> str:
        """Return the end of what the workers logged."""
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        return "\n".join(text.splitlines()[-lines:])


def serve(app: Holdfast, **options: Any) -> int:
    """Run one worker in this process, as a member of a crew, until it is dismissed."""
    end_with_employer()
    return run_one(app, name=os.environ.get(NAME, "worker"), **options)


def end_with_employer() -> None:
    """End this process when the one that started it is gone."""
    threading.Thread(target=_await_end_of_input, daemon=True).start()


def _await_end_of_input() -> None:
    # Unbuffered: a thread that waits inside a buffered reader breaks the interpreter's own shutdown.
    while os.read(0, 1):
        pass
    os._exit(1)
