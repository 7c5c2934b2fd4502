"""Statistics: what workers counted is written once, added up, and read back; samples of queues stop counting."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from holdfast import jobs, observe
from holdfast.flow import Flow, Steps, flow
from holdfast.observe import BOUNDS, COUNTED, Depth, Figures, Folded, Histogram
from holdfast.observe.keeping import ALL_KEPT, MINUTE, SAMPLER, WRITTEN_KEPT, note
from holdfast.observe.sampling import due_kinds
from holdfast.testing.clock import Clock
from holdfast.testing.look import Do, Look
from holdfast.testing.make import new_job
from holdfast.values.ids import new_id
from holdfast.values.rows import Finish, PutBack
from holdfast.worker import registry


def figures(done: int = 1, queue: str = "mail", kind: str = "noop", seconds: float = 2**-6) -> Folded:
    """Make what a worker may have counted: jobs that were done, each in these seconds.

    A power of two adds up to the same float in whatever order rows are added.
    """
    times = Histogram.of([seconds] * done)
    return Folded({(queue, kind): Figures({"done": done}, times, Histogram.of([2 * seconds] * done))})


@flow
def writing(worker: str, folded: Folded, row_id: str) -> Steps[None]:
    yield from note(worker, folded, row_id)


def write(do: Do, folded: Folded, worker: str = "w1") -> None:
    do(writing(worker, folded, new_id()))


def spans(look: Look) -> list[int]:
    return sorted(int(span) for [span] in look.rows("select span from holdfast_stats"))


def test_what_a_worker_counted_is_written_with_its_beat(do: Do, clock: Clock, look: Look) -> None:
    assert do(registry.beat("w1", "{}", figures(3))) == "alive"
    assert do(registry.beat("w1", "{}", Folded())) == "alive"
    assert spans(look) == [10]
    last = do(observe.history(600)).points[-1]
    assert last.kinds[("mail", "noop")].ended == {"done": 3}


def test_the_last_word_of_a_worker_carries_what_is_left(do: Do, clock: Clock) -> None:
    do(registry.beat("w1", "{}"))
    assert do(registry.leave("w1", figures(2))) is True
    assert do(observe.history(600)).figures().ended == {"done": 2}


def test_a_beat_that_is_repeated_counts_once(do: Do, clock: Clock) -> None:
    beat = registry.beat("w1", "{}", figures(5))
    do(beat)
    do(beat)
    assert do(observe.history(600)).figures().attempts == 5


@pytest.mark.parametrize("says", ["beat", "leave"])
def test_what_is_repeated_after_its_row_was_merged_counts_once(do: Do, clock: Clock, says: str) -> None:
    """A worker whose reply was lost may not reach the database for minutes, while others merge what it wrote."""
    do(registry.beat("w1", "{}", figures(1)))
    do(registry.beat("w2", "{}"))
    told: Flow[Any] = registry.beat("w1", "{}", figures(5)) if says == "beat" else registry.leave("w1", figures(5))
    do(told)
    # One that has nothing to tell leaves what was told.
    do(registry.beat("w1", "{}"))
    clock.advance(WRITTEN_KEPT + MINUTE)
    assert do(observe.merge()) == 2
    do(told)
    assert do(observe.history(3600)).figures().attempts == 6
    # What is new counts, of this worker and of others.
    do(registry.beat("w1", "{}", figures(2)))
    do(registry.beat("w2", "{}", figures(4)))
    assert do(observe.history(3600)).figures().attempts == 12


def test_history_has_a_point_for_each_step_and_adds_up_workers(do: Do, clock: Clock) -> None:
    write(do, figures(1), "w1")
    clock.advance(MINUTE)
    write(do, figures(2), "w1")
    write(do, figures(4, kind="other"), "w2")
    told = do(observe.history(5 * MINUTE))
    assert (told.step, len(told.points)) == (MINUTE, 6)
    assert [point.figures().attempts for point in told.points] == [0, 0, 0, 0, 1, 6]
    assert [point.figures(kind="noop").attempts for point in told.points][-2:] == [1, 2]
    assert (told.kinds, told.queues) == ([("mail", "noop"), ("mail", "other")], ["mail"])
    assert told.figures("mail", "other").runs.count == 4
    assert told.figures("elsewhere").attempts == 0
    assert told.points[-1].at <= told.now < told.points[-1].at + timedelta(seconds=MINUTE)


def test_old_rows_are_merged_to_minutes_and_these_to_ten_minutes_and_nothing_is_lost(
    do: Do, clock: Clock, look: Look
) -> None:
    for _ in range(12):
        write(do, figures(2), "w1")
        write(do, figures(1, "bulk"), "w2")
        clock.advance(10)
    before = do(observe.history(3600)).figures()
    assert spans(look) == [10] * 24
    clock.advance(WRITTEN_KEPT + MINUTE)
    assert do(observe.merge()) == 24
    assert set(spans(look)) == {60}
    assert len(spans(look)) <= 3
    assert do(observe.merge()) == 0
    assert do(observe.history(3600)).figures() == before
    clock.advance(8 * 3600 + 600)
    assert do(observe.merge()) > 0
    assert set(spans(look)) == {600}
    after = do(observe.history(24 * 3600))
    assert (after.step, after.figures()) == (600, before)
    assert after.figures("bulk").attempts == 12


def test_a_row_that_comes_late_counts_beside_what_was_merged(do: Do, clock: Clock, look: Look) -> None:
    write(do, figures(1))
    clock.advance(WRITTEN_KEPT + 2 * MINUTE)
    assert do(observe.merge()) == 1
    clock.advance(-WRITTEN_KEPT - 2 * MINUTE)
    write(do, figures(2))
    clock.advance(WRITTEN_KEPT + 2 * MINUTE)
    assert do(observe.merge()) == 1
    assert spans(look) == [60, 60]
    assert do(observe.history(3600)).figures().attempts == 3


def test_statistics_of_a_week_ago_are_deleted(do: Do, clock: Clock, look: Look) -> None:
    write(do, figures(1))
    clock.advance(9 * 3600)
    do(observe.merge())
    do(observe.merge())
    assert spans(look) == [600]
    assert do(observe.prune()) == 0
    clock.advance(ALL_KEPT)
    assert do(observe.prune()) == 1
    assert spans(look) == []


def test_a_row_that_cannot_be_read_costs_itself_alone(do: Do, clock: Clock, look: Look) -> None:
    write(do, figures(2))
    look.change("update holdfast_stats set data = '[17]'")
    write(do, figures(3))
    assert do(observe.history(600)).figures().attempts == 3
    clock.advance(WRITTEN_KEPT + 2 * MINUTE)
    assert do(observe.merge()) == 2
    assert do(observe.history(3600)).figures().attempts == 3


def test_a_sample_counts_each_queue_and_finds_its_oldest_due_job(do: Do, clock: Clock) -> None:
    do(jobs.enqueue_many([new_job("mail", priority=level) for level in (0, 5, 5, -3)]))
    do(jobs.enqueue(new_job("bulk", delay_ms=3_600_000)))
    clock.advance(90)
    do(jobs.enqueue(new_job("mail", priority=9)))
    do(jobs.enqueue_many([new_job("odd") for _ in range(3)]))
    one, _ = do(jobs.claim("odd", limit=2))
    do(jobs.settle([Finish(one.id, one.fence, "dead")]))
    seen = do(observe.sample())
    assert seen.at == clock.now
    assert seen.queues == {
        "mail": Depth(due=5, oldest=90.0),
        "bulk": Depth(scheduled=1),
        "odd": Depth(due=1, leased=1, dead=1, oldest=0.0),
    }


def leased_by_queue(do: Do) -> dict[str, int]:
    return {name: depth.leased for name, depth in do(observe.sample()).queues.items() if depth.leased}


def test_a_sample_counts_what_is_leased_until_it_is_given_back_parked_or_over(do: Do, clock: Clock) -> None:
    do(jobs.enqueue_many([new_job(queue, priority=level) for queue in ("mail", "bulk") for level in (0, 5, 5, -3)]))
    assert leased_by_queue(do) == {}
    mail, bulk = do(jobs.claim("mail", limit=4, lease_ms=30_000)), do(jobs.claim("bulk", limit=1, lease_ms=600_000))
    assert leased_by_queue(do) == {"mail": 4, "bulk": 1}
    done, back, parked, lost = mail
    do(jobs.settle([Finish(done.id, done.fence, "done")]))
    assert leased_by_queue(do) == {"mail": 3, "bulk": 1}
    do(jobs.settle([PutBack(back.id, back.fence, None, 1)]))
    do(jobs.park(parked, "signal:go"))
    assert leased_by_queue(do) == {"mail": 1, "bulk": 1}
    # A lease that has run out is one until somebody takes the job back.
    clock.pass_lease(lost)
    assert leased_by_queue(do) == {"mail": 1, "bulk": 1}
    do(jobs.reap())
    assert leased_by_queue(do) == {"bulk": 1}
    do(jobs.renew([(bulk[0], 600_000)]))
    assert leased_by_queue(do) == {"bulk": 1}


def test_what_is_leased_is_counted_up_to_a_limit_for_each_queue_and_for_all(
    do: Do, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    do(jobs.enqueue_many([new_job(queue) for queue in ("mail", "bulk") for _ in range(6)]))
    do(jobs.claim(["mail", "bulk"], limit=12))
    monkeypatch.setattr("holdfast.observe.sampling.COUNTED", 4)
    assert leased_by_queue(do) == {"mail": 5, "bulk": 5}
    monkeypatch.setattr("holdfast.observe.sampling.LEASED_READ", 3)
    assert sum(leased_by_queue(do).values()) == 3


def test_a_sample_stops_counting_and_says_so(do: Do, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.observe.sampling.COUNTED", 4)
    do(jobs.enqueue_many([new_job() for _ in range(9)]))
    do(jobs.enqueue_many([new_job(delay_ms=60_000) for _ in range(9)]))
    assert do(observe.sample()).queues == {"mail": Depth(due=5, scheduled=5, oldest=0.0)}
    assert observe.shown(COUNTED + 1) == "10,000+"
    assert observe.shown(COUNTED) == "10,000"


def test_due_jobs_are_told_by_kind(do: Do, clock: Clock) -> None:
    do(jobs.enqueue_many([new_job("mail", "a"), new_job("mail", "a", priority=3), new_job("mail", "b")]))
    clock.advance(5)
    do(jobs.enqueue(new_job("bulk", "a")))
    found = {(one.queue, one.kind): (one.due, one.oldest) for one in do(due_kinds())}
    assert found == {("mail", "a"): (2, 5.0), ("mail", "b"): (1, 5.0), ("bulk", "a"): (1, 0.0)}


def test_the_newest_sample_is_read_with_its_age(do: Do, clock: Clock) -> None:
    assert do(observe.latest()) is None
    write(do, Folded(depths={"mail": Depth(3, oldest=7.5)}), SAMPLER)
    clock.advance(20)
    write(do, Folded(depths={"mail": Depth(9, oldest=27.5)}), SAMPLER)
    write(do, figures(1))
    clock.advance(4)
    seen = do(observe.latest())
    assert seen is not None
    assert seen.queues == {"mail": Depth(9, oldest=27.5)}
    assert 4.0 <= seen.age < 5.0
    [*_, last] = [point for point in do(observe.history(600)).points if point.depths]
    assert last.depths is not None
    assert last.depths["mail"].due == 9
    clock.advance(3600)
    assert do(observe.latest()) is None


def test_quantiles_are_within_the_buckets_that_hold_the_values() -> None:
    times = Histogram.of([0.02] * 90 + [3.0] * 9 + [40_000.0])
    assert times.count == 100
    assert 0.01 < (times.quantile(0.5) or 0) <= 0.025
    assert 2.5 < (times.quantile(0.95) or 0) <= 5.0
    assert times.quantile(0.999) == BOUNDS[-1]
    assert Histogram().quantile(0.5) is None
    assert times.upto()[-1] == 100


def test_values_that_stand_for_more_are_scaled_to_exactly_that_many() -> None:
    times = Histogram.of([0.001, 0.02, 0.02, 7.0], standing_for=1_001)
    assert times.count == 1_001
    assert times.total == pytest.approx(7.041 * 1_001 / 4)
    assert min(times.counts) >= 0
