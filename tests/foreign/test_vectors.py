"""The files in docs/contracts/vectors are true of our code, and therefore worth having for others."""

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from holdfast.flow import Surface
from holdfast.foreign.airlock import messages
from holdfast.foreign.durable.flows import DurableTables, wire_error
from holdfast.foreign.pdo import envelope
from holdfast.foreign.pdo.envelope import Malformed
from holdfast.foreign.pdo.flows import PdoTables
from holdfast.foreign.queries import Queries
from holdfast.values.rows import Finish

VECTORS = Path(__file__).resolve().parents[2] / "docs" / "contracts" / "vectors"
NONE = Queries(Surface("", "none", ()))


def vectors(name: str, part: str = "cases") -> list[Any]:
    cases: list[Any] = json.loads((VECTORS / f"{name}.json").read_text("utf-8"))[part]
    return [pytest.param(case, id=str(case.get("name") or case.get("step") or case.get("instant"))) for case in cases]


@pytest.mark.parametrize("case", vectors("envelopes", "valid"))
def test_a_valid_body_gives_its_urn_data_and_attempts(case: dict[str, Any]) -> None:
    read = envelope.read(case["text"])
    assert (read.urn, read.data, read.attempts) == (case["urn"], case["data"], case["attempts"])


@pytest.mark.parametrize("case", vectors("envelopes", "valid"))
def test_a_body_that_is_written_again_keeps_every_key_and_escapes_nothing(case: dict[str, Any]) -> None:
    again = envelope.read(case["text"]).with_attempts(7).text()
    assert json.loads(again) == json.loads(case["text"]) | {"attempts": 7}
    assert "\\u" not in again
    assert "\\/" not in again


@pytest.mark.parametrize("case", vectors("envelopes", "invalid"))
def test_an_invalid_body_is_refused_for_the_first_rule_it_breaks(case: dict[str, Any]) -> None:
    with pytest.raises(Malformed) as refused:
        envelope.read(case["text"])
    assert refused.value.reason == case["reason"]


@pytest.mark.parametrize("case", vectors("groups"))
def test_a_group_is_made_of_step_and_partition(case: dict[str, Any]) -> None:
    assert DurableTables(NONE, case["partition"]).group(case["step"]) == case["grp"]


@pytest.mark.parametrize("case", vectors("times"))
def test_a_time_is_local_cut_to_seconds_and_never_makes_a_fresh_reservation_stale(case: dict[str, Any]) -> None:
    tables = PdoTables(NONE, timezone=case["timezone"])
    instant = datetime.fromisoformat(case["instant"])
    assert tables.stamp(instant) == case["text"]
    assert tables.stale(instant) == case["stale"]
    assert tables.stale(instant) < tables.stamp(instant)


@pytest.mark.parametrize("case", vectors("errors"))
def test_an_error_says_retryable_false_exactly_when_it_stops_retries(case: dict[str, Any]) -> None:
    error = case["error"]
    record = {"type": "Error", "message": error["message"], "fatal": case["stops"]}
    record |= {"code": error["code"]} if "code" in error else {}
    record |= {"traceback": error["stack"]} if "stack" in error else {}
    written = wire_error(Finish("s", 1, "dead", None, json.dumps(record)))
    assert written == {name: value for name, value in error.items() if (name, value) != ("retryable", True)}


def airlock_row(case: dict[str, Any]) -> dict[str, Any]:
    named = dict.fromkeys(("aggregate_type", "aggregate_id", "partition_key"), "x")
    return named | {"event_type": case["event_type"], "payload": json.dumps(case["payload"])}


@pytest.mark.parametrize("case", vectors("airlock", "valid"))
def test_a_row_of_airlocks_table_gives_its_event(case: dict[str, Any]) -> None:
    _, event = messages.event_in(airlock_row(case))
    assert (event.id, event.type, event.data) == (case["id"], case["event_type"], case["data"])


@pytest.mark.parametrize("case", vectors("airlock", "invalid"))
def test_a_row_of_airlocks_table_that_nobody_can_use_says_why(case: dict[str, Any]) -> None:
    assert (messages.flaw_in(airlock_row(case)) or "").startswith(case["reason"])
