"""`holdfast bench`: how fast this machine and this database are, beside a raw-SQL loop."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import click

from holdfast.cli.shared import current


@click.command()
@click.option("--url", "urls", multiple=True, help="A database to measure; may be given several times.")
@click.option("--quick", is_flag=True, help="A few jobs of each: to see that it runs, not how fast.")
@click.option("--rounds", type=click.IntRange(1, 100), help="Interleaved rounds; the median counts.")
@click.option("--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="Write the figures here.")
def bench(urls: tuple[str, ...], quick: bool, rounds: int | None, json_file: Path | None) -> None:
    """Measure how fast it is, beside a raw-SQL loop.

    Enqueue, drain and idle latency, each beside the same work in plain SQL with the same driver in the same run.
    Without --url it takes an SQLite file in a temporary folder. Its tables have a prefix of their own and are dropped
    at the end. docs/performance.md says what each row means.

    \b
    Example:
      holdfast bench --url sqlite:///bench.db --url postgresql://localhost/bench --json figures.json
    """
    from rich.console import Console

    from holdfast.bench import report
    from holdfast.bench.measure import Size
    from holdfast.bench.run import benchmark

    urls = urls or tuple(url for url in (current().url,) if url)
    size = Size.quick() if quick else Size()
    size = size if rounds is None else replace(size, rounds=rounds)
    # A pipe gets the whole table, whatever width it pretends to have.
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 100)
    about = report.machine()
    results, databases = benchmark(urls, size, lambda row: click.echo(row, err=True))
    console.print(report.table(results))
    console.print("; ".join(databases.values()))
    console.print(
        f"{about['cpus']} CPUs ({about['cpu']}), Python {about['python']}, load {about['load_before']} before"
    )
    if json_file is not None:
        json_file.write_bytes(report.to_json(results, databases, size, about))
