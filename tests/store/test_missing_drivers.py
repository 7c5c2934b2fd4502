"""Without its driver a database cannot be used, and the error says what to install."""

import subprocess
import sys

import pytest

TRY = """
import asyncio, sys
for name in {hidden!r}:
    sys.modules[name] = None
from holdfast import DriverMissing, Holdfast
hf = Holdfast({url!r})
try:
    {call}
except DriverMissing as error:
    assert isinstance(error, ImportError) and isinstance(error.__cause__, ImportError)
    print(error.driver, error.extra, error, sep="|")
"""
MIGRATE, ENQUEUE = "hf.migrate()", "asyncio.run(hf.aenqueue('send', check=False))"
POSTGRES, MYSQL = "postgresql://app@127.0.0.1:1/shop", "mysql://app@127.0.0.1:1/shop"


@pytest.mark.parametrize(
    "driver, extra, url, call",
    [
        ("psycopg", "postgres", POSTGRES, MIGRATE),
        ("asyncpg", "postgres", POSTGRES, ENQUEUE),
        ("pymysql", "mysql", MYSQL, MIGRATE),
        ("asyncmy", "mysql", MYSQL, ENQUEUE),
    ],
)
def test_the_error_names_the_extra_to_install(driver: str, extra: str, url: str, call: str) -> None:
    script = TRY.format(hidden=[driver], url=url, call=call)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.stderr == ""
    named, wanted, told = done.stdout.strip().split("|")
    assert (named, wanted) == (driver, extra)
    assert f'pip install "holdfast-db[{extra}]"' in told


def test_a_driver_that_is_there_but_broken_is_told_with_its_own_words() -> None:
    # As on a machine where psycopg is installed without a libpq.
    script = TRY.format(hidden=["psycopg_binary", "psycopg_c", "psycopg.pq.pq_ctypes"], url=POSTGRES, call=MIGRATE)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert "no pq wrapper available" in done.stdout
