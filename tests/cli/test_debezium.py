"""`holdfast debezium`: the table, a connector's settings, and the way back by hand."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast import Holdfast
from holdfast.cli.shared import load_app
from tests.cli.conftest import Run

APP = """
from holdfast import Holdfast
from holdfast.sinks import Function

hf = Holdfast({url!r})
plain = Holdfast({url!r})
hf.route("order.*", to=Function(print), name="orders")
hf.debezium("#")
"""


@pytest.fixture
def hf(run: Run, place: Path, pg_url: str) -> Iterator[Holdfast]:
    (place / "bazaar.py").write_text(APP.format(url=pg_url))
    run("migrate", "apply", "--url", pg_url)
    app = load_app("bazaar:hf")
    yield app
    app.close()


def test_the_table_is_made_by_a_command_and_its_statements_are_printed(run: Run, hf: Holdfast) -> None:
    assert "create table if not exists" in run("debezium", "sql", "--app", "bazaar:hf").stdout
    for _ in range(2):
        assert "debezium_outbox is there" in run("debezium", "create", "--app", "bazaar:hf").stdout
    hf.publish("order.created", 1)
    assert hf.capture is not None
    assert hf.capture.count() == 1


def test_settings_of_a_connector_are_one_json_object(run: Run, hf: Holdfast) -> None:
    said = json.loads(
        run("debezium", "config", "--name", "shop", "--topic", "t.${routedByValue}", "--app", "bazaar:hf").stdout
    )
    assert said["name"] == said["config"]["slot.name"] == "shop"
    assert said["config"]["transforms.outbox.route.topic.replacement"] == "t.${routedByValue}"
    assert said["config"]["database.password"] == "FILL-IN"


def test_events_are_handed_over_and_pruned_by_hand(run: Run, hf: Holdfast) -> None:
    run("debezium", "create", "--app", "bazaar:hf")
    one, two = hf.publish("order.created", 1), hf.publish("user.created", 2)
    command = ("debezium", "hand-over", "--since", "1h", "--app", "bazaar:hf")
    assert "would hand over 1 event" in run(*command, "--dry-run").stdout
    [told] = [json.loads(line) for line in run(*command, "--yes", "--json", "--actor", "ada").stdout.splitlines()]
    assert (told["event"], told["to"], told["dry_run"]) == (one.id, ["orders"], False)
    assert hf.get(one.id).queue == "route:orders"
    assert two.id not in run(*command, "--yes").stdout
    prune = ("debezium", "prune", "--older-than", "0s", "--app", "bazaar:hf")
    assert "would delete 1 row" in run(*prune, "--dry-run").stdout
    assert "deleted 1 row" in run(*prune, "--yes").stdout


@pytest.mark.parametrize(
    "words, code, said",
    [
        (("hand-over", "--yes", "--app", "bazaar:hf"), 2, "which events?"),
        (("hand-over", "--slot", "none", "--yes", "--app", "bazaar:hf"), 6, "no replication slot"),
        (("create", "--app", "bazaar:plain"), 2, "has no table for Debezium"),
        (("create",), 2, "which application?"),
    ],
)
def test_what_cannot_be_done_says_what_to_do(
    run: Run, hf: Holdfast, words: tuple[str, ...], code: int, said: str
) -> None:
    assert said in run("debezium", *words, code=code).stderr
