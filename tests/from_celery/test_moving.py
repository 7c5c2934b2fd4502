"""The way from Celery that the guide describes, with its own files, a real Celery and a real Redis."""

import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from holdfast import Holdfast
from tests.brokers import RedisServer
from tests.docs.test_docs import ROOT, blocks_of

GUIDE = ROOT / "docs" / "guides" / "from-celery.md"
BIN = Path(sys.executable).parent
LEFT = "from left import left; print(left('celery', 'mail', wait=0.5))"
CELERY = [
    "celery",
    "-A",
    "moving:old",
    "worker",
    "--pool=solo",
    "--without-gossip",
    "--without-mingle",
    "-l",
    "WARNING",
]
HOLDFAST = ["holdfast", "worker", "moving:hf"]
SECONDS = 60.0


class Shop:
    """A folder with the files of the guide, and processes that run in it."""

    def __init__(self, folder: Path, database: str, broker: str) -> None:
        self.folder = folder
        self.names = {
            **{name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")},
            "HOLDFAST_URL": database,
            "REDIS_URL": broker,
            "PYTHONPATH": f"{folder}:{ROOT / 'src'}",
        }
        for block in blocks_of(GUIDE):
            if "file" in block.marks:
                (folder / block.marks["file"]).write_text(block.text, "utf-8")

    def run(self, code: str, calls_go_to: str) -> str:
        words = [sys.executable, "-c", code]
        names = self.names | {"CALLS_GO_TO": calls_go_to}
        done = subprocess.run(words, cwd=self.folder, env=names, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    @contextmanager
    def worker(self, words: list[str], side: str) -> Iterator[None]:
        names = self.names | {"CALLS_GO_TO": "holdfast", "SIDE": side}
        with open(self.folder / f"{side}.log", "wb") as log:
            process = subprocess.Popen(
                [BIN / words[0], *words[1:]], cwd=self.folder, env=names, stdout=log, stderr=subprocess.STDOUT
            )
            try:
                yield
            finally:
                process.send_signal(signal.SIGTERM)
                process.wait(SECONDS)

    def ledger(self) -> list[tuple[str, str]]:
        if not (self.folder / "ledger.db").exists():
            return []
        db = sqlite3.connect(self.folder / "ledger.db", timeout=30)
        try:
            return sorted(db.execute("select what, side from ledger"))
        except sqlite3.OperationalError:
            return []
        finally:
            db.close()

    def until(self, true: Callable[[], bool]) -> None:
        deadline = time.monotonic() + SECONDS
        while not true():
            if time.monotonic() > deadline:
                logs = "\n".join(log.read_text() for log in self.folder.glob("*.log"))
                pytest.fail(f"in vain; the ledger has {self.ledger()}\n{logs}")
            time.sleep(0.05)


@pytest.fixture
def shop(tmp_path: Path, redis_server: RedisServer) -> Shop:
    database = f"sqlite:///{tmp_path}/shop.db"
    with Holdfast(database) as hf:
        hf.migrate()
    # A database of its own: what Celery leaves there, no other test sees.
    return Shop(tmp_path, database, redis_server.url.removesuffix("/0") + "/9")


@pytest.mark.slow
def test_celery_drains_what_it_has_while_holdfast_takes_the_new_work_and_a_switch_back_works(shop: Shop) -> None:
    shop.run("import tasks; tasks.ship.delay(1); tasks.ship.apply_async((2,))", calls_go_to="celery")
    shop.run("import tasks; tasks.ship.delay(3)", calls_go_to="holdfast")
    with shop.worker(HOLDFAST, "holdfast"), shop.worker(CELERY, "celery"):
        # What Celery's tasks call goes to Holdfast already: Celery only gets less.
        moved = [("bill 1", "holdfast"), ("bill 2", "holdfast"), ("bill 3", "holdfast")]
        moved += [("ship 1", "celery"), ("ship 2", "celery"), ("ship 3", "holdfast")]
        shop.until(lambda: shop.ledger() == moved)
        assert shop.run(f"{LEFT}; import tasks; tasks.bill.delay(4)", calls_go_to="celery") == "0"
        shop.until(lambda: ("bill 4", "celery") in shop.ledger())
    assert shop.run(f"import tasks; tasks.bill.delay(5); {LEFT}", calls_go_to="celery") == "1"
    assert len(shop.ledger()) == len(moved) + 1
