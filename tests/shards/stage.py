"""An application with three shards, of each kind that there is."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast
from tests.servers import MariaDB, Postgres

COUNT = 3
Make = Callable[[], Holdfast]


@contextmanager
def shards(kind: str, request: pytest.FixtureRequest, count: int = COUNT) -> Iterator[Callable[..., Holdfast]]:
    """Give a maker of applications on the same shards, whose tables are there: files, schemas or databases."""
    made: list[Holdfast] = []
    said: dict[str, Any]
    dropping: list[Callable[[], object]] = []
    if kind == "files":
        folder: Path = request.getfixturevalue("tmp_path")
        said = {"shards": [f"sqlite:///{folder}/shard{number}.db" for number in range(count)]}
    elif kind == "schemas":
        said = {"url": request.getfixturevalue("pg_url"), "shards": count}
    else:
        server: Postgres | MariaDB = request.getfixturevalue({"databases": "postgres", "mariadb": "mariadb"}[kind])
        urls = [server.start().fresh_database() for _ in range(count)]
        dropping = [lambda url=url: server.start().drop_database(url.rpartition("/")[2]) for url in urls]  # type: ignore[misc]
        said = {"shards": urls}

    def make(**options: Any) -> Holdfast:
        made.append(Holdfast(**said | options))
        return made[-1]

    make().migrate()
    yield make
    for app in made:
        app.close()
    for drop in dropping:
        drop()


async def until(seen: Callable[[], object]) -> None:
    """Wait until something can be seen."""
    while not seen():  # noqa: ASYNC110 - what is looked at tells nobody
        await asyncio.sleep(0.02)


def key_in(hf: Holdfast, shard: int, prefix: str = "key") -> str:
    """Find a key that belongs to a shard."""
    return next(key for n in range(1000) if hf.shard_of(key := f"{prefix}:{n}") == shard)


def count_in(hf: Holdfast, shard: int) -> int:
    """Count the live jobs of one shard."""
    from holdfast.admin import counts

    found = hf.stores.ours[shard].run(counts())
    return sum(one.pending + one.leased + one.waiting for one in found)
