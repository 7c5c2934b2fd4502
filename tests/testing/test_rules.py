"""The shipped history checker: each rule finds the fault that it is for, and nothing where the promise was kept."""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast import Holdfast, Job, admin
from holdfast.testing.history import Attempt, History, Recorder, Sent
from holdfast.testing.rules import check

PROMISES = {
    "ordered": ["orders"],
    "concurrency": {"stripe": 2},
    "key_concurrency": {"tenants": 1},
    "rates": {"stripe": (10.0, 1.0)},
}


def sent(job_id: str, began: float, committed: float | None, key: str = "a", queue: str = "orders") -> Sent:
    return Sent([job_id], queue, key, began, committed)


def ran(
    job_id: str, began: float, ended: float | None, key: str = "a", queue: str = "orders", lost: bool = False
) -> Attempt:
    return Attempt(job_id, queue, "ship", key, 1, 1, 1, began, ended, None, lost)


def good() -> History:
    """Two jobs of a key in order, a limited queue at its limit, and a worker that lost its lease and went on."""
    return History(
        [sent("1", 0.0, 1.0), sent("2", 1.5, 2.0), sent("3", 2.5, 3.0), sent("4", 4.0, None)],
        sorted(
            [
                ran("1", 3.0, 99.0, lost=True),
                ran("1", 10.0, 11.0),
                ran("2", 11.0, 12.0),
                ran("3", 12.5, None),
                ran("3", 20.0, 21.0),
                ran("5", 1.0, 3.0, "x", "stripe"),
                ran("6", 2.0, 4.0, "x", "stripe"),
                ran("7", 3.0, 5.0, "y", "stripe"),
                ran("8", 1.0, 2.0, "t", "tenants"),
                ran("9", 2.0, 3.0, "t", "tenants"),
            ],
            key=lambda one: one.began,
        ),
        {"1": "done", "2": "dead", "3": "done"},
    )


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


def invert_in_a_batch(history: History) -> None:
    history.sent.append(Sent(["b", "a"], "orders", "other", 0.0, 1.0))
    history.attempts += [ran("a", 40.0, 41.0, "other"), ran("b", 42.0, 43.0, "other")]
    history.outcomes |= {"a": "done", "b": "done"}


def exceed(history: History) -> None:
    history.attempts.append(ran("10", 2.5, 2.6, "z", "stripe"))


def exceed_key(history: History) -> None:
    history.attempts.append(ran("10", 1.5, 1.6, "t", "tenants"))


def rush(history: History) -> None:
    history.attempts += [ran(f"r{n}", 50 + n / 100, 50.001 + n / 100, "z", "stripe") for n in range(100)]


BAD: dict[str, tuple[str, Callable[[History], None]]] = {
    "lost": ("an acknowledged job is lost", lose),
    "rolled back": ("a job ran that was rolled back", run_rolled_back),
    "overlap": ("jobs of one key ran at once", overlap),
    "inversion": ("a later job of a key began first", invert),
    "inversion in a batch": ("a later job of a key began first", invert_in_a_batch),
    "limit": ("a queue ran more jobs at once than its limit", exceed),
    "key limit": ("a key ran more jobs at once than its limit", exceed_key),
    "rate": ("a queue started more jobs than its rate", rush),
}


def test_a_history_in_which_every_promise_was_kept_has_no_violation() -> None:
    assert check(good(), **PROMISES) == []


@pytest.mark.parametrize("name", BAD)
def test_a_broken_promise_is_found_by_its_rule_alone(name: str) -> None:
    rule, change = BAD[name]
    history = good()
    change(history)
    assert {one.rule for one in check(history, **PROMISES)} == {rule}


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


def test_a_line_that_was_cut_off_counts_for_nothing(tmp_path: Path) -> None:
    path = tmp_path / "one.jsonl"
    recorder = Recorder(path)
    recorder.write(sent("1", 0.0, 1.0))
    recorder.close()
    path.write_bytes(path.read_bytes() + b'{"type":"sent","ids":["2"')
    assert [one.ids for one in History.read([path]).sent] == [["1"]]
