"""The shipped history checker: each rule finds the fault that it is for, and nothing where the promise was kept."""

import asyncio
import os
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from holdfast import Continue, Holdfast, Job, admin
from holdfast.errors import DatabaseUnavailable
from holdfast.testing.history import Attempt, Began, Ended, History, Recorder, Row, Sent
from holdfast.testing.rules import Promises, by_rule, check
from holdfast.values.rows import Lease

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
TICKS = [NOON, NOON + timedelta(minutes=1)]
PROMISES: Promises = {
    "ordered": ["orders"],
    "concurrency": {"stripe": 2},
    "key_concurrency": {"tenants": 1},
    "rates": {"stripe": (10.0, 1.0), "slow": (2.0, 60.0)},
    "key_rates": {"tenants": (2.0, 1.0), "turns": (1.0, 60.0)},
    "chains": ["parse"],
    "schedules": {"nightly": TICKS},
}


def sent(job_id: str, began: float, committed: float | None, key: str = "a", queue: str = "orders") -> Sent:
    return Sent([job_id], queue, key, began, committed)


def ran(
    job_id: str,
    began: float,
    ended: float | None,
    key: str = "a",
    queue: str = "orders",
    lost: bool = False,
    fence: int = 1,
) -> Attempt:
    return Attempt(job_id, queue, "ship", key, 1, fence, 1, began, ended, None, lost)


def row(job_id: str, queue: str = "work", kind: str = "ship", state: str = "done", **said: Any) -> Row:
    return Row(job_id, state, queue, kind, **({"fence": 1} | said))


def good() -> History:
    """Everything that is promised, at its bounds.

    Two jobs of a key in order, limits and rates that are reached, a worker that lost its lease and went on, a chain
    with a child, a batch with a dead member and one that is continued, and the ticks of a schedule.
    """
    history = History(
        [
            sent("1", 0.0, 1.0),
            sent("2", 1.5, 2.0),
            sent("3", 2.5, 3.0),
            sent("4", 4.0, None),
            Sent(["child"], "work", None, 0.0, 1.0, after=["c1"]),
        ],
        [
            ran("1", 3.0, 99.0, lost=True),
            ran("1", 10.0, 11.0, fence=3),
            ran("2", 11.0, 12.0),
            ran("3", 12.5, None),
            ran("3", 20.0, 21.0, fence=3),
            ran("5", 1.0, 3.0, "x", "stripe"),
            ran("6", 2.0, 4.0, "x", "stripe"),
            ran("7", 3.0, 5.0, "y", "stripe"),
            ran("8", 1.0, 2.0, "t", "tenants"),
            ran("9", 2.0, 3.0, "t", "tenants"),
            # A handler that completes its job itself: what continues it begins before the call is over.
            ran("c1", 30.0, 32.0, "", "work"),
            ran("c2", 31.0, 33.0, "", "work"),
            ran("child", 33.0, 34.0, "", "work"),
            ran("m1", 30.0, 31.0, "", "work"),
            ran("m2", 30.0, 32.0, "", "work"),
            ran("m3", 33.0, 34.0, "", "work"),
            ran("b", 34.0, 35.0, "", "work"),
        ],
        {"1": "done", "2": "dead", "3": "done"},
    )
    history.attempts.sort(key=lambda one: one.began)
    take_in(
        history,
        row("c1", kind="parse"),
        row("c2", continues="c1"),
        row("child"),
        row("m1", state="dead", batch="b"),
        row("m2", kind="parse", batch="b"),
        row("m3", continues="m2"),
        row("b", kind="report"),
        *(row(f"t{n}", schedule="nightly", tick=tick) for n, tick in enumerate(TICKS)),
        row("by hand", schedule="nightly"),
        *(row(f"s{n}", "slow", claimed=NOON + timedelta(seconds=30 * n)) for n in range(4)),
        *(row(f"k{n}", "turns", key=f"k{n % 2}", claimed=NOON + timedelta(seconds=30 * n)) for n in range(4)),
    )
    return history


def take_in(history: History, *rows: Row) -> None:
    """Have a history learn of rows."""
    history.rows += rows
    history.outcomes |= {one.id: one.state for one in rows if one.state in ("done", "dead", "cancelled")}
    history.left |= {one.id for one in rows if one.state in ("pending", "waiting", "leased")}


def change(history: History, job_id: str, **said: Any) -> None:
    """Have a row say something else."""
    history.rows = [replace(one, **said) if one.id == job_id else one for one in history.rows]


def lose(history: History) -> None:
    del history.outcomes["2"]


def run_rolled_back(history: History) -> None:
    history.sent.append(Sent(["7"], "stripe", "y", 0.0, None, rolled_back=True))


