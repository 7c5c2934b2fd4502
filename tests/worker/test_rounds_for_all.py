"""What one worker does for all: one of them prunes, and another takes over when it is gone."""

import asyncio
from collections import Counter
from datetime import UTC, datetime

import pytest

from holdfast import Holdfast, admin, events
from holdfast.worker import Worker, registry
from holdfast.worker.rounds import base
from holdfast.worker.rounds.prune import Prune
from tests.worker.stage import Stage


@pytest.fixture
def turns(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count who prunes, and let turns come quickly; what is taken stays taken for ten seconds."""
    turns: Counter[str] = Counter()

    async def run(self: Prune) -> None:
        turns[self.context.worker] += 1

    monkeypatch.setattr(Prune, "run", run)
    monkeypatch.setattr(Prune, "every_seconds", 0.02)
    monkeypatch.setattr(base, "TURNS_PER_LEASE", 500)
    return turns


def served(stage: Stage, **queue: float) -> Holdfast:
    hf = stage.app()
    hf.job(_act)
    for name, retention in queue.items():
        hf.queue(name, retention=retention)
    return hf


async def _act() -> None: ...


def test_one_worker_prunes_for_all(stage: Stage, turns: Counter[str]) -> None:
    apps = [served(stage) for _ in range(3)]

    async def scene() -> None:
        async with apps[0].worker(), apps[1].worker(), apps[2].worker():
            await stage.until(lambda: turns.total() >= 5, "five turns")
        for app in apps:
            await app.aclose()

    asyncio.run(scene())
    assert len(turns) == 1


def test_workers_that_keep_jobs_for_other_times_prune_beside_each_other(stage: Stage, turns: Counter[str]) -> None:
    apps = [served(stage, mail=60), served(stage, mail=0)]

    async def scene() -> None:
        async with apps[0].worker(), apps[1].worker():
            await stage.until(lambda: len(turns) == 2, "both")
        for app in apps:
            await app.aclose()

    asyncio.run(scene())


def test_another_worker_takes_over_when_the_one_is_gone(
    stage: Stage, turns: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base, "TURNS_PER_LEASE", 5)
    apps = [served(stage), served(stage)]

    async def scene() -> None:
        async with apps[1].worker() as stays:
            async with apps[0].worker():
                await stage.until(lambda: turns, "a turn")
            await stage.until(lambda: turns[stays.id] > 1, "the other's turn")
        for app in apps:
            await app.aclose()

    asyncio.run(scene())


def test_audit_lines_are_pruned_by_what_the_application_says(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Prune, "every_seconds", 0.02)
    hf = stage.app(audit_retention=3600)
    hf.job(_act)
    hf.pause("old")
    stage.sql("update holdfast_audit set at = ?", 1 if stage.is_sqlite else datetime(2001, 1, 1, tzinfo=UTC))
    hf.pause("new")

    async def body(_: Worker) -> None:
        [told] = await stage.until_said(events.Pruned)
        assert (told.jobs, told.keys, told.audit) == (0, 0, 1)

    stage.work(body, hf)
    assert [line.detail["queue"] for line in stage.run(admin.audit())] == ["new"]


def test_workers_that_keep_audit_lines_for_other_times_prune_beside_each_other(stage: Stage) -> None:
    one, other = stage.app(), stage.app(audit_retention=3600)
    assert one.context.retention_digest() != other.context.retention_digest()


def test_taking_turns_says_nothing_in_the_log(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    """A driver may log what a statement has ignored, and this one is run every few seconds."""
    store = stage.app().store

    async def scene() -> list[bool]:
        taken = [await store.arun(registry.take_round("prune", worker, 10_000)) for worker in ("a", "a", "b")]
        await store.aclose()
        return taken

    assert asyncio.run(scene()) == [True, True, False]
    assert caplog.messages == []
