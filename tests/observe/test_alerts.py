"""Each shipped rule, by promtool: the numbers that must wake somebody do, and those beside them do not."""

import json
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest

from holdfast.cli.metrics import FILES
from tests import servers

RULES = FILES / "alerts.yml"
ATTEMPTS = 'holdfast_attempts_total{{queue="mail",kind="send",outcome="{}"}}'
DONE, RETRIED, DEAD, RELEASED = (ATTEMPTS.format(outcome) for outcome in ("done", "retried", "dead", "released"))
LAG, DUE = 'holdfast_queue_oldest_due_seconds{queue="mail"}', 'holdfast_queue_due{queue="mail"}'
ALIVE, REAPED = 'holdfast_workers{status="alive"}', "holdfast_leases_reaped_total"
SAMPLED = "holdfast_sample_timestamp_seconds"


class Case(NamedTuple):
    """Series as promtool writes them, a value a minute: what fires at `minute`, not yet at `quiet`, and what never."""

    alert: str
    fires: dict[str, str]
    calm: dict[str, str]
    minute: int
    quiet: int
    labels: Mapping[str, str] = MappingProxyType({})
    # What `$value` in the summary is.
    value: str = ""


OF_SEND = {"queue": "mail", "kind": "send"}
CASES = [
    Case("HoldfastQueueLags", {LAG: "301x20"}, {LAG: "300x20"}, 5, 4, {"queue": "mail"}, "5m 1s"),
    Case("HoldfastNoWorker", {ALIVE: "0x20"}, {ALIVE: "1x20"}, 2, 1),
    Case("HoldfastNothingSampled", {SAMPLED: "0x20"}, {SAMPLED: "0+60x20"}, 8, 7),
    Case("HoldfastNothingSampled", {}, {SAMPLED: "0+60x20"}, 2, 1),
    Case("HoldfastJobsDie", {DEAD: "0x5 2x20"}, {DEAD: "2x20", RETRIED: "0+9x20"}, 10, 5, OF_SEND, "2"),
    Case("HoldfastLeasesRunOut", {REAPED: "0x4 6x20"}, {REAPED: "0x4 5x20"}, 10, 4, {}, "6"),
    Case(
        "HoldfastAttemptsFail", {DONE: "0+4x40", RETRIED: "0+5x40"}, {DONE: "0+5x40", DEAD: "0+5x40"}, 11, 10, OF_SEND
    ),
    Case(
        "HoldfastAttemptsFail",
        {DONE: "0+4x40", DEAD: "0+5x40", RELEASED: "0+90x40"},
        {DONE: "0+5x40", RETRIED: "0+5x40"},
        *(11, 10, OF_SEND),
    ),
    Case(
        "HoldfastThroughputFell",
        {DONE: "0+60x60 3600+20x60", DUE: "101x120"},
        {DONE: "0+60x60 3600+20x60", DUE: "100x120"},
        *(85, 61, {"queue": "mail"}),
    ),
    Case(
        "HoldfastThroughputFell",
        {DONE: "0+60x60 3600+29x60", DUE: "500x120"},
        {DONE: "0+60x60 3600+31x60", DUE: "500x120"},
        *(85, 61, {"queue": "mail"}),
    ),
]


def rule(name: str) -> str:
    """Return the text of one rule."""
    [text] = [one for one in RULES.read_text().split("- alert: ")[1:] if one.split()[0] == name]
    return text


def told(case: Case) -> dict[str, Any]:
    """Return the alert that is to fire, with its labels and words."""
    text = rule(case.alert)
    labels = {**case.labels, "severity": re.findall(r"severity: (\w+)", text)[0]}
    words = {}
    for name in ("summary", "do"):
        said = re.findall(rf'{name}: "(.*)"', text)[0]
        said = re.sub(r"{{ \$labels\.(\w+) }}", lambda found: case.labels[found[1]], said)
        words[name] = re.sub(r"{{ \$value.*?}}", case.value, said)
    return {"exp_labels": labels, "exp_annotations": words}


def spec(case: Case) -> str:
    """Write what promtool is to try; JSON is YAML, too."""

    def trial(series: dict[str, str], expected: dict[int, list[dict[str, Any]]]) -> dict[str, Any]:
        return {
            "interval": "1m",
            "input_series": [{"series": name, "values": values} for name, values in series.items()],
            "alert_rule_test": [
                {"eval_time": f"{minute}m", "alertname": case.alert, "exp_alerts": alerts}
                for minute, alerts in expected.items()
            ],
        }

    tests = [
        trial(case.fires, {case.quiet: [], case.minute: [told(case)]}),
        trial(case.calm, {minute: [] for minute in (case.quiet, case.minute)}),
    ]
    return json.dumps({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": tests})


@pytest.mark.parametrize("case", CASES, ids=[f"{one.alert}-{number}" for number, one in enumerate(CASES)])
def test_a_rule_fires_when_it_must_and_at_no_other_time(tmp_path: Path, case: Case) -> None:
    promtool = servers.need("prometheus").with_name("promtool")
    (tmp_path / "spec.yml").write_text(spec(case))
    ran = subprocess.run(
        [promtool, "test", "rules", tmp_path / "spec.yml"], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_every_rule_has_its_case() -> None:
    assert {case.alert for case in CASES} == set(re.findall(r"- alert: (\w+)", RULES.read_text()))
