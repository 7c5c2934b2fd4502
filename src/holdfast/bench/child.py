"""`python -m holdfast.bench.child NAME`: Holdfast, or a raw-SQL loop, as the contestant of this process.

Run by its path instead, it takes the modules beside it, whichever Holdfast is installed: see `side.before`.
"""

from __future__ import annotations

import logging
import sys
from importlib import import_module
from typing import Any


def beside(name: str) -> Any:
    return import_module(f"{__package__}.{name}" if __package__ else name)


def make(name: str, url: str, prefix: str) -> Any:
    """Make the contestant of that name for this database; its driver is imported only here."""
    if name in ("holdfast", "one queue", "plain"):
        return beside("ours").Ours(url, prefix, beside("effects").Effects(prefix))
    if name in ("counted", "uncounted"):
        from holdfast.bench.statistics_sides import Counted, Uncounted

        return (Counted if name == "counted" else Uncounted)(url, prefix, beside("effects").Effects(prefix))
    if name in ("own commits", "group commit"):
        from holdfast.bench.raw_steps import RawSteps

        return RawSteps(url, prefix, grouped=name == "group commit")
    if url.startswith("sqlite"):
        from holdfast.bench.raw_sqlite import RawSqlite

        return RawSqlite(url, prefix)
    if url.startswith("postgres"):
        from holdfast.bench.raw_postgres import RawPostgres

        return RawPostgres(url, prefix)
    from holdfast.bench.raw_mysql import BATCH, RawMysql

    return RawMysql(url, prefix, batch=1 if name == "one by one" else BATCH)


if __name__ == "__main__":
    # A line for each failed attempt would measure the terminal; the raw loop writes none either.
    logging.getLogger("holdfast").setLevel(logging.ERROR)
    beside("serve").run(lambda url, prefix: make(sys.argv[1], url, prefix))
