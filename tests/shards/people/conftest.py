"""Applications with shards that people look at."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast
from tests.cli.conftest import place as place
from tests.cli.conftest import run as run
from tests.shards.people.grounds import SHARDS, Shop, on_files, opened


@pytest.fixture
def files(tmp_path: Path) -> Iterator[Shop]:
    """Three files of SQLite."""
    urls, paths = on_files(tmp_path)
    yield from opened(lambda: Holdfast(shards=urls), paths)


@pytest.fixture(params=["sqlite", "postgres"])
def shop(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shop]:
    """Three files of SQLite, or three schemas of one PostgreSQL database."""
    if request.param == "sqlite":
        urls, paths = on_files(tmp_path)
        yield from opened(lambda: Holdfast(shards=urls), paths)
    else:
        url: Any = request.getfixturevalue("pg_url")
        yield from opened(lambda: Holdfast(url, shards=SHARDS), [])
