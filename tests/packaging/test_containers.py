"""compose.yaml and the Containerfile, as far as they can be tried without an engine that runs them."""

import importlib
import json
import re
import sys
import threading
import tomllib
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime
from http.server import ThreadingHTTPServer
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from holdfast.observe.counting import Depth, Sample
from holdfast.observe.exposition import of_fleet
from holdfast.testing.inline import run_due
from tests.docs.test_docs import blocks_of, understand
from tests.servers import HOST

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "compose.yaml").read_text("utf-8")
SERVICES: dict[str, dict[str, Any]] = yaml.safe_load(TEXT)["services"]
OURS = {name: service for name, service in SERVICES.items() if service["image"] == "holdfast"}
CONTAINERFILE = (ROOT / "Containerfile").read_text("utf-8").replace("\\\n", " ")


def value_of(option: str, command: list[str]) -> str:
    return command[command.index(option) + 1]


def test_all_that_an_installation_needs_is_there() -> None:
    assert set(SERVICES) == {
        "database", "migrate", "app", "worker", "dashboard", "metrics", "prometheus", "grafana",
    }  # fmt: skip


@pytest.mark.parametrize("service", [name for name, service in OURS.items() if "entrypoint" not in service])
def test_every_command_is_one_of_ours(service: str) -> None:
    understand(OURS[service]["command"])


def test_the_probe_of_the_worker_asks_for_the_file_that_it_touches() -> None:
    program, *words = SERVICES["worker"]["healthcheck"]["test"][1:]
    assert program == "holdfast"
    understand(words)
    assert words[-1] == value_of("--heartbeat-file", SERVICES["worker"]["command"])


def test_a_worker_has_its_drain_time_and_fifteen_seconds_to_stop() -> None:
    grace = int(SERVICES["worker"]["stop_grace_period"].removesuffix("s"))
    assert grace >= int(value_of("--drain", SERVICES["worker"]["command"])) + 15


def test_every_file_that_is_mounted_is_there_and_every_volume_is_declared() -> None:
    declared = yaml.safe_load(TEXT)["volumes"]
    for name, service in SERVICES.items():
        for source in (volume.partition(":")[0] for volume in service.get("volumes", [])):
            assert (ROOT / source).is_file() if source.startswith(".") else source in declared, (name, source)


def test_whatever_is_waited_for_is_a_service() -> None:
    assert {one for service in SERVICES.values() for one in service.get("depends_on", {})} <= set(SERVICES)


def test_nothing_listens_beyond_this_machine_and_no_password_is_written_down() -> None:
    ports = [port for service in SERVICES.values() for port in service.get("ports", [])]
    assert ports
    assert [port for port in ports if not port.startswith("127.0.0.1:")] == []
    passwords = re.findall(r"PASSWORD: (.*)", TEXT)
    assert len(passwords) == 3
    assert all(re.fullmatch(r"\$\{\w+:\?.+\}", one) for one in passwords)


def test_prometheus_scrapes_the_ports_that_are_served() -> None:
    settings = yaml.safe_load((ROOT / "deploy" / "prometheus.yml").read_text("utf-8"))
    scraped = {one["names"][0]: one["port"] for one in settings["scrape_configs"][0]["dns_sd_configs"]}
    served = {name: int(value_of("--http", OURS[name]["command"]).rpartition(":")[2]) for name in ("worker", "metrics")}
    assert scraped == served


def test_the_image_is_made_of_files_that_are_there_and_does_not_run_as_root() -> None:
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", CONTAINERFILE, re.MULTILINE)
    assert copied
    assert [name for names in copied for name in names.split() if not (ROOT / name).exists()] == []
    [extras] = re.findall(r"\.whl\)\[([\w,]+)\]", CONTAINERFILE)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert set(extras.split(",")) <= set(project["optional-dependencies"])
    assert re.findall(r"^ENTRYPOINT (.+)$", CONTAINERFILE, re.MULTILINE) == ['["holdfast"]']
    assert CONTAINERFILE.index("\nUSER holdfast\n") < CONTAINERFILE.index("\nENTRYPOINT")


def manifests() -> dict[str, dict[str, Any]]:
    """Read what the guide has for Kubernetes, by kind."""
    shown = [block.text for block in blocks_of(ROOT / "docs/guides/deploying.md") if block.language == "yaml"]
    return {one["kind"]: one for one in map(yaml.safe_load, shown) if "kind" in one}


def test_the_deployment_in_the_guide_asks_the_worker_that_it_starts() -> None:
    pod = manifests()["Deployment"]["spec"]["template"]["spec"]
    [worker] = pod["containers"]
    program, *words = worker["command"]
    assert program == "holdfast"
    understand(words)
    served = int(value_of("--http", words).rpartition(":")[2])
    asked = {name: worker[f"{name}Probe"]["httpGet"] for name in ("liveness", "readiness")}
    assert asked == {"liveness": {"path": "/livez", "port": served}, "readiness": {"path": "/readyz", "port": served}}
    assert worker["ports"][0]["containerPort"] == served
    assert pod["terminationGracePeriodSeconds"] >= int(value_of("--drain", words)) + 15


def test_what_the_guide_scales_by_is_a_metric_of_ours() -> None:
    scaled = manifests()["ScaledObject"]["spec"]
    assert scaled["scaleTargetRef"]["name"] == manifests()["Deployment"]["metadata"]["name"]
    [trigger] = scaled["triggers"]
    named = set(re.findall(r"holdfast_\w+", trigger["metadata"]["query"]))
    told = of_fleet(Sample(datetime.now(UTC), 0.0, {"mail": Depth()}), {})
    assert named
    assert named <= set(re.findall(r"^# TYPE (\w+) gauge$", told, re.MULTILINE))
    assert scaled["minReplicaCount"] >= 1


@pytest.fixture
def shop(pg_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The shop of compose.yaml, as its containers import it."""
    monkeypatch.setenv("HOLDFAST_URL", pg_url)
    monkeypatch.syspath_prepend(ROOT / "deploy")
    sys.modules.pop("shop", None)
    shop = importlib.import_module("shop")
    shop.hf.migrate()
    shop.prepare()
    yield shop
    shop.hf.close()
    del sys.modules["shop"]


def test_the_shop_saves_orders_and_a_worker_sends_their_receipts(shop: ModuleType) -> None:
    server = ThreadingHTTPServer((HOST, 0), shop.Orders)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://{HOST}:{server.server_port}/orders"
    try:
        with urllib.request.urlopen(urllib.request.Request(address, method="POST")) as answer:
            assert json.load(answer) == {"order": 1}
        assert [ran.outcome for ran in run_due(shop.hf)] == ["done"]
        with urllib.request.urlopen(address) as answer:
            assert json.load(answer) == {"orders": 1, "receipts": 1}
    finally:
        server.shutdown()
        server.server_close()
