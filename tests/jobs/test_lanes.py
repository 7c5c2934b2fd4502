"""Lanes: where claims begin, how seldom the expensive ones are made, and that no stretch is left out for good."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from holdfast.jobs.lanes import (
    ABOVE_ALL_PRIORITIES,
    BELOW_ALL_PRIORITIES,
    CLOCK_TICK,
    DEEP_DEPTH,
    DEEP_EVERY_SECONDS,
    FRONT_EVERY_SECONDS,
    LANES_LIMIT,
    LONGEST_PAUSE_SECONDS,
    LOOK_AT_ALL_EVERY_SECONDS,
    LOOK_BACK_MARGIN_SECONDS,
    NEAR_DEPTH,
    PAUSE_PER_SECOND_OF_LOOKING,
    SLICE_LENGTH,
    Lanes,
    LookBack,
    Start,
)
from holdfast.values.rows import Lease

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
CHEAP, EXPENSIVE = 0.001, 1.0


def lease(seconds: float, priority: int = 0, queue: str = "mail") -> Lease:
    at = NOON + timedelta(seconds=seconds)
    return Lease("id", queue, "act", "{}", None, None, priority, 1, 5, 1, 30_000, at, at)


def lanes(*claimed: Lease, cost: float = EXPENSIVE, queues: tuple[str, ...] = ("mail",)) -> Lanes:
    """Lanes after one claim from the front."""
    made = Lanes(queues)
    made.learn(made.start(0.0), list(claimed), 1_000, 0.0, cost)
    return made


def parts(start: Start) -> list[tuple[Any, ...]]:
    assert start.lanes is not None
    return list(zip(*start.lanes.values(), strict=True))


def floors(start: Start) -> list[datetime]:
    return [floor for *_, floor, _ in parts(start) if floor is not None]


def test_the_first_claim_begins_at_the_front() -> None:
    assert Lanes(["mail"]).start(0.0) == Start("all")


def test_a_queue_that_gave_nothing_has_no_floor() -> None:
    assert lanes().start(1.0) == Start("all")


def test_claims_from_the_front_go_on_while_they_are_cheap() -> None:
    known = lanes(lease(0), cost=CHEAP)

    assert known.start(CHEAP * (PAUSE_PER_SECOND_OF_LOOKING + 2)).width == "all"
    assert known.start(CHEAP * PAUSE_PER_SECOND_OF_LOOKING / 2).width == "near"


def test_an_expensive_claim_from_the_front_is_rare() -> None:
    known = lanes(lease(0), cost=EXPENSIVE)

    assert known.start(EXPENSIVE + FRONT_EVERY_SECONDS - 1).width != "all"
    assert known.start(EXPENSIVE + FRONT_EVERY_SECONDS).width == "all"


def test_a_slow_answer_keeps_late_jobs_waiting_for_seconds_only() -> None:
    """A stall of the network is not a sign of dead rows."""
    known = lanes(lease(0), cost=30.0)
    assert known.start(30.0 + DEEP_EVERY_SECONDS).width == "deep"

    known.learn(known.start(31.0), [], 10, 31.0, 61.0)
    assert known.start(61.0 + LONGEST_PAUSE_SECONDS).width == "deep"


def test_a_large_claim_is_not_expensive_for_its_size() -> None:
    known = Lanes(["mail"])
    known.learn(known.start(0.0), [lease(0)] * 2_000, 2_000, 0.0, 0.1)

    assert known.start(2.0).width == "all"


def test_a_walk_of_some_milliseconds_is_not_taken_for_the_cost_of_the_jobs() -> None:
    """Else claims that walk get slow, their batches large, and the walk never counts."""
    known = Lanes(["mail"])
    known.learn(known.start(0.0), [lease(0)] * 200, 500, 0.0, 0.01)

    assert known.start(0.05).width == "near"
    assert known.start(0.2).width == "all"


def test_a_claim_begins_a_little_below_the_last_job_claimed() -> None:
    start = lanes(lease(0), lease(7)).start(EXPENSIVE)

    assert floors(start) == [lease(7).available_at - NEAR_DEPTH]


def test_lanes_and_gaps_cover_every_priority_the_most_urgent_first() -> None:
    start = lanes(lease(0, 5), lease(0, 4), lease(0, 1)).start(EXPENSIVE)

    covered = [(priority, below, above) for _, priority, below, above, *_ in parts(start)]
    top, bottom = (None, ABOVE_ALL_PRIORITIES, 5), (None, 1, BELOW_ALL_PRIORITIES)
    assert covered == [top, (5, 5, 5), (4, 4, 4), (None, 4, 1), (1, 1, 1), bottom]


def test_lanes_of_one_priority_come_by_age_whatever_their_queue() -> None:
    start = lanes(lease(9, queue="a"), lease(3, queue="b"), queues=("a", "b", "c")).start(EXPENSIVE)

    assert [queue for queue, priority, *_ in parts(start) if priority is not None] == ["b", "a"]
    assert {queue for queue, priority, *_ in parts(start) if priority is None} == {"a", "b", "c"}


def test_a_floor_rises_and_falls_only_to_what_a_full_claim_left_behind() -> None:
    known = lanes(lease(10))
    known.learn(Start("near"), [lease(4)], 2, 1.0, 1.0)
    assert floors(known.start(1.0)) == [lease(10).available_at - NEAR_DEPTH]

    known.learn(Start("near"), [lease(3), lease(4)], 2, 1.0, 1.0)
    assert floors(known.start(1.0)) == [lease(4).available_at - NEAR_DEPTH]


def test_now_and_then_a_claim_begins_further_below() -> None:
    known = lanes(lease(0), cost=EXPENSIVE)
    start = known.start(EXPENSIVE + DEEP_EVERY_SECONDS)

    assert (start.width, floors(start)) == ("deep", [lease(0).available_at - DEEP_DEPTH])
    known.learn(start, [], 10, 21.0, 21.1)
    assert known.start(21.2).width != "deep"


def test_slices_walk_the_whole_way_from_the_front_to_the_floor_and_begin_again() -> None:
    known = lanes(lease(0), cost=EXPENSIVE)
    known.learn(Start("near"), [lease(12)], 10, 1.0, 1.0)
    walked = []
    for _ in range(8):
        start = Start("slice", known._columns("slice"))
        [(begin, end)] = [(floor, ceiling) for *_, floor, ceiling in parts(start) if ceiling is not None]
        walked.append((begin, end))
        known.learn(start, [], 10, 2.0, 2.0)

    origin, floor = lease(0).available_at, lease(12).available_at
    way = [(None, origin), (origin, origin + SLICE_LENGTH), (origin + SLICE_LENGTH, origin + 2 * SLICE_LENGTH)]
    way += [(origin + 2 * SLICE_LENGTH, floor - NEAR_DEPTH - CLOCK_TICK)]
    assert walked == way + way


def test_a_full_claim_walks_the_same_slice_again() -> None:
    known = lanes(lease(0), cost=EXPENSIVE)
    known.learn(Start("near"), [lease(12)], 10, 1.0, 1.0)
    before = known._columns("slice")
    known.learn(Start("slice", before), [lease(20, 9)], 1, 2.0, 2.0)

    assert known._slice == 0


def test_every_slice_carries_the_ordinary_lanes_too() -> None:
    known = lanes(lease(0), cost=EXPENSIVE)

    ordinary, sliced = known._columns("near"), Start("slice", known._columns("slice"))
    assert set(zip(*ordinary.values(), strict=True)) < set(parts(sliced))
    # The slice first: what waits there is older.
    assert parts(sliced)[1][5] is not None


def test_forgotten_floors_mean_the_front() -> None:
    known = lanes(lease(0), cost=EXPENSIVE)
    known.forget()

    assert known.start(1.0).width == "all"


def test_a_claim_under_way_while_floors_were_forgotten_teaches_nothing() -> None:
    known = lanes(lease(0), cost=EXPENSIVE)
    start = known.start(1.0)
    known.forget()
    known.learn(start, [lease(9)], 10, 1.0, 1.1)

    assert known.start(1.2).width == "all"


def test_a_time_before_all_times_is_no_floor() -> None:
    ancient = lease(0)._replace(available_at=datetime.min.replace(tzinfo=UTC))

    assert lanes(ancient, cost=EXPENSIVE).start(1.1).width == "all"


def test_too_many_lanes_are_forgotten() -> None:
    known = Lanes([f"q{n}" for n in range(LANES_LIMIT + 1)])
    known.learn(known.start(0.0), [lease(0, queue=f"q{n}") for n in range(LANES_LIMIT + 1)], 10_000, 0.0, 1.0)

    assert known.start(1.0).width == "all"


@pytest.mark.parametrize("clean, expected", [(True, 4.0 + LOOK_BACK_MARGIN_SECONDS), (False, None)])
def test_expired_leases_are_looked_for_since_the_last_look_that_left_none(clean: bool, expected: float | None) -> None:
    look = LookBack()
    assert look.seconds(0.0) is None
    look.learn(None, clean, 1.0, 1.0)

    assert look.seconds(5.0) == expected


def test_now_and_then_all_expired_leases_are_looked_for() -> None:
    look = LookBack()
    look.learn(None, True, 0.0, 1.0)
    look.learn(3.0, True, 2.0, 2.0)

    assert look.seconds(1.0 + max(LOOK_AT_ALL_EVERY_SECONDS, PAUSE_PER_SECOND_OF_LOOKING) - 0.1) is not None
    assert look.seconds(1.0 + max(LOOK_AT_ALL_EVERY_SECONDS, PAUSE_PER_SECOND_OF_LOOKING)) is None
