"""The short form of `make soak`, and proof that it would notice a broken promise."""

import os
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from holdfast.testing.history import Attempt, History, Row, Sent
from tests.soak.app import DEFAULT, ENQUEUER, LINES, VETERAN
from tests.soak.report import figures, write
from tests.soak.run import soak
from tests.soak.samples import Finished, Sample
from tests.soak.trouble import Deeds
from tests.soak.verdict import LONG_ENOUGH, Outcome

# Two minutes in CI, less where somebody waits for it.
SECONDS, RATE = 120 if os.environ.get("CI", "").lower() in ("true", "1") else 25, 40


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_nothing_is_lost_doubled_or_reordered_while_everything_goes_wrong(tmp_path: Path) -> None:
    outcome = soak(SECONDS, RATE)
    broken = outcome.broken()

    report = write(outcome, broken, tmp_path)
    assert broken == [], report.read_text()
    assert len(outcome.finished) > 200, figures(outcome)
    assert {one.shard for one in outcome.finished} == {0, 1}
    assert all((tmp_path / f"{name}.svg").exists() for name in ("latency", "memory", "backlog", "rows", "tables"))


# Would it notice?


def job(id: str, kind: str, state: str = "done", tag: str = "", attempts: int = 1, shard: int = 0) -> Finished:
    continues = "chain" if kind == "second" else None
    key, queue = ("line:1", LINES) if kind == "step" else (None, DEFAULT)
    row = Row(id, state, queue, kind, key, attempts, continues=continues)
    return Finished(shard, row, tag or id, attempts, 0.1, datetime(2026, 1, 1, tzinfo=UTC))


@pytest.fixture
def outcome() -> Outcome:
    """One job of most kinds, each with its effect, two of them in a line."""
    finished = [
        job("book", "book"),
        job("chain", "first"),
        job("chained", "second", tag="chain"),
        job("doomed", "doomed", "dead", attempts=3),
        job("run", "order@1", shard=1),
        job("early", "step"),
        job("late", "step"),
    ]
    effects = {(0, "book", "book"): 1, (0, "chain", "second"): 1, (1, "run", "reserve"): 1, (1, "run", "pack"): 1}
    sent = [Sent([name], LINES, "line:1", at, at + 0.1) for name, at in (("early", 1.0), ("late", 2.0))]
    ran = [("early", 3.0), ("late", 4.0)]
    history = History(sent, [Attempt(name, LINES, "step", "line:1", 1, 1, 7, at, at + 0.5) for name, at in ran])
    answers = [
        {"what": "answered", "tag": one.tag, "kind": one.row.kind} for one in finished if one.row.kind != "second"
    ]
    deeds = Deeds()
    for what in ("kill", "cut", "move", "failover"):
        deeds.add(what)
    return Outcome(60, 10, answers, finished, effects, [], history, [], deeds)


def test_a_run_that_kept_every_promise_is_let_pass(outcome: Outcome) -> None:
    assert outcome.broken() == []


def test_a_job_that_was_acknowledged_and_is_gone_is_noticed(outcome: Outcome) -> None:
    del outcome.finished[0]
    assert "acknowledged, and never ended: book book" in outcome.broken()


def test_a_job_that_is_left_is_noticed(outcome: Outcome) -> None:
    outcome.left.append("plain j1")
    assert outcome.broken() == ["it has not ended: plain j1"]


def test_an_effect_that_happened_twice_is_noticed_also_in_two_shards(outcome: Outcome) -> None:
    outcome.effects[1, "book", "book"] = 1
    assert outcome.broken() == ["a transactional effect happened 2 times: book of book"]
    outcome.effects = {**outcome.effects, (0, "book", "book"): 2}
    assert outcome.broken() == ["a transactional effect happened 3 times: book of book"]


def test_an_effect_that_is_missing_and_one_without_a_job_are_noticed(outcome: Outcome) -> None:
    del outcome.effects[1, "run", "pack"]
    outcome.effects[0, "nobody", "book"] = 1
    assert outcome.broken() == [
        "an effect without a job that is done: book of nobody",
        "done, and without its effect: pack of run",
    ]


def test_an_enqueue_that_became_two_jobs_is_noticed(outcome: Outcome) -> None:
    outcome.finished.append(job("again", "book", tag="book"))
    assert outcome.broken() == ["one enqueue became 2 jobs: book book: book, again"]


def test_a_job_that_died_against_its_policy_is_noticed(outcome: Outcome) -> None:
    outcome.finished[0] = job("book", "book", "dead")
    outcome.finished[3] = job("doomed", "doomed", "dead", attempts=2)
    assert [line for line in outcome.broken() if " is dead after " in line] == [
        "book book is dead after 1 attempts: book",
        "doomed doomed is dead after 2 attempts: doomed",
    ]


def test_a_chain_that_was_continued_twice_is_noticed(outcome: Outcome) -> None:
    outcome.finished.append(job("chained2", "second", tag="chain"))
    assert any(line.startswith("a completion has not one continuation: chain") for line in outcome.broken())


def test_jobs_of_a_key_out_of_order_or_at_once_are_noticed(outcome: Outcome) -> None:
    first, second = outcome.history.attempts
    outcome.history.attempts = [replace(second, began=2.5, ended=2.6), first]
    assert any(line.startswith("a later job of a key began first") for line in outcome.broken())
    outcome.history.attempts = [first, replace(second, began=3.2)]
    assert any(line.startswith("jobs of one key ran at once") for line in outcome.broken())


def test_a_worker_that_ended_by_itself_and_a_run_without_trouble_are_noticed(outcome: Outcome) -> None:
    outcome.deeds = Deeds()
    outcome.deeds.add("ended by itself", f"{VETERAN} with 1")
    assert len(outcome.broken()) == 5


@pytest.mark.parametrize("seconds, found", [(LONG_ENOUGH, 2), (LONG_ENOUGH / 2, 0)])
def test_memory_and_tables_that_grow_are_noticed_in_a_long_run(outcome: Outcome, seconds: float, found: int) -> None:
    outcome.seconds = seconds
    for part in range(100):
        memory = {VETERAN: 100 + part, ENQUEUER: 100}
        outcome.samples.append(Sample(part * seconds / 100, memory, {}, 5, 50, {"holdfast_jobs": 10 * part}))
    broken = outcome.broken()
    assert [line.partition(" grows")[0] for line in broken] == ["the memory of veteran", "the size of the tables"][
        :found
    ]
