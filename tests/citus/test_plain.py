"""What `make citus` runs also runs on a plain PostgreSQL, so that it is known to work; and it says what it lacks."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.citus.cluster import PLAIN, URL, Cluster

ROOT = Path(__file__).resolve().parents[2]
# Of each sort a few: the suite, the races, and jobs under load.
SOME = "test_conformance and claim and async or test_store_races and two_claims or test_move"


def pytest_on(url: str | None, *options: str, **names: str) -> "subprocess.CompletedProcess[str]":
    kept = {name: value for name, value in os.environ.items() if name not in (URL, PLAIN, "CI")}
    said = kept | names | ({} if url is None else {URL: url})
    command = [sys.executable, "-m", "pytest", "tests/citus", "-m", "citus", "-p", "no:cacheprovider", *options]
    return subprocess.run(command, cwd=ROOT, env=said, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_the_tests_for_citus_run_on_a_plain_server(pg_url: str) -> None:
    ended = pytest_on(pg_url, "-k", SOME, **{PLAIN: "1"})
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "passed" in ended.stdout
    assert "skipped" not in ended.stdout


def test_a_server_without_citus_is_not_taken_for_one(pg_url: str) -> None:
    with pytest.raises(RuntimeError, match="has no Citus: run `create extension citus`"):
        Cluster(pg_url)


@pytest.mark.slow
def test_without_a_cluster_it_says_what_was_not_given() -> None:
    ended = pytest_on(None, "-k", "test_kill")
    assert "Citus is not to be had here: CITUS_URL names no coordinator" in ended.stdout


def test_make_citus_without_a_url_says_so() -> None:
    names = {name: value for name, value in os.environ.items() if name not in ("URL", "MAKEFLAGS", "MAKELEVEL")}
    ended = subprocess.run(["make", "citus"], cwd=ROOT, env=names, capture_output=True, text=True, check=False)
    assert ended.returncode != 0
    [line, *_] = ended.stderr.splitlines()
    assert (
        line == "make citus needs a coordinator that may create schemas: make citus URL=postgresql://user@host/database"
    )
