"""The brokers, one of each for the whole session, and a gate in front of each."""

from collections.abc import Iterator

import pytest

from tests.brokers import Kafka, Mosquitto, Moto, NatsServer, RabbitMQ, RedisServer
from tests.gate import Gate
from tests.servers import free_port


@pytest.fixture(scope="session")
def nats_server() -> Iterator[NatsServer]:
    with NatsServer() as server:
        yield server


@pytest.fixture(scope="session")
def nats_gate(nats_server: NatsServer) -> Iterator[Gate]:
    with Gate(nats_server.port) as gate:
        yield gate


@pytest.fixture(scope="session")
def kafka_gate() -> Iterator[Gate]:
    with Gate(free_port()) as gate:
        yield gate


@pytest.fixture(scope="session")
def kafka(kafka_gate: Gate) -> Iterator[Kafka]:
    """Kafka sends its clients to the port of the gate, where they find it again."""
    with Kafka(kafka_gate.target_port, advertised=kafka_gate.port) as server:
        yield server


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture(scope="session")
def redis_gate(redis_server: RedisServer) -> Iterator[Gate]:
    with Gate(redis_server.port) as gate:
        yield gate


@pytest.fixture(scope="session")
def rabbitmq() -> Iterator[RabbitMQ]:
    with RabbitMQ() as server:
        yield server


@pytest.fixture(scope="session")
def rabbitmq_gate(rabbitmq: RabbitMQ) -> Iterator[Gate]:
    with Gate(rabbitmq.port) as gate:
        yield gate


@pytest.fixture(scope="session")
def mosquitto() -> Iterator[Mosquitto]:
    with Mosquitto() as server:
        yield server


@pytest.fixture(scope="session")
def mosquitto_gate(mosquitto: Mosquitto) -> Iterator[Gate]:
    with Gate(mosquitto.port) as gate:
        yield gate


@pytest.fixture(scope="session")
def moto() -> Iterator[Moto]:
    with Moto() as server:
        yield server


@pytest.fixture(scope="session")
def moto_gate(moto: Moto) -> Iterator[Gate]:
    with Gate(moto.port) as gate:
        yield gate
