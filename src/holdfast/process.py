"""Workers as processes: signals, exit codes, and one parent over several."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable, Coroutine
from types import FrameType
from typing import TYPE_CHECKING, Any

from holdfast.errors import ConfigError
from holdfast.events import log

if TYPE_CHECKING:
    from holdfast.app import Holdfast
    from holdfast.worker import Worker

# Exit codes after which a new child would only fail the same way: schema, database unreachable at start.
HOPELESS = (3, 4)
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0


def main(app: Holdfast, *, processes: int = 1, **options: Any) -> int:
    """Run workers until SIGTERM or SIGINT and return the exit code; a second signal stops at once.

    Raises: SchemaMissing, SchemaMismatch, DatabaseUnavailable when the one process cannot start.
    """
    if processes == 1:
        return run_one(app, **options)
    if app.store.in_memory:
        raise ConfigError("processes", "a database in memory belongs to one process", processes)
    return Supervisor(processes, lambda: _child(app, options)).run()


def run_one(app: Holdfast, **options: Any) -> int:
    """Run one worker in this process."""
    worker = app.worker(**options)
    _run(_with_signals(worker))
    return 0 if worker.failure is None else 1


async def _with_signals(worker: Worker) -> None:
    loop = asyncio.get_running_loop()
    seen: list[int] = []

    def on_signal(number: int) -> None:
        seen.append(number)
        worker.stop(signal.Signals(number).name, at_once=len(seen) > 1)

    running = asyncio.create_task(worker.run())
    await asyncio.sleep(0)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal, number)
    await running


def _run(work: Coroutine[Any, Any, None]) -> None:
    """Run on uvloop where it is installed."""
    try:
        import uvloop
    except ImportError:
        asyncio.run(work)
    else:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(work)


def _child(app: Holdfast, options: dict[str, Any]) -> int:
    try:
        return run_one(app, **options)
    except Exception as error:
        log.error("worker process %d: %s", os.getpid(), error)
        return int(getattr(error, "exit_code", 1))


class Supervisor:
    """Keeps so many children alive, passes signals on, and starts a new child where one died."""

    def __init__(self, count: int, child: Callable[[], int]) -> None:
        self._count = count
        self._child = child
        self._pids: set[int] = set()
        self._stopping = False
        self._code = 0

    def run(self) -> int:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._pass_on)
        for _ in range(self._count):
            self._fork()
        pause = FIRST_PAUSE
        while self._pids:
            pid, status = os.wait()
            self._pids.discard(pid)
            code = os.waitstatus_to_exitcode(status)
            if code == 0 or self._stopping:
                continue
            if code in HOPELESS:
                self._give_up(code)
                continue
            log.error("worker process %d ended with code %d; starting another in %.1f s", pid, code, pause)
            time.sleep(pause)
            pause = min(LONGEST_PAUSE, pause * 2)
            if not self._stopping:
                self._fork()
        return self._code

    def _fork(self) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid:
            self._pids.add(pid)
            return
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        os._exit(self._child())

    def _pass_on(self, number: int, _frame: FrameType | None) -> None:
        self._stopping = True
        for pid in self._pids:
            os.kill(pid, number)

    def _give_up(self, code: int) -> None:
        self._code = code
        self._pass_on(signal.SIGTERM, None)
