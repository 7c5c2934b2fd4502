"""What a handler leaves behind: the pool has its place again, and a connection as it was opened."""

import asyncio
from typing import Any, NoReturn

import pytest

from holdfast import Handler, Holdfast, Job, Retry
from tests.worker.stage import Stage

ONCE = Retry(max_attempts=1)
COLOURS = pytest.mark.parametrize("colour", ["async", "def"])


@pytest.fixture
def hf(stage: Stage) -> Holdfast:
    """An application with one connection: who comes next gets the one that was given back."""
    return stage.app(pool_size=1, connect_timeout=2, busy_timeout=2)


class Unlikely(BaseException):
    pass


def refuse(*_: object) -> NoReturn:
    raise Unlikely("not like this")


class Masked(Exception):
    """Says nothing about its class."""

    __class__ = property(refuse)  # type: ignore[assignment]


class MaskedExit(BaseException):
    __class__ = property(refuse)  # type: ignore[assignment]


async def one_after_the_other(stage: Stage, hf: Holdfast, *handlers: Handler[[], Any]) -> list[Any]:
    """Run a job of each handler; enqueued on other connections, so that the pool's one is the handlers' alone."""
    found = []
    with Holdfast(stage.url) as other:
        async with hf.worker(poll=0.05):
            for handler in handlers:
                found.append(other.enqueue(handler.kind, check=False, max_attempts=1))
                await stage.until_empty()
    await hf.aclose()
    return found


@COLOURS
@pytest.mark.parametrize("error", [Masked, MaskedExit])
def test_an_error_that_hides_its_class_costs_the_pool_no_place(
    stage: Stage, hf: Holdfast, colour: str, error: type[BaseException]
) -> None:
    if colour == "async":

        @hf.job(retry=ONCE)
        async def bad(job: Job) -> None:
            async with job.transaction():
                raise error

        @hf.job(retry=ONCE)
        async def good(job: Job) -> None:
            async with job.transaction() as tx:
                await tx.execute("select 1")
    else:

        @hf.job(retry=ONCE)
        def bad(job: Job) -> None:
            with job.transaction():
                raise error

        @hf.job(retry=ONCE)
        def good(job: Job) -> None:
            with job.transaction() as tx:
                tx.execute("select 1")

    jobs = asyncio.run(one_after_the_other(stage, hf, bad, good))
    assert [stage.state(job) for job in jobs] == ["dead", "done"]


def test_an_error_that_hides_its_class_stops_the_worker_that_it_leaves(sqlite_stage: Stage) -> None:
    @sqlite_stage.hf.job
    async def noop() -> None: ...

    async def scene() -> bool:
        worker = sqlite_stage.hf.worker()
        try:
            async with worker:
                raise Masked
        except Masked:
            return worker.stopping
        finally:
            await sqlite_stage.hf.aclose()

    assert asyncio.run(scene())
