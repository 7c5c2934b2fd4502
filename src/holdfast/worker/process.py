"""Workers as processes: signals, exit codes, and one parent over several."""

from __future__ import annotations

import asyncio
import faulthandler
import gc
import logging
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Any, Protocol, Unpack

from holdfast.errors import ConfigError, WorkerFailed
from holdfast.events import log
from holdfast.values.options import WorkerKeywords
from holdfast.worker import monitor, monitor_http
from holdfast.worker.monitor import Board, Pipe, Post, Watching

if TYPE_CHECKING:
    from holdfast.store import Stores
    from holdfast.worker.worker import Worker

SIGNALS = (signal.SIGTERM, signal.SIGINT)
# Exit codes after which a new child would only fail the same way: schema, database unreachable at start.
HOPELESS_EXIT_CODES = (3, 4)
FIRST_RESTART_PAUSE_SECONDS, LONGEST_RESTART_PAUSE_SECONDS = 0.5, 30.0
# A child that lived this long did not die of its start: the next pause is the first again.
CHILD_SETTLED_AFTER_SECONDS = 60.0
# What a worker gets beyond its drain time to write its outcomes, before the process is ended under it.
GRACE_SECONDS = 10.0
HURRY_SECONDS = 5.0
LONGEST_DRAIN_SECONDS = 7 * 86_400.0
ORPHAN_WATCH_SECONDS = 1.0
# New objects after which Python looks for garbage. A job makes a handful, so with Python's own 700 it looks after every
# hundred jobs: a sixth of the CPU of a worker whose handlers do next to nothing.
GARBAGE_EVERY_OBJECTS = 5_000


class Application(Protocol):
    """What a process needs of the application whose workers it runs."""

    @property
    def stores(self) -> Stores: ...

    def worker(self, **options: Unpack[WorkerKeywords]) -> Worker: ...


NOT_WATCHED = Watching()


def main(
    app: Application, *, processes: int = 1, watching: Watching = NOT_WATCHED, **options: Unpack[WorkerKeywords]
) -> int:
    """Run workers until SIGTERM or SIGINT and return the exit code; a second signal stops at once.

    Raises: SchemaMissing, SchemaMismatch, DatabaseUnavailable when the one process cannot start; ConfigError where its
    port cannot be opened.
    """
    if processes == 1:
        return _run_watched(app, watching, options) if watching.wanted else run_one(app, **options)
    if any(store.in_memory for store in app.stores):
        raise ConfigError("processes", "a database in memory belongs to one process", processes)
    # What is wrong with its options or resources is told here, once, and not by every child again and again.
    app.worker(**options)
    return Supervisor(processes, lambda parent, post: _child(app, options, parent, post), watching).run()


def _run_watched(app: Application, watching: Watching, options: WorkerKeywords) -> int:
    """Run one worker whose process answers for itself."""
    board = Board()
    server = _listen(watching)
    if server is not None:
        monitor_http.serve(server, board)

    def post(report: monitor.Report) -> bool:
        board.take(report)
        monitor.touch(watching.heartbeat_file)
        return True

    try:
        return run_one(app, post=post, **options)
    finally:
        if server is not None:
            server.close()


def _listen(watching: Watching) -> socket.socket | None:
    if watching.http is None:
        return None
    server = monitor_http.listen(watching.http)
    log.info("%s at %s", monitor_http.PAGES, monitor_http.name_of(server))
    return server


def run_one(
    app: Application, *, parent: int | None = None, post: Post | None = None, **options: Unpack[WorkerKeywords]
) -> int:
    """Run one worker in this process; one with a parent stops when that is gone. `post` takes its reports."""
    worker = app.worker(**options)
    _collect_less_often()
    try:
        _run(_with_signals(worker, parent, post))
    except WorkerFailed:
        # It was logged where it happened.
        return 1
    return 0