def overlap(history: History) -> None:
    history.attempts.insert(0, ran("0", 0.5, 10.5))


def invert(history: History) -> None:
    history.sent.insert(0, sent("0", -2.0, -1.0))
    history.attempts.append(ran("0", 30.0, 31.0))
    history.outcomes["0"] = "done"


def pass_one_that_failed(history: History) -> None:
    """It ended once, and the last time only when the one behind it was over."""
    history.sent.append(Sent(["b1", "b2"], "orders", "other", 0.0, 1.0))
    history.attempts += [
        ran("b1", 40.0, 41.0, "other"),
        ran("b2", 42.0, 43.0, "other"),
        ran("b1", 44.0, 45.0, "other", fence=3),
    ]
    history.outcomes |= {"b1": "done", "b2": "done"}


def invert_in_a_batch(history: History) -> None:
    history.sent.append(Sent(["b1", "b2"], "orders", "other", 0.0, 1.0))
    history.attempts += [ran("b2", 40.0, 41.0, "other"), ran("b1", 42.0, 43.0, "other")]
    history.outcomes |= {"b1": "done", "b2": "done"}


def exceed(history: History) -> None:
    history.attempts.append(ran("10", 2.5, 2.6, "z", "stripe"))


def exceed_key(history: History) -> None:
    history.attempts.append(ran("10", 1.5, 1.6, "t", "tenants"))


def rush(history: History) -> None:
    history.attempts += [ran(f"r{n}", 50 + n / 100, 50.001 + n / 100, "z", "stripe") for n in range(100)]


def rush_key(history: History) -> None:
    history.attempts += [ran(f"r{n}", 50 + n / 100, 50.001 + n / 100, "z", "tenants") for n in range(20)]


def rush_claims(history: History) -> None:
    take_in(history, row("s9", "slow", claimed=NOON + timedelta(seconds=59.999)))


def rush_claims_of_a_key(history: History) -> None:
    take_in(history, row("k9", "turns", key="k1", claimed=NOON + timedelta(seconds=89.999)))


def live_on(history: History) -> None:
    history.rows.append(row("c2", state="pending", continues="c1"))


def run_after_its_end(history: History) -> None:
    change(history, "b", fence=0)


def call_twice_for_one_claim(history: History) -> None:
    history.attempts.append(ran("b", 36.0, 37.0, "", "work"))


def end_by_a_claim_of_nobody(history: History) -> None:
    """A holder that had lost its lease ended it, when it had been taken back and nobody had claimed it again."""
    change(history, "b", fence=2)


def end_by_a_claim_that_failed(history: History) -> None:
    """A holder that had lost its lease ended it under another one, which failed."""
    failed = replace(ran("b", 36.0, 37.0, "", "work", fence=3), error="ValueError", failed=True)
    history.attempts.append(failed)
    change(history, "b", fence=3)


def continue_twice(history: History) -> None:
    take_in(history, row("c3", continues="c1"))


def continue_a_dead_job(history: History) -> None:
    change(history, "c1", state="dead")


def forget_to_continue(history: History) -> None:
    change(history, "c2", continues=None)


def continue_too_early(history: History) -> None:
    history.attempts.insert(0, ran("c2", 29.0, 29.5, "", "work", fence=0))


def run_child_before_its_parent(history: History) -> None:
    history.attempts.insert(0, ran("child", 5.0, None, "", "work", fence=0))


def run_child_before_the_end_of_a_chain(history: History) -> None:
    history.attempts.append(ran("c2", 36.0, 37.0, "", "work", fence=0))


def run_child_while_its_parent_lives(history: History) -> None:
    history.sent.append(Sent(["m1"], "work", None, 0.0, 1.0, after=["parent"]))
    take_in(history, row("parent", state="waiting"))


def lose_a_callback(history: History) -> None:
    history.rows = [one for one in history.rows if one.id != "b"]


def call_back_early(history: History) -> None:
    history.attempts.append(ran("m1", 36.0, 37.0, "", "work", fence=0))


def call_back_before_the_end_of_a_chain(history: History) -> None:
    history.attempts.append(ran("m3", 36.0, 37.0, "", "work", fence=0))


def call_back_while_a_member_lives(history: History) -> None:
    take_in(history, row("m4", state="leased", batch="b"))


def tick_twice(history: History) -> None:
    take_in(history, row("t9", schedule="nightly", tick=NOON))


def skip_a_tick(history: History) -> None:
    change(history, "t1", schedule=None)


def tick_out_of_time(history: History) -> None:
    take_in(history, row("t9", schedule="nightly", tick=NOON + timedelta(seconds=1)))


