"""Debezium's connectors in a standalone Kafka Connect, for the tests of events that it captures."""

import contextlib
import json
import signal
import urllib.request
from collections.abc import Mapping
from pathlib import Path

from tests import brokers, servers
from tests.servers import HOST, TOOLS, Server, Unavailable, reachable

NAME = "debezium"
VERSION = "3.6.1.Final"
POM = """<project><modelVersion>4.0.0</modelVersion>
<groupId>holdfast</groupId><artifactId>debezium</artifactId><version>1</version><dependencies>
<dependency><groupId>io.debezium</groupId><artifactId>debezium-embedded</artifactId><version>{version}</version></dependency>
<dependency><groupId>io.debezium</groupId><artifactId>debezium-connector-postgres</artifactId><version>{version}</version></dependency>
<dependency><groupId>io.debezium</groupId><artifactId>debezium-connector-mysql</artifactId><version>{version}</version></dependency>
<dependency><groupId>org.slf4j</groupId><artifactId>slf4j-simple</artifactId><version>1.7.36</version></dependency>
</dependencies></project>
"""


class Connect(Server):
    """A worker of Kafka Connect with one connector; its offsets are in a file, which stays over restarts."""

    name = NAME
    start_seconds = 120

    def __init__(self, kafka: str, connector: Mapping[str, str]) -> None:
        self.libraries = servers.need(NAME)
        super().__init__()
        self._kafka = kafka
        self._connector = dict(connector)

    def _prepare(self) -> None:
        worker = {
            "bootstrap.servers": self._kafka,
            "key.converter": "org.apache.kafka.connect.storage.StringConverter",
            "value.converter": "org.apache.kafka.connect.storage.StringConverter",
            "offset.storage.file.filename": self.folder / "offsets",
            "offset.flush.interval.ms": 200,
            "listeners": f"http://{HOST}:{self.port}",
            "plugin.discovery": "service_load",
        }
        more = {"topic.creation.default.replication.factor": 1, "topic.creation.default.partitions": 3}
        self._write("worker", worker)
        self._write("connector", {**self._connector, **more})

    def _write(self, name: str, settings: Mapping[str, object]) -> None:
        file = self.folder / f"{name}.properties"
        file.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))

    def _command(self) -> list[str]:
        java = ["java", "-Xms64m", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        quiet = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
        files = [str(self.folder / f"{name}.properties") for name in ("worker", "connector")]
        program = "org.apache.kafka.connect.cli.ConnectStandalone"
        return [*java, quiet, "-cp", f"{self.libraries}/*", program, *files]

    def _ready(self) -> bool:
        address = f"http://{HOST}:{self.port}/connectors/{self._connector['name']}/status"
        with contextlib.suppress(OSError, ValueError), urllib.request.urlopen(address, timeout=2) as answer:
            tasks = json.load(answer)["tasks"]
            if any(task["state"] == "FAILED" for task in tasks):
                raise RuntimeError(tasks)
            return bool(tasks) and all(task["state"] == "RUNNING" for task in tasks)
        return False

    def crash(self) -> None:
        self.stop(signal.SIGKILL)


def _find() -> Path:
    target = TOOLS / f"{NAME}-{VERSION}"
    try:
        brokers.java_and_maven()
        if not target.exists():
            with servers.unpacked_apart(target) as folder:
                (folder / "pom.xml").write_text(POM.format(version=VERSION))
                where = ["-DincludeScope=runtime", f"-DoutputDirectory={folder / 'libs'}"]
                servers.run(["mvn", "-q", "-B", "dependency:copy-dependencies", *where], cwd=folder)
    except (OSError, RuntimeError) as error:
        raise Unavailable("Debezium", str(error)) from error
    libraries = target / "libs"
    return libraries if reachable(libraries) else servers.copied_within_reach(libraries)


servers.finders[NAME] = _find
