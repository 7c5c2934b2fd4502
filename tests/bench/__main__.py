"""`make bench`: start a PostgreSQL server, then measure on it and on an SQLite file."""

import sys
import tempfile

from holdfast.cli.bench import bench
from tests.servers import Postgres


def main(arguments: list[str]) -> None:
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder, Postgres() as postgres:
        urls = [f"sqlite:///{folder}/bench.db", postgres.fresh_database()]
        bench([word for url in urls for word in ("--url", url)] + arguments, prog_name="make bench")


if __name__ == "__main__":
    main(sys.argv[1:])
