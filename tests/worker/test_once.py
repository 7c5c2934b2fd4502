"""Effects that happen once: job.once() inside job.transaction(), in both colours, alone and sharing a commit."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from holdfast import Handler, Job, Retry
from holdfast.errors import TransactionError, WrongColour
from tests.worker.stage import Stage

AT_ONCE = Retry(max_attempts=3, first_delay=0, max_delay=0, jitter=0)
COLOURS = pytest.mark.parametrize("colour", ["async", "def"])
COMMITS = pytest.mark.parametrize("commit", ["alone", "together"])
INSERT = "insert into effects (what) values ('charged')"

Then = Callable[[Job, bool], None]


def nothing(_job: Job, _first: bool) -> None: ...


def charging(stage: Stage, colour: str, commit: Any = "alone", then: Then = nothing, kind: str = "charge") -> Any:
    """Register a handler that charges once for its key, and calls `then` before its transaction ends."""
    if colour == "async":

        async def charge(job: Job, key: str) -> None:
            async with job.transaction() as tx:
                async with job.once(key) as first:
                    if first:
                        await tx.execute(INSERT)
                then(job, first)
    else:

        def charge(job: Job, key: str) -> None:
            with job.transaction() as tx:
                with job.once(key) as first:
                    if first:
                        tx.execute(INSERT)
                then(job, first)

    handler: Handler[..., Any] = stage.hf.job(kind=kind, retry=AT_ONCE, commit=commit)(charge)
    return handler


@pytest.fixture
def stage(stage: Stage) -> Stage:
    stage.sql("create table effects (what text)")
    return stage


def charged(stage: Stage) -> int:
    return len(stage.sql("select what from effects"))


@COMMITS
@COLOURS
def test_jobs_with_one_key_have_one_effect(stage: Stage, colour: str, commit: str) -> None:
    said: list[bool] = []
    handler = charging(stage, colour, commit, lambda _, first: said.append(first))
    other = charging(stage, colour, commit, lambda _, first: said.append(first), kind="charge_again")
    jobs = [each.enqueue(key="charge:1") for each in (handler, handler, other, other)]
    stage.work()
    assert {stage.state(job) for job in jobs} == {"done"}
    assert sorted(said) == [False, False, False, True]
    assert charged(stage) == 1


@COMMITS
@COLOURS
def test_an_attempt_that_rolls_back_leaves_its_key_to_the_next(stage: Stage, colour: str, commit: str) -> None:
    said: list[bool] = []

    def fail_once(job: Job, first: bool) -> None:
        said.append(first)
        if job.attempt == 1:
            raise ValueError("not this time")

    job = charging(stage, colour, commit, fail_once).enqueue(key="charge:1")
    stage.work(poll=0.05)
    assert (stage.state(job), said, charged(stage)) == ("done", [True, True], 1)


@COMMITS
@COLOURS
def test_whatever_leaves_the_block_takes_the_key_back(stage: Stage, colour: str, commit: Any) -> None:
    firsts: list[bool] = []
    if colour == "async":

        async def effect(job: Job) -> None:
            async with job.transaction():
                with suppress(TimeoutError):
                    async with asyncio.timeout(None) as scope, job.once("charge:1") as first:
                        firsts.append(first)
                        if len(firsts) == 1:
                            # It ends the block by CancelledError, and the handler goes on.
                            scope.reschedule(0)
                            await asyncio.sleep(60)
    else:

        def effect(job: Job) -> None:
            with job.transaction(), suppress(SystemExit), job.once("charge:1") as first:
                firsts.append(first)
                if len(firsts) == 1:
                    raise SystemExit("whatever")

    handler: Handler[..., Any] = stage.hf.job(kind="effect", commit=commit)(effect)
    for _ in range(3):
        handler.enqueue()
    stage.work(concurrency=1)
    assert firsts == [True, True, False]


@COLOURS
def test_outside_a_transaction_the_guard_is_refused(sqlite_stage: Stage, colour: str) -> None:
    stage = sqlite_stage
    caught: list[str] = []

    async def astray(job: Job) -> None:
        async with job.transaction():
            pass
        with pytest.raises(TransactionError) as error:
            async with job.once("charge:1"):
                raise AssertionError("not reached")
        caught.append(str(error.value))

    def bad(job: Job) -> None:
        with pytest.raises(TransactionError) as error, job.once("charge:1"):
            raise AssertionError("not reached")
        caught.append(str(error.value))

    stage.hf.job(kind="astray")(astray if colour == "async" else bad).enqueue()
    stage.work()
    assert len(caught) == 1
    assert "with job.transaction()" in caught[0]
    assert "tx=" in caught[0]


def test_a_sync_block_in_an_async_transaction_is_refused(stage: Stage) -> None:
    caught: list[str] = []

    @stage.hf.job
    async def mixed(job: Job) -> None:
        async with job.transaction():
            with pytest.raises(WrongColour) as error, job.once("charge:1"):
                raise AssertionError("not reached")
            caught.append(str(error.value))

    job = mixed.enqueue()
    stage.work()
    assert stage.state(job) == "done"
    assert "`async with job.once" in caught[0]


def test_two_jobs_at_the_same_time_wait_for_each_other(stage: Stage) -> None:
    if stage.is_sqlite:
        pytest.skip("SQLite lets one transaction write at a time")
    inside = 0
    both = asyncio.Event()
    said: list[bool] = []

    @stage.hf.job
    async def charge(job: Job) -> None:
        nonlocal inside
        async with job.transaction() as tx:
            inside += 1
            if inside == 2:
                both.set()
            await both.wait()
            async with job.once("charge:1") as first:
                said.append(first)
                if first:
                    await tx.execute(INSERT)

    for _ in range(2):
        charge.enqueue()
    stage.work()
    assert sorted(said) == [False, True]
    assert charged(stage) == 1
