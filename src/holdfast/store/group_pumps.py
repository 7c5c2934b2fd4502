"""Shared transactions in either colour: what waits for a turn and for the commit, and who ends a group.

What has to be done stands in `groups.py`.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from holdfast.store import groups
from holdfast.store.dialects.base import Dialect
from holdfast.store.groups import Acts, Group, Groups, Seat

T = TypeVar("T")


class SyncGroups(Groups):
    """Shared transactions of threads. Who began one ends it; the others wait for that."""

    def group(self) -> Group:
        return Group(threading.Event(), threading.Event())

    def pump(self, acts: Acts[T]) -> T:
        try:
            act = next(acts)
            while True:
                try:
                    got = act()
                except BaseException as error:
                    act = acts.throw(error)
                else:
                    act = acts.send(got)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]

    def turn(self) -> Group:
        ticket = _ThreadTicket()
        group = self._enter(ticket)
        try:
            while group is None:
                group = ticket.wait(groups.PATIENCE_SECONDS)
                if group is None:
                    self.look()
        except BaseException:
            # Interrupted. If it was given a turn in the same moment, that is somebody else's now.
            with self._lock:
                given = ticket.leave()
            if given is not None:
                self.pass_on(given)
            raise
        return group

    def end(self, group: Group) -> None:
        group.ready.set()

    def see_out(self, seat: Seat) -> None:
        group = seat.group
        if group.leader is seat:
            cut = self._wait_for_all(group)
            try:
                self.pump(self._ending(group))
            finally:
                group.over.set()
            if cut is not None:
                raise cut
        elif seat.left:
            group.over.wait()

    def _wait_for_all(self, group: Group) -> BaseException | None:
        """Wait until nobody is inside; gives what interrupted that, which nobody else must wait for ever for."""
        cut: BaseException | None = None
        while not group.ready.is_set():
            try:
                group.ready.wait()
            except BaseException as error:
                cut = error
                if group.failure is None:
                    group.failure = error
        return cut


class _ThreadTicket:
    """A thread that waits for its turn."""

    __slots__ = ("_event", "_gone", "_group")

    def __init__(self) -> None:
        self._event = threading.Event()
        self._gone = False
        self._group: Group | None = None

    def gone(self) -> bool:
        return self._gone

    def leave(self) -> Group | None:
        """Wait no longer; gives the group that was given all the same."""
        self._gone = True
        return self._group

    def give(self, group: Group) -> None:
        self._group = group
        self._event.set()

    def wait(self, seconds: float) -> Group | None:
        self._event.wait(seconds)
        return self._group


class AsyncGroups(Groups):
    """Shared transactions of tasks on one event loop. Each is ended by a task of its own, which nobody cancels."""

    def __init__(self, lend: Callable[[], Any], dialect: Dialect) -> None:
        super().__init__(lend, dialect)
        self._looks = False
        self._tasks: set[asyncio.Task[None]] = set()

    def group(self) -> Group:
        return Group(asyncio.get_running_loop().create_future())

    async def pump(self, acts: Acts[T]) -> T:
        try:
            act = next(acts)
            while True:
                try:
                    got = await act()
                except BaseException as error:
                    act = acts.throw(error)
                else:
                    act = acts.send(got)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]

    async def turn(self) -> Group:
        ticket = _TaskTicket()
        group = self._enter(ticket)
        if group is not None:
            return group
        self._look_later()
        try:
            return await ticket.future
        except asyncio.CancelledError:
            # Given in the same moment: somebody else's turn then.
            if not ticket.gone() and ticket.future.done():
                self.pass_on(ticket.future.result())
            raise

    def _look_later(self) -> None:
        if not self._looks:
            self._looks = True
            asyncio.get_running_loop().call_later(groups.PATIENCE_SECONDS, self._look_now)

    def _look_now(self) -> None:
        self._looks = False
        if self.look():
            self._look_later()

    def end(self, group: Group) -> None:
        task = asyncio.get_running_loop().create_task(self._end(group), context=contextvars.Context())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _end(self, group: Group) -> None:
        try:
            await self.pump(self._ending(group))
        finally:
            group.over.set_result(None)

    async def see_out(self, seat: Seat) -> None:
        group, cut = seat.group, None
        if not seat.left and group.failure is None:
            return
        while not group.over.done():
            try:
                await asyncio.shield(group.over)
            except asyncio.CancelledError as error:
                if not group.ending:
                    # Somebody is inside, for how long nobody knows. Nothing of this group is committed then.
                    group.failure = error if group.failure is None else group.failure
                    raise
                # What the group came to is known soon, and counts for more.
                cut = error
        if cut is not None:
            raise cut


class _TaskTicket:
    """A task that waits for its turn."""

    __slots__ = ("future",)

    def __init__(self) -> None:
        self.future: asyncio.Future[Group] = asyncio.get_running_loop().create_future()

    def gone(self) -> bool:
        return self.future.cancelled()

    def give(self, group: Group) -> None:
        self.future.set_result(group)