EARLY_CHILD = "a job began before one that it runs after was over"
STALE_END = "a job is done by a claim that did not do it"
CALLBACK = "a batch did not call back after its last member"
CONTINUATION, TICK = "a completion has not one continuation", "a tick has not one job"

BAD: dict[str, tuple[str, Callable[[History], None]]] = {
    "lost": ("an acknowledged job is lost", lose),
    "rolled back": ("a job ran that was rolled back", run_rolled_back),
    "two rows": ("a job lives on after its end", live_on),
    "claimed after its end": ("a job lives on after its end", run_after_its_end),
    "called twice": ("a job lives on after its end", call_twice_for_one_claim),
    "done by no claim": (STALE_END, end_by_a_claim_of_nobody),
    "done by a claim that failed": (STALE_END, end_by_a_claim_that_failed),
    "overlap": ("jobs of one key ran at once", overlap),
    "inversion": ("a later job of a key began first", invert),
    "a failed one is passed": ("a later job of a key began first", pass_one_that_failed),
    "inversion in a batch": ("a later job of a key began first", invert_in_a_batch),
    "limit": ("a queue ran more jobs at once than its limit", exceed),
    "key limit": ("a key ran more jobs at once than its limit", exceed_key),
    "rate": ("a queue started more jobs than its rate", rush),
    "rate by claims": ("a queue started more jobs than its rate", rush_claims),
    "key rate": ("a key started more jobs than its rate", rush_key),
    "key rate by claims": ("a key started more jobs than its rate", rush_claims_of_a_key),
    "two continuations": (CONTINUATION, continue_twice),
    "continuation of a dead job": (CONTINUATION, continue_a_dead_job),
    "no continuation": (CONTINUATION, forget_to_continue),
    "early continuation": (CONTINUATION, continue_too_early),
    "child before its parent": (EARLY_CHILD, run_child_before_its_parent),
    "child before the end of a chain": (EARLY_CHILD, run_child_before_the_end_of_a_chain),
    "child of a live parent": (EARLY_CHILD, run_child_while_its_parent_lives),
    "no callback": (CALLBACK, lose_a_callback),
    "early callback": (CALLBACK, call_back_early),
    "callback before the end of a chain": (CALLBACK, call_back_before_the_end_of_a_chain),
    "callback while a member lives": (CALLBACK, call_back_while_a_member_lives),
    "two jobs of a tick": (TICK, tick_twice),
    "no job of a tick": (TICK, skip_a_tick),
    "a tick that is not due": (TICK, tick_out_of_time),
}


def test_a_history_in_which_every_promise_was_kept_has_no_violation() -> None:
    assert check(good(), **PROMISES) == []


@pytest.mark.parametrize("name", BAD)
def test_a_broken_promise_is_found_by_its_rule_alone(name: str) -> None:
    rule, change = BAD[name]
    history = good()
    change(history)
    assert {one.rule for one in check(history, **PROMISES)} == {rule}


def test_every_rule_has_a_history_that_breaks_it() -> None:
    assert {rule for rule, _ in BAD.values()} == set(by_rule(good(), **PROMISES)) - {"a job ran twice"}


def test_jobs_of_a_key_whose_ends_were_not_written_run_again_in_their_order() -> None:
    history = good()
    history.sent.append(Sent(["b1", "b2"], "orders", "other", 0.0, 1.0))
    times = [("b1", 40.0, 41.0, 1), ("b2", 42.0, None, 1), ("b1", 50.0, 51.0, 4), ("b2", 52.0, 53.0, 4)]
    history.attempts += [ran(job, began, ended, "other", fence=fence) for job, began, ended, fence in times]
    history.outcomes |= {"b1": "done", "b2": "done"}
    assert check(history, **PROMISES) == []


def test_a_second_run_is_found_where_none_may_be() -> None:
    history = good()
    assert {one.subject for one in check(history, **PROMISES, once=True)} == {"1", "3"}
    assert str(check(history, **PROMISES, once=True)[0]).startswith("a job ran twice: ")


def test_a_recorder_writes_what_a_worker_did_and_what_was_rolled_back(tmp_path: Path) -> None:
    hf = Holdfast(f"sqlite:///{tmp_path}/shop.db")
    hf.migrate()
    recorder = Recorder(tmp_path / "one.jsonl")
    recorder.attach(hf)
    over = asyncio.Event()

    @hf.job(queue="orders")
    async def ship(job: Job, last: bool) -> None:
        if last:
            over.set()

    async def run() -> None:
        async with hf.worker():
            await over.wait()

    with recorder.enqueue("orders", "a") as noted:
        noted(ship.using(key="a").enqueue(last=False), hf.enqueue_many([ship.using(key="a").bind(last=True)]))
    with pytest.raises(OSError, match="gone"), recorder.enqueue("orders", "a"):
        raise OSError("gone")
    asyncio.run(run())
    recorder.close()

    history = History.read([tmp_path / "one.jsonl"])
    page = hf.store.run(admin.list_jobs())
    history.learn(page)
    assert [(len(one.ids), one.rolled_back) for one in history.sent] == [(2, False), (0, True)]
    assert [(one.kind, one.key, one.process, one.is_whole) for one in history.attempts] == [
        ("ship", "a", os.getpid(), True)
    ] * 2
    assert check(history, once=True) == []
    hf.close()


