"""The brokers, one of each for the whole session, and a gate in front of each."""

from collections.abc import Iterator

import pytest

from tests.brokers import NatsServer
from tests.gate import Gate


@pytest.fixture(scope="session")
def nats_server() -> Iterator[NatsServer]:
    with NatsServer() as server:
        yield server


@pytest.fixture(scope="session")
def nats_gate(nats_server: NatsServer) -> Iterator[Gate]:
    with Gate(nats_server.port) as gate:
        yield gate
