"""Actions: each asks, shows what it will touch, does that and no more, and is audited with who did it."""

import contextlib
import json
import re
import sqlite3
from collections import Counter
from pathlib import Path
from urllib.parse import urlencode

import pytest

from holdfast import Fatal, Run, admin, jobs, lines
from holdfast.dashboard import Access
from holdfast.dashboard.actions import DEEDS
from holdfast.dashboard.actions import letters as module
from holdfast.testing.inline import run_due
from holdfast.values.failure import ErrorRecord
from holdfast.values.rows import Finish
from holdfast.worker import registry
from tests.dashboard.client import Client
from tests.dashboard.conftest import board
from tests.dashboard.ground import SECRET, Shop
from tests.dashboard.test_pages import WORDS


def count(shop: Shop, **said: object) -> int:
    return shop.hf.store.run(admin.count_jobs(admin.Filter(**said)))  # type: ignore[arg-type]


def actions(shop: Shop) -> list[tuple[str, str | None]]:
    return [(line.action, line.actor) for line in reversed(shop.hf.store.run(admin.audit(limit=1000)))]


def test_a_dead_group_is_found_previewed_and_replayed(shops: Shop) -> None:
    for colour in ("wsgi", "asgi"):
        client = Client(board(shops), colour)
        groups = client.get("/dead").page
        kind = "send_receipt" if colour == "wsgi" else "resize"
        number = {"send_receipt": 8, "resize": 5}[kind]
        form = next(one for one in groups.forms if one.action.endswith("/ask/replay") and kind in dict(one.fields)["q"])
        preview = client.submit(form).page
        assert f"Replay {number} dead letters?" in preview.words
        assert len([one for one in preview.attribute("id") if one.startswith("row-")]) == number
        assert count(shops, states=("dead",), kind=kind) == number
        done = client.submit(preview.form("/do/replay")).page
        assert f"{number} dead letters replayed" in done.words
        assert count(shops, states=("dead",), kind=kind) == 0
        assert count(shops, states=("pending",), kind=kind) >= number
        assert actions(shops).count(("replay", "ada")) == (8 if colour == "wsgi" else 13)


