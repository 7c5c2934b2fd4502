"""What each process writes down of its own doing: a file of JSON lines that is whole up to the moment it was killed."""

import os
import time
from pathlib import Path
from typing import Any

import msgspec

Event = dict[str, Any]


class Log:
    """One process's own file; a forked child begins another.

    One write for each line, with no buffer of ours: what is written is the kernel's, and outlives SIGKILL.
    """

    def __init__(self, folder: Path, actor: str) -> None:
        self._folder = folder
        self._actor = actor
        self._pid = -1
        self._file = -1

    def write(self, what: str, **said: Any) -> None:
        """Note an event. `at` is in seconds and comparable between the processes of one host; `wall` is the clock."""
        if self._pid != os.getpid():
            self._open()
        event = {"at": time.monotonic(), "wall": time.time(), "pid": self._pid, "actor": self._actor, "what": what}
        os.write(self._file, msgspec.json.encode(event | said) + b"\n")

    def began(self, actor: str) -> bool:
        """Tell whether another process of this run, or a child of it, has written anything yet."""
        return any(self._folder.glob(f"{actor}-*.jsonl"))

    def _open(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        self._pid = os.getpid()
        path = self._folder / f"{self._actor}-{self._pid}.jsonl"
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)


def read(folder: Path) -> list[Event]:
    """Read what all processes wrote, in the order in which it happened."""
    lines = (line for path in folder.glob("*.jsonl") for line in path.read_bytes().splitlines())
    return sorted(map(msgspec.json.decode, lines), key=lambda event: event["at"])
