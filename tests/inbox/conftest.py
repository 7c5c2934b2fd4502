"""The stage of worker tests, and brokers as tests of receiving see them: a feed for each."""

from collections.abc import Iterator
from typing import Any

import pytest

from holdfast.inbox import sqs
from tests.inbox.feeds import FEEDS, Feed
from tests.worker.conftest import (  # noqa: F401
    mariadb_stage,
    migrated_file,
    migrated_mariadb,
    migrated_mysql,
    migrated_template,
    mysql_stage,
    pg_stage,
    sqlite_stage,
)
from tests.worker.stage import Stage


@pytest.fixture
def stage(sqlite_stage: Stage) -> Stage:  # noqa: F811
    """The database of most tests; `test_databases` has the others."""
    return sqlite_stage


@pytest.fixture(params=FEEDS, ids=lambda feed: feed.__name__)
def feed(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Feed]:
    """A broker with a place of its own for this test."""
    monkeypatch.setattr(sqs, "POLL_SECONDS", 1)
    yield from made(request, request.param)


def made(request: pytest.FixtureRequest, kind: Any) -> Iterator[Feed]:
    feed: Feed = kind(request.getfixturevalue(kind.server), request.getfixturevalue(kind.gate))
    feed.make()
    yield feed
    feed.discard()
