"""`holdfast bench`: how fast this machine and this database are, beside a raw-SQL loop."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from holdfast.cli.shared import current

if TYPE_CHECKING:
    from rich.table import Table

    from holdfast.bench.side import Spec

F = TypeVar("F", bound=Callable[..., Any])

_File = click.Path(dir_okay=False, path_type=Path)
_OPTIONS = (
    click.option("--quick", is_flag=True, help="A few jobs of each: to see that it runs, not how fast."),
    click.option(
        "--part",
        type=click.FloatRange(0, 1, min_open=True),
        default=1.0,
        help="Drain this part of the jobs only, for a shorter run: 0.1 is a tenth.",
    ),
    click.option(
        "--rounds",
        type=click.IntRange(1, 100),
        help="Interleaved rounds; the median counts.  [default: 3, of a study 5, with --quick 1]",
    ),
    click.option("--only", multiple=True, help="Measure only rows whose name holds this; may be given several times."),
    click.option(
        "--before",
        type=click.Path(file_okay=False, exists=True, path_type=Path),
        help="Another checkout of Holdfast, such as a git worktree, to be measured in the same rounds.",
    ),
    click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON instead of the table."),
    click.option("--figures", type=_File, help="Write the figures here, as JSON."),
    click.option("--page", type=_File, help="Write table and plot into this Markdown page, between its markers."),
    click.option(
        "--study",
        type=click.Choice(["big", "snapshot", "processes", "memory", "ordered", "pages", "runs", "statistics"]),
        help="One longer study instead of the rows; docs/performance.md says what each does.",
    ),
    click.option("--jobs", type=click.IntRange(1_000), help="How many jobs the memory study runs.  [default: 1000000]"),
    click.option("--seconds", type=click.FloatRange(1), help="How long the snapshot study runs.  [default: 300]"),
    click.option(
        "--finished",
        type=click.IntRange(1_000),
        help="How many finished rows the pages study reads beside.  [default: 2000000]",
    ),
)


def bench_options(command: F) -> F:
    """Add what `holdfast bench` and `make bench` both take."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


@click.command()
@click.option("--url", "urls", multiple=True, help="A database to measure; may be given several times.")
@bench_options
def bench(urls: tuple[str, ...], **options: Any) -> None:
    """Measure how fast it is, beside a raw-SQL loop.

    Enqueue, drain, latency and what an idle worker costs, each beside the same work in plain SQL with the same driver
    in the same run. Without --url it takes an SQLite file in a temporary folder. Its tables have a prefix of their own
    and are dropped at the end. docs/performance.md says what each row means.

    \b
    Example:
      holdfast bench --url sqlite:///bench.db --url postgresql://localhost/bench --figures figures.json
    """
    measure(urls or tuple(url for url in (current().url,) if url), **options)


def measure(
    urls: Sequence[str],
    *,
    study: str | None,
    jobs: int | None,
    seconds: float | None,
    finished: int | None,
    peers: Sequence[Spec] = (),
    notes: Mapping[str, str] | None = None,
    **options: Any,
) -> None:
    """Measure the rows, or do one study; `make bench` brings peers along and says in the notes which, and why not."""
    if study is None:
        _measure_rows(urls, peers, dict(notes or {}), **options)
    else:
        _measure_study(urls, study, jobs, seconds, finished, **options)


def _measure_rows(
    urls: Sequence[str],
    peers: Sequence[Spec],
    notes: dict[str, str],
    quick: bool,
    part: float,
    rounds: int | None,
    only: tuple[str, ...],
    before: Path | None,
    as_json: bool,
    figures: Path | None,
    page: Path | None,
) -> None:
    from holdfast.bench import page as pages
    from holdfast.bench import plot, report
    from holdfast.bench.measure import Size
    from holdfast.bench.run import benchmark

    size = (Size.quick() if quick else Size()).part(part)
    size = size if rounds is None else replace(size, rounds=rounds)
    about = report.machine()
    results, databases = benchmark(urls, size, _progress(), peers, only, before)
    told = report.sentences(about, databases, notes)
    parts = {"machine": about, "databases": databases, "peers": notes, "size": asdict(size)}
    written = report.to_json(**parts, rows=report.rows_json(results))
    _tell(written, as_json, figures, report.table(results), *told)
    if page is not None:
        picture = page.with_suffix(".svg")
        picture.write_text(plot.svg(results))
        pages.refresh(page, "bench", pages.of_results(results, told, picture.name))


def _measure_study(
    urls: Sequence[str],
    study: str,
    jobs: int | None,
    seconds: float | None,
    finished: int | None,
    quick: bool,
    rounds: int | None,
    as_json: bool,
    figures: Path | None,
    page: Path | None,
    **_: Any,
) -> None:
    from holdfast.bench import page as pages
    from holdfast.bench import report
    from holdfast.bench.run import described
    from holdfast.bench.studies import STUDIES
    from holdfast.bench.study import Scale

    if len(urls) != 1:
        raise click.UsageError("A study is of one database: name it with one --url.")
    scale = Scale.quick() if quick else Scale()
    asked: dict[str, Any] = {"jobs": jobs, "seconds": seconds, "rounds": rounds, "finished": finished}
    scale = replace(scale, **{name: value for name, value in asked.items() if value is not None})
    about = report.machine()
    finding = asyncio.run(STUDIES[study](urls[0], scale, _progress()))
    told = report.sentences(about, dict([described(urls[0])]), {})
    written = report.to_json(machine=about, scale=asdict(scale), finding=asdict(finding))
    _tell(written, as_json, figures, report.study_table(finding), finding.summary, *told)
    if page is not None:
        pages.refresh(page, f"study:{study}", pages.of_finding(finding, told))


def _tell(written: bytes, as_json: bool, figures: Path | None, table: Table, *sentences: str) -> None:
    """Print the figures as JSON, or the table with what there is to say, and write the file that was asked for."""
    from rich.console import Console

    from holdfast.bench.report import fit

    if figures is not None:
        figures.write_bytes(written)
    if as_json:
        click.echo(written.decode().strip())
        return
    # A pipe gets the whole table, whatever width it pretends to have.
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 170)
    left_out = fit(table, console)
    console.print(table)
    for sentence in sentences:
        console.print(sentence)
    if left_out:
        console.print(f"not shown for want of room: {', '.join(left_out)}; a wider terminal or --json has them")


def _progress() -> Callable[[str], None]:
    began = time.monotonic()
    return lambda what: click.echo(f"{time.monotonic() - began:5.0f} s  {what}", err=True)
