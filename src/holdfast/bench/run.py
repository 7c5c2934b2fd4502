"""Running the whole: open the sides on each database, measure row by row, put everything away."""

from __future__ import annotations

import asyncio
import secrets
import tempfile
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, closing
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from holdfast.bench.counters import counters_for
from holdfast.bench.measure import Result, Size, excused, measured
from holdfast.bench.rows import rows
from holdfast.bench.side import BY_HAND, EVERYTHING, LINED, Side, Spec, before, child
from holdfast.store.dialects import dialect_for
from holdfast.values.options import StoreOptions

Said = Callable[[str], None]

# What most queues on MySQL do, beside the claims of whole batches.
ONE_BY_ONE = child("one by one", frozenset({"kept"}), share=0.03)
# Ours once more: what many queues are compared with.
ONE_QUEUE = child("one queue", frozenset({"queues"}), apart="_one_queue")
# And again: what queues with order and limits are compared with, and runs of one step.
PLAIN = child("plain", LINED | {"one step"}, apart="_plain")
# Checkpoints by hand: what the steps of runs are compared with.
STEPS_BY_HAND = [
    child("own commits", frozenset({"one run", "steps"}), apart="_own"),
    child("group commit", frozenset({"steps"}), apart="_group"),
]
# Elsewhere a drain is several times slower than on PostgreSQL, and no truer for taking minutes.
SHARE = {"PostgreSQL": 1.0, "SQLite": 0.5, "MariaDB": 0.3, "MySQL": 0.3}


def benchmark(
    urls: Sequence[str],
    size: Size,
    say: Said = lambda _: None,
    peers: Sequence[Spec] = (),
    only: Sequence[str] = (),
    checkout: Path | None = None,
) -> tuple[list[Result], dict[str, str]]:
    """Measure every row on every database; an embedded SQLite file in a temporary folder when none is named.

    peers: others that take part where they can. only: patterns of the rows to measure; by default all.
    checkout: another Holdfast that takes part everywhere, as "before".
    Returns the results, and what each database says of itself. The tables have a prefix of their own and are dropped.
    """
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder:
        return asyncio.run(_all(list(urls) or [f"sqlite:///{folder}/bench.db"], size, say, peers, only, checkout))


async def _all(
    urls: list[str], size: Size, say: Said, peers: Sequence[Spec], only: Sequence[str], checkout: Path | None
) -> tuple[list[Result], dict[str, str]]:
    results: list[Result] = []
    about: dict[str, str] = {}
    for url in urls:
        name, about_it = described(url)
        about[name] = about_it
        here = size.part(SHARE[name])
        async with opened(url, specs_for(name, peers, checkout)) as sides:
            with closing(counters_for(url)) as counters:
                for row in rows(here, counters, embedded=name == "SQLite"):
                    if not only or any(fnmatch(row.name, f"*{one}*") for one in only):
                        results += await measured(name, row, sides, size.rounds, say)
    return results, about


def specs_for(name: str, peers: Sequence[Spec], checkout: Path | None = None) -> list[Spec]:
    """List who takes part on a database; an embedded one has no async driver."""
    cannot = {"one async"} if name == "SQLite" else set[str]()
    can = EVERYTHING - cannot
    apart = [ONE_BY_ONE] if name in ("MariaDB", "MySQL") else []
    guests = [peer for peer in peers if name in peer.databases]
    other = [] if checkout is None else [before(checkout, can)]
    by_hand = [child("raw", BY_HAND - cannot), *STEPS_BY_HAND]
    return [child("holdfast", can), *other, *by_hand, ONE_QUEUE, PLAIN, *apart, *guests]


@asynccontextmanager
async def opened(url: str, specs: Iterable[Spec]) -> AsyncIterator[list[Side]]:
    """Start every side and make its tables; drop them in the end."""
    prefix = f"hf_bench_{secrets.token_hex(4)}"
    sides: list[Side] = []
    try:
        for spec in specs:
            side = Side(spec, url, prefix)
            await _installed(side)
            sides.append(side)
        yield sides
    except BaseException:
        # The side that was asked last may still be at it: what is dropped below is dropped by fresh processes.
        for side in sides:
            await side.stop()
        raise
    finally:
        for side in sides:
            if not side.broken:
                await side.do("uninstall")
            await side.stop()


async def _installed(side: Side) -> None:
    """Make a side's tables; a guest that cannot is missing in all its rows."""
    try:
        await side.do("install")
    except RuntimeError as error:
        await excused(side, error)
        side.broken = str(error)


def described(url: str) -> tuple[str, str]:
    """Ask the database for its name, its version and how safely it writes."""
    dialect = dialect_for(url, StoreOptions())
    with closing(dialect.connect(url)) as raw:
        return {"postgres": _postgres, "mysql": _mysql, "sqlite": _sqlite}[dialect.name](raw)


def _postgres(raw: Any) -> tuple[str, str]:
    words = ("server_version", "fsync", "synchronous_commit")
    told = [raw.execute("select current_setting(%s)", (word,)).fetchone()[0] for word in words]
    return "PostgreSQL", f"PostgreSQL {told[0].split()[0]}, fsync {told[1]}, synchronous_commit {told[2]}"


def _mysql(raw: Any) -> tuple[str, str]:
    version, flush = raw.execute("select version(), @@innodb_flush_log_at_trx_commit").fetchone()
    name = "MariaDB" if "mariadb" in version.lower() else "MySQL"
    return name, f"{name} {version.partition('-')[0]}, innodb_flush_log_at_trx_commit {flush}"


def _sqlite(raw: Any) -> tuple[str, str]:
    return "SQLite", f"SQLite {raw.execute('select sqlite_version()').fetchone()[0]}, WAL, synchronous=FULL"
