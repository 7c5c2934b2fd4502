"""Remote messages: send the tasks of remote steps and receive their results, where both are messages of a service."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

import msgspec

from holdfast import events, remote
from holdfast.errors import StoreError, redact
from holdfast.remote import Dispatch, Engine, Messenger, Told
from holdfast.values.failure import type_name, words
from holdfast.worker.rounds.base import Round, RoundContext, jittered
from holdfast.worker.rounds.remote import serves_runs

FIRST_PAUSE_SECONDS = 0.5
LONGEST_PAUSE_SECONDS = 30.0
FORGET_SECONDS = 600.0
# What is shown of a message that cannot be read.
_SHOWN = 200


class RemoteMessages(Round):
    name = "remote-messages"

    @classmethod
    def runs_on(cls, context: RoundContext) -> bool:
        return any(engine.messenger is not None for engine in context.engines.values()) and serves_runs(context)

    async def serve(self) -> None:
        """Serve every engine that has messages, for ever."""
        engines = self.context.engines.values()
        posts = [_Post(self.context, engine) for engine in engines if engine.messenger is not None]
        self.context.dispatch_hints.update(post.hint for post in posts)
        try:
            async with asyncio.TaskGroup() as group:
                for post in posts:
                    group.create_task(post.serve(post.send), name="holdfast-remote-send")
                    group.create_task(post.serve(post.receive), name="holdfast-remote-receive")
        finally:
            self.context.dispatch_hints.difference_update(post.hint for post in posts)


class _Post:
    """The messages of one engine. Sender and receiver each have a connection, and outlive its loss."""

    def __init__(self, context: RoundContext, engine: Engine) -> None:
        self._context = context
        self._engine = engine
        self._hinted = asyncio.Event()
        self._forget_at = 0.0

    async def serve(self, turn: Callable[[Messenger], Awaitable[None]]) -> None:
        tries, since = 0, time.monotonic()
        while True:
            messenger = self._engine.messenger()  # type: ignore[misc]
            try:
                await messenger.open()
                while True:
                    await turn(messenger)
                    if tries:
                        self._emit(
                            events.BrokerRegained(self._context.worker, messenger.name, time.monotonic() - since)
                        )
                        tries = 0
            except Exception as error:
                if not tries:
                    since = time.monotonic()
                    said = redact(f"{type_name(error)}: {words(error)}")
                    self._emit(events.BrokerLost(self._context.worker, messenger.name, said))
                tries += 1
            finally:
                with suppress(Exception):
                    await messenger.close()
            pause = min(LONGEST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2.0 ** min(tries, 20))
            await asyncio.sleep(random.uniform(0.5, 1.0) * pause)

    def _emit(self, event: events.Event) -> None:
        self._context.emit(event)

    def hint(self, engine: str) -> None:
        if engine == self._engine.name:
            self._hinted.set()

    async def send(self, messenger: Messenger) -> None:
        """Send what is to be sent, or wait for something.

        After a crash: what was taken and not noted as sent is sent again in half a minute.
        """
        if time.monotonic() >= self._forget_at:
            self._forget_at = time.monotonic() + jittered(FORGET_SECONDS)
            await self._context.patience.outlive(remote.forget_over(self._engine.name))
        taken: list[Dispatch] = await self._context.patience.outlive(remote.to_send(self._engine.name))
        if taken:
            refused = await messenger.send(taken)
            never = {one.step_id for one, _ in refused}
            await self._context.patience.outlive(remote.were_sent([one for one in taken if one.step_id not in never]))
            await self._keep([Told(one.step_id, _failed(why)) for one, why in refused])
            return
        self._hinted.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(jittered(self._engine.poll)):
                await self._hinted.wait()

    async def receive(self, messenger: Messenger) -> None:
        """Keep the results that come, and only then delete their messages."""
        messages = await messenger.receive()
        for one in messages:
            if one.step_id is None:
                why = f"it does not say of which step it is: {one.body[:_SHOWN]}"
                self._emit(events.MessageUnreadable(self._context.worker, messenger.name, self._engine.name, "", why))
        await self._keep([Told(one.step_id, one.body) for one in messages if one.step_id is not None])
        await messenger.delete(messages)

    async def _keep(self, told: Sequence[Told]) -> None:
        if not told:
            return
        outlive = self._context.patience.outlive
        try:
            arrived = await outlive(remote.received(self._engine.transport, told))
        except StoreError as error:
            if len(told) > 1:
                for one in told:
                    await self._keep([one])
                return
            # The database does not take this text: the step has failed, and the run hears why.
            failed = Told(told[0].step_id, _failed(f"the database refuses its result: {words(error)[:_SHOWN]}"))
            arrived = await outlive(remote.received(self._engine.transport, [failed]))
        if arrived.told:
            self._context.wake()


def _failed(why: str) -> str:
    """Write a result that stands for one that cannot be had."""
    return msgspec.json.encode({"status": "failed", "error": {"message": why, "retryable": False}}).decode()
