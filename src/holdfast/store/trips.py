"""What is asked of shards, and what they answer: decisions about it are generators, written once for both colours."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any, NamedTuple, TypeVar

from holdfast.errors import HoldfastError
from holdfast.flow import Flow
from holdfast.store.store import Store

T = TypeVar("T")


class Asked(NamedTuple):
    """One flow for one shard; `tx`: in this transaction of the caller's. An answer may be the error that came of it."""

    store: Store
    work: Flow[Any]
    again: Callable[[], Flow[Any]] | None = None
    tx: Any = None
    what: str = ""
    once: bool = False


# What is asked of shards, side by side, until there is an answer.
Trips = Generator[Sequence[Asked], Sequence[Any], T]


def tried(asked: Asked) -> Any:
    """Ask on this thread; what a shard answers may be an error."""
    store, work = asked.store, asked.work
    try:
        if asked.tx is not None:
            return store.run_in(asked.tx, work, asked.what)
        return store.run_once(work) if asked.once else store.run(work, asked.again)
    except HoldfastError as error:
        return error


async def atried(asked: Asked) -> Any:
    """The async twin of `tried`."""
    store, work = asked.store, asked.work
    try:
        if asked.tx is not None:
            return await store.arun_in(asked.tx, work, asked.what)
        return await (store.arun_once(work) if asked.once else store.arun(work, asked.again))
    except HoldfastError as error:
        return error


def value_of(answer: Any) -> Any:
    """Return what a shard answered. Raises: what came of it instead."""
    if isinstance(answer, HoldfastError):
        raise answer
    return answer
