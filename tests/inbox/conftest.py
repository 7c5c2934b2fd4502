"""The stage of worker tests, and brokers as tests of receiving see them: a feed for each."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.brokers import Moto
from tests.gate import Gate
from tests.inbox.feeds import FEEDS, Feed
from tests.sinks.conftest import *  # noqa: F403
from tests.worker.conftest import (  # noqa: F401
    migrated_file,
    migrated_mariadb,
    migrated_template,
    pg_stage,
    sqlite_stage,
)


@pytest.fixture(scope="session")
def moto_server() -> Iterator[Moto]:
    with Moto() as server:
        yield server


@pytest.fixture(scope="session")
def moto_gate(moto_server: Moto) -> Iterator[Gate]:
    with Gate(moto_server.port) as gate:
        yield gate


@pytest.fixture(params=FEEDS, ids=lambda feed: feed.__name__)
def feed(request: pytest.FixtureRequest) -> Iterator[Feed]:
    """A broker with a place of its own for this test."""
    yield from made(request, request.param)


def made(request: pytest.FixtureRequest, kind: Any) -> Iterator[Feed]:
    feed: Feed = kind(request.getfixturevalue(kind.server), request.getfixturevalue(kind.gate))
    feed.make()
    yield feed
    feed.discard()
