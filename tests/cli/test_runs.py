"""`holdfast runs`: lists, timelines, signals, cancels, dead runs that go on."""

import json

from holdfast import jobs, runs
from holdfast.runs import CANCEL
from holdfast.store import Store
from holdfast.testing.suite_runs import claimed_run, ended_run, held_run, journal_row, parked_run, written
from tests.cli.conftest import Run


def test_runs_are_listed_and_shown_with_their_timelines(run: Run, app: str, store: Store) -> None:
    lease = held_run(store.run)
    written(store.run, lease, journal_row(1, value="7"), journal_row(2, "set:stage", "set", value='"new"'))
    parked_run(store.run, lease, "signal:approved")
    [line] = run("runs", "list", "--status", "waiting", "--attribute", 'stage="new"', "--app", app).stdout.splitlines()[
        1:
    ]
    assert line.split()[:4] == ["order-1", "fulfil@1", "waiting", "signal:approved"]
    assert run("runs", "list", "--workflow", "other", "--app", app).stdout == ""
    shown = run("runs", "show", "order-1", "--app", app).stdout
    assert "signal:approved" in shown
    assert "charge" in shown
    [line] = run("runs", "show", "order-1", "--json", "--app", app).stdout.splitlines()
    found = json.loads(line)
    assert (found["status"], [row["key"] for row in found["history"]]) == ("waiting", ["charge", "set:stage"])


def test_a_run_is_signalled_and_asked_to_stop(run: Run, app: str, store: Store) -> None:
    lease = held_run(store.run)
    sent = run("runs", "signal", "order-1", "approved", '{"by": "ada"}', "--idempotency-key", "k", "--app", app)
    assert sent.stdout == "signal approved was sent to order-1\n"
    again = run("runs", "signal", "order-1", "approved", "1", "--idempotency-key", "k", "--app", app)
    assert again.stdout == "signal approved had been sent to order-1 before\n"
    assert run("runs", "cancel", "order-1", "--app", app).stdout == "order-1 was asked to stop\n"
    assert store.run(runs.news([lease.job_id])) == {lease.job_id: {"approved", CANCEL}}
    assert run("runs", "cancel", "order-1", "--force", "--app", app).stdout == "order-1 was ended\n"
    assert store.run(runs.show("order-1")).status == "cancelled"


def test_stuck_and_dead_runs_are_found_and_a_dead_one_goes_on(run: Run, app: str, store: Store) -> None:
    lease = held_run(store.run)
    store.run(runs.stick(lease.job_id, lease.fence, "recorded next: a"))
    assert "recorded next: a" in run("runs", "stuck", "--app", app).stdout
    assert "1 run cannot go on: order-1 of fulfil@1" in run("doctor", "--app", app, code=7).stdout
    written(store.run, lease, journal_row(1, ok=0))
    store.run(ended_run(lease, "dead"))
    assert run("runs", "resume", "order-1", "--app", app).stdout == "order-1 goes on\n"
    assert claimed_run(store.run).job_id == lease.job_id
    assert store.run(jobs.pauses()) == []


def test_what_is_not_there_or_not_json_is_told_of(run: Run, app: str) -> None:
    assert "There is no run" in run("runs", "show", "nobody", "--app", app, code=5).stderr
    assert "must be JSON" in run("runs", "signal", "nobody", "a", "text", "--app", app, code=2).stderr


def test_a_prune_by_hand_takes_runs_with_their_journals(run: Run, app: str, store: Store) -> None:
    lease = held_run(store.run)
    written(store.run, lease, journal_row(1))
    store.run(ended_run(lease))
    run("prune", "--older-than", "0s", "--outcome", "done", "--yes", "--app", app)
    assert store.run(runs.runs(runs.RunFilter())) == []
    assert store.run(runs.journal(lease.job_id)) == []
