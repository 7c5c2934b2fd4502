"""The report: one table for people, one JSON file for programs, and what machine it was."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

from holdfast import __version__
from holdfast.bench.measure import RATES, Figure, Result
from holdfast.bench.study import Finding

PACKAGES = ("asyncpg", "psycopg", "asyncmy", "PyMySQL", "uvloop", "msgspec")


def machine() -> dict[str, Any]:
    """Describe where the figures come from."""
    return {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cpus": os.cpu_count(),
        "cpu": _cpu(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "load_before": round(os.getloadavg()[0], 2),
        "packages": {"holdfast": __version__, **{name: found for name in PACKAGES if (found := _version(name))}},
    }


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


COLUMNS = ("database", "measured", "side", "median", "spread", "of raw", "CPU µs", "commits", "log bytes", "dead rows")
OF_BEFORE = "of before"
# The columns that hold words; all others hold numbers.
WORDS = ("database", "measured", "side", "tables")


def table(results: Iterable[Result]) -> Table:
    title = "holdfast bench: medians of interleaved rounds; the columns behind the ratio are the cost of one job"
    results = list(results)
    drawn = _drawn(title, columns(results))
    for group in lines(results):
        for line in group:
            drawn.add_row(*line)
        drawn.add_section()
    return drawn


def study_table(finding: Finding) -> Table:
    drawn = _drawn(f"holdfast bench --study {finding.study}", finding.columns)
    for line in finding.lines:
        drawn.add_row(*map(cell, line))
    return drawn


def _drawn(title: str, columns: Sequence[str]) -> Table:
    drawn = Table(title=title, title_justify="left")
    for name in columns:
        drawn.add_column(name, justify="left" if name in WORDS else "right", no_wrap=True)
    return drawn


def fit(table: Table, console: Console) -> list[str]:
    """Leave out columns from the right until no figure is cut in a narrow terminal; name them. Four always stay."""
    wide = console.options.update(max_width=10_000)
    left_out: list[str] = []
    while len(table.columns) > 4 and Measurement.get(console, wide, table).maximum > console.width:
        left_out.insert(0, str(table.columns.pop().header))
    return left_out


def cell(value: Any) -> str:
    if value is None:
        return ""
    return number(value) if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)


def columns(results: Sequence[Result]) -> tuple[str, ...]:
    """Name the columns: one more where another checkout took part."""
    return (*COLUMNS, OF_BEFORE) if _has_before(results) else COLUMNS


def _has_before(results: Sequence[Result]) -> bool:
    return any("before" in (*result.figures, *result.missing) for result in results)


def lines(results: Sequence[Result]) -> Iterator[list[list[str]]]:
    """Write each result as a group of lines, one for each side; what repeats is left out."""
    last, compared = "", _has_before(results)
    for result in results:
        names = ["" if result.database == last else result.database, titled(result)]
        group = []
        for side, figure in result.figures.items():
            group.append([*names, side, *_shown(result, side, figure), *([_of_before(result, side)] * compared)])
            names = ["", ""]
        group += [["", "", side, "not measured", *[""] * (6 + compared)] for side in result.missing]
        last = result.database
        yield group


def titled(result: Result) -> str:
    return result.name if result.unit == "jobs/s" else f"{result.name}, {result.unit}"


def _shown(result: Result, side: str, figure: Figure) -> list[str]:
    costs = [_cpu_us(figure), *(figure.costs.get(name) for name in ("commits", "log_bytes", "dead_rows"))]
    return [
        number(figure.median),
        _spread(figure.low, figure.high),
        _of_reference(result, side),
        *("" if cost is None else f"{cost:,.0f}" if cost >= 100 else f"{cost:.2g}" for cost in costs),
    ]


def _cpu_us(figure: Figure) -> float | None:
    """Add up what worker and server used, where both are known."""
    used = [figure.costs.get(name) for name in ("worker_us", "server_us")]
    return None if None in used else sum(one for one in used if one is not None)


def _of_reference(result: Result, side: str) -> str:
    ratio = result.ratio(side) if side != result.reference and result.unit in (*RATES, "ms") else None
    other = "" if result.reference == "raw" else f" of {result.reference}"
    return "" if ratio is None else f"{ratio:.2f}{other}"


def _of_before(result: Result, side: str) -> str:
    ratio = result.ratio(side, "before") if side == "holdfast" else None
    return "" if ratio is None else f"{ratio:.2f}"


def number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _spread(low: float, high: float) -> str:
    return f"{low / 1000:.1f}–{high / 1000:.1f}k" if low >= 10_000 else f"{number(low)}–{number(high)}"


def sentences(about: dict[str, Any], databases: dict[str, str], notes: Mapping[str, str]) -> list[str]:
    """Say where figures come from, and of each peer its version or why it was not measured."""
    packages = ", ".join(f"{name} {found}" for name, found in about["packages"].items())
    machine = f"{about['cpus']} CPUs ({about['cpu']}), {about['memory_gb']:g} GB, {about['system']}"
    return [
        f"{machine}, load {about['load_before']} before",
        f"Python {about['python']}, {packages}",
        *databases.values(),
        *(f"{name} {note}" for name, note in notes.items()),
    ]


def rows_json(results: Iterable[Result]) -> list[dict[str, Any]]:
    return [
        asdict(result) | {"ratio": result.ratio("holdfast"), "of_before": result.ratio("holdfast", "before")}
        for result in results
    ]


def to_json(**parts: Any) -> bytes:
    return msgspec.json.format(msgspec.json.encode(parts), indent=2) + b"\n"
