"""How PostgreSQL wakes workers: LISTEN and NOTIFY."""

from __future__ import annotations

import asyncio
import random
from typing import Any

from holdfast.errors import HoldfastError
from holdfast.store.wakers import FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS, Emit, Opens, Wake, Waker

# How often the listening session proves itself alive, and how long its own echo may take.
PROBE_EVERY_SECONDS, ECHO_WITHIN_SECONDS = 10.0, 5.0


class NoEcho(HoldfastError):
    def __init__(self) -> None:
        super().__init__(
            "The listening session did not hear its own notification: a pooler in transaction mode drops them. "
            "Set listen_url to a direct address."
        )


class PostgresListener(Waker):
    """LISTENs on a connection of its own, and notices when that goes deaf: it must hear its own echo."""

    def __init__(self, store: Opens, channel: str, worker: str, wake: Wake, emit: Emit) -> None:
        super().__init__(store, worker, wake, emit)
        self._channel = channel
        self._echo = asyncio.Event()
        self._lost = asyncio.Event()

    async def serve(self) -> None:
        pause = FIRST_PAUSE_SECONDS
        while True:
            try:
                await self._listen()
            except asyncio.CancelledError:
                raise
            except Exception as error:
                self._say_lost(error)
            await asyncio.sleep(random.uniform(0.5, 1.0) * pause)
            pause = FIRST_PAUSE_SECONDS if self.alive else min(LONGEST_PAUSE_SECONDS, pause * 2)
            self.alive = False

    async def _listen(self) -> None:
        link = await self._store.aopen(self._store.options.listen_url, "holdfast-listener")
        self._lost.clear()
        try:
            link.raw.add_termination_listener(lambda _: self._lost.set())
            async with asyncio.timeout(ECHO_WITHIN_SECONDS):
                await link.raw.add_listener(self._channel, self._heard)
            # Whatever was enqueued before this moment told nobody.
            self._wake(None)
            while True:
                await self._probe(link.raw)
                self.alive = True
                self._say_alive()
                await self._lost_within(PROBE_EVERY_SECONDS)
        finally:
            link.close()

    def _heard(self, _connection: Any, _pid: int, _channel: str, payload: str) -> None:
        if payload.startswith("\x1f"):
            if payload == f"\x1f{self._worker}":
                self._echo.set()
            return
        self._wake(payload)

    async def _probe(self, raw: Any) -> None:
        self._echo.clear()
        await raw.execute("select pg_notify($1, $2)", self._channel, f"\x1f{self._worker}", timeout=ECHO_WITHIN_SECONDS)
        try:
            async with asyncio.timeout(ECHO_WITHIN_SECONDS):
                await self._echo.wait()
        except TimeoutError as error:
            raise NoEcho from error

    async def _lost_within(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._lost.wait()
        except TimeoutError:
            return
        raise ConnectionError("the connection was closed")
