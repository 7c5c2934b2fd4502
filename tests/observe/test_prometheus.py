"""The shipped rules and the dashboard against a real Prometheus, which scrapes a running worker."""

import json
import re
import subprocess
import sys
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

from holdfast.cli.metrics import FILES
from holdfast.store import Store
from tests import servers
from tests.brokers import Prometheus
from tests.observe.test_http import enqueue, free_port, place, until, worker  # noqa: F401 - a fixture

CONFIGURATION = """
global: {{scrape_interval: 500ms, evaluation_interval: 500ms}}
rule_files: [rules.yml]
scrape_configs:
  - job_name: holdfast
    static_configs: [{{targets: ["127.0.0.1:{worker}", "127.0.0.1:{fleet}"]}}]
"""


def hurried_rules() -> str:
    """Return the shipped rules, for somebody in a hurry."""
    quick = re.sub(r"for: \d+m", "for: 0s", (FILES / "alerts.yml").read_text())
    return quick.replace("[10m]", "[10s]").replace("> 300", "> 60")


def ask(prometheus: Prometheus, path: str, **said: str) -> Any:
    address = f"{prometheus.url}/api/v1/{path}?{urllib.parse.urlencode(said)}"
    with urllib.request.urlopen(address, timeout=5) as answer:  # noqa: S310 - our own
        return json.load(answer)["data"]


def firing(prometheus: Prometheus) -> set[tuple[str, str]]:
    alerts = ask(prometheus, "alerts")["alerts"]
    return {(one["labels"]["alertname"], one["labels"].get("queue", "")) for one in alerts if one["state"] == "firing"}


def test_the_shipped_rules_are_valid() -> None:
    promtool = servers.need("prometheus").with_name("promtool")
    told = subprocess.run(
        [promtool, "check", "rules", FILES / "alerts.yml"], capture_output=True, text=True, check=False
    )
    assert told.returncode == 0, told.stdout + told.stderr
    assert "7 rules found" in told.stdout


SILENCE = """
rule_files: [{rules}]
evaluation_interval: 1m
tests:
  - interval: 1m
    input_series:
      - {{series: 'holdfast_sample_timestamp_seconds', values: '0 60 120 stale'}}
    alert_rule_test:
      - {{eval_time: 2m, alertname: HoldfastNothingSampled}}
      - eval_time: 10m
        alertname: HoldfastNothingSampled
        exp_alerts: [{{exp_labels: {{severity: page}}, exp_annotations: {{summary: {summary}, do: {do}}}}}]
"""


def test_somebody_is_woken_when_there_is_nobody_left_to_tell_of_the_queues(tmp_path: Path) -> None:
    promtool = servers.need("prometheus").with_name("promtool")
    rules = (FILES / "alerts.yml").read_text()
    summary, do = re.findall(r"(?:summary|do): (.*)", rules.partition("HoldfastNothingSampled")[2])[:2]
    (tmp_path / "silence.yml").write_text(SILENCE.format(rules=FILES / "alerts.yml", summary=summary, do=do))
    told = subprocess.run(
        [promtool, "test", "rules", tmp_path / "silence.yml"], capture_output=True, text=True, check=False
    )
    assert told.returncode == 0, told.stdout + told.stderr


def test_prometheus_scrapes_a_worker_and_an_alert_fires_when_a_queue_lags(place: Path) -> None:  # noqa: F811
    servers.need("prometheus")
    enqueue(place, "block", "seconds=0")
    store = Store(f"sqlite:///{place / 'shop.db'}")
    with store.link() as link:
        link.raw.execute("update holdfast_jobs set queue = 'slow', available_at = available_at - 600000000")
    store.close()
    fleet = free_port()
    code = "from holdfast_probe import main; main()"
    words = [sys.executable, "-c", code, "metrics", "--url", f"sqlite:///{place / 'shop.db'}", "--http", str(fleet)]
    with worker(place) as (_, port), subprocess.Popen(words, stderr=subprocess.DEVNULL) as serving:
        try:
            with Prometheus(CONFIGURATION.format(worker=port, fleet=fleet), hurried_rules()) as prometheus:
                enqueue(place, "greet", *[f"name='{n}'" for n in range(20)])
                until(lambda: ("HoldfastQueueLags", "slow") in firing(prometheus))
                until(lambda: _sum(prometheus, 'holdfast_attempts_total{kind="greet",outcome="done"}') == 20)
                _every_panel_can_be_asked(prometheus)
                assert "HoldfastNoWorker" not in {name for name, _ in firing(prometheus)}
        finally:
            serving.kill()


def _sum(prometheus: Prometheus, query: str) -> float:
    return sum(float(one["value"][1]) for one in ask(prometheus, "query", query=query)["result"])


def _every_panel_can_be_asked(prometheus: Prometheus) -> None:
    """Prometheus understands each query of the dashboard, and knows every metric that it names."""
    known = set(ask(prometheus, "label/__name__/values"))
    board = json.loads((FILES / "grafana.json").read_text())
    for panel in board["panels"]:
        for target in panel["targets"]:
            query = target["expr"].replace("$__rate_interval", "1m").replace("$queue", ".*")
            ask(prometheus, "query", query=query)
            assert set(re.findall(r"holdfast_\w+", query)) <= known, panel["title"]
