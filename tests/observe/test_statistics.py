"""What a worker counts and times: each attempt once, by how it ended, and enough of them timed to tell how long."""

import asyncio
from contextlib import closing
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast import Cancel, Continue, Fatal, Job, Retry, Snooze, observe
from holdfast.flow import Steps, flow
from holdfast.observe import Figures, Folded, Tallies
from holdfast.observe.keeping import ALL_KEPT, MINUTE
from holdfast.observe.tallies import MOST_TIMED
from holdfast.store import Store
from holdfast.values.rows import Finish
from holdfast.worker import Worker
from holdfast.worker.rounds import base, sample
from holdfast.worker.rounds.merge import Merge
from tests.worker.stage import Stage


def figures(stage: Stage, kind: str | None = None) -> dict[str, int]:
    return dict(stage.run(observe.history(600)).figures(kind=kind).ended)


def test_every_end_of_an_attempt_is_counted_once_and_by_its_outcome(stage: Stage) -> None:
    @stage.hf.job(retry=Retry(max_attempts=2, first_delay=0))
    async def act(how: str, job: Job) -> Any:
        match how:
            case "fail" if job.attempt == 1:
                raise ValueError("once")
            case "die":
                raise Fatal("never")
            case "cancel":
                return Cancel("no need")
            case "snooze" if not stage.said_snooze:  # type: ignore[attr-defined]
                stage.said_snooze = True  # type: ignore[attr-defined]
                return Snooze(0)
            case "go on":
                return Continue(act.bind(how="well"))
            case "inside":
                async with job.transaction():
                    pass
        return None

    stage.said_snooze = False  # type: ignore[attr-defined]
    for how in ("well", "well", "fail", "die", "cancel", "snooze", "go on", "inside"):
        act.enqueue(how=how)
    stage.work(poll=0.02)
    assert figures(stage, "act") == {"done": 7, "retried": 1, "dead": 1, "cancelled": 1, "snoozed": 1}
    told = stage.run(observe.history(600)).figures(kind="act")
    assert told.attempts == told.runs.count == told.waits.count == 11


def test_sync_and_bulk_handlers_are_counted_too(stage: Stage) -> None:
    @stage.hf.job
    def on_a_thread(n: int) -> None: ...

    @stage.hf.bulk(size=5)
    async def together(items: list[int]) -> None: ...

    for n in range(7):
        on_a_thread.enqueue(n=n)
        together.enqueue(n)
    stage.work(poll=0.02)
    assert figures(stage, "on_a_thread") == {"done": 7}
    assert figures(stage, "together") == {"done": 7}


def test_a_lost_lease_counts_as_lost(stage: Stage) -> None:
    going = asyncio.Event()

    @stage.hf.job(lease=1)
    async def hold() -> None:
        going.set()
        await asyncio.sleep(30)

    job = hold.enqueue()

    async def body(worker: Worker) -> None:
        await going.wait()
        stage.steal(job)
        await stage.until(lambda: not worker.held)

    stage.work(body, poll=0.02)
    assert figures(stage, "hold") == {"lost": 1}


def test_the_queues_are_sampled_by_one_worker_for_all(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sample.Sampling, "every_seconds", 0.1)
    monkeypatch.setattr(sample, "PAUSE_PER_SECOND_OF_SAMPLING", 0)
    # On a busy machine a worker may be late by more than two turns of a tenth of a second.
    monkeypatch.setattr(base, "TURNS_PER_LEASE", 1_000)
    samplers: list[str] = []
    run = sample.Sampling.run

    async def watched(self: sample.Sampling) -> None:
        samplers.append(self.context.worker)
        await run(self)

    monkeypatch.setattr(sample.Sampling, "run", watched)

    @stage.hf.job(queue="slow")
    async def wait() -> None: ...

    @stage.hf.job
    async def noop() -> None: ...

    wait.using(run_after=60).enqueue()

    async def body(worker: Worker) -> None:
        async with stage.hf.worker(queues=["default"]):
            await stage.until(lambda: len(_samples(stage)) >= 5)

    stage.work(body, queues=["default"])
    assert stage.run(observe.latest()).queues["slow"].scheduled == 1
    assert len(set(samplers)) == 1


def _samples(stage: Stage) -> list[int]:
    return [int(slot) for [slot] in stage.sql("select slot from holdfast_stats where worker = 'fleet'")]


