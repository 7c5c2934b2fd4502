"""Fixtures of the conformance suite: import `clock`, `colour`, `do` and `look` beside a `store` fixture of your own.

store   a Store that is migrated and empty: yours to define
colour  "sync" and "async": each test runs in both
do      `do(flow)` runs a flow in a transaction of its own and returns its value or raises
clock   the time the store sees: `clock.now`, `clock.advance(seconds)`, `clock.pass_lease(lease)`
look    the rows as they are: `look.live()`, `look.over()`, `look.key_rows()`
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any, Literal

import pytest

from holdfast.flow import Flow
from holdfast.store import Store
from holdfast.testing.clock import Clock
from holdfast.testing.look import Do, Look

__all__ = ["clock", "colour", "do", "look"]

Colour = Literal["sync", "async"]


@pytest.fixture(params=["sync", "async"])
def colour(request: pytest.FixtureRequest) -> Colour:
    """The colour a test runs in."""
    chosen: Colour = request.param
    return chosen


@pytest.fixture
def clock(store: Store) -> Clock:
    """The time that the store sees."""
    return Clock(store)


@pytest.fixture
def do(store: Store, colour: Colour) -> Iterator[Do]:
    """Run a flow on the store, in the test's colour."""
    if colour == "sync":
        yield store.run
        return
    with asyncio.Runner() as runner:

        def arun(work: Flow[Any], again: Callable[[], Flow[Any]] | None = None) -> Any:
            return runner.run(store.arun(work, again))

        yield arun
        runner.run(store.aclose())


@pytest.fixture
def look(do: Do, store: Store) -> Look:
    """The rows as they are."""
    return Look(do, store)
