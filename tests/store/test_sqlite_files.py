"""Files of SQLite that others have made: they may not be in WAL mode yet, and somebody may be writing."""

import asyncio
import sqlite3
import threading
from pathlib import Path

import pytest

from holdfast import DatabaseBusy, Holdfast
from holdfast.errors import FileRefused


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


def test_a_folder_that_is_not_there_is_named_with_what_makes_it(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    with Holdfast(f"sqlite:///{folder}/shop.db") as hf:
        with pytest.raises(FileRefused, match=rf"there is no folder {folder}\. Make it \(`mkdir -p {folder}`\)"):
            hf.migrate()
        hf.job(kind="nothing")(lambda: None)
        with pytest.raises(FileRefused):
            asyncio.run(hf.worker().start())
        folder.mkdir()
        hf.migrate()


def test_a_folder_in_the_place_of_a_file_is_told_as_one(tmp_path: Path) -> None:
    with Holdfast(f"sqlite:///{tmp_path}") as hf, pytest.raises(FileRefused, match="it is a folder"):
        hf.migrate()