async def _with_signals(worker: Worker, parent: int | None, post: Post | None) -> None:
    loop = asyncio.get_running_loop()
    seen: list[int] = []

    def on_signal(number: int, _frame: FrameType | None) -> None:
        # It may run between any two lines of the program: no logging, no locks, only these two calls.
        seen.append(number)
        at_once = len(seen) > 1
        _end_after(HURRY_SECONDS if at_once else worker.drain + GRACE_SECONDS)
        loop.call_soon_threadsafe(partial(worker.stop, signal.Signals(number).name, at_once=at_once))

    # Not the loop's own handlers: those say nothing while a handler blocks the loop.
    before = {number: signal.signal(number, on_signal) for number in SIGNALS}
    beside = [asyncio.create_task(_stop_when_orphaned(worker, parent))]
    if post is not None:
        pairs = [(one.options.queue, kind) for kind, one in worker.handlers.items()]
        pairs += [(route.queue, route.queue) for route in worker.routes]
        reporting = monitor.report(
            worker.tallies, worker.context.events, lambda: (worker.is_ready, *worker.slots_used), post, pairs
        )
        beside.append(asyncio.create_task(reporting))
    try:
        await worker.run()
    finally:
        for task in beside:
            task.cancel()
        await asyncio.wait(beside)
        if worker.handlers_left:
            # Closing the loop would wait for ever for handlers that ignore their cancellation.
            _leave(1)
        await worker.context.stores.aclose()
        for number, handler in before.items():
            signal.signal(number, handler)
        faulthandler.cancel_dump_traceback_later()


def _collect_less_often() -> None:
    """Spare the garbage collector's time in a process of ours; what the application set, or switched off, stays."""
    every, *rest = gc.get_threshold()
    if 0 < every < GARBAGE_EVERY_OBJECTS:
        gc.set_threshold(GARBAGE_EVERY_OBJECTS, *rest)


def _end_after(seconds: float) -> None:
    """End the process then, with the tracebacks of its threads, whatever holds it up: C code and a held GIL too."""
    faulthandler.dump_traceback_later(min(seconds, LONGEST_DRAIN_SECONDS), exit=True, file=2)


async def _stop_when_orphaned(worker: Worker, parent: int | None) -> None:
    while parent is not None and os.getppid() == parent:  # noqa: ASYNC110 - nobody tells a process of this
        await asyncio.sleep(ORPHAN_WATCH_SECONDS)
    if parent is not None:
        worker.stop("its parent process is gone")


def _leave(code: int) -> None:
    """End the process here and now, with what it said so far."""
    # Handlers of the application's own and streams that were closed or replaced may fail in any way; the process must
    # end all the same, with the code that says how its work ended.
    with suppress(Exception):
        logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
    os._exit(code)


def _run(work: Coroutine[Any, Any, None]) -> None:
    """Run on uvloop where it is installed."""
    # Not inside the `except` of the import: every traceback of a handler would begin with that error.
    with asyncio.Runner(loop_factory=_uvloop_factory()) as runner:
        runner.run(work)


def _uvloop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return what makes uvloop's event loops; None, for Python's own, where it is not installed."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


def _child(app: Application, options: WorkerKeywords, parent: int, post: Post | None) -> int:
    try:
        return run_one(app, parent=parent, post=post, **options)
    except Exception as error:
        log.error("worker process %d: %s", os.getpid(), error)
        return int(getattr(error, "exit_code", 1))