@pytest.mark.parametrize(
    "error, completed, failed",
    [
        (ValueError(), False, True),
        (ValueError(), True, False),
        (DatabaseUnavailable(), False, False),
        (asyncio.CancelledError(), False, False),
    ],
)
def test_only_an_error_of_its_own_says_that_a_call_did_not_complete_its_job(
    tmp_path: Path, error: BaseException, completed: bool, failed: bool
) -> None:
    recorder = Recorder(tmp_path / "history.jsonl")
    lease = Lease("1", "default", "ship", "{}", None, None, 0, 1, 5, 1, 30_000, None, None)
    with Holdfast(f"sqlite:///{tmp_path}/test.db") as hf:
        job = Job(lease, hf.store)
        job.settled = completed
        with pytest.raises(type(error)), recorder.attempt(job):
            raise error
    recorder.close()
    [attempt] = History.read([tmp_path / "history.jsonl"]).attempts
    assert (attempt.error, attempt.failed) == (type(error).__name__, failed)


def test_a_line_that_was_cut_off_counts_for_nothing(tmp_path: Path) -> None:
    path = tmp_path / "one.jsonl"
    recorder = Recorder(path)
    recorder.write(sent("1", 0.0, 1.0))
    recorder.close()
    path.write_bytes(path.read_bytes() + b'{"type":"sent","ids":["2"')
    assert [one.ids for one in History.read([path]).sent] == [["1"]]


def test_rows_tell_of_chains_batches_and_children(tmp_path: Path) -> None:
    hf = Holdfast(f"sqlite:///{tmp_path}/shop.db")
    hf.migrate()
    recorder = Recorder(tmp_path / "one.jsonl")
    recorder.attach(hf)
    over = asyncio.Event()

    @hf.job
    async def ship(job: Job, last: bool = False) -> None:
        if last:
            over.set()

    @hf.job
    async def parse(job: Job) -> Continue:
        return Continue(ship.bind())

    async def run() -> None:
        async with hf.worker():
            await over.wait()

    with recorder.enqueue("default") as noted, hf.batch(then=ship.bind()) as batch:
        batch.add_many([parse.bind(), ship.bind()])
        noted(batch)
    with recorder.enqueue("default", after=[batch.id]) as noted:
        noted(ship.using(after=[batch.id]).enqueue(last=True))
    asyncio.run(run())
    recorder.close()

    history = History.read([tmp_path / "one.jsonl"])
    history.learn(hf.store.run(admin.list_jobs()))
    assert sum(one.batch == batch.id for one in history.rows) == 2
    assert [one.continues for one in history.rows if one.continues] == [batch.ids[0]]
    assert history.sent[1].after == [batch.id]
    assert check(history, chains=["parse"], once=True) == []
    hf.close()


def test_an_attempt_that_another_claim_overtook_had_lost_its_lease_though_nobody_wrote_it() -> None:
    def called(fence: int, at: float) -> Began:
        return Began("1", "orders", "ship", "a", 1, fence, fence, at)

    history = History.of(
        [called(1, 0.0), called(3, 5.0), Ended("1", 1, None, False, 6.0), Ended("1", 3, None, False, 7.0)]
    )
    assert [(one.fence, one.is_whole) for one in history.attempts] == [(1, False), (3, True)]


def test_a_call_that_began_after_a_later_claim_of_its_job_counts_for_nothing() -> None:
    """A worker slept for longer than its lease, and called the handler when it woke: others had gone on."""

    def called(job_id: str, fence: int, at: float, ended: float | None) -> list[Began | Ended]:
        over = [] if ended is None else [Ended(job_id, fence, None, False, ended)]
        return [Began(job_id, "orders", "ship", "a", 1, fence, fence, at), *over]

    history = History.of(
        [
            Sent(["1", "2"], "orders", "a", 0.0, 1.0),
            *called("1", 3, 5.0, 6.0),
            *called("2", 3, 7.0, 9.0),
            *called("1", 1, 8.0, None),
        ]
    )
    history.outcomes |= {"1": "done", "2": "done"}
    assert [one.lost for one in history.attempts] == [False, False, True]
    assert check(history, ordered=["orders"]) == []
