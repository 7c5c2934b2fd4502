"""What a worker says of its company: kinds that nobody handles, and other applications with kinds of its own."""

import asyncio
import json
from typing import Any

import pytest

from holdfast import Holdfast, events
from holdfast.observe.sampling import due_kinds
from holdfast.worker import Worker, registry
from holdfast.worker.rounds import base, company
from tests.worker.stage import Stage


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(company, "FIRST_LOOK_SECONDS", 0.01)


def beat(stage: Stage, worker: str, *, packages: list[str], kinds: list[str], queue: str = "default") -> None:
    info = {"queues": [queue], "kinds": kinds, "packages": packages}
    stage.run(registry.beat(worker, json.dumps(info)))


def unhandled(stage: Stage) -> list[tuple[str, str, int]]:
    return sorted((one.queue, one.kind, one.due) for one in stage.heard(events.KindUnhandled))


def some_handler(hf: Holdfast) -> None:
    @hf.job
    async def act() -> None: ...


def test_due_jobs_of_kinds_that_no_live_worker_handles_are_told_at_the_start(stage: Stage) -> None:
    some_handler(stage.hf)
    for kind in ("forgotten", "forgotten", "of another"):
        stage.put(kind, "{}")
    # Neither is due in a queue that this worker serves.
    stage.put("forgotten", "{}", queue="mail")
    stage.hf.enqueue("later", {}, run_after=3600, check=False)
    beat(stage, "another", packages=[], kinds=["of another"])

    async def body(_: Worker) -> None:
        await stage.until_said(events.KindUnhandled)

    stage.work(body)
    assert unhandled(stage) == [("default", "forgotten", 2)]
    [told] = stage.heard(events.KindUnhandled)
    assert told.oldest >= 0


def test_a_kind_that_comes_later_is_told_once_by_one_worker_for_all(
    sqlite_stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = sqlite_stage
    monkeypatch.setattr(company.Company, "every_seconds", 0.02)
    # What one of them has taken stays taken for ten seconds: on a busy machine the other would take over.
    monkeypatch.setattr(base, "TURNS_PER_LEASE", 500)
    some_handler(stage.hf)
    looks: list[str] = []
    look = company.Company.run

    async def counted(self: company.Company) -> None:
        await look(self)
        looks.append(self.context.worker)

    monkeypatch.setattr(company.Company, "run", counted)

    async def body(_: Worker) -> None:
        async with stage.hf.worker():
            await stage.until(lambda: len(set(looks)) == 2)
            assert unhandled(stage) == []
            await asyncio.to_thread(stage.put, "forgotten", "{}")
            await stage.until_said(events.KindUnhandled)
            seen = len(looks)
            await stage.until(lambda: len(looks) > seen + 3)

    stage.work(body)
    assert unhandled(stage) == [("default", "forgotten", 1)]


def test_a_worker_of_many_queues_looks_at_some_of_them_each_time_and_tells_of_all_in_the_end(
    sqlite_stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage, names = sqlite_stage, [f"queue {n}" for n in range(5)]
    monkeypatch.setattr(company.Company, "every_seconds", 0.02)
    monkeypatch.setattr(company, "QUEUES_OF_A_LOOK", 2)
    some_handler(stage.hf)
    for name in names:
        stage.put("forgotten", "{}", queue=name)
    asked: list[set[str]] = []

    def counted(queues: Any) -> Any:
        asked.append(set(queues))
        return due_kinds(queues)

    monkeypatch.setattr(company, "due_kinds", counted)

    async def body(_: Worker) -> None:
        await stage.until(lambda: len(unhandled(stage)) == len(names))
        seen = len(asked)
        await stage.until(lambda: len(asked) > seen + 5)

    stage.work(body, queues=names)
    assert unhandled(stage) == [(name, "forgotten", 1) for name in names]
    assert {len(queues) for queues in asked} == {2}


@pytest.mark.parametrize(
    "packages, kinds, told",
    [
        (["blog"], ["act", "post"], [("act", "blog")]),
        (["blog"], ["post"], []),
        (["tests"], ["act"], []),
        ([], ["act"], []),
    ],
    ids=["shared", "none shared", "same package", "unknown"],
)
def test_another_application_with_the_same_kind_is_told_at_the_start(
    sqlite_stage: Stage, packages: list[str], kinds: list[str], told: list[Any]
) -> None:
    stage = sqlite_stage
    some_handler(stage.hf)
    stage.put("forgotten", "{}")
    beat(stage, "one", packages=packages, kinds=kinds)
    beat(stage, "two", packages=packages, kinds=kinds)

    async def body(_: Worker) -> None:
        # The same turn tells of both, without a wait in between.
        await stage.until_said(events.KindUnhandled)

    stage.work(body)
    assert [(one.kinds[0], one.packages[0]) for one in stage.heard(events.KindShared)] == told
