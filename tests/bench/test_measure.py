"""Rounds, quantiles, costs and sides: what the figures are made of."""

import asyncio
import sys

import pytest

from holdfast.bench.counters import Counts, NoCounters
from holdfast.bench.measure import Figure, Reading, Result, Row, Size, measured, quantile
from holdfast.bench.rows import SPECIAL, drain, effect, special
from holdfast.bench.run import opened
from holdfast.bench.side import Side, Spec, child


class Sleepless:
    """A side that notes when it is asked."""

    can = frozenset({"row"})
    broken = ""

    def __init__(self, name: str, asked: list[str], *, guest: bool = False) -> None:
        self.name = name
        self.asked = asked
        self.spec = Spec(name, (), guest=guest)

    async def stop(self) -> None:
        self.asked.append(f"{self.name} stops")


async def note(side: Sleepless) -> Reading:
    side.asked.append(side.name)
    return Reading([float(len(side.asked))], {"commits": float(len(side.asked)) * 2})


def results(row: Row, sides: list[Sleepless], rounds: int = 1) -> list[Result]:
    return asyncio.run(measured("none", row, sides, rounds))  # type: ignore[arg-type]


def test_rounds_alternate_between_the_sides() -> None:
    asked: list[str] = []
    sides = [Sleepless("holdfast", asked), Sleepless("raw", asked)]

    [result] = results(Row("row", "jobs/s", "row", note), sides, rounds=3)  # type: ignore[arg-type]

    assert asked == ["holdfast", "raw", "raw", "holdfast", "holdfast", "raw"]
    assert result.figures == {"holdfast": Figure(4, 1, 5, {"commits": 8}), "raw": Figure(3, 2, 6, {"commits": 6})}
    # 1 by 2, 4 by 3, 5 by 6: round by round, because noise hits both sides of a round.
    assert result.ratio("holdfast") == pytest.approx(5 / 6)


@pytest.mark.parametrize("often, rounds, expected", [(3, 2, 6), (1 / 3, 3, 1), (1 / 3, 1, 1), (1, 4, 4)])
def test_a_row_takes_more_or_fewer_rounds_than_asked_for_but_never_none(
    often: float, rounds: int, expected: int
) -> None:
    [result] = results(Row("row", "jobs/s", "row", note, often=often), [Sleepless("raw", [])], rounds)  # type: ignore[arg-type]

    assert len(result.figures["raw"].rounds) == expected


def test_a_side_that_cannot_do_a_row_stands_aside() -> None:
    able, unable = Sleepless("holdfast", []), Sleepless("peer", [])
    unable.can = frozenset()

    [result] = results(Row("row", "jobs/s", "row", note), [able, unable])  # type: ignore[arg-type]

    assert set(result.figures) == {"holdfast"}
    assert result.ratio("holdfast") is None


async def breaks(side: Sleepless) -> Reading:
    if side.name == "broken":
        raise RuntimeError("broken: no answer within 120 s")
    return await note(side)


def test_a_guest_that_fails_is_named_and_the_run_goes_on() -> None:
    asked: list[str] = []
    sides = [Sleepless("broken", asked, guest=True), Sleepless("raw", asked)]

    [result] = results(Row("row", "jobs/s", "row", breaks), sides, rounds=2)  # type: ignore[arg-type]

    assert asked == ["broken stops", "raw", "raw"]
    assert set(result.figures) == {"raw"}
    assert result.missing == {"broken": "broken: no answer within 120 s"}


def test_a_guest_that_could_not_even_begin_is_named_in_its_rows() -> None:
    absent = Sleepless("absent", [], guest=True)
    absent.broken = "absent: no tables"

    [result] = results(Row("row", "jobs/s", "row", note), [Sleepless("raw", []), absent])  # type: ignore[arg-type]

    assert set(result.figures) == {"raw"}
    assert result.missing == {"absent": "absent: no tables"}


def test_a_guest_that_cannot_make_its_tables_leaves_the_others_at_work(sqlite_url: str) -> None:
    async def whole() -> list[str]:
        guest = Spec("guest", (sys.executable, "-c", "raise SystemExit(3)"), guest=True)
        async with opened(sqlite_url, [child("holdfast"), guest]) as sides:
            return [side.broken for side in sides]

    assert asyncio.run(whole()) == ["", "guest: its process ended with 3"]


def test_a_failure_of_our_own_ends_the_run() -> None:
    with pytest.raises(RuntimeError, match="no answer"):
        results(Row("row", "jobs/s", "row", breaks), [Sleepless("broken", [])])  # type: ignore[arg-type]


def test_a_latency_is_told_by_its_quantiles() -> None:
    async def samples(side: object) -> Reading:
        return Reading([1.0, 2.0, 3.0, 4.0])

    row = Row("latency", "ms", "row", samples, quantiles=(0.5, 0.99))

    assert results(row, [Sleepless("raw", [])], rounds=2) == [
        Result("none", "latency p50", "ms", {"raw": Figure(2, 2, 2)}),
        Result("none", "latency p99", "ms", {"raw": Figure(4, 4, 4)}),
    ]


