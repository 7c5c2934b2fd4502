"""An application that lives as long as an ASGI server, with and without a worker beside it."""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from holdfast import ConfigError, Holdfast, HookFailed, SchemaMissing
from holdfast.app import lifespan
from holdfast.testing.inline import enqueued
from holdfast.worker import Worker


@pytest.fixture
def hf(sqlite_url: str) -> Iterator[Holdfast]:
    app = Holdfast(sqlite_url)
    app.migrate()
    yield app
    app.close()


def run(scene: Any) -> None:
    async def limited() -> None:
        async with asyncio.timeout(30):
            await scene

    asyncio.run(limited())


def test_it_wraps_the_applications_own_lifespan_and_passes_its_state_on(hf: Holdfast) -> None:
    told: list[str] = []

    @asynccontextmanager
    async def own(server: str) -> AsyncIterator[dict[str, str]]:
        await act.aenqueue()
        told.append(server)
        yield {"pool": "open"}
        told.append("own ends")

    @hf.job
    async def act() -> None: ...

    async def scene() -> None:
        # Servers of tests are started again and again.
        for _ in range(2):
            async with hf.lifespan(own)("server") as state:
                assert state == {"pool": "open"}

    run(scene())
    assert told == ["server", "own ends"] * 2
    assert len(enqueued(hf)) == 2


def test_a_worker_runs_beside_the_server_and_drains_before_it_ends(hf: Holdfast) -> None:
    told: list[str] = []
    began = asyncio.Event()

    @hf.on_start
    async def hook() -> AsyncIterator[None]:
        yield
        told.append("hook ends")

    @hf.job
    async def act() -> None:
        began.set()
        await asyncio.sleep(0.05)
        told.append("job is over")

    async def scene() -> None:
        async with hf.lifespan(worker=True, concurrency=2, poll=0.02):
            await act.aenqueue()
            await began.wait()
        told.append("the server ends")

    run(scene())
    assert told == ["job is over", "hook ends", "the server ends"]


def test_a_server_does_not_start_without_tables_or_with_a_hook_that_fails(hf: Holdfast, tmp_path: Any) -> None:
    @hf.job
    async def act() -> None: ...

    @hf.on_start
    async def hook() -> None:
        raise OSError("no route to host")

    async def scene() -> None:
        bare = Holdfast(f"sqlite:///{tmp_path}/bare.db")
        with pytest.raises(SchemaMissing):
            async with bare.lifespan():
                raise AssertionError("it started")
        async with bare.lifespan(check=False):
            pass
        with pytest.raises(HookFailed, match="no route to host"):
            async with hf.lifespan(worker=True):
                raise AssertionError("it started")

    run(scene())


def test_a_worker_that_breaks_is_followed_by_another_and_the_server_goes_on(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(lifespan, "FIRST_PAUSE_SECONDS", 0.02)
    made: list[Worker] = []
    make, done = hf.worker, asyncio.Event()

    def noted(**options: Any) -> Worker:
        made.append(make(**options))
        return made[-1]

    monkeypatch.setattr(hf, "worker", noted)

    @hf.job
    async def act() -> None:
        done.set()

    async def scene() -> None:
        async with hf.lifespan(worker=True, poll=0.02):
            made[0]._break("a part", RuntimeError("a defect"))
            await act.aenqueue()
            await done.wait()

    with caplog.at_level(logging.ERROR):
        run(scene())
    assert len(made) == 2
    assert "Another one is started in" in caplog.text


@pytest.mark.parametrize("in_the_hook", [True, False])
def test_one_that_cannot_follow_at_once_follows_later(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, in_the_hook: bool
) -> None:
    monkeypatch.setattr(lifespan, "FIRST_PAUSE_SECONDS", 0.02)
    made: list[Worker] = []
    tries: list[str] = []
    make, done = hf.worker, asyncio.Event()

    def fail_twice(where: str) -> None:
        tries.append(where)
        if len(tries) in (2, 3):
            raise ConnectionError("the broker is away")

    def noted(**options: Any) -> Worker:
        if not in_the_hook:
            fail_twice("worker")
        made.append(make(**options))
        return made[-1]

    monkeypatch.setattr(hf, "worker", noted)

    @hf.on_start
    async def hook() -> None:
        if in_the_hook:
            fail_twice("hook")

    @hf.job
    async def act() -> None:
        done.set()

    async def scene() -> None:
        async with hf.lifespan(worker=True, poll=0.02):
            made[0]._break("a part", RuntimeError("a defect"))
            await act.aenqueue()
            await done.wait()

    with caplog.at_level(logging.ERROR):
        run(scene())
    assert len(tries) == 4
    said = [one.getMessage() for one in caplog.records if "Another one is started in" in one.getMessage()]
    assert len(said) == 3
    assert "the broker is away" in said[1]


def test_options_of_a_worker_need_one(hf: Holdfast) -> None:
    with pytest.raises(ConfigError, match="add worker=True"):
        hf.lifespan(concurrency=3)
    with pytest.raises(ConfigError, match=r"hf\.lifespan"):
        hf.lifespan(worker=True, concurency=3)  # type: ignore[call-arg]


def test_a_lifespan_of_ones_own_that_is_no_context_manager_is_refused_at_once(hf: Holdfast) -> None:
    async def bare(server: Any) -> AsyncIterator[None]:
        yield

    def plain(server: Any) -> Iterator[None]:
        yield

    wrong: Any
    for wrong in (bare, plain, bare(None)):
        with pytest.raises(ConfigError, match="asynccontextmanager"):
            hf.lifespan(wrong)
