"""`python -m holdfast.bench.child NAME`: Holdfast, or a raw-SQL loop, as the contestant of this process."""

from __future__ import annotations

import sys

from holdfast.bench import serve


def make(name: str, url: str, prefix: str) -> serve.Contestant:
    """Make the contestant of that name for this database; its driver is imported only here."""
    if name == "holdfast":
        from holdfast.bench.ours import Ours

        return Ours(url, prefix)
    if url.startswith("sqlite"):
        from holdfast.bench.raw_sqlite import RawSqlite

        return RawSqlite(url, prefix)
    if url.startswith("postgres"):
        from holdfast.bench.raw_postgres import RawPostgres

        return RawPostgres(url, prefix)
    from holdfast.bench.raw_mysql import BATCH, RawMysql

    return RawMysql(url, prefix, batch=1 if name == "one by one" else BATCH)


if __name__ == "__main__":
    serve.run(lambda url, prefix: make(sys.argv[1], url, prefix))
