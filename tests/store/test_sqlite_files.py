"""Files of SQLite that others have made: they may not be in WAL mode yet, and somebody may be writing."""

import sqlite3
import threading
from pathlib import Path

import pytest

from holdfast import DatabaseBusy, Holdfast


@pytest.fixture
def file(tmp_path: Path) -> Path:
    made = tmp_path / "shop.db"
    with sqlite3.connect(made) as connection:
        connection.execute("create table orders (id integer)")
    connection.close()
    return made


def writer(file: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(file, isolation_level=None, check_same_thread=False)
    connection.execute("begin immediate")
    connection.execute("insert into orders values (1)")
    return connection


def test_a_file_that_somebody_writes_to_is_waited_for_when_it_is_first_opened(file: Path) -> None:
    beside = writer(file)
    threading.Timer(0.05, beside.execute, ["commit"]).start()
    with Holdfast(f"sqlite:///{file}") as hf:
        hf.migrate()
    beside.close()
    with sqlite3.connect(file) as connection:
        [mode] = connection.execute("pragma journal_mode").fetchone()
    connection.close()
    assert mode == "wal"


def test_it_is_not_waited_for_longer_than_the_busy_timeout(file: Path) -> None:
    beside = writer(file)
    with Holdfast(f"sqlite:///{file}", busy_timeout=0.05) as hf, pytest.raises(DatabaseBusy, match="give"):
        hf.migrate()
    beside.close()
