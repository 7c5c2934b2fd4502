"""Running the whole: open both sides on each database, measure row by row, put everything away."""

from __future__ import annotations

import asyncio
import secrets
import tempfile
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from holdfast.bench.measure import Result, Side, Size, measured
from holdfast.bench.ours import Holdfasts
from holdfast.bench.raw_postgres import RawPostgres
from holdfast.bench.raw_sqlite import RawSqlite
from holdfast.bench.rows import rows

T = TypeVar("T")
Said = Callable[[str], None]


def benchmark(urls: Sequence[str], size: Size, say: Said = lambda _: None) -> tuple[list[Result], dict[str, str]]:
    """Measure every row on every database; an embedded SQLite file in a temporary folder when none is named.

    Returns the results, and what each database says of itself. The tables have a prefix of their own and are dropped.
    """
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder:
        return _run(_all(list(urls) or [f"sqlite:///{folder}/bench.db"], size, say))


def _run(work: Coroutine[Any, Any, T]) -> T:
    """Run on uvloop where it is installed."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(work)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work)


async def _all(urls: list[str], size: Size, say: Said) -> tuple[list[Result], dict[str, str]]:
    results: list[Result] = []
    about: dict[str, str] = {}
    for url in urls:
        async with _opened(url) as (ours, raw):
            name = "SQLite" if ours.app.store.embedded else "PostgreSQL"
            about[name] = _server(ours)
            sides: tuple[Side, ...] = (ours, raw)
            for row in rows(size, embedded=ours.app.store.embedded):
                say(f"{name}: {row.name}")
                results += await measured(name, row, sides, size.rounds)
    return results, about


@asynccontextmanager
async def _opened(url: str) -> AsyncIterator[tuple[Holdfasts, RawSqlite | RawPostgres]]:
    prefix = f"hf_bench_{secrets.token_hex(4)}"
    ours = Holdfasts(url, prefix)
    raw = RawSqlite(url, prefix) if ours.app.store.embedded else RawPostgres(url, prefix)
    await ours.open()
    try:
        await raw.open()
        try:
            yield ours, raw
        finally:
            await raw.close()
    finally:
        await ours.close()


def _server(ours: Holdfasts) -> str:
    """Ask the database for its version and for how safely it writes."""
    with ours.app.store.link() as link:
        if ours.app.store.embedded:
            return f"SQLite {link.raw.execute('select sqlite_version()').fetchone()[0]}, WAL, synchronous=FULL"
        words = ("server_version", "fsync", "synchronous_commit")
        told = [link.raw.execute("select current_setting(%s)", (word,)).fetchone()[0] for word in words]
    return f"PostgreSQL {told[0].split()[0]}, fsync {told[1]}, synchronous_commit {told[2]}"
