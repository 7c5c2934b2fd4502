"""The benchmark runs, on both databases, and leaves every row in the table and in the file. No times are asserted."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from holdfast.bench.measure import Figure, Result, Row, Side, measured, quantile

COMMON = [
    "enqueue one",
    "enqueue 100 a call",
    "drain, async def, kept",
    "drain, async def, deleted",
    "drain, def, kept",
    "drain, def, deleted",
    "idle latency p50",
    "idle latency p99",
]


@pytest.mark.slow
def test_a_quick_run_measures_every_row(sqlite_url: str, pg_url: str, tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    command = [sys.executable, "-m", "holdfast.bench", "--quick", "--json", str(figures)]

    done = subprocess.run([*command, "--url", sqlite_url, "--url", pg_url], capture_output=True, text=True, timeout=110)

    assert done.returncode == 0, done.stderr
    rows = json.loads(figures.read_text())["rows"]
    names = {database: [row["name"] for row in rows if row["database"] == database] for database in databases(rows)}
    assert names == {"SQLite": COMMON, "PostgreSQL": [COMMON[0], "enqueue one, async", *COMMON[1:]]}
    for row in rows:
        assert row["name"] in done.stdout
        assert set(row["figures"]) == {"holdfast", "raw"}
        assert all(0 < figure["low"] <= figure["median"] <= figure["high"] for figure in row["figures"].values())
    assert tables(pg_url) == []


def databases(rows: list[dict[str, str]]) -> list[str]:
    return list(dict.fromkeys(row["database"] for row in rows))


def tables(url: str) -> list[object]:
    with psycopg.connect(url) as connection:
        return connection.execute("select tablename from pg_tables where schemaname = 'public'").fetchall()


class Sleepless:
    """A side that notes when it is asked."""

    def __init__(self, name: str, asked: list[str]) -> None:
        self.name = name
        self.asked = asked


async def note(side: Side) -> list[float]:
    assert isinstance(side, Sleepless)
    side.asked.append(side.name)
    return [float(len(side.asked))]


def test_rounds_alternate_between_the_sides() -> None:
    asked: list[str] = []
    sides = [Sleepless("holdfast", asked), Sleepless("raw", asked)]

    [result] = asyncio.run(measured("none", Row("row", "jobs/s", note), sides, rounds=3))  # type: ignore[arg-type]

    assert asked == ["holdfast", "raw", "raw", "holdfast", "holdfast", "raw"]
    assert result.figures == {"holdfast": Figure(4, 1, 5), "raw": Figure(3, 2, 6)}
    assert result.ratio("holdfast") == pytest.approx(4 / 3)


def test_a_latency_is_told_by_its_quantiles() -> None:
    async def samples(side: Side) -> list[float]:
        return [1.0, 2.0, 3.0, 4.0]

    row = Row("latency", "ms", samples, quantiles=(0.5, 0.99))
    results = asyncio.run(measured("none", row, [Sleepless("raw", [])], rounds=2))  # type: ignore[list-item]

    assert results == [
        Result("none", "latency p50", "ms", {"raw": Figure(2, 2, 2)}),
        Result("none", "latency p99", "ms", {"raw": Figure(4, 4, 4)}),
    ]


@pytest.mark.parametrize("share, expected", [(0.0, 1), (0.5, 50), (0.99, 99), (0.995, 100), (1.0, 100)])
def test_a_quantile_is_a_sample(share: float, expected: int) -> None:
    assert quantile(range(1, 101), share) == expected
