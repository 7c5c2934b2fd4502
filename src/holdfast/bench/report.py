"""The report: one table for people, one JSON file for programs, and what machine it was."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import msgspec
from rich.table import Table

from holdfast.bench.measure import Figure, Result, Size

PACKAGES = ("holdfast", "asyncpg", "psycopg", "uvloop", "msgspec")


def machine() -> dict[str, Any]:
    """Describe where the figures come from."""
    return {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cpus": os.cpu_count(),
        "cpu": _cpu(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "load_before": round(os.getloadavg()[0], 2),
        "packages": {name: found for name in PACKAGES if (found := _version(name))},
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


def table(results: Iterable[Result]) -> Table:
    drawn = Table(title="holdfast bench: jobs per second, and latency in ms", title_justify="left")
    for title in ("database", "measured"):
        drawn.add_column(title, no_wrap=True)
    for title in ("holdfast", "spread", "raw SQL", "spread", "ratio"):
        drawn.add_column(title, justify="right", no_wrap=True)
    last = ""
    for result in results:
        if last and result.database != last:
            drawn.add_section()
        drawn.add_row("" if result.database == last else result.database, *cells(result))
        last = result.database
    return drawn


def cells(result: Result) -> list[str]:
    ours, raw = result.figures["holdfast"], result.figures["raw"]
    name = f"{result.name}, ms" if result.unit == "ms" else result.name
    return [name, *_shown(ours), *_shown(raw), f"{result.ratio('holdfast'):.2f}"]


def _shown(figure: Figure) -> tuple[str, str]:
    return _number(figure.median), _spread(figure.low, figure.high)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def _spread(low: float, high: float) -> str:
    return f"{low / 1000:.1f}–{high / 1000:.1f}k" if low >= 10_000 else f"{_number(low)}–{_number(high)}"


def to_json(results: Sequence[Result], databases: dict[str, str], size: Size, about: dict[str, Any]) -> bytes:
    rows = [asdict(result) | {"ratio": result.ratio("holdfast")} for result in results]
    whole = {"machine": about, "databases": databases, "size": asdict(size), "rows": rows}
    return msgspec.json.format(msgspec.json.encode(whole), indent=2)
