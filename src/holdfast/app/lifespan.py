"""The part of an ASGI server's life that an application needs: connections, and a worker beside the server."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any

from holdfast.errors import ConfigError, HoldfastError, WorkerFailed
from holdfast.events import log
from holdfast.store import migrate
from holdfast.values.failure import type_name, words

if TYPE_CHECKING:
    from holdfast.store import Store
    from holdfast.worker import Worker

# An ASGI framework's own: called with its application, it gives a block around the server's life.
OwnLifespan = Callable[[Any], AbstractAsyncContextManager[Any]]
# A worker that broke, which is a defect, is followed by another: the server goes on, and so must its jobs.
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.5, 30.0


class Lifespan(AbstractAsyncContextManager[None]):
    """What `hf.lifespan(…)` gives: for `FastAPI(lifespan=…)`, or `async with` inside a lifespan of your own."""

    def __init__(
        self,
        store: Store,
        close: Callable[[], Awaitable[None]],
        own: OwnLifespan | None,
        check: bool,
        make_worker: Callable[[], Worker] | None,
    ) -> None:
        _refuse_what_gives_no_block(own)
        self._store = store
        self._close = close
        self._own = own
        self._check = check
        self._make_worker = make_worker
        self._entered: list[AsyncExitStack] = []

    @asynccontextmanager
    async def __call__(self, server: Any = None, /) -> AsyncIterator[Any]:
        """Open around the life of a server; what the application's own lifespan yields is passed on."""
        async with self._opened():
            if self._own is None:
                yield None
            else:
                async with self._own(server) as state:
                    yield state

    async def __aenter__(self) -> None:
        stack = AsyncExitStack()
        await stack.enter_async_context(self())
        self._entered.append(stack)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return await self._entered.pop().__aexit__(kind, error, trace)

    @asynccontextmanager
    async def _opened(self) -> AsyncIterator[None]:
        store = self._store
        try:
            if self._check and not store.in_memory:
                await store.arun_once(migrate.check(store.schema_version))
            if self._make_worker is None:
                yield
            else:
                async with _working(self._make_worker):
                    yield
        finally:
            await self._close()


def _refuse_what_gives_no_block(own: Any) -> None:
    """Raises: ConfigError, when the application is made and not when its server starts."""
    if own is None or (callable(own) and not inspect.isasyncgenfunction(own) and not inspect.isgeneratorfunction(own)):
        return
    rule = "your own lifespan must be a function with @contextlib.asynccontextmanager above it"
    raise ConfigError("lifespan", rule, own)


@asynccontextmanager
async def _working(make: Callable[[], Worker]) -> AsyncIterator[None]:
    """Run a worker in a task of its own: the server's must not be cancelled when a worker breaks."""
    stopping, ready = asyncio.Event(), asyncio.Event()
    working = asyncio.create_task(_work(make, ready, stopping), name="holdfast-lifespan")
    started = asyncio.create_task(ready.wait())
    try:
        await asyncio.wait([working, started], return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            # It did not start; what it raised says why.
            working.result()
        yield
    finally:
        started.cancel()
        stopping.set()
        await asyncio.wait([working])
    working.result()


async def _work(make: Callable[[], Worker], ready: asyncio.Event, stopping: asyncio.Event) -> None:
    pause = FIRST_PAUSE_SECONDS
    while not stopping.is_set():
        begun = False
        try:
            async with make():
                begun = True
                ready.set()
                await stopping.wait()
        except Exception as error:
            # Why the first one cannot start, and what goes wrong at the server's end, the server is told. One that
            # cannot follow another now, because a broker is away, may do so later.
            ends = stopping.is_set() if begun else not ready.is_set()
            if ends and not isinstance(error, WorkerFailed):
                raise
            cause = None if isinstance(error, HoldfastError) else error
            what = str(error) if cause is None else f"A worker could not start: {type_name(error)}: {words(error)}"
            log.error("%s. Another one is started in %.1f s.", what.rstrip("."), pause, exc_info=cause)
            await asyncio.wait([asyncio.ensure_future(stopping.wait())], timeout=pause)
            pause = min(LONGEST_PAUSE_SECONDS, pause * 2)
