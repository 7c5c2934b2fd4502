"""The benchmark runs on every database and leaves every row in the table and in the file. No times are asserted."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import psycopg
import pymysql
import pytest

import holdfast
from holdfast import observe
from holdfast.bench.effects import Effects
from holdfast.bench.ours import Ours
from holdfast.bench.serve import Served
from holdfast.bench.side import before
from holdfast.bench.statistics_sides import Counted, Uncounted
from holdfast.errors import ConfigError
from holdfast.observe import Tallies
from holdfast.store.dialects.mysql import split_url
from holdfast.worker.rounds.merge import Merge
from holdfast.worker.rounds.sample import Sampling
from tests.bench import peers, sinks
from tests.bench.peers import homes

ROWS = [
    "enqueue one",
    "enqueue one, caller's transaction",
    "enqueue one, async",
    "enqueue 100 a call",
    "enqueue one, ordered",
    "enqueue 100 a call, ordered",
    "drain, async def, kept",
    "drain, async def, deleted",
    "drain, def, kept",
    "drain, many queues",
    "drain, ordered, 10 a key",
    "drain, ordered, one key",
    "drain, ordered, a key each",
    "drain, limited",
    "drain, fair",
    "drain, chain of two",
    "drain, batch of 10,000",
    "publish one, caller's transaction",
    "drain, relay to a function",
    "effect and completion, async def",
    "effect and completion, def",
    "effect and completion, together, async def",
    "effect and completion, together, def",
    "effect and completion, bulk",
    "handler returns Retry once",
    "handler raises once",
    "handler raises once, own words",
    "steps, 1 run at once",
    "steps, 20 runs at once",
    "steps, 200 runs at once",
    "runs of one step",
    "signal to resume p50",
    "signal to resume p99",
    "timer late p50",
    "timer late p99",
    "flow of 100/s p50",
    "flow of 100/s p99",
    "idle latency p50",
    "idle latency p99",
    "idle, CPU",
    "idle, memory",
    "idle, statements",
]
UNCOUNTED = {"idle, CPU", "idle, statements"}

# The longest takes half a minute where nothing else runs.
pytestmark = pytest.mark.timeout(600)


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from holdfast.cli import main; main()", "bench", "--quick", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


# Each row is quick, but there are many, and a busy machine took two minutes for them.
@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("database", ["SQLite", "PostgreSQL", "MariaDB"])
def test_a_quick_run_measures_every_row(database: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    url = request.getfixturevalue({"SQLite": "sqlite_url", "PostgreSQL": "pg_url", "MariaDB": "mariadb_url"}[database])

    done = bench("--figures", str(figures), "--url", url)

    assert done.returncode == 0, done.stderr
    rows = json.loads(figures.read_text())["rows"]
    assert {row["database"] for row in rows} == {database}
    assert [row["name"] for row in rows] == [
        name for name in ROWS if database != "SQLite" or name != "enqueue one, async"
    ]
    for row in rows:
        # Statements are counted by MariaDB, and by PostgreSQL where an extension is loaded.
        assert row["name"] in done.stdout or (row["name"] == "idle, statements" and database != "MariaDB")
        assert set(row["figures"]) == sides_of(row)
        for figure in row["figures"].values():
            assert 0 <= figure["low"] <= figure["median"] <= figure["high"]
            assert row["name"] in UNCOUNTED or figure["low"] > 0
    assert_costs(rows)
    if database != "SQLite":
        assert (tables if database == "PostgreSQL" else mariadb_tables)(url) == []


@pytest.mark.slow
def test_another_checkout_takes_part_in_the_same_rounds(sqlite_url: str, tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    checkout = tmp_path / "old"
    checkout.mkdir()
    (checkout / "src").symlink_to(Path(holdfast.__file__).parents[1])

    done = bench("--figures", str(figures), "--url", sqlite_url, "--before", str(checkout), "--only", "drain, async")

    assert done.returncode == 0, done.stderr
    for row in json.loads(figures.read_text())["rows"]:
        assert set(row["figures"]) == {"holdfast", "before", "raw"}
        ours, theirs = (row["figures"][side]["rounds"] for side in ("holdfast", "before"))
        assert row["of_before"] == pytest.approx(ours[0] / theirs[0])
    assert "of before" in done.stdout


def test_what_a_checkout_lacks_is_missing_in_its_row_alone(sqlite_url: str) -> None:
    async def whole() -> list[dict[str, object]]:
        ours = Ours(sqlite_url, "hf", Effects("hf"))
        ours._kinds["tomorrow"] = ("job_of_tomorrow", len, {})
        served = Served(ours)
        await ours.install()
        asked = {"do": "enqueue_many", "count": 1, "per_call": 1}
        answers = [await served.answer({**asked, "handler": name}) for name in ("tomorrow", "async def")]
        await ours.close()
        return answers

    missing, added = asyncio.run(whole())
    assert "no attribute 'job_of_tomorrow'" in str(missing["error"])
    assert "error" not in added


IMPORTS = """
import asyncio, sys
from holdfast.bench.effects import Effects
from holdfast.bench.ours import Ours

