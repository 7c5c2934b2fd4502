"""A primary is killed under load and its standby promoted: applications and workers go on by themselves."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.failover.pair import Pair
from tests.failover.scene import SLOW, Outcome, Scene

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

# How long replication stands still before the kill, so that work is under way for certain.
HELD = 0.5

Say = Callable[[str], None]


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Say:
    def print_all(text: str) -> None:
        with capsys.disabled():
            print(text)

    return print_all


def tell(say: Say, outcome: Outcome, killed_at: float, promoted_at: float) -> None:
    """Print what is not asserted: how long it took, and what the applications saw of it."""
    acknowledged, unknown = outcome.said("answered"), outcome.said("unknown")
    arrived = len(unknown.keys() & outcome.by_tag.keys())
    say(f"\n{len(acknowledged):,} enqueues acknowledged, {len(unknown)} not, of which {arrived} arrived")
    for what, seconds in outcome.waits(killed_at, promoted_at).items():
        say(f"  {what}: {seconds:.2f} s")


def slow(outcome: Outcome) -> dict[str, int]:
    """Count the jobs that took longer than their lease, by whether the first holder kept them."""
    fences = [effect.fence for effect in outcome.effects if effect.tag.startswith("slow/")]
    return {"kept": fences.count(1), "taken over": len(fences) - fences.count(1)}


def test_a_synchronous_standby_takes_over_and_nothing_acknowledged_is_lost(tmp_path: Path, say: Say) -> None:
    with Pair(synchronous=True) as pair:
        scene = Scene(pair, tmp_path)
        with scene.playing():
            scene.until_under_way()
            # Commits reach the standby, and wait for its answer: those who asked for them never hear of it.
            pair.lose_answers()
            time.sleep(HELD)
            killed_at, wall = time.monotonic(), time.time()
            pair.primary.kill()
            pair.standby.promote()
            promoted_at = time.monotonic()
            scene.until_going_on(promoted_at)
            outcome = scene.end()
    tell(say, outcome, killed_at, promoted_at)
    repaired = outcome.repaired(killed_at, wall)
    say(f"  commits whose answer was lost, and that were asked for again: {len(repaired)}")
    say(f"  jobs whose lease was held through it: {slow(outcome)}")

    assert outcome.lost == set()
    assert outcome.doubled == []
    assert outcome.not_done == []
    assert (outcome.effects_doubled, outcome.effects_missing, outcome.effects_unearned) == ([], set(), [])
    assert outcome.out_of_order == []
    assert outcome.violations() == []
    assert sum(slow(outcome).values()) == SLOW
    assert repaired, "no answer was lost: this proves nothing about repeats"


def test_an_asynchronous_standby_loses_what_it_had_not_received_and_all_else_is_consistent(
    tmp_path: Path, say: Say
) -> None:
    with Pair(synchronous=False) as pair:
        scene = Scene(pair, tmp_path)
        with scene.playing():
            scene.until_under_way()
            before = {event["tag"] for event in scene.answers("answered")}
            pair.caught_up()
            # What is committed now is acknowledged, and goes nowhere.
            pair.hold_back()
            held_at = time.monotonic()
            time.sleep(HELD)
            killed_at = time.monotonic()
            pair.primary.kill()
            pair.standby.promote()
            promoted_at = time.monotonic()
            scene.until_going_on(promoted_at)
            outcome = scene.end()
    tell(say, outcome, killed_at, promoted_at)
    lost = {tag: event["at"] for tag, event in outcome.said("answered").items() if tag in outcome.lost}
    say(f"  acknowledged and lost: {len(lost)}; replication had stood still for {killed_at - held_at:.2f} s")
    say(f"  effects out of the order of their keys: {len(outcome.out_of_order)}")

    assert before.isdisjoint(lost), "what the standby had is not lost"
    assert max(lost.values(), default=0.0) < promoted_at, "nothing is lost that was acknowledged afterwards"
    assert lost, "the standby had everything: this proves nothing about losses"
    assert outcome.doubled == []
    assert outcome.not_done == []
    assert (outcome.effects_doubled, outcome.effects_missing, outcome.effects_unearned) == ([], set(), [])
