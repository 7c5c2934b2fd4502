"""How a worker's parts are joined: what it serves, who settles what, and what wakes its claims."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from holdfast.errors import ConfigError, Conflict, SchemaMismatch, SchemaMissing
from holdfast.flow import Flow
from holdfast.handlers import Registration
from holdfast.jobs.source import JobsSource
from holdfast.life.source import Source
from holdfast.resources import Hooks, Resources
from holdfast.store import Shards, Store
from holdfast.values.options import text
from holdfast.values.payload import encode_value
from holdfast.values.queues import QueueSettings
from holdfast.values.reserved import is_route
from holdfast.values.urls import shown
from holdfast.values.words import shards_named
from holdfast.worker.branch import Branch, Served
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


async def unless(
    event: asyncio.Event, work: Awaitable[Any] | Callable[[], Awaitable[Any]], timeout: float | None = None
) -> None:
    """Wait for work until an event or a time-out; work that is a task of its own is not cancelled.

    A function is called when the wait begins: a coroutine that nobody comes to wait for would be left over.
    """
    waits = [asyncio.ensure_future(work() if callable(work) else work), asyncio.ensure_future(event.wait())]
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


def branches_of(
    whole: Store,
    ours: Mapping[int, Served],
    beside: Sequence[Served],
    said: Mapping[str, QueueSettings],
    receiving: int,
) -> list[Branch]:
    """Make the branches of a worker: for its own store or each shard it serves, and for foreign tables elsewhere."""
    first, count = min(ours), len(ours)
    made = {
        number: Branch(
            served,
            first=number == first,
            registers=True,
            shards=count,
            said=said,
            receiving=0 if number != first else receiving,
        )
        for number, served in ours.items()
    }
    if isinstance(whole, Shards):
        for number, branch in made.items():
            branch.shard = (whole, number)
            for source in branch.sources:
                if isinstance(source, JobsSource):
                    source.check_next = partial(whole.check_next, number)
    return [*made.values(), *(Branch(served, first=False, said=said) for served in beside)]


def served_shards(said: Sequence[int] | None, whole: Store) -> list[int]:
    """List the numbers of the shards that a worker serves; without shards, 0. Raises: ConfigError."""
    count = len(whole.stores) if isinstance(whole, Shards) else 0
    if said is None:
        return list(range(max(count, 1)))
    if not count:
        raise ConfigError("shards", "is for an application with shards: this one has a single store", said)
    given: object = said
    if isinstance(given, str) or not said or not all(type(one) is int for one in said):
        raise ConfigError("shards", "must be a list of whole numbers, as in [0, 2]", said)
    if strange := [one for one in said if not 0 <= one < count]:
        there = shards_named(range(count)).partition(" ")[2]
        raise ConfigError("shards", f"there is no {shards_named(strange)}; the application has {there}", said)
    return sorted(set(said))


async def check(branches: Sequence[Branch]) -> None:
    """Check the tables on every store that answers.

    Raises: what a branch finds, of a shard by its name; Conflict where the map has more shards than the application.
    """
    # Side by side, because one may be long in coming; and all to their end, before any connection is closed.
    checks = await asyncio.gather(*(branch.check() for branch in branches), return_exceptions=True)
    for branch, failed in zip(branches, checks, strict=True):
        if branch.shard is not None and isinstance(failed, SchemaMissing | SchemaMismatch):
            failed.args = (f"Shard {branch.shard[1]} ({shown(branch.home.url)}): {failed}",)
        if failed is not None:
            raise failed
    for shards in {branch.shard[0] for branch in branches if branch.shard is not None}:
        if shards.known is not None and (why := shards.known.left_out(len(shards.stores))):
            raise Conflict(f"The worker does not start: {why}")


async def register(branches: Iterable[Branch], beat: Flow[Any]) -> None:
    """Join the registry: of the application's store, or of every shard that answers, and one of them must."""
    stores = [branch.store for branch in branches if branch.registers]
    if len(stores) == 1:
        await stores[0].arun(beat)
        return
    tried = await asyncio.gather(*(store.arun_once(beat) for store in stores), return_exceptions=True)
    failed = [one for one in tried if isinstance(one, BaseException)]
    if len(failed) == len(tried):
        raise failed[0]


def set_aside(branches: Iterable[Branch], owned: Collection[int]) -> bool:
    """Leave the shards of other numbers to other workers of a ring; returns whether that is a change."""
    shards = [branch for branch in branches if branch.shard is not None]
    aside = [branch.shard is not None and branch.shard[1] not in owned for branch in shards]
    moved = [branch.aside for branch in shards] != aside
    for branch, is_aside in zip(shards, aside, strict=True):
        branch.aside = is_aside
        branch.wake.set()
    return moved


def described(handlers: Mapping[str, Registration[..., Any]], **about: Any) -> str:
    """Write what the registry keeps of a worker: where it runs, its packages (a script by hand has none), and more."""
    modules = (str(getattr(handler.fn, "__module__", "")) for handler in handlers.values())
    packages = {module.partition(".")[0] for module in modules} - {"", "__main__", "holdfast"}
    origin = {"host": socket.gethostname(), "pid": os.getpid(), "packages": sorted(packages)}
    return encode_value(origin | about, "worker info")
