"""Bulk handlers for tests of bulk handlers: plain ones, and ones that write an effect for each item."""

from collections.abc import Callable
from typing import Any

import pytest

from holdfast import (
    Bulk,
    BulkHandler,
    Retry,
)
from tests.worker.stage import Stage

AT_ONCE = Retry(max_attempts=5, first_delay=0, max_delay=0, jitter=0)
COLOURS = pytest.mark.parametrize("colour", ["async", "def"])

Act = Callable[[list[int], Bulk], Any]


def written(stage: Stage) -> list[int]:
    return [row[0] for row in stage.sql("select what from effects order by what")]


def insert(what: int) -> str:
    return f"insert into effects (what) values ({what})"  # noqa: S608 - a number of the test


def nothing(_: list[int], __: Bulk) -> None: ...


def plain(stage: Stage, colour: str, act: Act, **options: Any) -> BulkHandler[int, Any]:
    """A bulk handler that gives what `act` gives."""
    options = {"retry": AT_ONCE} | options
    if colour == "async":

        @stage.hf.bulk(**options)
        async def index(pages: list[int], bulk: Bulk) -> Any:
            return act(pages, bulk)
    else:

        @stage.hf.bulk(**options)
        def index(pages: list[int], bulk: Bulk) -> Any:
            return act(pages, bulk)

    return index


def writing(
    stage: Stage, colour: str, before: Act = nothing, inside: Act = nothing, after: Act = nothing, **options: Any
) -> BulkHandler[int, Any]:
    """A bulk handler that writes an effect for each item in `bulk.transaction()`."""
    options = {"retry": AT_ONCE} | options
    if colour == "async":

        @stage.hf.bulk(**options)
        async def index(pages: list[int], bulk: Bulk) -> Any:
            before(pages, bulk)
            async with bulk.transaction() as tx:
                for page in pages:
                    await tx.execute(insert(page))
                inside(pages, bulk)
            return after(pages, bulk)
    else:

        @stage.hf.bulk(**options)
        def index(pages: list[int], bulk: Bulk) -> Any:
            before(pages, bulk)
            with bulk.transaction() as tx:
                for page in pages:
                    tx.execute(insert(page))
                inside(pages, bulk)
            return after(pages, bulk)

    return index


def add(stage: Stage, index: BulkHandler[int, Any], count: int, **options: Any) -> list[Any]:
    return stage.hf.enqueue_many([index.using(**options).bind(n) for n in range(count)])
