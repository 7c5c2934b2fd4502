"""`holdfast outbox`, `holdfast routes`, and what other commands say of events."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.cli.shared import load_app
from holdfast.sinks import Delivered, Message, Outcome, Refused
from tests.cli.conftest import Run

APP = """
from holdfast import Holdfast
from holdfast.sinks import Function

hf = Holdfast({url!r})


async def deliver(message):
    from tests.cli import test_outbox

    return test_outbox.take(message)


hf.route("order.*", to=Function(deliver), name="orders")
hf.route("order.*", to=Function(deliver), name="backup-orders")
hf.route("backup.#", to=Function(deliver), name="backup")
"""

taken: list[Message] = []
refuse: set[str] = set()


def take(message: Message) -> Outcome:
    if message.event.type in refuse:
        return Refused("not now", "no")
    taken.append(message)
    return Delivered()


@pytest.fixture
def hf(run: Run, place: Path, url: str) -> Iterator[Holdfast]:
    taken.clear()
    refuse.clear()
    (place / "shop.py").write_text(APP.format(url=url))
    run("migrate", "apply", "--url", url)
    hf = load_app("shop:hf")
    yield hf
    hf.close()


def relay(hf: Holdfast, count: int) -> None:
    """Deliver until that many deliveries have ended."""

    async def scene() -> None:
        async with hf.relay():
            for _ in range(2000):
                [[done]] = hf.store.run(_over())
                if done >= count:
                    break
                await asyncio.sleep(0.01)
        await hf.aclose()

    asyncio.run(scene())


def _over() -> Any:
    from holdfast.flow import Rows, Steps, flow, run_text

    @flow
    def over() -> Steps[Rows]:
        return (yield from run_text("over", "select count(*) from holdfast_finished"))

    return over()


def lines(result: Any) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.stdout.splitlines()]


SHOP = ("--app", "shop:hf")


def test_deliveries_are_listed_by_type_route_and_state(run: Run, hf: Holdfast) -> None:
    event = hf.publish("order.created", {"id": 1}, key="k")
    hf.publish("order.paid", 2)
    hf.publish("user.created", 3)
    assert len(lines(run("outbox", "list", "--json", *SHOP))) == 5
    [one, two] = lines(run("outbox", "list", "--type", "order.created", "--oldest", "--json", *SHOP))
    assert (one["event"], one["type"], one["route"]) == (event.id, "order.created", "orders")
    assert (two["event"], two["route"]) == (event.id, "backup-orders")
    assert one["id"] == event.id != two["id"]
    [three] = lines(run("outbox", "list", "--route", "orders", "--key", "k", "--json", *SHOP))
    assert three["id"] == event.id
    [four] = lines(run("outbox", "list", "--unrouted", "--json", *SHOP))
    assert (four["type"], four["route"]) == ("user.created", None)
    assert lines(run("outbox", "list", "--state", "done", "--json", *SHOP)) == []
    text = run("outbox", "list", "--limit", "1", *SHOP)
    assert "user.created  (none)" in text.stdout
    assert "--after" in text.stderr
    run("outbox", "list", "--route", "a", "--unrouted", *SHOP, code=2)


def test_an_event_is_shown_with_its_deliveries(run: Run, hf: Holdfast) -> None:
    event = hf.publish("order.created", {"id": 1}, subject="order:1", headers={"tenant": "a"})
    text = run("outbox", "show", event.id, *SHOP).stdout
    for word in ("order.created", "order:1", '{"id": 1}', "tenant", "orders", "backup-orders"):
        assert word in text
    assert [one["route"] for one in lines(run("outbox", "show", event.id, "--json", *SHOP))] == [
        "orders",
        "backup-orders",
    ]
    gone = run("outbox", "show", "01997a3e-5b1c-7d20-8f4e-0a1b2c3d4e5f", *SHOP, code=5).stderr
    assert "there is no event 01997a3e-5b1c-7d20-8f4e-0a1b2c3d4e5f" in gone
    job = hf.enqueue("x", check=False)
    assert "jobs show" in run("outbox", "show", job.id, *SHOP, code=6).stderr


def test_a_delivery_is_named_by_the_beginning_of_its_id(run: Run, hf: Holdfast) -> None:
    event = hf.publish("order.created", 1)
    hf.publish("order.created", 2)
    beginning = event.id[:-1].upper()
    first, *_ = lines(run("outbox", "show", beginning, "--json", *SHOP))
    assert first["id"] == event.id
    [told] = lines(run("outbox", "republish", "--id", beginning, "--yes", "--json", *SHOP))
    assert told["event"] == event.id
    for command in (["show", event.id[:8]], ["republish", "--yes", "--id", event.id[:8]]):
        assert f"several ids begin with {event.id[:8]}" in run("outbox", *command, *SHOP, code=2).stderr
    assert "there is no event ffffffff" in run("outbox", "show", "ffffffff", *SHOP, code=5).stderr


def test_the_lag_of_each_route_is_told(run: Run, hf: Holdfast) -> None:
    assert "nothing is due" in run("outbox", "lag", *SHOP).stderr
    hf.publish("order.created", 1)
    hf.publish("user.created", 1)
    run("routes", "pause", "orders", *SHOP)
    told = {one["route"]: one for one in lines(run("outbox", "lag", "--json", *SHOP))}
    assert {route: (one["due"], one["paused"]) for route, one in told.items()} == {
        "orders": (1, True),
        "backup-orders": (1, False),
        None: (1, False),
    }
    assert "(none takes them)" in run("outbox", "lag", *SHOP).stdout


def test_events_are_published_again_by_type_and_to_another_route(run: Run, hf: Holdfast) -> None:
    event = hf.publish("order.created", 1)
    hf.publish("order.paid", 2)
    relay(hf, 4)
    run("outbox", "republish", *SHOP, code=2)
    run("outbox", "republish", "--type", "order.created", *SHOP, code=2, input="")
    run("outbox", "republish", "--type", "order.lost", "--yes", *SHOP, code=5)
    said = run("outbox", "republish", "--type", "order.created", "--dry-run", *SHOP).stdout
    assert "would publish 1 event again, of 2 deliveries" in said
    said = run("outbox", "republish", "--type", "order.created", "--since", "1h", "--yes", *SHOP).stdout
    assert "published 1 event again" in said
    assert "shop" not in said
    taken.clear()
    relay(hf, 6)
    assert [(message.event.id, message.event.data) for message in taken] == [(event.id, 1)] * 2
    meant = ("--route", "orders", "--type", "order.paid", "--to", "backup", "--yes", "--json")
    [told] = lines(run("outbox", "republish", *meant, *SHOP))
    assert (told["type"], told["from"], told["to"]) == ("order.paid", "orders", ["backup"])
    assert "did you mean backup" in run("outbox", "republish", "--type", "x", "--to", "backups", *SHOP, code=2).stderr


def test_very_many_deliveries_are_not_counted_before_they_are_published_again(
    run: Run, hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("holdfast.cli.meant", "holdfast.cli.outbox"):
        monkeypatch.setattr(f"{name}.COUNTED", 2)
    monkeypatch.setattr("holdfast.admin.looking.WINDOW", 2)
    for number in range(5):
        hf.publish("order.lost", number)
        hf.publish("order.paid", number)
    asked = ("outbox", "republish", "--type", "order.paid", "--route", "orders", *SHOP)
    assert "the events of 2 deliveries or more again?" in run(*asked, code=2, input="").stderr
    assert run(*asked, "--dry-run").stdout == "would publish 2 events again, of 2 deliveries or more\n"
    assert run(*asked, "--limit", "4", "--yes").stdout == "published 4 events again, of 4 deliveries\n"
    # Those of the line before are deliveries, too.
    assert run(*asked, "--yes").stdout == "published 5 events again, of 9 deliveries\n"


def test_events_that_waited_for_a_route_are_sent_on(run: Run, hf: Holdfast) -> None:
    hf.publish("user.created", 1)
    warned = run("doctor", *SHOP, code=7).stdout
    assert "1 event that no route takes: user.created" in warned
    told = run("outbox", "republish", "--unrouted", "--dry-run", *SHOP)
    assert told.stdout == "would publish 0 events again, of 1 delivery\n"
    assert told.stderr.startswith("no route takes user.created: ")
    assert run("outbox", "republish", "--unrouted", "--to", "backup", "--yes", *SHOP).stderr == ""
    relay(hf, 2)
    assert [message.event.data for message in taken] == [1]
    run("outbox", "republish", "--unrouted", "--to", "backup", "--yes", *SHOP, code=5)


def test_dead_deliveries_are_grouped_filtered_and_sent_another_way(run: Run, hf: Holdfast) -> None:
    refuse.add("order.paid")
    for n in range(3):
        hf.publish("order.paid", n)
    hf.publish("order.created", 1)
    relay(hf, 8)
    groups = lines(run("dead", "groups", "--event", "order.paid", "--json", *SHOP))
    assert sorted((one["kind"], one["count"]) for one in groups) == [("route:backup-orders", 3), ("route:orders", 3)]
    assert "no dead letters" in run("dead", "groups", "--event", "order.created", *SHOP).stderr
    refuse.clear()
    taken.clear()
    meant = ("--event", "order.paid", "--queue", "route:orders", "--to", "backup")
    assert "would replay 3 dead letters" in run("dead", "replay", *meant, "--dry-run", *SHOP).stdout
    assert "replayed 3 dead letters" in run("dead", "replay", *meant, "--yes", *SHOP).stdout
    run("dead", "replay", *meant, "--yes", *SHOP, code=5)
    run("dead", "replay", "--event", "order.paid", "--limit", "1", "--yes", *SHOP)
    relay(hf, 9)
    assert sorted(message.event.data for message in taken) == [0, 0, 1, 2]


def test_routes_are_listed_paused_and_resumed(run: Run, hf: Holdfast) -> None:
    hf.publish("order.created", 1)
    assert "the broker moves" not in run("routes", "list", *SHOP).stdout
    [paused] = lines(run("routes", "pause", "orders", "--reason", "the broker moves", "--json", *SHOP))
    assert (paused["route"], paused["done"], paused["due"]) == ("orders", "paused", 1)
    told = {one["route"]: one for one in lines(run("routes", "list", "--json", *SHOP))}
    assert (told["orders"]["pattern"], told["orders"]["due"]) == ("order.*", 1)
    assert told["orders"]["paused"]["reason"] == "the broker moves"
    assert told["backup"]["paused"] is None
    assert "resumed" in run("routes", "resume", "orders", *SHOP).stdout
    assert "was not paused" in run("routes", "resume", "route:orders", *SHOP).stdout
    for command in ("resume", "pause"):
        warned = run("routes", command, "orderz", *SHOP).stderr
        assert warned == "no worker serves route orderz, and there are no events for it; did you mean orders?\n"
    assert run("routes", "resume", "orders", "orderz", *SHOP).stderr == ""
    assert "which application" in run("routes", "list", "--url", "sqlite:///shop.db", code=2).stderr


def test_a_relay_needs_routes(run: Run, hf: Holdfast, place: Path) -> None:
    assert "orders" in run("relay", "shop:hf", "--routes", "strange", code=2).stderr
    run("relay", "shop:hf", "--routes", "a,,b", code=2)
    run("relay", code=2)
