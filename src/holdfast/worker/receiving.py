"""Receiving messages: one task for each broker that takes batches, stores them as jobs and then acknowledges them.

It holds one batch at a time. While the database is away it consumes nothing, and what it holds is not acknowledged;
while the broker is away it tries again, with pauses that grow. It keeps nothing that a crash could lose: a message that
was stored and not acknowledged comes again and adds no second job.
"""

from __future__ import annotations

import asyncio
import random
import time
from asyncio import FIRST_COMPLETED
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, Protocol, TypeVar

from holdfast import events
from holdfast.errors import StoreError, redact
from holdfast.flow import Flow
from holdfast.inbox import Consumer, Incoming, Resuming
from holdfast.values.failure import type_name, words
from holdfast.values.rows import Enqueued
from holdfast.worker.outage import refused

T = TypeVar("T")

FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.1, 30.0
# A client that says nothing for this long while it connects, acknowledges or closes is taken for lost.
ANSWER_SECONDS = 30.0
CLOSE_SECONDS = 5.0


class Received(Protocol):
    """A broker and the jobs that its messages become; `Reception` of the application is one."""

    @property
    def name(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def queue(self) -> str: ...
    def consumer(self) -> Consumer: ...
    def position(self, stream: str) -> Flow[int | None]: ...
    def storing(
        self, messages: Sequence[Incoming], *, cut: bool = False
    ) -> tuple[Flow[list[Enqueued]], list[tuple[Incoming, str]]]: ...


class _BrokerAway(Exception):
    """The broker's client has failed; the cause says how."""


class _NotStored(Exception):
    """Messages could not be stored, though the database is there; the cause says why. They are not acknowledged."""


class Receiving:
    """Receives the messages of one broker, until the worker stops.

    outlive: runs a flow however long the database is away. wake: lets the worker look for jobs.
    """

    def __init__(
        self,
        received: Received,
        worker: str,
        outlive: Callable[[Flow[Any]], Coroutine[Any, Any, Any]],
        emit: Callable[[events.Event], None],
        stopping: asyncio.Event,
        wake: Callable[[], None],
    ) -> None:
        self._received = received
        self._worker = worker
        self._outlive = outlive
        self._emit = emit
        self._stopping = stopping
        self._wake = wake
        # Since when the broker is away, and how often in a row something went wrong.
        self._since: float | None = None
        self._tries = 0

    async def serve(self) -> None:
        """Consume until the worker stops; what is in hand by then is stored and acknowledged first."""
        while not self._stopping.is_set():
            consumer = self._received.consumer()
            try:
                if isinstance(consumer, Resuming):
                    # Interrupted by a stop only: without it messages would be left out.
                    position = await self._asked(self._outlive(self._received.position(consumer.stream)))
                    consumer.resume(position)
                await self._asked(consumer.open(), ANSWER_SECONDS)
                while not self._stopping.is_set():
                    await self._turn(consumer)
            except _BrokerAway as away:
                self._lost(away)
            except _NotStored as failed:
                self._refused(failed)
            finally:
                # One that is broken cannot always say goodbye.
                with suppress(_BrokerAway):
                    await self._asked(consumer.close(), CLOSE_SECONDS, to_the_end=True)
            if self._tries:
                await self._asked(asyncio.sleep(self._pause()))

    async def _turn(self, consumer: Consumer) -> None:
        """Take one batch from the broker to the database.

        After a crash: before the commit nothing has happened; after it the broker delivers the messages again, and they
        are known.
        """
        messages = await self._asked(consumer.consume())
        if messages is None:
            return
        self._regained()
        if not messages:
            return
        began = time.monotonic()
        try:
            created, unread = await self._store(messages)
        except Exception as error:
            # An enqueue hook of the application's has failed, or the database refuses even what was cut.
            raise _NotStored from error
        self._tries = 0
        for message, reason in unread:
            self._emit(
                events.MessageUnreadable(
                    self._worker, self._received.name, self._received.kind, message.position, redact(reason)
                )
            )
        # Only now: they are committed.
        await self._asked(consumer.acknowledge(messages), ANSWER_SECONDS, to_the_end=True)
        took = time.monotonic() - began
        self._emit(
            events.MessagesReceived(
                self._worker, self._received.name, self._received.kind, len(messages), created, len(unread), took
            )
        )

    async def _store(self, messages: Sequence[Incoming]) -> tuple[int, list[tuple[Incoming, str]]]:
        """Add the jobs of messages in one transaction; return how many are new, and which could not be read."""
        work, unread = self._received.storing(messages)
        try:
            answers = await self._outlive(work)
        except StoreError as error:
            if not refused(error):
                raise
            return await self._store_one_by_one(messages)
        if any(answer.created for answer in answers):
            self._wake()
        return sum(answer.created for answer in answers), unread

    async def _store_one_by_one(self, messages: Sequence[Incoming]) -> tuple[int, list[tuple[Incoming, str]]]:
        """Add the jobs of messages of which the database refuses at least one; that one is stored cut."""
        created, unread = 0, []
        for message in messages:
            work, reasons = self._received.storing([message])
            try:
                [answer] = await self._outlive(work)
            except StoreError as error:
                if not refused(error):
                    raise
                work, _ = self._received.storing([message], cut=True)
                [answer] = await self._outlive(work)
                reasons = [(message, str(error))]
            created += answer.created
            unread += reasons
        self._wake()
        return created, unread

    async def _asked(
        self, work: Coroutine[Any, Any, T], within: float | None = None, *, to_the_end: bool = False
    ) -> T | None:
        """Wait for the broker's client; None if the worker stops first, unless it is to go on `to_the_end`.

        A task of its own: some clients cancel themselves, which must not look as if this worker were cancelled.
        Raises: _BrokerAway, whatever went wrong there.
        """
        task, stop = asyncio.ensure_future(work), asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait((task,) if to_the_end else (task, stop), timeout=within, return_when=FIRST_COMPLETED)
        finally:
            stop.cancel()
            if not task.done():
                task.cancel()
                # Until it has let go of the client.
                await asyncio.wait((task,), timeout=CLOSE_SECONDS)
        if not task.done() or task.cancelled():
            if self._stopping.is_set() and not to_the_end:
                return None
            raise _BrokerAway from ConnectionError("it does not answer")
        if (error := task.exception()) is not None:
            raise _BrokerAway from error
        return task.result()

    def _lost(self, away: _BrokerAway) -> None:
        error = away.__cause__ or away
        self._tries += 1
        if self._since is None and not self._stopping.is_set():
            self._since = time.monotonic()
            said = redact(f"{type_name(error)}: {words(error)}")
            self._emit(events.BrokerLost(self._worker, self._received.name, said))

    def _refused(self, failed: _NotStored) -> None:
        error = failed.__cause__ or failed
        self._tries += 1
        if self._tries == 1:
            said = redact(f"{type_name(error)}: {words(error)}")
            self._emit(events.UpkeepFailed(self._worker, f"receive from {self._received.name}", said))

    def _regained(self) -> None:
        if self._since is not None:
            self._emit(events.BrokerRegained(self._worker, self._received.name, time.monotonic() - self._since))
            self._since, self._tries = None, 0

    def _pause(self) -> float:
        pause = min(LONGEST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2.0 ** min(self._tries, 20))
        return random.uniform(0.5, 1.0) * pause


class Intake:
    """All that a worker receives: one task for each broker."""

    def __init__(self) -> None:
        self.tasks: list[asyncio.Task[None]] = []

    def start(self, receivings: Sequence[Receiving]) -> list[asyncio.Task[None]]:
        self.tasks = [asyncio.create_task(one.serve(), name="holdfast-receiving") for one in receivings]
        return self.tasks

    async def ended(self) -> None:
        """Wait until what is in hand is stored and acknowledged, once the worker stops."""
        if self.tasks:
            await asyncio.wait(self.tasks)

    async def cut_short(self) -> None:
        """End what has not ended by itself: its messages come again."""
        for task in self.tasks:
            task.cancel()
        if self.tasks:
            await asyncio.wait(self.tasks, timeout=2 * CLOSE_SECONDS)
