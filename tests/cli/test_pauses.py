"""`holdfast queues pause` and `resume`, and what shows them."""

import pytest

from holdfast import admin, jobs, lines
from holdfast.store import Store
from holdfast.values.pauses import Pause
from holdfast.values.queues import QueueSettings
from holdfast.worker import registry
from tests.cli.conftest import Run, add
from tests.cli.conftest import lines as printed
from tests.cli.test_workers import INFO


def paused(store: Store) -> list[tuple[str, str]]:
    return [(one.scope, one.name) for one in store.run(jobs.pauses())]


def test_queues_and_kinds_are_paused_and_resumed(run: Run, app: str, store: Store) -> None:
    add(store, 2)
    shown = run("queues", "pause", "mail", "bulk", "--kind", "greet", "--app", app)
    assert shown.stdout.splitlines() == [
        "queue mail is paused: 2 due jobs wait",
        "queue bulk is paused",
        "kind greet is paused",
    ]
    assert paused(store) == [("queue", "bulk"), ("queue", "mail"), ("kind", "greet")]
    shown = run("queues", "resume", "mail", "--kind", "greet", "--app", app)
    assert shown.stdout.splitlines() == ["queue mail is resumed", "kind greet is resumed"]
    assert paused(store) == [("queue", "bulk")]


def test_who_and_why_are_kept_and_the_second_pause_changes_nothing(run: Run, app: str, store: Store) -> None:
    run("queues", "pause", "mail", "--reason", "the provider is down", "--actor", "ann", "--app", app)
    again = run("queues", "pause", "mail", "--reason", "another", "--actor", "bob", "--app", app).stdout
    assert again.startswith("queue mail is paused since ")
    assert again.endswith(" UTC by ann: the provider is down; it was so before\n")
    assert run("queues", "resume", "bulk", "--app", app).stdout == "queue bulk was not paused\n"
    assert [(line.action, line.actor) for line in store.run(admin.audit())] == [("queue_pause", "ann")]


def test_as_json(run: Run, app: str, store: Store) -> None:
    add(store, 1)
    [told] = printed(run("queues", "pause", "mail", "--actor", "ann", "--json", "--app", app))
    since = told["paused"].pop("since")
    assert told == {
        "queue": "mail",
        "done": "paused",
        "due": 1,
        "paused": {"scope": "queue", "name": "mail", "by": "ann", "reason": None},
    }
    again = printed(run("queues", "pause", "mail", "--kind", "greet", "--json", "--app", app))
    assert [(one.get("queue"), one.get("kind"), one["done"]) for one in again] == [
        ("mail", None, "was paused"),
        (None, "greet", "paused"),
    ]
    [resumed, other] = printed(run("queues", "resume", "mail", "bulk", "--json", "--app", app))
    assert (resumed["done"], resumed["paused"]["since"], other["done"]) == ("resumed", since, "was not paused")


def test_a_dry_run_changes_nothing(run: Run, app: str, store: Store) -> None:
    assert run("queues", "pause", "mail", "--dry-run", "--app", app).stdout == "would pause queue mail\n"
    assert paused(store) == []
    store.run(admin.pause("queue", "mail", None))
    assert run("queues", "resume", "mail", "--dry-run", "--app", app).stdout == "would resume queue mail\n"
    assert "it was so before" in run("queues", "pause", "mail", "--dry-run", "--app", app).stdout
    assert paused(store) == [("queue", "mail")]
    assert len(store.run(admin.audit())) == 1


@pytest.mark.parametrize("command", ["pause", "resume"])
def test_it_must_be_said_what_is_meant(run: Run, app: str, command: str) -> None:
    assert "which queues?" in run("queues", command, "--app", app, code=2).stderr
    assert "must be text of 1 to 100" in run("queues", command, "x" * 101, "--app", app, code=2).stderr


def test_a_name_that_nobody_knows_is_paused_with_a_warning(run: Run, app: str, store: Store) -> None:
    store.run(registry.beat("web1-1", INFO))
    store.run(lines.declare({"orders": QueueSettings(ordered=True)}))
    add(store, 1, queue="bulk")
    known = run("queues", "pause", "mail", "bulk", "orders", "--app", app)
    assert known.stderr == ""
    said = run("queues", "pause", "mial", "--kind", "grete", "--app", app).stderr
    assert "no worker serves queue mial, and there are no jobs of it; did you mean mail?" in said
    assert "no worker handles kind grete" in said
    assert ("queue", "mial") in paused(store)


def test_the_list_shows_what_is_paused_also_plain_queues(run: Run, app: str, store: Store) -> None:
    store.run(lines.declare({"orders": QueueSettings(ordered=True)}))
    store.run(admin.pause("queue", "orders", "ann", "stock taking"))
    store.run(admin.pause("queue", "mail", None))
    store.run(admin.pause("kind", "greet", "bob"))
    shown = run("queues", "list", "--app", app).stdout
    [head, mail, orders, greet] = shown.splitlines()
    assert head.endswith("PAUSED")
    assert (mail.split()[:2], orders.split()[0]) == (["mail", "plain"], "orders")
    assert orders.endswith("by ann: stock taking")
    assert greet.startswith("kind greet is paused since ")
    told = printed(run("queues", "--json", "--app", app))
    assert [(one.get("name"), one.get("kind"), one["paused"]["by"]) for one in told] == [
        ("mail", None, None),
        ("orders", None, "ann"),
        (None, "greet", "bob"),
    ]
    store.run(admin.resume("queue", "orders", None))
    [_, orders_now, _] = printed(run("queues", "--json", "--app", app))
    assert orders_now["paused"] is None


def test_doctor_tells_of_a_paused_queue_with_due_jobs(run: Run, app: str, store: Store) -> None:
    def found(check: str, code: int) -> list[dict[str, str]]:
        told = printed(run("doctor", "--json", "--app", app, code=code))
        return [one for one in told if one["check"] == check]

    store.run(registry.beat("web1-1", INFO))
    assert [(one["severity"], one["seen"]) for one in found("pauses", 0)] == [("ok", "nothing is paused")]
    store.run(admin.pause("queue", "mail", "ann", "the provider is down"))
    [idle] = found("pauses", 0)
    assert (idle["severity"], idle["seen"].endswith("nothing of it is due")) == ("ok", True)
    add(store, 3)
    [late] = found("pauses", 7)
    assert late["severity"] == "warning"
    assert "by ann: the provider is down; 3 due" in late["seen"]
    assert "holdfast queues resume mail" in late["do"]
    assert [one["severity"] for one in found("lag", 7)] == ["ok"], "it is not behind, it is paused"
    store.run(admin.resume("queue", "mail", None))
    store.run(admin.pause("kind", "send_receipt", None))
    [late] = found("pauses", 7)
    assert "holdfast queues resume --kind send_receipt" in late["do"]


def test_a_pause_says_itself_in_words(store: Store) -> None:
    store.run(admin.pause("kind", "send", None))
    [one] = store.run(jobs.pauses())
    assert str(one) == f"kind send is paused since {one.since:%Y-%m-%d %H:%M:%S} UTC"
    assert str(Pause("queue", "mail", one.since, None, "why")).endswith("UTC: why")
