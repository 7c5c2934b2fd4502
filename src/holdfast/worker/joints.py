"""How a worker's parts are joined: what it serves, who settles what, and what wakes its claims."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

from holdfast.errors import ConfigError
from holdfast.handlers import Registration
from holdfast.life.source import Source
from holdfast.resources import Hooks, Resources
from holdfast.values.options import text
from holdfast.values.reserved import is_route
from holdfast.worker.branch import Branch
from holdfast.worker.settler import Settler
from holdfast.worker.work import Ended


def served_queues(queues: Sequence[str] | None, handlers: Mapping[str, Registration[..., Any]]) -> list[str]:
    if isinstance(queues, str):
        raise ConfigError("queues", "must be a list of names, not one text", queues)
    named = list(dict.fromkeys(queues or [q for h in handlers.values() for q in (h.options.queue, *h.serves)]))
    return [text(name, "queues", 100) for name in named if not is_route(name)]


def resources(hooks: Hooks, sources: Sequence[Source]) -> Resources:
    """Make what runs the hooks of one worker. Raises: ConfigError where a handler asks for what none of them gives."""
    hooks.check((kind, one.signature) for source in sources for kind, one in source.handlers.items())
    return hooks.resources()


def running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


async def unless(event: asyncio.Event, work: Awaitable[Any], timeout: float | None = None) -> None:
    """Wait for work until an event or a time-out; work that is a task of its own is not cancelled."""
    waits = [asyncio.ensure_future(work), asyncio.ensure_future(event.wait())]
    try:
        await asyncio.wait(waits, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            if wait is not work:
                wait.cancel()


def settling(settlers: Mapping[Source, Settler]) -> Callable[[Ended], asyncio.Event | None]:
    """Return what hands an outcome to the settler of its store; with one store, that is the settler itself."""
    if len(set(settlers.values())) == 1:
        return next(iter(settlers.values())).add_and_hold
    return lambda ended: settlers[ended.work.source].add_and_hold(ended)


def waking(branches: Sequence[Branch]) -> Callable[[], None]:
    """Return what lets the claims of every store look again at once."""
    if len(branches) == 1:
        return branches[0].wake.set

    def wake() -> None:
        for branch in branches:
            branch.wake.set()

    return wake


def origin_of(handlers: Iterable[Registration[..., Any]]) -> dict[str, Any]:
    """Say where a worker runs, and of which packages its handlers are; a script run by hand has none."""
    modules = (str(getattr(handler.fn, "__module__", "")) for handler in handlers)
    packages = {module.partition(".")[0] for module in modules} - {"", "__main__", "holdfast"}
    return {"host": socket.gethostname(), "pid": os.getpid(), "packages": sorted(packages)}
