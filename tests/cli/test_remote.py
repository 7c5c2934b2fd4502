"""Remote steps on the command line: sent again by hand, and named by `doctor` where nobody looks after them."""

import json
from datetime import timedelta

import pytest

from holdfast import admin
from holdfast.foreign.durable import flows as workers
from holdfast.foreign.durable.engine import TablesTransport, tables_of
from holdfast.store import Store
from holdfast.testing.look import Look
from holdfast.testing.suite_remote import LOST_MS, dispatched, pending, sending, swept, tasks
from holdfast.testing.suite_runs import held_run
from tests.cli.conftest import Run


@pytest.fixture
def transport(store: Store) -> TablesTransport:
    made = tables_of(store, "durable", "durable", LOST_MS)
    for name in ("create_tasks", "create_results", "create_index"):
        store.run(workers.create_table(made.tables, name))
    return made


def test_steps_that_a_run_waits_for_are_sent_again(
    run: Run, app: str, store: Store, transport: TablesTransport
) -> None:
    lease = held_run(store.run)
    dispatched(store.run, transport, lease, sending(lease, 1), sending(lease, 2))
    look = Look(store.run, store)
    look.change("delete from durable_transport_tasks")
    said = run("runs", "redispatch", "order-1", "remote:echo#2", "--app", app).stdout
    assert said == "remote:echo#2 of order-1 will be sent again\n"
    swept(store.run, transport)
    assert [step.rpartition(":")[2] for step, _, _ in tasks(look)] == ["2"]
    said = run("runs", "redispatch", "order-1", "--app", app).stdout
    assert said == "remote:echo#1, remote:echo#2 of order-1 will be sent again\n"
    told = json.loads(
        run("runs", "redispatch", "order-1", "remote:echo#2", "--actor", "ada", "--json", "--app", app).stdout
    )
    assert told == {"run": "order-1", "keys": ["remote:echo#2"]}
    lines = store.run(admin.audit(lease.job_id))
    assert [(one.action, one.detail["steps"], one.detail["key"]) for one in lines] == [
        ("run_redispatch", 1, "remote:echo#2"),
        ("run_redispatch", 2, None),
        ("run_redispatch", 1, "remote:echo#2"),
    ]
    assert lines[0].actor == "ada"
    assert "does not wait for a remote step" in run("runs", "redispatch", "order-1", "x", "--app", app, code=6).stderr
    assert "There is no run" in run("runs", "redispatch", "nobody", "--app", app, code=5).stderr
    assert store.run(admin.audit()) == lines


def test_doctor_names_lost_steps_that_nobody_looks_after(
    run: Run, app: str, store: Store, transport: TablesTransport
) -> None:
    assert "every remote step that a run waits for is looked after" in run("doctor", "--app", app).stdout
    lease = held_run(store.run)
    dispatched(store.run, transport, lease, sending(lease, 1), sending(lease, 2))
    look = Look(store.run, store)
    look.change("delete from durable_transport_tasks")
    ago = round(timedelta(minutes=2).total_seconds() * 1_000_000)
    look.change(f"update holdfast_dispatches set look_at = look_at - {ago}")  # noqa: S608 - a number
    found = run("doctor", "--app", app, code=7).stdout
    assert "2 remote steps wait for engine durable, and no worker looks after it; 2 of them lost" in found
    look.change("update holdfast_dispatches set lost = 3 where seq = 1")
    swept(store.run, transport)
    assert pending(look) == [(1, 1, 4), (2, 1, 1)]
    assert "1 remote step waits for engine durable and got lost again" in run("doctor", "--app", app, code=7).stdout
