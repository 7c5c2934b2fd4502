"""The text that Prometheus reads: the names and labels of the guide and no others, by promtool's own rules."""

import re
import subprocess
from collections import defaultdict
from datetime import UTC, datetime
from pathlib import Path

import pytest

from holdfast.observe import COUNTED, Depth, Figures, Folded, Histogram, Sample
from holdfast.observe.exposition import Slots, of_fleet, of_process
from holdfast.observe.figures import MOST_KINDS
from tests import servers

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "guides" / "monitoring.md"
OF_WORKERS = {
    "holdfast_jobs_enqueued_total": {"queue", "kind"},
    "holdfast_attempts_total": {"queue", "kind", "outcome"},
    "holdfast_attempt_duration_seconds": {"queue", "kind"},
    "holdfast_wait_seconds": {"queue"},
    "holdfast_claim_duration_seconds": set[str](),
    "holdfast_settle_duration_seconds": set[str](),
    "holdfast_leases_reaped_total": set[str](),
    "holdfast_leases_lost_total": set[str](),
    "holdfast_worker_slots": {"state"},
    "holdfast_worker_processes": set[str](),
}
OF_FLEET = {
    "holdfast_queue_due": {"queue"},
    "holdfast_queue_scheduled": {"queue"},
    "holdfast_queue_leased": {"queue"},
    "holdfast_queue_oldest_due_seconds": {"queue"},
    "holdfast_dead_letters": {"queue"},
    "holdfast_workers": {"status"},
    "holdfast_sample_timestamp_seconds": set[str](),
    "holdfast_shard_up": {"shard"},
}
NASTY = 'a "queue"\nof \\ many'


def of_worker(folded: Folded) -> str:
    return of_process(folded, Slots(1, 2), 1)


def full(queue: str = "mail", kind: str = "send") -> Folded:
    """Make what a worker may have counted, with something of everything."""
    ended = {"done": 3, "retried": 2, "lost": 1, "reaped": 1}
    figures = Figures(ended, Histogram.of([0.2] * 6), Histogram.of([3.0] * 6), 4)
    return Folded({(queue, kind): figures}, None, {"claim": Histogram.of([0.01]), "settle": Histogram.of([0.02])})


def fleet(queue: str = "mail") -> str:
    depths = {queue: Depth(COUNTED + 1, 2, 3, 4, 5.5)}
    return of_fleet(Sample(datetime.now(UTC), 1.0, depths), {"alive": 1, "dead": 0}, {0: True, 1: False})


def told(text: str) -> dict[str, set[str]]:
    """Name the metrics of a page with their labels; those that make a histogram of several lines belong to it."""
    kinds = dict(re.findall(r"^# TYPE (\w+) (\w+)$", text, re.MULTILINE))
    found: dict[str, set[str]] = defaultdict(set)
    for name, labels in re.findall(r"^(\w+)(?:\{(.*)\})? [^ ]+$", text, re.MULTILINE):
        whole = re.sub(r"_(bucket|sum|count)$", "", name)
        metric = whole if kinds.get(whole) == "histogram" else name
        assert metric in kinds, f"{name} has no type"
        said = set(re.findall(r'(\w+)="(?:[^"\\]|\\.)*"', labels))
        found[metric] |= said - {"le"} if kinds[metric] == "histogram" else said
    return found


@pytest.mark.parametrize("page, expected", [(of_worker(full()), OF_WORKERS), (fleet(), OF_FLEET)])
def test_a_page_has_the_names_and_labels_of_the_guide_and_no_others(page: str, expected: dict[str, set[str]]) -> None:
    """No label is an id, a key, a worker or a message: their number would grow with the work."""
    assert told(page) == expected
    guide = GUIDE.read_text()
    for name, labels in expected.items():
        [row] = [line for line in guide.splitlines() if line.startswith("|") and f"`{name}`" in line.split("|")[1]]
        assert set(re.findall(r"`(\w+)`", row.split("|")[2])) == labels, name


@pytest.mark.parametrize("page", [of_worker(full()), of_worker(full(NASTY, NASTY)), fleet(NASTY)])
def test_promtool_reads_each_page_and_finds_nothing_against_the_rules_of_names(page: str) -> None:
    promtool = servers.need("prometheus").with_name("promtool")
    checked = subprocess.run([promtool, "check", "metrics"], input=page, capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")


def test_however_many_kinds_there_are_a_page_has_a_bounded_number_of_lines() -> None:
    folded = Folded()
    for number in range(MOST_KINDS + 200):
        folded.add(full(kind=f"kind{number}"))
    page = of_worker(folded)
    done = re.findall(r'^holdfast_attempts_total\{.*kind="(\w+)",outcome="done"\} (\d+)$', page, re.MULTILINE)
    assert len(done) == MOST_KINDS + 1
    assert dict(done)["other"] == str(3 * 200)
