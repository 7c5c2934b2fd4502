"""The demo, small, on both databases: it ends well, says so from the data, and notices when the data is wrong."""

import contextlib
import io
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from rich.console import Console

from holdfast.demo import proof, run
from holdfast.demo.shop import Shop
from holdfast.errors import ConfigError

ORDERS = 200
pytestmark = pytest.mark.slow


@pytest.fixture
def console() -> Console:
    return Console(file=io.StringIO(), width=100, highlight=False)


def printed(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize("database", ["sqlite", "postgres"])
def test_the_demo_proves_its_promises(database: str, console: Console, request: pytest.FixtureRequest) -> None:
    url = None if database == "sqlite" else request.getfixturevalue("pg_url")

    code = run(url, orders=ORDERS, console=console)

    text = printed(console)
    assert code == 0, text
    assert "200 orders, 200 with a receipt, 0 without" in text
    assert "200 receipts for 200 orders, 0 doubled" in text
    assert "11 orders rolled back, 0 of them left a job" in text
    assert "3 dead letters replayed, 0 left" in text
    assert "killed with SIGKILL while it holds" in text
    assert "NO" not in text
    if url is not None:
        assert tables(url) == []


def tables(url: str) -> list[object]:
    with psycopg.connect(url) as connection:
        return connection.execute("select tablename from pg_tables where schemaname = 'public'").fetchall()


def double_a_receipt(shop: Shop) -> None:
    with contextlib.closing(shop.connect()) as connection:
        connection.execute(shop.sql("insert into shop_receipts select * from shop_receipts limit 1"))


def test_a_doubled_receipt_breaks_the_demo(console: Console) -> None:
    code = run(orders=60, workers=2, console=console, meddle=double_a_receipt)

    assert code == 1
    assert "Broken: No receipt doubled" in printed(console)


def test_too_few_orders_are_refused() -> None:
    with pytest.raises(ConfigError, match="at least 20 orders"):
        run(orders=19)


@pytest.fixture
def shop(sqlite_url: str) -> Iterator[Shop]:
    shop = Shop(sqlite_url, "holdfast")
    shop.open()
    yield shop
    shop.close()


def broken(shop: Shop) -> set[str]:
    kept = proof.promises(proof.read_books(shop, proof.Killed()))
    # These two need a killed worker and dead letters, which a shop without workers has not.
    untold = {"A killed worker's jobs come back", "A dead letter can be replayed"}
    return {promise.name for promise in kept if not promise.holds} - untold


def test_a_lost_order_is_noticed(shop: Shop) -> None:
    shop.place_all(5)

    assert broken(shop) >= {"No order lost", "One job an order, all done"}


def test_a_job_of_a_declined_order_is_noticed(shop: Shop) -> None:
    shop.declined.append(9)
    shop.send_receipt.using(key="order:9").enqueue(order_id=9, country="Chile")

    assert "Rolled back means no job" in broken(shop)


def test_a_rolled_back_order_leaves_nothing(shop: Shop) -> None:
    with contextlib.closing(shop.connect()) as connection:
        shop.place(connection, 1, "Chile", declined=True)

    books = proof.read_books(shop, proof.Killed())
    assert (books.orders, books.jobs, books.declined) == ([], [], {1})


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_demo_leaves_no_process_and_no_file(number: signal.Signals, tmp_path: Path) -> None:
    with started_demo(tmp_path) as demo:
        assert len(processes_of(tmp_path)) == 1 + 3
        demo.send_signal(number)
        assert demo.wait(20) == 130
    assert list(tmp_path.iterdir()) == []
    assert processes_of(tmp_path) == []


def test_a_killed_demo_takes_its_workers_with_it(tmp_path: Path) -> None:
    with started_demo(tmp_path) as demo:
        demo.kill()
        demo.wait()
    deadline = time.monotonic() + 20
    while processes_of(tmp_path) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert processes_of(tmp_path) == []


@contextlib.contextmanager
def started_demo(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Start a demo and wait for its workers; whatever comes of it, it is gone at the end, and so is its pipe."""
    # A shell that starts things in the background has them ignore SIGINT, and Python leaves that as it is.
    heed = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    code = f"{heed}; import sys; from holdfast.demo import run; sys.exit(run(orders=900))"
    environment = {**os.environ, "TMPDIR": str(folder), "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, text=True) as demo:
        try:
            assert demo.stdout is not None
            assert any("worker processes start" in line for line in demo.stdout)
            yield demo
        finally:
            demo.kill()


def processes_of(folder: Path) -> list[int]:
    """Find the processes of a demo by the folder in their environment."""
    mark = f"TMPDIR={folder}\0".encode()
    found = []
    for entry in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if mark in entry.read_bytes():
                found.append(int(entry.parent.name))
    return found
