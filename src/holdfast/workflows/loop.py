"""The event loop that a workflow's body runs on: it can wait, and nothing else.

It has no clock and no I/O of its own. What there is to run is run until nothing is left (`run_until_quiet`); then the
body waits for operations of its run or for timers, and the one who drives it decides which of them comes next. So the
body sees the same things in the same order whenever it is run again, whatever it is made of: tasks, groups, time-outs,
locks and queues of asyncio are ordinary code on this loop.

It is entered from a callback of the worker's loop, never inside a task: from Python 3.14 on, no task may be entered
while another runs.
"""

from __future__ import annotations

import asyncio
import heapq
import sys
from asyncio import events as running
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context, copy_context
from types import FrameType
from typing import Any, TypeVar

from holdfast.errors import NoIO, NonDeterminism

T = TypeVar("T")

# How often the coroutines of a body that is left are closed: one may await something in a `finally`.
CLOSING_PASSES = 3
FEW_TASKS = 64
# How often something may be run before the body must wait: one that never does would keep its worker for ever.
MOST_TURNS = 1_000_000
# How many frames above a new task the function is looked for that made it.
_FRAMES = 5

# fmt: off
_REFUSED = (
    "run_in_executor", "call_soon_threadsafe", "getaddrinfo", "getnameinfo", "create_connection",
    "create_server", "create_unix_connection", "create_unix_server", "connect_accepted_socket",
    "create_datagram_endpoint", "connect_read_pipe", "connect_write_pipe", "sendfile", "start_tls",
    "subprocess_shell", "subprocess_exec", "add_reader", "remove_reader", "add_writer", "remove_writer",
    "sock_recv", "sock_recv_into", "sock_recvfrom", "sock_recvfrom_into", "sock_sendall", "sock_sendto",
    "sock_connect", "sock_accept", "sock_sendfile", "add_signal_handler", "remove_signal_handler",
    "run_forever", "run_until_complete", "stop", "shutdown_default_executor",
)
# fmt: on
_IN_WORDS = {
    "run_in_executor": "a call on a thread (asyncio.to_thread, run_in_executor)",
    "call_soon_threadsafe": "a call from another thread",
    "subprocess_exec": "a subprocess",
    "subprocess_shell": "a subprocess",
}


