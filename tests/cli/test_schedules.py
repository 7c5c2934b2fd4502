"""`holdfast schedules`: what can be seen and done by hand, and `doctor`'s eye on it."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from holdfast import admin, schedules
from holdfast.store import Store
from holdfast.testing.suite_schedules import schedule
from holdfast.worker import registry
from tests.cli.conftest import Run, lines

DECLARES = """
hf.schedule("nightly", send_receipt.bind(order_id=1), cron="0 2 * * *", timezone="Europe/Berlin")
hf.schedule("often", greet.bind(name="ada"), every=300)
"""


@pytest.fixture
def declaring(app: str, place: Path) -> str:
    """The application, with two schedules."""
    file = place / f"{app.partition(':')[0]}.py"
    file.write_text(file.read_text() + DECLARES)
    return app


def added(run: Run, app: str, *words: str, code: int = 0) -> Any:
    return run("schedules", "add", *words, "--app", app, code=code)


def test_what_an_application_declares_is_stored_and_listed_with_its_next_runs(run: Run, declaring: str) -> None:
    assert run("schedules", "sync", declaring).stdout == "nightly: created\noften: created\n"
    assert lines(run("schedules", "sync", declaring, "--json")) == [
        {"name": "nightly", "what": "same"},
        {"name": "often", "what": "same"},
    ]
    shown = run("schedules", "list", "--app", declaring).stdout.splitlines()
    assert shown[0].split() == ["NAME", "WHEN", "KIND", "QUEUE", "NEXT", "LAST"]
    assert "0 2 * * * Europe/Berlin  send_receipt  mail" in shown[1]
    assert "every 5m" in shown[2]
    assert shown[1].endswith("never")
    nightly, often = lines(run("schedules", "list", "--json", "--runs", "3", "--app", declaring))
    assert (nightly["payload"], nightly["queue"], nightly["catch_up"]) == ({"order_id": 1}, "mail", "one")
    assert len(often["next_runs"]) == 3
    first, second, _ = map(datetime.fromisoformat, often["next_runs"])
    assert second - first == timedelta(minutes=5)


def test_what_is_declared_and_not_stored_is_told(run: Run, declaring: str, url: str) -> None:
    assert "no schedules: declare one" in run("schedules", "list", "--url", url).stderr
    told = run("schedules", "list", "--app", declaring)
    assert told.stdout == ""
    assert "not stored yet: nightly, often." in told.stderr
    assert f"`holdfast schedules sync {declaring}`" in told.stderr
    assert "not stored yet: nightly." in run("schedules", "pause", "nightly", "--app", declaring, code=5).stderr
    run("schedules", "sync", declaring)
    assert run("schedules", "list", "--app", declaring).stderr == ""


@pytest.mark.parametrize("command", ["list", "pause", "resume", "trigger", "remove"])
def test_a_name_that_is_nearly_right_is_asked_about(run: Run, declaring: str, url: str, command: str) -> None:
    run("schedules", "sync", declaring)
    assert "did you mean nightly?" in run("schedules", command, "nitely", "--url", url, code=5).stderr


def test_one_schedule_is_shown_whole(run: Run, declaring: str) -> None:
    run("schedules", "sync", declaring)
    shown = run("schedules", "list", "nightly", "--runs", "2", "--app", declaring).stdout
    assert '{"order_id":1}' in shown
    assert shown.count(":00:00") >= 2
    assert "'nope'" in run("schedules", "list", "nope", "--app", declaring, code=5).stderr


def test_an_application_that_declares_nothing_is_told_so(run: Run, app: str) -> None:
    assert "declares no schedules" in run("schedules", "sync", app).stderr


def test_a_schedule_is_added_by_hand_with_checked_arguments(run: Run, app: str, store: Store) -> None:
    out = added(run, app, "n", "send_receipt", "order_id=7", "--cron", "0 2 * * *", "--priority", "5", "--json").stdout
    assert json.loads(out)["what"] == "created"
    [one] = store.run(schedules.listed("n"))
    assert (one.queue, one.payload, one.declared_by) == ("mail", '{"order_id":7}', "hand")
    assert json.loads(one.options) == {"priority": 5}
    assert added(
        run, app, "n", "send_receipt", "order_id=7", "--cron", "0 2 * * *", "--priority", "5"
    ).stdout.startswith("n: same")
    again = ("n", "send_receipt", "order_id=8", "--every", "15m", "--catch-up", "skip")
    assert "--replace" in added(run, app, *again, code=6).stderr
    assert added(run, app, *again, "--replace", "--actor", "ada").stdout.startswith("n: changed; next run ")
    assert store.run(admin.audit())[0].actor == "ada"
    assert store.run(schedules.listed("n"))[0].every_ms == 900_000


def test_any_kind_can_be_scheduled_without_an_application(run: Run, app: str, store: Store) -> None:
    words = ("schedules", "add", "n", "php-thing", '{"a": 1}', "--every", "1h", "--url", store.url)
    run(*words)
    [one] = store.run(schedules.listed())
    assert (one.kind, one.queue, one.payload) == ("php-thing", "default", '{"a":1}')
    assert "php-thing" in added(run, app, "m", "php-thing", "--every", "1h", code=2).stderr
    added(run, app, "m", "php-thing", "--every", "1h", "--no-check")


@pytest.mark.parametrize(
    "words, said",
    [
        (("greet", "name=x"), "Give either --cron or --every"),
        (("greet", "name=x", "--cron", "0 2 * * *", "--every", "1h"), "Give either --cron or --every"),
        (("greet", "name=x", "--every", "1h", "--timezone", "UTC"), "--timezone belongs to --cron"),
        (("greet", "name=x", "--every", "0.1"), "--every: must be from 1 second to 366 days; got 0.1 seconds"),
        (("greet", "name=x", "--every", "1h", "--priority", "500"), "--priority: must be a whole number"),
        (("greet", "name=x", "--cron", "0 25 * * *"), "bad hour"),
        (("greet", "name=x", "--cron", "0 2 * * *", "--timezone", "Mars/X"), "such as Europe/Berlin"),
        (("greet", "nome=x", "--every", "1h"), "nome"),
        (("greet", "name=x", "--every", "soon"), "not a duration"),
        (("greet", "name=x", "--every", "1h", "--catch-up", "some"), "'skip', 'one', 'all'"),
    ],
)
def test_what_cannot_be_scheduled_is_wrong_usage(run: Run, app: str, words: tuple[str, ...], said: str) -> None:
    assert said in added(run, app, "n", *words, code=2).stderr


def test_a_schedule_is_paused_resumed_triggered_and_removed(run: Run, app: str, store: Store) -> None:
    added(run, app, "n", "greet", "name=x", "--cron", "0 2 * * *")
    by = ("n", "--app", app, "--actor", "ada")
    assert run("schedules", "pause", *by).stdout == "n: paused\n"
    assert "paused" in run("schedules", "list", "--app", app).stdout
    assert lines(run("schedules", "list", "--json", "--app", app))[0]["next_runs"] == []
    assert "paused already" in run("schedules", "pause", *by, code=6).stderr
    assert lines(run("schedules", "resume", *by, "--json"))[0]["what"] == "resumed"
    before = store.run(schedules.listed("n"))[0].next_at
    job_id = run("schedules", "trigger", *by).stdout.strip()
    assert store.run(admin.show(job_id)).kind == "greet"
    assert store.run(schedules.listed("n"))[0].next_at == before
    assert lines(run("schedules", "remove", *by, "--json")) == [{"name": "n", "what": "removed"}]
    assert "no schedule 'n'" in run("schedules", "trigger", *by, code=5).stderr
    assert {line.actor for line in store.run(admin.audit())[:4]} == {"ada"}


def test_a_trigger_that_meets_its_unique_job_says_so(run: Run, app: str) -> None:
    added(run, app, "n", "greet", "name=x", "--every", "1h", "--unique", "only")
    first = run("schedules", "trigger", "n", "--app", app)
    again = run("schedules", "trigger", "n", "--app", app)
    assert first.stdout == again.stdout
    assert "nothing added" in again.stderr


def test_removing_what_live_workers_declare_is_said_to_be_for_a_while(run: Run, app: str, store: Store) -> None:
    added(run, app, "nightly", "greet", "name=x", "--every", "1h")
    store.run(registry.beat("web1-1", json.dumps({"schedules": {"nightly": "0123"}})))
    assert "it comes back" in run("schedules", "remove", "nightly", "--app", app).stderr


# Doctor


def seen(run: Run, store: Store, code: int = 7) -> list[str]:
    found = lines(run("doctor", "--json", "--url", store.url, "--skip", "clocks", code=code))
    return [f"{one['severity']}: {one['seen']}" for one in found if one["check"] == "schedules"]


def alive(store: Store, **said: Any) -> None:
    info = {"queues": ["mail"], "kinds": ["report"]} | said
    store.run(registry.beat("web1-1", json.dumps(info)))


def test_doctor_finds_schedules_well(run: Run, store: Store) -> None:
    assert seen(run, store, code=0) == []
    store.run(schedules.sync([schedule(), schedule("off")]))
    store.run(schedules.pause("off", None))
    alive(store)
    assert seen(run, store, code=0) == ["ok: 2 schedules, 1 paused, none is late"]


def test_doctor_names_a_schedule_that_is_late(run: Run, store: Store) -> None:
    store.now = datetime.now(UTC) - timedelta(hours=3)
    store.run(schedules.sync([schedule(every=3600)]))
    store.now = None
    assert "problem: schedule nightly: its tick is 2 h" in seen(run, store)[0]


def test_doctor_names_a_schedule_whose_jobs_nobody_runs(run: Run, store: Store) -> None:
    store.run(schedules.sync([schedule()]))
    alive(store, kinds=["other"])
    assert seen(run, store) == ["warning: schedule nightly: no live worker handles its kind report"]
    alive(store, queues=["other"])
    assert seen(run, store) == ["warning: schedule nightly: no live worker serves its queue mail"]


def test_doctor_names_a_schedule_that_ran_ahead_or_cannot_be_read(run: Run, store: Store) -> None:
    store.now = datetime.now(UTC) + timedelta(days=400)
    store.run(schedules.sync([schedule(), schedule("odd")]))
    store.now += timedelta(days=1)
    store.run(schedules.tick("nightly"))
    store.now = None
    with store.link() as link:
        link.raw.execute("update holdfast_schedules set timezone = 'Mars/X' where name = 'odd'")
    ahead, odd = seen(run, store)
    assert "schedule nightly: its last tick lies 40" in ahead
    assert "Mars/X" in odd
    run("schedules", "resume", "nightly", "--url", store.url)
    assert len(seen(run, store)) == 1


def test_doctor_names_a_schedule_that_live_workers_declare_otherwise(run: Run, store: Store) -> None:
    store.run(schedules.sync([schedule()]))
    alive(store, schedules=schedules.fingerprints([schedule(cron="0 3 * * *")]))
    assert "declare it otherwise" in seen(run, store)[0]