def test_a_part_that_was_not_counted_is_left_out() -> None:
    async def two_of_three(side: object) -> Reading:
        return Reading([1.0, 50.0])

    row = Row("idle", "%", "row", two_of_three, parts=(("CPU", "%"), ("memory", "MB"), ("statements", "1/s")))

    assert results(row, [Sleepless("raw", [])]) == [
        Result("none", "idle, CPU", "%", {"raw": Figure(1, 1, 1)}),
        Result("none", "idle, memory", "MB", {"raw": Figure(50, 50, 50)}),
        Result("none", "idle, statements", "1/s", {}),
    ]


@pytest.mark.parametrize("share, expected", [(0.0, 1), (0.5, 50), (0.99, 99), (0.995, 100), (1.0, 100)])
def test_a_quantile_is_a_sample(share: float, expected: int) -> None:
    assert quantile(range(1, 101), share) == expected


def test_counts_tell_only_what_both_readings_have() -> None:
    assert Counts(10.0, 500.0, None, 7.0).since(Counts(4.0, 100.0, 3.0, None)) == {"commits": 6.0, "log_bytes": 400.0}


CHILD = """
import json, sys
sys.stdin.readline()
print(json.dumps({"value": "ready", "seconds": 0}), flush=True)
for line in sys.stdin:
    asked = json.loads(line)["do"]
    if asked == "die":
        sys.exit(3)
    values = {"unfinished": 7, "drain": 1.0, "effects": 3}
    answer = {"error": "fail: it broke"} if asked == "fail" else {"value": values.get(asked), "seconds": 0.5}
    if asked != "nothing":
        print(json.dumps(answer), flush=True)
"""


def with_child(call: str, patience: float = 30.0) -> object:
    async def whole() -> object:
        side = Side(Spec("child", (sys.executable, "-c", CHILD)), "sqlite://", "hf")
        side.patience = patience
        try:
            return await side.do(call)
        finally:
            await side.stop()

    return asyncio.run(whole())


def test_a_child_answers() -> None:
    assert with_child("unfinished") == 7


def test_an_error_of_a_child_names_it() -> None:
    with pytest.raises(RuntimeError, match="child: fail: it broke"):
        with_child("fail")


def test_a_child_that_ends_is_noticed() -> None:
    with pytest.raises(RuntimeError, match="child: its process ended with 3"):
        with_child("die")


def test_a_child_that_says_nothing_is_not_waited_for_ever() -> None:
    with pytest.raises(RuntimeError, match=r"child: no answer within 0\.2 s"):
        with_child("nothing", patience=0.2)


def test_a_drain_that_leaves_jobs_is_no_figure() -> None:
    async def whole() -> None:
        side = Side(Spec("child", (sys.executable, "-c", CHILD)), "sqlite://", "hf")
        try:
            await drain(side, Size.quick(), NoCounters(), handler="async def", keep=True)
        finally:
            await side.stop()

    with pytest.raises(AssertionError, match="7 are left"):
        asyncio.run(whole())


def test_a_drain_tells_what_its_process_used() -> None:
    async def whole() -> Reading:
        script = CHILD.replace('"unfinished": 7', '"unfinished": 0').replace(
            'asked == "die"', 'asked == "drain" and burn()'
        )
        burning = "from time import process_time as t\ndef burn():\n    e = t() + 0.2\n    while t() < e: pass\n"
        side = Side(Spec("child", (sys.executable, "-c", burning + script)), "sqlite://", "hf")
        try:
            return await drain(side, Size.quick(), NoCounters(), handler="async def", keep=True)
        finally:
            await side.stop()

    costs = asyncio.run(whole()).costs
    assert costs["server_us"] == 0
    assert 100_000 < costs["worker_us"] * Size.quick().drain < 300_000


def test_what_a_side_cannot_do_in_seconds_it_does_a_smaller_part_of() -> None:
    spec = Spec("peer", (), share=0.1, shares={"one key": 0.01})

    assert (spec.share_of("ordered"), spec.share_of("one key")) == (0.1, 0.01)


@pytest.mark.parametrize("name, keys", [("10 a key", 20), ("one key", 1), ("a key each", 200)])
def test_the_shapes_of_ordered_jobs_differ_in_their_keys(name: str, keys: int) -> None:
    asked: list[dict[str, object]] = []

    async def drained(side: Side, **said: object) -> Reading:
        asked.append(said)
        return Reading([1.0])

    shape = SPECIAL[f"drain, ordered, {name}"]
    for side in ("holdfast", "plain"):
        asyncio.run(special(drained, Size.quick(), shape, Side(Spec(side, ()), "sqlite://", "hf")))

    alike = {"handler": "async def", "count": 200}
    assert asked == [{**alike, "keys": keys, "special": "ordered"}, alike]


def test_an_effect_that_is_not_there_once_is_no_figure() -> None:
    """The child's handlers write nothing: whatever was drained, the table stays as it was."""

    async def drained(side: Side, **_: object) -> Reading:
        return Reading([1.0])

    async def whole() -> None:
        side = Side(Spec("child", (sys.executable, "-c", CHILD)), "sqlite://", "hf")
        try:
            await effect(drained, Size.quick(), "effect, def", side)
        finally:
            await side.stop()

    with pytest.raises(AssertionError, match="child did 200 jobs, and their effect is there 0 times"):
        asyncio.run(whole())
