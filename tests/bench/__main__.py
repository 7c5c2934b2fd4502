"""`make bench`: measure on servers of its own, PostgreSQL and MariaDB, and on an SQLite file, beside the peers."""

import sys
import tempfile
from contextlib import ExitStack
from typing import Any

import click

from holdfast.cli.bench import bench_options, measure
from tests.bench import forms, peers, shards, sinks
from tests.servers import MariaDB, Postgres, Unavailable

DATABASES = {"sqlite": "SQLite", "postgres": "PostgreSQL", "mariadb": "MariaDB"}
# So that the server counts statements.
SETTINGS = {"shared_preload_libraries": "pg_stat_statements"}


@click.command()
@click.option(
    "--on", "databases", multiple=True, type=click.Choice(list(DATABASES)), help="Where; by default everywhere."
)
@click.option("--peers/--no-peers", "with_peers", default=True, help="Whether other queues take part.")
@bench_options
def main(databases: tuple[str, ...], with_peers: bool, **options: Any) -> None:
    """Measure Holdfast beside raw-SQL loops and other queues, on servers of its own."""
    chosen = databases or (tuple(DATABASES) if options["study"] is None else ("postgres",))
    specs, notes = [], {}
    if with_peers and options["study"] is None:
        specs, notes = peers.found([DATABASES[name] for name in chosen], lambda what: click.echo(what, err=True))
    with ExitStack() as stack:
        urls = []
        for name in chosen:
            try:
                urls.append(_url(name, stack))
            except Unavailable as absent:
                notes[absent.name] = f"not measured: {absent.why}"
        measure(urls, peers=specs, notes=notes, **options)


def _url(name: str, stack: ExitStack) -> str:
    if name == "sqlite":
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="holdfast-bench-"))
        return f"sqlite:///{folder}/bench.db"
    if name == "postgres":
        return stack.enter_context(Postgres(settings=SETTINGS, durable=True)).fresh_database()
    return stack.enter_context(MariaDB(durable=True)).fresh_database()


if __name__ == "__main__":
    # They need brokers and several servers, which are those of the tests.
    if sys.argv[1:3] == ["--study", "sinks"]:
        sinks.main(sys.argv[3:])
    elif sys.argv[1:3] == ["--study", "shards"]:
        shards.main(sys.argv[3:])
    elif sys.argv[1:3] == ["--study", "forms"]:
        forms.main(sys.argv[3:])
    else:
        main(prog_name="make bench")