class Supervisor:
    """Keeps `count` children alive, passes signals on, and starts a new child where one died.

    Where they are watched, it answers for all of them: between two looks at its children, because a process with
    threads must not fork.
    """

    def __init__(self, count: int, child: Callable[[int, Post | None], int], watching: Watching = NOT_WATCHED) -> None:
        self._count = count
        self._child = child
        self._watching = watching
        self._board = Board()
        self._server: socket.socket | None = None
        # What children say, by the end of the pipe that is ours.
        self._pipes: dict[int, monitor.Lines] = {}
        # By pid, when each child was started; and when to start those that are to follow.
        self._children: dict[int, float] = {}
        self._due: list[float] = []
        self._pause = FIRST_RESTART_PAUSE_SECONDS
        self._stopping = False
        self._code = 0

    def run(self) -> int:
        reader, writer = os.pipe()
        for end in (reader, writer):
            os.set_blocking(end, False)
        # Any signal, a child's death too, writes a byte here and ends the wait below.
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in SIGNALS:
            signal.signal(number, self._pass_on)
        self._due = [0.0] * self._count
        self._server = _listen(self._watching)
        while self._children or (self._due and not self._stopping):
            self._start_due()
            heard = self._wait(reader)
            with suppress(BlockingIOError):
                os.read(reader, 1024)
            self._hear(heard)
            self._collect_ended()
        return self._code

    def _wait(self, reader: int) -> list[Any]:
        """Wait for a signal, a child's report, a client, or the moment when a child is to be started."""
        ends: list[Any] = [reader, *self._pipes, *([] if self._server is None else [self._server])]
        within = self._until_due()
        if self._watching.wanted:
            within = monitor.REPORT_SECONDS if within is None else min(within, monitor.REPORT_SECONDS)
        return select.select(ends, [], [], within)[0]

    def _hear(self, heard: list[Any]) -> None:
        for end in heard:
            if self._server is not None and end is self._server:
                monitor_http.accept(end, self._board)
            elif end in self._pipes:
                self._hear_child(end)
        if self._watching.heartbeat_file is not None and not self._board.silent():
            monitor.touch(self._watching.heartbeat_file)

    def _hear_child(self, end: int) -> None:
        said = os.read(end, 1 << 16)
        if said:
            self._pipes[end].feed(said)
        else:
            self._hang_up(end)

    def _hear_the_last_of(self, pid: int) -> None:
        """Read what a child that is gone has said; what its handlers have forked may still hold its end open."""
        for end in [end for end, lines in self._pipes.items() if lines.pid == pid]:
            os.set_blocking(end, False)
            with suppress(BlockingIOError):
                while said := os.read(end, 1 << 16):
                    self._pipes[end].feed(said)
            self._hang_up(end)

    def _hang_up(self, end: int) -> None:
        # The child is gone, and with it what it said of itself.
        self._board.gone(self._pipes.pop(end).pid)
        os.close(end)

    def _start_due(self) -> None:
        now = time.monotonic()
        due = [moment for moment in self._due if moment <= now]
        self._due = [moment for moment in self._due if moment > now]
        for _ in due:
            if not self._stopping:
                self._fork()

    def _until_due(self) -> float | None:
        return max(0.0, min(self._due) - time.monotonic()) if self._due else None

    def _collect_ended(self) -> None:
        while self._children:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            self._after(pid, os.waitstatus_to_exitcode(status))

    def _after(self, pid: int, code: int) -> None:
        started = self._children.pop(pid, None)
        self._hear_the_last_of(pid)
        if started is None or code == 0 or self._stopping:
            return
        if code in HOPELESS_EXIT_CODES:
            self._code = code
            self._pass_on(signal.SIGTERM, None)
            return
        now = time.monotonic()
        if now - started > CHILD_SETTLED_AFTER_SECONDS:
            self._pause = FIRST_RESTART_PAUSE_SECONDS
        log.error("worker process %d ended with code %d; starting another in %.1f s", pid, code, self._pause)
        self._due.append(now + self._pause)
        self._pause = min(LONGEST_RESTART_PAUSE_SECONDS, self._pause * 2)

    def _fork(self) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        parent = os.getpid()
        ends = os.pipe() if self._watching.wanted else None
        # A signal between fork and the lines after it would reach a parent that does not know its child yet, or a
        # child that still thinks it is the parent.
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        pid = os.fork()
        if pid:
            self._children[pid] = time.monotonic()
            if ends is not None:
                os.close(ends[1])
                self._pipes[ends[0]] = monitor.Lines(pid, self._board)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
            return
        code = 1
        try:
            self._become_child()
            code = self._child(parent, None if ends is None else self._way_up(ends))
        finally:
            _leave(code)

    def _become_child(self) -> None:
        # A group of its own: Ctrl-C reaches the parent, which passes it on, and so counts once.
        os.setpgid(0, 0)
        signal.set_wakeup_fd(-1)
        for number in (*SIGNALS, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)

    def _way_up(self, ends: tuple[int, int]) -> Post:
        """Close what is the parent's, and give what a child reports with."""
        for end in (ends[0], *self._pipes):
            os.close(end)
        if self._server is not None:
            self._server.close()
        return Pipe(ends[1]).post

    def _pass_on(self, number: int, _frame: FrameType | None) -> None:
        self._stopping = True
        for pid in list(self._children):
            with suppress(ProcessLookupError):
                os.kill(pid, number)
