"""What a turn of the prune round deletes: everything that is old enough, and no heap keeps another waiting."""

import itertools
from types import SimpleNamespace

import pytest

from holdfast import Holdfast, events, jobs
from holdfast.testing.make import new_job
from holdfast.worker import Worker
from holdfast.worker.rounds import prune
from holdfast.worker.rounds.prune import Prune
from tests.worker.stage import Stage


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Prune, "every_seconds", 0.02)
    monkeypatch.setattr(prune, "PRUNE_CHUNK", 10)


def add_expired_keys(stage: Stage, count: int) -> None:
    stage.run(jobs.enqueue_many([new_job(idempotency_key=f"key {n}", window_ms=1) for n in range(count)]))


def keys_left(stage: Stage) -> int:
    [[count]] = stage.sql("select count(*) from holdfast_keys")
    return int(count)


def test_a_turn_deletes_expired_keys_chunk_by_chunk_until_none_is_left(stage: Stage) -> None:
    stage.hf.job(_act)
    add_expired_keys(stage, 35)

    async def body(_: Worker) -> None:
        [told, *_] = await stage.until_said(events.Pruned)
        assert told.keys == 35

    stage.work(body)
    assert keys_left(stage) == 0


def test_many_finished_jobs_of_one_queue_do_not_keep_those_of_another_waiting(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = queues_kept_for(stage, 3600)
    app.enqueue_many([app.bind("busy", {}) for _ in range(200)] + [app.bind("quiet", {}) for _ in range(15)])
    stage.work(stage.until_empty, app)

    # Nothing was old enough until now. Time for three chunks a turn.
    ticks = itertools.count()
    monkeypatch.setattr(prune, "time", SimpleNamespace(monotonic=lambda: float(next(ticks))))
    monkeypatch.setattr(prune, "PRUNE_TURN_SECONDS", 4.0)

    async def body(_: Worker) -> None:
        await stage.until(lambda: not kept(stage, "quiet"), "the jobs of the other queue are gone")
        assert kept(stage, "busy")

    stage.work(body, queues_kept_for(stage, 0.001))


def queues_kept_for(stage: Stage, seconds: float) -> Holdfast:
    app = stage.app()
    for name in ("busy", "quiet"):
        app.queue(name, retention=seconds)
        app.job(queue=name, kind=name)(_act)
    return app


def kept(stage: Stage, queue: str) -> int:
    [[count]] = stage.sql("select count(*) from holdfast_finished where queue = ?", queue)
    return int(count)


async def _act() -> None: ...
