"""`holdfast runs`: lists, timelines, signals, cancels, dead runs that go on."""

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast import admin, jobs, runs
from holdfast.runs import CANCEL
from holdfast.store import Store
from holdfast.testing.inline import run_due
from holdfast.testing.suite_runs import claimed_run, ended_run, held_run, journal_row, parked_run, written
from holdfast.worker import registry
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


def test_a_list_of_runs_says_where_it_stopped_and_goes_on_with_all(
    run: Run, app: str, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.runs.people.WINDOW", 2)
    leases = [held_run(store.run, f"order-{number}") for number in range(5)]
    for lease in leases:
        store.run(ended_run(lease))
    looked = run("runs", "list", "--workflow", "other", "--app", app)
    assert looked.stdout == ""
    assert looked.stderr.splitlines()[-1] == (
        f"looked at 20,000 runs; for the others: --all, or --after {leases[3].job_id}"
    )
    behind = run("runs", "list", "--kind", "fulfil@1", "--after", leases[3].job_id, "--limit", "2", "--app", app)
    assert [line.split()[0] for line in behind.stdout.splitlines()[1:]] == ["order-2", "order-1"]
    assert behind.stderr == f"2 shown; there may be more: --limit, or --after {leases[1].job_id}\n"
    whole = run("runs", "list", "--workflow", "fulfil", "--all", "--json", "--app", app)
    assert [json.loads(line)["id"] for line in whole.stdout.splitlines()] == [f"order-{n}" for n in (4, 3, 2, 1, 0)]
    assert whole.stderr == ""
    assert "looked at" not in run("runs", "list", "--workflow", "other", "--all", "--app", app).stderr


def test_a_run_is_signalled_and_asked_to_stop(run: Run, app: str, store: Store) -> None:
    lease = held_run(store.run)
    sent = run("runs", "signal", "order-1", "approved", '{"by": "ada"}', "--idempotency-key", "k", "--app", app)
    assert sent.stdout == "signal approved was sent to order-1\n"
    again = run("runs", "signal", "order-1", "approved", "1", "--idempotency-key", "k", "--app", app)
    assert again.stdout == "signal approved had been sent to order-1 before\n"
    run("runs", "signal", "order-1", "paid", "--actor", "ada", "--app", app)
    lines = store.run(admin.audit(lease.job_id))
    assert [(one.action, one.detail) for one in lines] == [
        ("run_signal", {"run": "order-1", "workflow": "fulfil", "signal": name}) for name in ("paid", "approved")
    ]
    assert lines[0].actor == "ada"
    assert "@" in (lines[1].actor or "")
    assert run("runs", "cancel", "order-1", "--app", app).stdout == "order-1 was asked to stop\n"
    assert store.run(runs.news({lease.job_id: ["approved", "paid", CANCEL]})) == {
        lease.job_id: {"approved", "paid", CANCEL}
    }
    assert run("runs", "cancel", "order-1", "--force", "--app", app).stdout == "order-1 was ended\n"
    assert store.run(runs.show("order-1")).status == "cancelled"


def test_stuck_and_dead_runs_are_found_and_a_dead_one_goes_on(run: Run, app: str, store: Store) -> None:
    lease = held_run(store.run)
    store.run(runs.stick(lease.job_id, lease.fence, "recorded next: a"))
    assert "recorded next: a" in run("runs", "stuck", "--app", app).stdout
    assert "waits for" not in run("runs", "show", "order-1", "--app", app).stdout
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


CODE = """
import asyncio
from holdfast import Fatal, Holdfast, Run
hf = Holdfast("{url}")

def charge(n: int) -> int:
    return n

@hf.workflow(version=2)
async def fulfil(run: Run) -> int:
    found = await run.step(charge, 7)
    await run.signal("approved")
    return found

@fulfil.version(1)
async def fulfil_1(run: Run) -> int:
    found = await run.step(charge, 7)
    await run.signal("approved")
    return found

@fulfil.version(3)
async def fulfil_3(run: Run) -> int:
    return await run.step(charge, 7, name="pay")
"""


def waiting_run(url: str, tmp_path: Path, name: str) -> str:
    """Run an order until it waits, with code that the command line can load; return its name."""
    (tmp_path / f"{name}.py").write_text(CODE.format(url=url))
    sys.path.insert(0, str(tmp_path))
    try:
        app = importlib.import_module(name).hf
    finally:
        sys.path.remove(str(tmp_path))
    app.handlers["fulfil@1"].start(id="order-1")
    run_due(app)
    app.close()
    return f"{name}:hf"


def test_histories_are_exported_replayed_forked_and_migrated(
    run: Run, app: str, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = waiting_run(store.url, tmp_path, "app_of_histories")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    shown = run("runs", "show", "order-1", "--app", code).stdout
    assert "  ● charge  step " in shown
    assert "until" not in shown
    assert "┊ waits for signal:approved" in shown
    (tmp_path / "order.json").write_text(run("runs", "export", "order-1", "--app", code).stdout)
    told = run("runs", "replay", str(tmp_path / "order.json"), "--app", code).stdout
    assert "1 rows fit; the code then waits for: signal:approved" in told
    refused = run("runs", "replay", str(tmp_path / "order.json"), "--version", "3", "--app", code, code=6).stdout
    assert "recorded next: charge; the code waits for: pay" in refused
    assert "not JSON" not in run("runs", "export", "order-1", "--json", "--app", code).stdout
    stays = run("runs", "migrate", "order-1", "--to", "3", "--app", code, code=6).stdout
    assert stays.startswith("order-1 stays as it is: recorded next: charge")
    assert run("runs", "migrate", "--kind", "fulfil@1", "--to", "2", "--dry-run", "--app", code).stdout == (
        "order-1 would go on as @2\n"
    )
    asked = run("runs", "migrate", "--kind", "fulfil@1", "--to", "2", "--app", code, code=2).stderr
    assert "Let 1 run of fulfil@1 go on with version 2? Not done" in asked
    assert store.run(runs.show("order-1")).kind == "fulfil@1"
    everything = run("runs", "migrate", "--kind", "fulfil@2", "--to", "2", "--yes", "--app", code).stdout
    assert everything == "no runs found\n"
    [line] = run("runs", "migrate", "order-1", "--to", "2", "--json", "--app", code).stdout.splitlines()
    assert json.loads(line) == {"run": "order-1", "to": 2, "why": None}
    assert store.run(runs.show("order-1")).kind == "fulfil@2"
    forked = run("runs", "fork", "order-1", "--at", "charge", "--id", "order-2", "--actor", "ada", "--app", code).stdout
    assert forked == "order-2 was started from order-1, before charge\n"
    fork = store.run(runs.show("order-2"))
    assert fork.kind == "fulfil@2"
    [line] = store.run(admin.audit(fork.job_id))
    assert (line.action, line.actor) == ("run_fork", "ada")
    assert line.detail == {"run": "order-2", "workflow": "fulfil", "source": "order-1", "at": "charge"}
    assert "name runs, or all" in run("runs", "migrate", "--to", "2", "--app", code, code=2).stderr
    [line] = run("runs", "signal", "order-1", "approved", "--json", "--app", code).stdout.splitlines()
    assert json.loads(line) == {"run": "order-1", "signal": "approved", "sent": True}


def test_doctor_names_versions_that_nobody_serves(run: Run, app: str, store: Store) -> None:
    held_run(store.run)
    store.run(registry.beat("w", json.dumps({"queues": ["runs"], "kinds": ["fulfil@2"]})))
    told = run("doctor", "--app", app, code=7).stdout
    assert "1 run of fulfil@1, 0 of them due, and no live worker serves that version" in told
    store.run(registry.beat("w2", json.dumps({"queues": ["runs"], "kinds": ["fulfil@1"]})))
    assert "serves that version" not in run("doctor", "--app", app).stdout


def test_commands_of_runs_answer_programs_in_json(
    run: Run, app: str, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = waiting_run(store.url, tmp_path, "app_of_json")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    def told(*words: str, code_: int = 0) -> list[Any]:
        lines = run("runs", *words, "--json", "--app", code, code=code_).stdout.splitlines()
        return [json.loads(line) for line in lines]

    [listed] = told("list", "--status", "waiting")
    assert (listed["id"], listed["status"], listed["waits_for"]) == ("order-1", "waiting", "signal:approved")
    file = str(tmp_path / "order.json")
    Path(file).write_text(json.dumps(told("export", "order-1")[0]))
    [fits] = told("replay", file)
    assert (fits["file"], fits["why"]) == (file, None)
    [differs] = told("replay", file, "--version", "3", code_=6)
    assert "recorded next: charge" in differs["why"]
    assert told("fork", "order-1", "--at", "charge", "--id", "order-2") == [
        {"run": "order-2", "source": "order-1", "at": "charge"}
    ]
    assert told("cancel", "order-1") == [{"run": "order-1", "asked": True}]
    assert told("cancel", "order-1", "--force") == [{"run": "order-1", "ended": 1}]
    lease = claimed_run(store.run)
    store.run(runs.stick(lease.job_id, lease.fence, "recorded next: a"))
    [stuck] = told("stuck")
    assert (stuck["id"], stuck["stuck"]) == ("order-2", "recorded next: a")
    store.run(ended_run(lease, "dead"))
    assert told("resume", "order-2") == [{"run": "order-2", "resumed": True}]
