"""`holdfast jobs cancel` and `holdfast jobs change` by id and by filter, and `holdfast workers drain`."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from holdfast import admin, jobs
from holdfast.cli.render import moment
from holdfast.store import Store
from holdfast.values.ids import new_id
from holdfast.worker import registry
from tests.cli.conftest import Run, add, claim, lines
from tests.cli.test_workers import INFO


def states(store: Store) -> dict[str, str]:
    return {job.id: job.state for job in store.run(admin.list_jobs(limit=1000))}


# Cancel


def test_a_filter_cancels_what_waits_and_what_runs(run: Run, app: str, store: Store) -> None:
    [running] = add(store)
    claim(store)
    waits = add(store, 2)
    [other] = add(store, queue="other")
    shown = run("jobs", "cancel", "--queue", "mail", "--yes", "--actor", "ada", "--app", app).stdout
    assert shown.splitlines() == ["cancelled 2 jobs", "asked the workers of 1 running job to stop"]
    assert states(store) == {running: "leased", other: "pending"} | dict.fromkeys(waits, "cancelled")
    assert [line.actor for line in store.run(admin.audit(waits[0]))] == ["ada"]


def test_a_dry_run_tells_what_would_be_cancelled(run: Run, app: str, store: Store) -> None:
    [running] = add(store)
    claim(store)
    waits = add(store, 2)
    shown = run("jobs", "cancel", "--kind", "send_receipt", "--dry-run", "--app", app).stdout
    assert shown.splitlines() == ["would cancel 2 jobs", "would ask the workers of 1 running job to stop"]
    [told] = lines(run("jobs", "cancel", "--all", "--dry-run", "--json", "--app", app))
    assert told == {"dry_run": True, "cancelled": waits, "requested": [running], "left": {}}
    shown = run("jobs", "cancel", running, waits[0], "--dry-run", "--app", app).stdout
    assert shown.splitlines() == [f"would cancel {waits[0]}", f"{running} runs: would ask its worker to stop it"]
    assert set(states(store).values()) == {"pending", "leased"}
    assert store.run(admin.audit()) == []


def test_json_tells_what_became_of_each(run: Run, app: str, store: Store) -> None:
    waits, done = add(store, 2)
    [lease] = [one for one in claim(store, 2) if one.job_id == done]
    store.run(jobs.complete(lease))
    run("jobs", "retry", waits, "--app", app, code=6)
    unknown = new_id()
    told = run("jobs", "cancel", "12", waits, done, unknown, "--json", "--app", app, code=5)
    [answer] = lines(told)
    assert answer["requested"] == [waits]
    assert answer["left"] == {"12": "unknown", done: "done", unknown: "unknown"}
    assert "There is no job" in told.stderr
    assert "nothing left to cancel" in told.stderr


def test_ids_that_cannot_be_ids_never_mean_every_job(run: Run, app: str, store: Store) -> None:
    add(store, 2)
    run("jobs", "cancel", "12", "--queue", "mail", "--app", app, code=5)
    run("jobs", "change", "no-such-thing", "--priority", "1", "--app", app, code=5)
    assert set(states(store).values()) == {"pending"}


def test_ids_beside_a_filter_must_fit_it(run: Run, app: str, store: Store) -> None:
    [mine, other] = [*add(store), *add(store, queue="other")]
    told = run("jobs", "cancel", mine, other, "--queue", "mail", "--app", app, code=6)
    assert told.stdout == f"{mine} is cancelled\n"
    assert f"{other} is live, and is not what the filters ask for" in told.stderr


@pytest.mark.parametrize("words", ["cancel", "change --priority 3"])
@pytest.mark.parametrize("answer, code, touched", [("y\n", 0, 2), ("n\n", 1, 0), ("\n", 1, 0)])
def test_on_a_terminal_it_asks_before_many(
    run: Run, app: str, store: Store, monkeypatch: pytest.MonkeyPatch, words: str, answer: str, code: int, touched: int
) -> None:
    monkeypatch.setattr("holdfast.cli.shared.interactive", lambda: True)
    add(store, 2)
    shown = run("jobs", *words.split(), "--queue", "mail", "--app", app, input=answer, code=code)
    assert f"{words.split()[0].capitalize()} 2 jobs?" in shown.stderr
    assert len(store.run(admin.audit())) == touched


@pytest.mark.parametrize("words", ["cancel", "change --priority 3"])
def test_without_a_terminal_many_need_a_yes_and_one_needs_none(run: Run, app: str, store: Store, words: str) -> None:
    add(store)
    run("jobs", *words.split(), "--queue", "mail", "--app", app)
    add(store, 2)
    assert "--yes" in run("jobs", *words.split(), "--all", "--app", app, code=2).stderr


def test_what_is_enqueued_after_the_question_is_not_meant(
    run: Run, app: str, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = add(store, 2)
    monkeypatch.setattr("holdfast.cli.controls.confirm", lambda *_: add(store))
    run("jobs", "cancel", "--queue", "mail", "--app", app)
    assert sorted(job for job, state in states(store).items() if state == "cancelled") == sorted(asked)
    assert len(states(store)) == 3


@pytest.mark.parametrize(
    "words",
    [
        "cancel",
        "cancel --all --queue mail",
        "cancel --state done",
        "cancel --state gone",
        "cancel --limit 0 --all",
        "cancel --since yesterday",
        "cancel --queue=",
        "change --priority 3",
        "change --queue mail",
        "change --all --priority 101",
        "change --all --priority x",
        "change --all --delay 5m --at 2026-05-01",
        "change --all --at 2h",
        "change --all --to-queue=",
    ],
)
def test_a_wrong_choice_is_wrong_usage(run: Run, app: str, store: Store, words: str) -> None:
    add(store)
    run("jobs", *words.split(), "--yes", "--app", app, code=2)
    assert store.run(admin.audit()) == []


@pytest.mark.parametrize("words", ["cancel", "change --priority 3"])
def test_when_no_live_job_matches_the_code_is_5(run: Run, app: str, store: Store, words: str) -> None:
    assert "no live job matches" in run("jobs", *words.split(), "--queue", "mail", "--app", app, code=5).stderr


def test_a_limit_takes_the_oldest(run: Run, app: str, store: Store) -> None:
    added = add(store, 3)
    [told] = lines(run("jobs", "cancel", "--all", "--limit", "2", "--yes", "--json", "--app", app))
    assert told["cancelled"] == added[:2]


# Change


def test_priority_time_and_queue_are_changed(run: Run, app: str, store: Store) -> None:
    [job] = add(store)
    shown = run(
        *("jobs", "change", job, "--priority", "7", "--to-queue", "default", "--at", "2030-05-01T12:30+02:00"),
        *("--app", app),
    )
    assert shown.stdout == f"{job} is changed\n"
    now = store.run(admin.show(job))
    assert (now.priority, now.queue, now.available_at) == (7, "default", datetime(2030, 5, 1, 10, 30, tzinfo=UTC))
    run("jobs", "change", job, "--delay", "1h", "--app", app)
    left = store.run(admin.show(job)).available_at - datetime.now(UTC)
    assert timedelta(minutes=50) < left <= timedelta(hours=1)
    run("jobs", "change", job, "--delay", "0", "--app", app)
    assert [lease.job_id for lease in claim(store, queue="default")] == [job]


def test_show_says_what_was_changed(run: Run, app: str, store: Store) -> None:
    [job] = add(store)
    assert "done by hand" not in run("jobs", "show", job, "--app", app).stdout
    run("jobs", "change", job, "--priority", "7", "--to-queue", "default", "--actor", "ann", "--app", app)
    run("jobs", "change", job, "--delay", "1h", "--actor", "ann", "--app", app)
    run("jobs", "change", job, "--delay", "0", "--actor", "ann", "--app", app)
    run("jobs", "change", job, "--at", "2030-05-01T12:30", "--actor", "ann", "--app", app)
    _, _, told = run("jobs", "show", job, "--app", app).stdout.partition("\ndone by hand\n")
    at, now, later, first = told.splitlines()
    assert first.endswith("  change by ann: priority 0 → 7, queue mail → default")
    assert later.endswith(" → 1 h 0 m later")
    assert now.endswith(" → at once")
    assert at.endswith(f" → {moment(datetime(2030, 5, 1, 12, 30).astimezone())}")


def test_a_change_by_filter_tells_what_it_left_alone(run: Run, app: str, store: Store) -> None:
    [running] = add(store)
    claim(store)
    waits = add(store, 2)
    told = run("jobs", "change", "--queue", "mail", "--to-queue", "bulk", "--yes", "--app", app)
    assert told.stdout == "changed 2 jobs\n"
    assert "left alone: 1 job (leased)" in told.stderr
    [answer] = lines(run("jobs", "change", "--all", "--priority", "2", "--dry-run", "--json", "--app", app))
    assert answer == {
        "dry_run": True,
        "changed": waits,
        "left": {running: "leased"},
        "change": {"priority": 2},
    }
    told = run("jobs", "change", "--queue", "mail", "--priority", "2", "--app", app, code=6)
    assert told.stdout == "changed 0 jobs\n"
    assert (
        "is leased and cannot be changed"
        in run("jobs", "change", running, "--priority", "1", "--app", app, code=6).stderr
    )


def test_a_queue_that_nobody_serves_is_told(run: Run, app: str, store: Store) -> None:
    [job] = add(store)
    store.run(registry.beat("web1-1", INFO))
    for how in (("--dry-run",), ()):
        told = run("jobs", "change", job, "--to-queue", "malt", *how, "--app", app)
        assert "no worker serves queue malt" in told.stderr
    assert "no worker" not in run("jobs", "change", job, "--to-queue", "default", "--app", app).stderr


def test_foreign_tables_are_refused_with_what_to_do_instead(run: Run, app: str, place: Path) -> None:
    (place / "foreign_shop.py").write_text((place / "shop.py").read_text() + "\nhf.foreign.pdo().create_schema()\n")
    for words in (("cancel", "--all"), ("change", "--all", "--priority", "1")):
        told = run("jobs", *words, "--store", "pdo:jobs", "--app", "foreign_shop:hf", code=6)
        assert "jobs." in told.stderr


# Drain


def test_workers_of_a_host_are_drained(run: Run, app: str, store: Store) -> None:
    for worker in ("web1-1", "web1-2"):
        store.run(registry.beat(worker, INFO))
    store.run(registry.beat("web2-1", INFO.replace("web1", "web2")))
    told = run("workers", "drain", "--host", "web1", "--dry-run", "--app", app)
    assert told.stdout.splitlines() == ["would drain web1-1", "would drain web1-2"]
    assert "--yes" in run("workers", "drain", "--host", "web1", "--app", app, code=2).stderr
    [answer] = lines(run("workers", "drain", "--host", "web1", "--yes", "--actor", "ada", "--json", "--app", app))
    assert answer == {"dry_run": False, "asked": ["web1-1", "web1-2"], "left": {}}
    assert {worker.id: worker.status for worker in store.run(registry.workers())} == {
        "web1-1": "draining",
        "web1-2": "draining",
        "web2-1": "alive",
    }
    assert {(line.action, line.actor) for line in store.run(admin.audit())} == {("worker_drain", "ada")}
    assert "did you mean web2 or web1?" in run("workers", "drain", "--host", "web", "--app", app, code=5).stderr


def test_a_worker_that_drains_already_is_no_failure(run: Run, app: str, store: Store) -> None:
    store.run(registry.beat("web1-1", INFO))
    run("workers", "drain", "web1-1", "--app", app)
    assert "web1-1 drains already" in run("workers", "drain", "web1-1", "--app", app).stderr
    told = run("workers", "drain", "web1-1", "gone", "--app", app, code=5)
    assert "there is no worker 'gone'" in told.stderr


@pytest.mark.parametrize("words", ["", "web1-1 --host web1"])
def test_a_drain_says_of_which_workers(run: Run, app: str, words: str) -> None:
    assert "which workers?" in run("workers", "drain", *words.split(), "--app", app, code=2).stderr