def test_what_cannot_be_afforded_is_sampled_less_often(sqlite_stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sample.Sampling, "every_seconds", 0.01)
    monkeypatch.setattr(sample, "PAUSE_PER_SECOND_OF_SAMPLING", 1e9)

    @sqlite_stage.hf.job
    async def noop() -> None: ...

    async def body(worker: Worker) -> None:
        await sqlite_stage.until(lambda: _samples(sqlite_stage))
        await asyncio.sleep(0.05)

    sqlite_stage.work(body)
    assert len(_samples(sqlite_stage)) == 1


def test_an_outage_that_is_waited_out_does_not_put_the_next_sample_off(
    sqlite_stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1_000.0]
    monkeypatch.setattr(sample, "time", SimpleNamespace(monotonic=lambda: now[0]))

    async def outlive(work: Any) -> Any:
        now[0] += 60
        return await sqlite_stage.hf.store.arun(work)

    context: Any = SimpleNamespace(patience=SimpleNamespace(outlive=outlive))
    sampling = sample.Sampling(context)
    asyncio.run(sampling.run())
    assert len(_samples(sqlite_stage)) == 1
    assert sampling.due <= now[0]


@flow
def counted(done: int) -> Steps[None]:
    yield from observe.add("w0", Folded({("mail", "act"): Figures({"done": done})}))


def test_a_worker_merges_what_is_old_and_deletes_what_is_older(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Merge, "every_seconds", 0.05)
    now, long_ago = datetime.now(UTC), timedelta(seconds=ALL_KEPT + 7200)
    for ago in (long_ago, timedelta(minutes=10), timedelta(minutes=10)):
        with closing(Store(stage.url)) as store:
            store.now = now - ago
            store.run(counted(2))
    old = int((now - timedelta(minutes=5)).timestamp())

    @stage.hf.job
    async def noop() -> None: ...

    async def body(worker: Worker) -> None:
        # The oldest is merged twice, and then deleted; of the others one row is left.
        query = "select span from holdfast_stats where slot < ?"
        await stage.until(lambda: [int(span) for [span] in stage.sql(query, old)] == [MINUTE])

    stage.work(body)
    assert stage.run(observe.history(3600)).figures(kind="act").ended == {"done": 4}


def ended(tally: Any, took: float, outcome: Any = "done") -> Any:
    work = SimpleNamespace(tally=tally, started=1.0, took=took, waited=lambda: 2 * took, settled=False)
    return SimpleNamespace(work=work, write=Finish("id", 1, outcome))


def test_of_many_attempts_a_share_is_timed_evenly_and_stands_for_all() -> None:
    tallies = Tallies()
    reader, tally = tallies.reader(), tallies.of("q", "k")
    # They become slower: a worker that timed only the first ones would not notice.
    for n in range(50_000):
        tallies.count([ended(tally, 0.02 if n < 25_000 else 4.0)])
    assert len(tally.runs) < MOST_TIMED
    runs = reader.take().kinds["q", "k"].runs
    assert runs.count == 50_000
    assert runs.counts[2] == pytest.approx(25_000, rel=0.02)
    assert runs.total == pytest.approx(25_000 * 4.02, rel=0.02)


def test_every_reader_is_told_everything_once() -> None:
    tallies = Tallies()
    first, second = tallies.reader(), tallies.reader()
    tallies.count([ended(tallies.of("q", "k"), 0.1), ended(tallies.of("q", "k"), 0.1, "dead")])
    assert first.take().kinds["q", "k"].ended == {"done": 1, "dead": 1}
    tallies.count([ended(tallies.of("q", "k"), 0.1)])
    tallies.enqueued([("q", "k"), ("q", "k")])
    told = second.take().kinds["q", "k"]
    assert (told.ended, told.enqueued) == ({"done": 2, "dead": 1}, 2)
    assert first.take().kinds["q", "k"].ended == {"done": 1}
    assert not first.take()
    assert not second.take()


def test_too_many_kinds_share_a_row() -> None:
    tallies, folded = Tallies(), Folded()
    for n in range(700):
        tallies.count([ended(tallies.of(f"q{n}", "k"), 0.1)])
        folded.of(f"q{n}", "k").ended["done"] = 1
    told = tallies.reader()
    tallies.count([ended(tallies.of("new", "k"), 0.1)])
    assert len(told.take().kinds) <= 501
    assert ("other", "other") in folded.kinds