class BodyLoop(asyncio.AbstractEventLoop):
    """The loop of one body; `clock` is the time that it tells, set by the one who drives it."""

    # For those who would block it instead of awaiting something.
    only_waits = True

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._ready: deque[_Soon | asyncio.TimerHandle] = deque()
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._timer_count = 0
        # Those that are done are dropped from time to time.
        self._tasks: list[asyncio.Task[Any]] = []
        self._most_tasks = FEW_TASKS
        self.closing = False
        self._closed = False

    # What asyncio asks of a loop

    def call_soon(  # type: ignore[override]
        self, callback: Any, *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        handle: Any = _Soon(callback, args, copy_context() if context is None else context)
        self._ready.append(handle)
        return handle  # type: ignore[no-any-return]

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Any, *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Any, *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        self._timer_count += 1
        heapq.heappush(self._timers, (when, self._timer_count, handle))
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Nothing: a cancelled timer is passed over when its time comes."""

    def time(self) -> float:
        return self._clock()

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(
        self,
        coro: Generator[Any, None, T] | Coroutine[Any, Any, T],
        *,
        name: str | None = None,
        context: Context | None = None,
        **_: Any,
    ) -> asyncio.Task[T]:
        if _made_by_as_completed():
            coro.close()
            raise NoIO(
                "asyncio.as_completed with coroutines, which it begins with in the order of a set; run.as_completed(…) "
                "keeps theirs"
            )
        task: asyncio.Task[T] = asyncio.Task(coro, loop=self, name=name, context=context)
        self._tasks.append(task)
        if len(self._tasks) > self._most_tasks:
            self._tasks = [one for one in self._tasks if not one.done()]
            self._most_tasks = max(FEW_TASKS, 2 * len(self._tasks))
        return task

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return not self._closed

    def is_closed(self) -> bool:
        return self._closed

    def get_task_factory(self) -> None:
        return None

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Nothing: an exception that nobody picks up is the body's own affair, and comes again with every replay."""

    default_exception_handler = call_exception_handler

    # What the one who drives it asks

    def run_until_quiet(self) -> None:
        """Run what there is to run until the body only waits."""
        ready, turns = self._ready, 0
        outer, hooks = _enter(self)
        try:
            while ready:
                handle: Any = ready.popleft()
                if not handle._cancelled:
                    # As `asyncio.Handle` does it, without its frame.
                    try:
                        handle._context.run(handle._callback, *handle._args)
                    except (SystemExit, KeyboardInterrupt):
                        raise
                    except BaseException as error:
                        self.call_exception_handler({"exception": error})
                turns += 1
                if turns > MOST_TURNS:
                    raise NonDeterminism(
                        "The body goes round and round and waits for nothing, as `while not ready: await "
                        "asyncio.sleep(0)` does: wait for an asyncio.Event, for run.signal(…) or for run.sleep(…)."
                    )
        finally:
            _leave(outer, hooks)

    def next_timer(self) -> tuple[float, int] | None:
        """Return when the next timer is due, and its number; None where there is none."""
        timers = self._timers
        while timers and timers[0][2].cancelled():
            heapq.heappop(timers)
        return timers[0][:2] if timers else None

    def ring(self, number: int) -> float | None:
        """Let a timer be run next, and return when it was due; None if it was cancelled.

        Raises: NonDeterminism, when the body has armed no such timer.
        """
        for place, (due, n, handle) in enumerate(self._timers):
            if n == number:
                del self._timers[place]
                heapq.heapify(self._timers)
                if handle.cancelled():
                    return None
                self._ready.append(handle)
                return due
        if number <= self._timer_count:
            return None
        raise NonDeterminism(f"recorded next: timer {number}; the code has armed {self._timer_count} timers by then")

    def close(self) -> None:
        """Let go of every coroutine here and now, the newest first: nothing is left to the garbage collector.

        Blocks are left as by `close()` of a coroutine: a `finally` runs, but an `await` in it goes no further, and no
        `except Exception` or `except CancelledError` sees anything.
        """
        self.closing = True
        if any(not task.done() for task in self._tasks):
            self._close_coroutines()
        self._closed = True
        self._tasks.clear()
        self._timers.clear()
        self._ready.clear()

    def _close_coroutines(self) -> None:
        outer, hooks = _enter(self)
        try:
            for _ in range(CLOSING_PASSES):
                open_ones = [task for task in reversed(self._tasks) if not task.done()]
                if not [task for task in open_ones if not _closed(task)]:
                    break
        finally:
            _leave(outer, hooks)


class _Soon:
    """What is to be run next. It is our own because `asyncio.Handle` takes longer to make."""

    __slots__ = ("_args", "_callback", "_cancelled", "_context")

    def __init__(self, callback: Any, args: tuple[Any, ...], context: Context) -> None:
        self._callback = callback
        self._args = args
        self._context = context
        self._cancelled = False

    def cancel(self) -> None:
        self._cancelled = True

    def cancelled(self) -> bool:
        return self._cancelled


def _closed(task: asyncio.Task[Any]) -> bool:
    """Close the coroutine of a task; False where it would not end."""
    # It is meant to be left.
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    coroutine: Any = task.get_coro()
    try:
        coroutine.close()
    except RuntimeError:
        # It awaited something on its way out.
        return False
    except BaseException:
        # Whatever a block raises on its way out: there is nobody to hear it.
        return True
    return True


def _refuse(name: str) -> Any:
    def refused(self: BodyLoop, *args: Any, **kwargs: Any) -> Any:
        raise NoIO(_IN_WORDS.get(name, f"I/O (loop.{name})"))

    return refused


for _name in _REFUSED:
    setattr(BodyLoop, _name, _refuse(_name))
# Abstract, except for what was set just now: everything that is left is refused, too.
BodyLoop.__abstractmethods__ = frozenset()  # type: ignore[attr-defined]


def _made_by_as_completed() -> bool:
    """Tell whether a task is made for a coroutine in `asyncio.as_completed`: that goes by a set, another each time."""
    frame: FrameType | None = sys._getframe(2)
    for _ in range(_FRAMES):
        if frame is None or frame.f_globals.get("__name__") != "asyncio.tasks":
            return False
        if "ascompleted" in frame.f_code.co_qualname.replace("_", "").lower():
            return True
        frame = frame.f_back
    return False


def _enter(loop: BodyLoop) -> tuple[asyncio.AbstractEventLoop | None, Any]:
    """Make a loop the running one of this thread, and return what `_leave` needs to undo that."""
    outer, hooks = running._get_running_loop(), sys.get_asyncgen_hooks()
    # Once, and not by way of none: Python 3.11 asks the system for the id of the process each time.
    running._set_running_loop(loop)
    # An asynchronous generator of the body is closed with the body, not by the worker's loop.
    sys.set_asyncgen_hooks(None, None)
    return outer, hooks


def _leave(outer: asyncio.AbstractEventLoop | None, hooks: Any) -> None:
    sys.set_asyncgen_hooks(*hooks)
    running._set_running_loop(outer)