async def main():
    ours = Ours(sys.argv[1], "bench_", Effects("bench_"))
    await ours.install()
    await ours.open()
    await ours.enqueue_many(10, 10)
    known = set(sys.modules)
    await ours.drain(10, True)
    print(sorted(name for name in set(sys.modules) - known if name.startswith("holdfast")))
    await ours.close()

asyncio.run(main())
"""


def test_no_modules_are_read_while_a_drain_is_measured(sqlite_url: str) -> None:
    child = subprocess.run([sys.executable, "-c", IMPORTS, sqlite_url], capture_output=True, text=True, check=True)
    assert child.stdout == "[]\n"


def test_what_is_not_a_checkout_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="before: must be a checkout"):
        before(tmp_path)


def sides_of(row: dict[str, str]) -> set[str]:
    """Statements are counted on MariaDB, and on a PostgreSQL server only where pg_stat_statements is loaded."""
    if row["name"] == "idle, statements" and row["database"] != "MariaDB":
        return set()
    if row["name"] == "drain, many queues":
        return {"holdfast", "one queue"}
    if "ordered" in row["name"] or row["name"].startswith(
        ("drain, limited", "drain, fair", "drain, chain", "drain, batch", "drain, relay", "publish")
    ):
        return {"holdfast", "plain"}
    if row["name"].startswith("steps"):
        return {"holdfast", "own commits"} | ({"group commit"} if "runs" in row["name"] else set())
    if row["name"] == "runs of one step":
        return {"holdfast", "plain"}
    if row["name"].startswith(("signal", "timer")):
        return {"holdfast"}
    single = row["database"] == "MariaDB" and row["name"] == "drain, async def, kept"
    return {"holdfast", "raw"} | ({"one by one"} if single else set())


def assert_costs(rows: list[dict[str, object]]) -> None:
    drains = {row["database"]: row["figures"] for row in rows if row["name"] == "drain, async def, kept"}
    for side in ("holdfast", "raw") if "PostgreSQL" in drains else ():
        told = drains["PostgreSQL"][side]["costs"]  # type: ignore[index]
        # A claim updates the row and a settle deletes it: two row versions die, and whole batches commit at once.
        assert told["dead_rows"] >= 2
        assert 0 < told["commits"] < 1
        assert told["log_bytes"] > 100
    for row in rows:
        if row["name"].startswith("drain"):
            # The clock of a process ticks a hundred times a second: of a few jobs it may not tell.
            assert all({"worker_us", "server_us"} <= set(one["costs"]) for one in row["figures"].values())  # type: ignore[attr-defined]
    if "MariaDB" in drains:
        assert drains["MariaDB"]["one by one"]["costs"]["commits"] > 2  # type: ignore[index]


def tables(url: str) -> list[object]:
    with psycopg.connect(url) as connection:
        return connection.execute("select tablename from pg_tables where schemaname = 'public'").fetchall()


def mariadb_tables(url: str) -> list[object]:
    with pymysql.connect(**split_url(url).arguments()) as connection, connection.cursor() as cursor:
        cursor.execute("show tables")
        return list(cursor.fetchall())


@pytest.mark.slow
@pytest.mark.parametrize(
    "study, lines, columns",
    [("big", 2, 4), ("snapshot", 2, 7), ("pages", 15, 5), ("runs", 4, 3), ("statistics", 2, 5)],
)
def test_a_study_of_postgres_gives_its_table(pg_url: str, tmp_path: Path, study: str, lines: int, columns: int) -> None:
    finding = studied(pg_url, tmp_path, study)

    assert [len(line) for line in finding["lines"]] == [columns] * lines
    assert all(line[1] > 0 for line in finding["lines"])
    assert tables(pg_url) == []


@pytest.mark.slow
@pytest.mark.parametrize("study, lines", [("processes", 4), ("memory", 5), ("ordered", 9), ("statistics", 2)])
def test_a_study_runs_on_sqlite(sqlite_url: str, tmp_path: Path, study: str, lines: int) -> None:
    finding = studied(sqlite_url, tmp_path, study)

    assert len(finding["lines"]) == lines
    assert all(line[-1] > 0 for line in finding["lines"])


@pytest.mark.parametrize("side, told", [(Counted, {"done": 60}), (Uncounted, {})])
def test_one_side_of_the_study_of_statistics_counts_and_the_other_does_not(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch, side: type[Ours], told: dict[str, int]
) -> None:
    # So that they are put back: the study itself leaves them out for as long as its process lives.
    for where, name in ((Tallies, "count"), (Tallies, "trip"), (Sampling, "runs_on"), (Merge, "runs_on")):
        monkeypatch.setattr(where, name, where.__dict__[name])

    async def whole() -> dict[str, int]:
        ours = side(sqlite_url, "hf_bench", Effects("hf_bench"))
        await ours.install()
        await ours.enqueue_many(count=60, per_call=60)
        await ours.drain(count=60, keep=True)
        seen = (await ours.app.store.arun(observe.history(600))).figures().ended
        await ours.close()
        return seen

    assert asyncio.run(whole()) == told


def studied(url: str, folder: Path, study: str) -> dict[str, list[list[float]]]:
    figures = folder / "figures.json"
    done = bench("--study", study, "--figures", str(figures), "--url", url)
    assert done.returncode == 0, done.stderr
    finding: dict[str, list[list[float]]] = json.loads(figures.read_text())["finding"]
    return finding


def test_a_study_of_postgres_refuses_another_database(sqlite_url: str) -> None:
    done = bench("--study", "snapshot", "--url", sqlite_url)

    assert done.returncode != 0
    assert "this study is for PostgreSQL" in done.stderr


@pytest.mark.slow
@pytest.mark.skipif("HOLDFAST_BENCH_PEERS" not in os.environ, reason="set HOLDFAST_BENCH_PEERS to run other queues")
def test_every_peer_takes_part(tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    command = [sys.executable, "-m", "tests.bench", "--quick", "--figures", str(figures)]

    done = subprocess.run([*command, "--only", "a call", "--only", "drain, async"], capture_output=True, timeout=580)

    assert done.returncode == 0, done.stderr
    drained: dict[str, set[str]] = {}
    for row in json.loads(figures.read_text())["rows"]:
        assert not row["missing"]
        drained.setdefault(row["database"], set()).update(row["figures"])
    postgres = {"procrastinate", "pgqueuer", "graphile-worker", "pg-boss", "river", "awa", "oban"}
    assert drained == {
        "SQLite": {"holdfast", "raw", "huey"},
        "PostgreSQL": {"holdfast", "raw", *postgres},
        "MariaDB": {"holdfast", "raw", "one by one", "huey"},
    }


@pytest.mark.slow
@pytest.mark.skipif("HOLDFAST_BENCH_PEERS" not in os.environ, reason="set HOLDFAST_BENCH_PEERS to run other queues")
def test_peers_with_an_order_of_their_own_stand_beside_ours(tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    command = [sys.executable, "-m", "tests.bench", "--quick", "--on", "postgres", "--only", "drain, ordered"]

    done = subprocess.run([*command, "--figures", str(figures)], capture_output=True, timeout=580)

    assert done.returncode == 0, done.stderr
    for row in json.loads(figures.read_text())["rows"]:
        assert not row["missing"]
        assert set(row["figures"]) == {"holdfast", "plain", "procrastinate", "graphile-worker", "pg-boss"}


@pytest.mark.slow
@pytest.mark.skipif("HOLDFAST_BENCH_PEERS" not in os.environ, reason="set HOLDFAST_BENCH_PEERS to run other queues")
def test_engines_of_durable_workflows_stand_beside_ours(tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    only = ["--only", "steps", "--only", "one step", "--only", "signal"]
    command = [sys.executable, "-m", "tests.bench", "--quick", "--on", "postgres", *only]

    done = subprocess.run([*command, "--figures", str(figures)], capture_output=True, timeout=580)

    assert done.returncode == 0, done.stderr
    for row in json.loads(figures.read_text())["rows"]:
        assert not row["missing"]
        assert {"dbos"} | ({"absurd"} if row["unit"] != "ms" else set()) <= set(row["figures"])


def test_a_peer_that_cannot_be_had_is_named_with_its_reason(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(homes, "TOOLS", tmp_path)
    monkeypatch.setattr(peers, "HOMES", [home for home in peers.HOMES if isinstance(home, homes.GoHome)])
    monkeypatch.setenv("PATH", str(tmp_path))

    assert peers.found(["PostgreSQL"]) == ([], {"river": "not measured: Go is not installed"})
    assert peers.found(["SQLite"]) == ([], {})


@pytest.mark.slow
def test_the_study_of_sinks_measures_a_relay_beside_its_client(capsys: pytest.CaptureFixture[str]) -> None:
    found = sinks.study(count=300, rounds=1, names=["redis"], latencies=0)
    assert {side: len(rates) for side, rates in found["redis"].items()} == {"raw": 1, "relay": 1, "ordered": 1}
    assert all(rate > 0 for rates in found["redis"].values() for rate, *_ in rates)
    assert "wanted 0.5" in capsys.readouterr().out