@pytest.mark.parametrize("verb", ["replay", "discard"])
def test_many_letters_go_in_parts_and_the_page_tells_how_far_it_is(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    monkeypatch.setattr(module, "PART", 3)
    client, told = Client(board(shop)), list[str]()
    page = client.submit(client.get(f"/ask/{verb}?q=kind:send_receipt").page.form(f"/do/{verb}")).page
    while any(form.action.endswith(f"/do/{verb}") for form in page.forms):
        told.append(re.search(r"(\d+) of (\d+)", page.words).group())  # type: ignore[union-attr]
        page = client.submit(page.form(f"/do/{verb}")).page
    assert told == ["3 of 8", "6 of 8"]
    assert f"8 dead letters {verb}ed" in page.words
    assert ("Watch them run" in page.words) is (verb == "replay")
    assert count(shop, states=("dead",), kind="send_receipt") == 0


def test_very_many_letters_are_not_counted_before_they_are_replayed(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PART", 3)
    for name in ("holdfast.dashboard.actions.letters", "holdfast.admin.desk"):
        monkeypatch.setattr(f"{name}.COUNTED", 4)
    client = Client(board(shop))
    preview = client.get("/ask/replay?q=kind:send_receipt").page
    assert "Replay 4 dead letters or more?" in preview.words
    page, told = client.submit(preview.form("/do/replay")).page, list[str]()
    while any(form.action.endswith("/do/replay") for form in page.forms):
        told.append(re.search(r"(\d+) so far", page.words).group())  # type: ignore[union-attr]
        page = client.submit(page.form("/do/replay")).page
    assert told == ["3 so far", "6 so far", "8 so far"]
    assert "8 dead letters replayed" in page.words
    assert count(shop, states=("dead",), kind="send_receipt") == 0


def test_letters_that_die_after_the_preview_are_not_replayed(shop: Shop) -> None:
    client = Client(board(shop))
    preview = client.get("/ask/replay?q=kind:send_receipt").page.form("/do/replay")
    held = shop.claim("mail")
    [lease] = [one for one in _leases(shop) if one.id == held]
    error = ErrorRecord(1, "ValueError", "late", "", "w", "2026-05-01T00:00:00", "2026-05-01T00:00:01")
    shop.hf.store.run(jobs.settle([Finish(held, lease.fence, "dead", None, error.to_json(), error.fingerprint)]))
    client.submit(preview, total="100")
    assert [
        job.id for job in shop.hf.store.run(admin.list_jobs(admin.Filter(states=("dead",), kind="send_receipt")))
    ] == [held]


def _leases(shop: Shop) -> list[admin.JobView]:
    return shop.hf.store.run(admin.list_jobs(admin.Filter(states=("leased",))))


def test_letters_in_conflict_stay_and_stop_nobody(empty: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PART", 2)
    shop, store = empty, empty.hf.store
    for number in (3, 6, 9, 12, 15):
        shop.send_receipt.using(unique=f"u{number}", queue="twice").enqueue(order_id=number)
    run_due(shop.hf, raise_errors=False)
    dead = store.run(admin.list_jobs(admin.Filter(states=("dead",), queue="twice"), newest=False))
    assert len(dead) == 5
    for number in (3, 6, 9):
        shop.send_receipt.using(unique=f"u{number}", queue="twice").enqueue(order_id=number)
    client = Client(board(shop))
    preview = client.get("/ask/replay?q=queue:twice").page
    assert "stays: job" in preview.words
    page = client.submit(preview.form("/do/replay")).page
    rounds = 0
    while any(form.action.endswith("/do/replay") for form in page.forms):
        page, rounds = client.submit(page.form("/do/replay")).page, rounds + 1
        assert rounds < 10
    assert "2 dead letters replayed" in page.words
    assert count(shop, states=("dead",), queue="twice") == 3


def test_discard_deletes_what_was_shown_and_keeps_it_in_the_audit(shops: Shop) -> None:
    client = Client(board(shops))
    preview = client.get("/ask/discard?q=kind:resize").page
    assert "deleted for good" in preview.words
    done = client.submit(preview.form("/do/discard")).page
    assert "5 dead letters discarded" in done.words
    assert count(shops, kind="resize") == 0
    assert actions(shops).count(("discard", "ada")) == 5


def test_chosen_jobs_are_cancelled_changed_and_retried(shops: Shop) -> None:
    client, store = Client(board(shops)), shops.hf.store
    later = store.run(admin.list_jobs(admin.Filter(states=("pending",), queue="reports")))
    first, second, third = (job.id for job in later[:3])
    client.submit(client.get(f"/ask/retry?id={first}").page.form("/do/retry"))
    assert store.run(admin.show(first)).available_at <= store.run(admin.show(second)).available_at
    changing = client.get(f"/ask/change?id={second}&id={third}").page
    assert "Change 2 jobs" in changing.words
    client.submit(changing.form("/do/change"), priority="7", to_queue="slow")
    assert {store.run(admin.show(one)).priority for one in (second, third)} == {7}
    assert store.run(admin.show(third)).queue == "slow"
    client.submit(client.get(f"/ask/cancel?id={second}&id={third}").page.form("/do/cancel"))
    assert {store.run(admin.show(one)).state for one in (second, third)} == {"cancelled"}
    told = client.post("/do/retry", [("id", third), ("id", "01997a3e-5b1c-7d20-8f4e-0a1b2c3d4e5f")]).page.words
    assert "1 job will run as soon as possible" in told
    assert "01997a3e" in told


def test_who_may_only_retry_replays_nothing_and_who_may_only_replay_can_from_the_job(shop: Shop) -> None:
    store = shop.hf.store
    [dead] = store.run(admin.list_jobs(admin.Filter(key="order:24")))
    [waits, stopped, *_] = store.run(admin.list_jobs(admin.Filter(states=("pending",), queue="reports")))
    store.run(admin.cancel(stopped.id, None))
    retries = Client(board(shop, Access("ada", ["retry"])))
    assert not [form for form in retries.get(f"/job?id={dead.id}").page.forms if "Replay" in form.buttons]
    told = retries.post("/do/retry", [("id", dead.id), ("id", stopped.id), ("id", waits.id)]).page.words
    assert "1 job will run as soon as possible" in told
    assert [store.run(admin.show(one.id)).state for one in (dead, stopped)] == ["dead", "cancelled"]
    replays = Client(board(shop, Access("grace", ["replay"])))
    for one in (dead, stopped):
        asked = replays.submit(replays.get(f"/job?id={one.id}").page.form("/ask/replay")).page
        assert replays.submit(asked.form("/do/replay")).page.of("h1") == ["1 dead letter replayed"]
        assert store.run(admin.show(one.id)).state == "pending"


def test_what_is_done_is_not_previewed_as_a_dead_letter_to_discard(shop: Shop) -> None:
    answer = Client(board(shop)).get("/ask/discard?q=state:done+kind:send_receipt")
    assert (answer.status, "must be among dead, cancelled" in answer.page.words) == (400, True)


def test_a_delay_beyond_all_times_is_told(shop: Shop) -> None:
    [job, *_] = shop.hf.store.run(admin.list_jobs(admin.Filter(states=("pending",), queue="reports")))
    for delay in ("9" * 30, "9" * 30 + "d"):
        answer = Client(board(shop)).post("/do/change", {"id": job.id, "delay": delay})
        assert (answer.status, "at most 100 years" in answer.page.words) == (400, True)


def test_a_search_cancels_what_it_finds_and_nothing_that_came_later(shop: Shop) -> None:
    client = Client(board(shop))
    preview = client.get("/ask/cancel?q=queue:reports").page
    assert "Cancel 8 jobs?" in preview.words
    late = shop.report.enqueue(day="after the preview").id
    done = client.submit(preview.form("/do/cancel")).page
    assert "8 jobs cancelled" in done.words
    assert shop.hf.get(late).state == "pending"
    assert client.get("/ask/cancel").status == 400
    assert client.post("/do/cancel", {}).status == 400
    assert client.get("/ask/cancel?q=state:dead").status == 400


def test_a_queue_is_paused_with_a_reason_and_resumed(shops: Shop) -> None:
    client = Client(board(shops))
    client.submit(client.get("/ask/pause?queue=mail").page.form("/do/pause"), reason="the provider is down")
    assert "the provider is down" in client.get("/queues").page.words
    [pause] = [one for one in shops.hf.pauses() if one.name == "mail"]
    assert (pause.by, pause.reason) == ("ada", "the provider is down")
    preview = client.get("/ask/resume?queue=mail").page
    assert "the provider is down" in preview.words
    assert "goes on" in client.submit(preview.form("/do/resume")).page.words
    assert "was not paused" in client.post("/do/resume", {"queue": "mail"}).page.words
    client.post("/do/pause", {"kind": "resize"})
    assert "Paused kinds" in client.get("/queues").page.words
    client.post("/do/resume", {"kind": "resize"})


def test_limits_are_changed_and_shown(shops: Shop) -> None:
    client = Client(board(shops))
    form = client.get("/ask/limits?queue=orders").page.form("/do/limits")
    assert dict(form.fields)["concurrency"] == "5"
    client.submit(form, concurrency="2", rate="50/1s", fair="yes")
    stored = shops.hf.store.run(lines.stored("orders"))["orders"].settings
    assert (stored.concurrency, str(stored.rate), stored.fair, stored.ordered) == (2, str(stored.rate), True, True)
    assert "concurrency 2" in client.get("/queues").page.words
    refused = client.post("/do/limits", {"queue": "orders", "concurrency": "many"})
    assert refused.status == 400
    assert "whole number" in refused.page.words


def test_lines_are_stopped_and_started(shops: Shop) -> None:
    client = Client(board(shops))
    shops.ship.using(key="order:7").enqueue(order_id=7)
    assert "stands still" in client.post("/do/stop-line", {"queue": "orders", "key": "order:7"}).page.words
    assert "order:7" in client.get("/lines?queue=orders&stopped=1").page.words
    assert "Lines that stand still" in client.get("/queues").page.words
    assert "1 line stands still; the first is of queue orders, stopped by hand" in client.get("/").page.words
    assert (
        "goes on"
        in client.submit(client.get("/ask/start-line?queue=orders&key=order:7").page.form("/do/start-line")).page.words
    )
    assert "stands still" not in client.get("/").page.words


def test_a_schedule_is_triggered_once_paused_and_resumed(shops: Shop) -> None:
    client = Client(board(shops))
    form = client.get("/ask/trigger?name=nightly").page.form("/do/trigger")
    before = count(shops, kind="report")
    client.submit(form)
    client.submit(form)
    assert count(shops, kind="report") == before + 1
    client.submit(client.get("/ask/pause-schedule?name=nightly").page.form("/do/pause-schedule"))
    assert "paused" in client.get("/schedules").page.words
    assert client.post("/do/pause-schedule", {"name": "nightly"}).status == 409
    client.submit(client.get("/ask/resume-schedule?name=nightly").page.form("/do/resume-schedule"))
    assert client.get("/ask/trigger?name=nothing").status == 404


def test_a_worker_is_drained_in_the_name_of_who_did_it(shops: Shop) -> None:
    client = Client(board(shops))
    client.submit(client.get("/ask/drain?id=web1-4821-7f3a").page.form("/do/drain"))
    known = {one.id: one.status for one in shops.hf.store.run(registry.workers())}
    assert known["web1-4821-7f3a"] == "draining"
    assert ("worker_drain", "ada") in actions(shops)
    assert "No worker to drain" in client.get("/ask/drain?id=web1-4821-7f3a").page.words
    assert client.get("/ask/drain").status == 400


def test_a_run_is_signalled_and_stopped_with_an_audit_line(shops: Shop) -> None:
    client = Client(board(shops))
    form = client.get("/ask/signal-run?id=order-2").page.form("/do/signal-run")
    assert dict(form.fields)["name"] == "approved"
    for _ in range(2):
        client.submit(form, payload='{"by": "ada"}')
    assert actions(shops).count(("run_signal", "ada")) == 1
    assert client.post("/do/signal-run", {"id": "order-2", "name": "x", "payload": "{"}).status == 400
    client.submit(client.get("/ask/cancel-run?id=order-2").page.form("/do/cancel-run"))
    assert ("run_cancel", "ada") in actions(shops)
    assert client.post("/do/resume-run", {"id": "order-1"}).status == 409


def test_foreign_rows_are_acted_on_as_far_as_their_tables_can(shop: Shop) -> None:
    client = Client(board(shop))
    page = client.get("/jobs?store=pdo:jobs").page
    [row] = [one.removeprefix("row-") for one in page.attribute("id") if one.startswith("row-")]
    assert client.get(f"/job?id={row}&store=pdo:jobs").status == 200
    assert client.get(f"/ask/change?id={row}&store=pdo:jobs").status == 409
    assert client.get(f"/ask/retry?id={row}&store=pdo:jobs").status == 200


def fail_in_pdo(shop: Shop, to: str, reason: str) -> None:
    """Write a dead letter as a program in PHP does; its table numbers its rows for itself."""
    payload = json.dumps({"id": "m-1", "urn": "shop.mail", "data": {"to": to}})
    with contextlib.closing(sqlite3.connect(shop.hf.url.removeprefix("sqlite:///"))) as connection, connection:
        connection.execute(
            "insert into jobs_failed (queue, urn, attempts, payload, reason, failed_at, created_at) "
            "values ('default', 'shop.mail', 3, ?, ?, '2026-05-01 12:00:00', '2026-05-01 11:00:00')",
            (payload, reason),
        )


def test_a_foreign_letter_is_itself_and_not_the_row_of_the_same_number(shop: Shop) -> None:
    fail_in_pdo(shop, "grace", "the mailbox is full")
    client = Client(board(shop))
    [live] = [
        one.removeprefix("row-") for one in client.get("/jobs?store=pdo:jobs").page.attribute("id") if "row-" in one
    ]
    listed = client.get("/jobs?store=pdo:jobs&q=state:dead").page
    [letter] = [one.removeprefix("row-") for one in listed.attribute("id") if one.startswith("row-")]
    assert letter == live, "the two tables count apart"
    asked = client.get(f"/ask/replay?id={letter}&store=pdo:jobs").page
    for page in (listed, asked):
        [address] = [one for one in page.attribute("href") if "/job?" in one]
        assert "grace" in client.get(address).page.words
    assert not {"Retry", "Change", "Cancel"} & {button for form in listed.forms for button in form.buttons}
    chosen = client.get(f"/ask/discard?store=pdo:jobs&back=jobs&id={letter}").page
    assert "1 dead letter discarded" in client.submit(chosen.form("/do/discard")).page.words
    assert client.get(f"/job?id={live}&store=pdo:jobs").status == 200


def test_what_is_hidden_of_a_foreign_error_is_in_no_address_either(shop: Shop) -> None:
    fail_in_pdo(shop, "grace", f"login failed: password={SECRET}")
    client = Client(board(shop))
    page = client.get("/dead?store=pdo:jobs")
    assert "login failed" in page.page.words
    assert SECRET not in page.text


# What each action is asked about, and by which name the audit tells of it.
ALL_DEEDS: dict[str, tuple[dict[str, str], str]] = {
    "retry": ({"id": "first"}, "run_now"),
    "change": ({"id": "second", "priority": "7"}, "change"),
    "cancel": ({"id": "second"}, "cancel"),
    "replay": ({"q": "kind:resize"}, "replay"),
    "discard": ({"q": "kind:send_receipt"}, "discard"),
    "pause": ({"queue": "mail"}, "queue_pause"),
    "resume": ({"queue": "mail"}, "queue_resume"),
    "limits": ({"queue": "orders", "concurrency": "2"}, "queue_settings"),
    "stop-line": ({"queue": "orders", "key": "order:7"}, "line_stop"),
    "start-line": ({"queue": "orders", "key": "order:7"}, "line_start"),
    "trigger": ({"name": "nightly"}, "schedule_trigger"),
    "pause-schedule": ({"name": "nightly"}, "schedule_pause"),
    "resume-schedule": ({"name": "nightly"}, "schedule_resume"),
    "drain": ({"id": "web1-4821-7f3a"}, "worker_drain"),
    "signal-run": ({"id": "order-2"}, "run_signal"),
    "cancel-run": ({"id": "order-2"}, "run_cancel"),
    "resume-run": ({"id": "broken"}, "replay"),
}


@pytest.mark.parametrize("colour", ["wsgi", "asgi"])
def test_every_action_asks_says_what_it_will_touch_and_is_audited_with_the_actor(shop: Shop, colour: str) -> None:
    def refuse() -> None:
        raise Fatal("no such card")

    @shop.hf.workflow(queue="runs")
    async def breaks(run: Run) -> None:
        await run.step(refuse)

    shop.hf.cancel(kind="encode")
    breaks.start(id="broken")
    run_due(shop.hf, raise_errors=False)
    shop.ship.using(key="order:7").enqueue(order_id=7)
    client, store = Client(board(shop), colour), shop.hf.store
    first, second, *_ = store.run(admin.list_jobs(admin.Filter(states=("pending",), queue="reports")))
    names = {"first": first.id, "second": second.id}
    assert set(ALL_DEEDS) == set(DEEDS)
    for name, (fields, told) in ALL_DEEDS.items():
        said = {field: names.get(value, value) for field, value in fields.items()}
        before = actions(shop)
        preview = client.get(f"/ask/{name}?{urlencode(said)}")
        assert preview.status == 200, name
        assert said.get("key", next(iter(said.values()))).removeprefix("kind:") in preview.page.words, name
        assert actions(shop) == before, f"{name} did something before somebody said yes"
        done = client.submit(preview.page.form(f"/do/{name}"), **said)
        assert done.status == 200, done.page.words
        assert set((Counter(actions(shop)) - Counter(before)).elements()) == {(told, "ada")}, name


def test_every_action_of_a_page_asks_first(shop: Shop) -> None:
    for path in (path for path in WORDS if not path.startswith("/ask")):
        page = Client(board(shop)).get(path).page
        assert not [form.action for form in page.forms if "/do/" in form.action], path
        assert all(leads.startswith("/ask/") for leads in page.attribute("formaction")), path


def test_every_action_is_in_the_guide() -> None:
    guide = (Path(__file__).parents[2] / "docs/guides/dashboard.md").read_text()
    for deed in DEEDS.values():
        assert f"`{deed.permission}`" in guide, deed.permission
