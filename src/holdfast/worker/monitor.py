"""What the processes of a host tell of themselves: to Prometheus, to probes, and to those who look at a file.

Each process reports every second what it counted since the last report, and how it is. Without a parent it reports to
its own board; with one, through a pipe to the parent's, which adds up what was counted and forgets how a process was
when that is gone: a process that was killed leaves no number behind that nobody corrects.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import msgspec

from holdfast import events
from holdfast.errors import ConfigError
from holdfast.observe import Folded, Tallies
from holdfast.observe.exposition import Slots, of_process

REPORT_SECONDS = 1.0
# A process that has not reported for this long is not alive: its event loop is blocked, or it was stopped.
ALIVE_SECONDS = 60.0


class Watching(NamedTuple):
    """How workers are to be watched: where they answer over HTTP, and the file that they touch."""

    http: tuple[str, int] | None = None
    heartbeat_file: Path | None = None

    @property
    def wanted(self) -> bool:
        return self.http is not None or self.heartbeat_file is not None


def address(text: str) -> tuple[str, int]:
    """Read PORT, or HOST:PORT; without a host it is this machine alone. Raises: ConfigError."""
    host, _, port = text.rpartition(":")
    if not port.isdecimal() or int(port) > 65_535:
        raise ConfigError("http", "must be PORT or HOST:PORT, as in 9464 or 0.0.0.0:9464", text)
    return (host.strip("[]") or "127.0.0.1", int(port))


class Report(msgspec.Struct):
    """How a process is, and what it has counted since its last report (the text of `Folded`)."""

    pid: int
    ready: bool
    busy: int
    free: int
    counted: str


class Board:
    """The reports of all processes; `text`, `alive` and `ready` may be asked from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counted = Folded()
        self._last: dict[int, tuple[Report, float]] = {}
        self._began = time.monotonic()

    def take(self, report: Report) -> None:
        counted = Folded.from_json(report.counted)
        with self._lock:
            self._counted.add(counted)
            self._last[report.pid] = (report, time.monotonic())

    def gone(self, pid: int) -> None:
        """Forget how a process was; what it counted stays."""
        with self._lock:
            self._last.pop(pid, None)

    def text(self) -> str:
        """Write the metrics."""
        with self._lock:
            reports = [report for report, _ in self._last.values()]
            slots = Slots(sum(one.busy for one in reports), sum(one.free for one in reports))
            return of_process(self._counted, slots, len(reports))

    def silent(self) -> list[int]:
        """Name the processes that have said nothing for too long; 0 where none has said anything yet."""
        now = time.monotonic()
        with self._lock:
            if not self._last and now - self._began > ALIVE_SECONDS:
                return [0]
            return [pid for pid, (_, at) in self._last.items() if now - at > ALIVE_SECONDS]

    def ready(self) -> bool:
        """Tell whether a process takes jobs."""
        silent = self.silent()
        with self._lock:
            return any(report.ready for pid, (report, _) in self._last.items() if pid not in silent)


Post = Callable[[Report], bool]
# Whether a worker takes jobs, how many of its slots are busy, and how many are not.
Look = Callable[[], tuple[bool, int, int]]


async def report(
    tallies: Tallies, told: events.Events, look: Look, post: Post, pairs: Iterable[tuple[str, str]] = ()
) -> None:
    """Report until cancelled. `post` says whether it took a report: while it does not, nothing is lost.

    pairs: queues and kinds of which is told from the beginning, before there is anything to count.
    """
    counted = tallies.reader()
    for queue, kind in pairs:
        counted.kept.of(queue, kind)
    told.subscribe(events.JobsEnqueued, lambda event: tallies.enqueued(zip(event.queues, event.kinds, strict=False)))
    try:
        while True:
            _post(look, counted.take(), post, counted.kept)
            await asyncio.sleep(REPORT_SECONDS)
    finally:
        _post(look, counted.take(), post, counted.kept)


def _post(look: Look, counted: Folded, post: Post, kept: Folded) -> None:
    ready, busy, free = look()
    if not post(Report(os.getpid(), ready, busy, free, counted.to_json())):
        kept.add(counted)


class Pipe:
    """The way from a process to its parent; it never waits for that."""

    def __init__(self, writer: int) -> None:
        os.set_blocking(writer, False)
        self._writer = writer
        self._unsent = b""

    def post(self, said: Report) -> bool:
        self._flush()
        if self._unsent:
            return False
        self._unsent = msgspec.json.encode(said) + b"\n"
        self._flush()
        return True

    def _flush(self) -> None:
        # The parent may be slow, or gone: then the worker stops by itself soon.
        with suppress(BlockingIOError, BrokenPipeError):
            while self._unsent:
                sent = os.write(self._writer, self._unsent)
                self._unsent = self._unsent[sent:]


class Lines:
    """What came through the pipe of one process, as far as it is whole."""

    def __init__(self, pid: int, board: Board) -> None:
        self.pid = pid
        self._board = board
        self._rest = b""

    def feed(self, said: bytes) -> None:
        *whole, self._rest = (self._rest + said).split(b"\n")
        for line in whole:
            with suppress(msgspec.MsgspecError):
                self._board.take(msgspec.json.decode(line, type=Report))


def touch(path: Path | None) -> None:
    """Say in a file that we live: `holdfast worker-alive` looks at when it was changed."""
    if path is not None:
        # A full disk, or a folder that is gone, must not end a worker; those who look will notice.
        with suppress(OSError):
            path.touch()
