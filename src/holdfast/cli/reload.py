"""`holdfast worker --reload`: for development, start the worker again whenever a Python file changes."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import click

from holdfast.worker.process import GRACE_SECONDS

# How often files are looked at. By their times, with the standard library alone: a folder of a thousand files takes a
# few milliseconds, and there is nothing to install or to go wrong in containers and on network drives.
LOOK_SECONDS = 0.25
# The longest that handlers have to finish when a file has changed.
DRAIN_SECONDS = 2.0
# Names the parent to a worker that began afresh.
_PARENT = "_HOLDFAST_RELOADER"
_SKIPPED = {"__pycache__", "node_modules"}

Seen = dict[str, tuple[int, int]]


def python_files(folders: Sequence[Path]) -> Seen:
    """Return when each Python file below folders was changed, and its size; hidden folders and environments aside."""
    seen: Seen = {}
    for folder in folders:
        for path, found in _walk(folder):
            seen[path] = (found.st_mtime_ns, found.st_size)
    return seen


def _walk(folder: Path | str) -> Iterator[tuple[str, os.stat_result]]:
    # What goes away between two looks is gone, and what may not be read is left alone.
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith(".") or entry.name in _SKIPPED:
                continue
            if entry.is_dir(follow_symlinks=False):
                if not os.path.exists(os.path.join(entry.path, "pyvenv.cfg")):
                    yield from _walk(entry.path)
            elif entry.name.endswith(".py"):
                with suppress(OSError):
                    yield entry.path, entry.stat()


def parent_of_this() -> int | None:
    """Return the id of the parent where this worker began afresh under one."""
    named = os.environ.pop(_PARENT, None)
    return None if named is None else int(named)


class Reloader:
    """The parent of a worker: forks it before anything of the application is imported, and again after a change.

    afresh: the application was imported before this, as by a framework's own command. A fork would have that code for
    ever, so each worker is an interpreter of its own, with the same command line.
    """

    def __init__(self, look: Callable[[], Seen], *, afresh: bool = False) -> None:
        self._look = look
        self._afresh = afresh
        self._seen = look()
        self._child = 0
        self._asked = 0
        # With a terminal, Ctrl-C reaches the child by itself; a second signal would stop it at once.
        self._terminal = sys.stdin is not None and sys.stdin.isatty()

    def run(self) -> int:
        """Return in each child the id of its parent; the parent itself never returns."""
        parent = os.getpid()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        while True:
            if self._fork():
                if self._afresh:
                    _begin_afresh(parent)
                return parent
            code = self._until_over()
            # Asked to stop, maybe while the child drained for a change, it starts no other.
            if self._asked or code == 0:
                sys.exit(0)
            if code is None:
                continue
            _say(f"the worker ended with code {code}; it starts again when a file changes")
            _say(f"{self._changed()} changed: starting again")

    def _on_signal(self, number: int, _frame: object) -> None:
        self._asked += 1
        if not self._child:
            sys.exit(0)
        if number != signal.SIGINT or not self._terminal:
            self._tell(number)

    def _tell(self, number: int) -> None:
        with suppress(ProcessLookupError):
            os.kill(self._child, number)

    def _fork(self) -> bool:
        """Fork; tell whether this is the child."""
        sys.stdout.flush()
        sys.stderr.flush()
        signals = (signal.SIGTERM, signal.SIGINT)
        signal.pthread_sigmask(signal.SIG_BLOCK, signals)
        self._child = os.fork()
        if not self._child:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            # Python takes a compiled file for fresh by whole seconds and the size: one saved twice would stay old.
            sys.dont_write_bytecode = True
        signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
        return not self._child

    def _until_over(self) -> int | None:
        """Wait for the child's end, and return its code; None where a change is the reason."""
        while (code := self._ended()) is None:
            time.sleep(LOOK_SECONDS)
            if not self._asked and (name := self._change()):
                _say(f"{name} changed: starting again")
                self._end()
                return None
        return code

    def _ended(self) -> int | None:
        pid, status = os.waitpid(self._child, os.WNOHANG)
        if not pid:
            return None
        self._child = 0
        return os.waitstatus_to_exitcode(status)

    def _end(self) -> None:
        """Let the child drain, and see to it that it ends."""
        self._tell(signal.SIGTERM)
        deadline = time.monotonic() + DRAIN_SECONDS + GRACE_SECONDS
        while self._ended() is None:
            time.sleep(0.02)
            if time.monotonic() > deadline:
                self._tell(signal.SIGKILL)

    def _changed(self) -> str:
        """Wait for a change, and name a file."""
        while not (name := self._change()):
            time.sleep(LOOK_SECONDS)
        return name

    def _change(self) -> str | None:
        """Name a file that is new, gone or other than before, once all of them have come to rest."""
        now = self._look()
        if now == self._seen:
            return None
        different = min(path for path, _ in now.items() ^ self._seen.items())
        while True:
            time.sleep(LOOK_SECONDS / 5)
            before, now = now, self._look()
            if now == before:
                break
        self._seen = now
        return os.path.relpath(different)


def _begin_afresh(parent: int) -> NoReturn:
    os.environ |= {_PARENT: str(parent), "PYTHONDONTWRITEBYTECODE": "1"}
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606 - what was typed, and no shell


def _say(text: str) -> None:
    click.echo(f"reload: {text}", err=True)
