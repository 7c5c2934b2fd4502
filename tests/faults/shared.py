"""What runs that hurt their workers share: databases of their own, SQL in each driver's style, looks and waits."""

import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

from holdfast import Holdfast, admin
from holdfast.admin import Filter
from holdfast.store import Store
from tests import servers

SERVERS = {"postgres": servers.Postgres, "mariadb": servers.MariaDB, "mysql": servers.MySQL}
DATABASES = ("sqlite", *SERVERS)


@dataclass(frozen=True)
class Ground:
    """An empty database, and its server where it has one."""

    url: str
    server: servers.Postgres | servers.MariaDB | None = None


@contextmanager
def own_database(name: str) -> Iterator[Ground | None]:
    """Make a database of this kind, on a server of its own; None, with a word, where the server cannot be had."""
    if name == "sqlite":
        with tempfile.TemporaryDirectory(prefix="holdfast-faults-") as folder:
            yield Ground(f"sqlite:///{folder}/test.db")
        return
    try:
        server = SERVERS[name]().start()
    except servers.Unavailable as absent:
        print(absent)
        yield None
        return
    with server:
        yield Ground(server.fresh_database(), server)


def in_sync_style(store: Store, text: str) -> str:
    """Write the `?` of a statement as the database's sync driver wants it."""
    return text if store.embedded else text.replace("?", "%s")


def in_async_style(store: Store, text: str) -> str:
    """Write the `?` of a statement as the database's async driver wants it."""
    if store.dialect.name != "postgres":
        return in_sync_style(store, text)
    for number in range(1, text.count("?") + 1):
        text = text.replace("?", f"${number}", 1)
    return text


def backlog(store: Store) -> int:
    """Count the jobs that have not ended."""
    return store.run(admin.count_jobs(Filter(states=("pending", "waiting", "leased"))))


def file_is_held(store: Store) -> bool:
    """Tell whether somebody is in the middle of a write to the SQLite file."""
    if not store.embedded:
        return False
    with closing(store.dialect.connect(store.url)) as probe:
        probe.execute("pragma busy_timeout = 300")
        try:
            probe.execute("begin immediate")
            probe.execute("rollback")
        except Exception:
            return True
    return False


def until(what: str, reached: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not reached():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {seconds:.0f} s in vain until {what}")
        time.sleep(0.1)


class Producer(threading.Thread):
    """Does something in transactions of its own, again and again, while no more than `most` jobs wait."""

    def __init__(self, hf: Holdfast, most: int) -> None:
        super().__init__(daemon=True)
        self.hf = hf
        self.most = most
        self.stopped = threading.Event()
        self.failure: BaseException | None = None

    def produce(self, connection: Any, number: int) -> None:
        raise NotImplementedError

    def run(self) -> None:
        try:
            with closing(self.hf.store.dialect.connect(self.hf.url)) as connection:
                number = 0
                while not self.stopped.is_set():
                    if backlog(self.hf.store) > self.most:
                        time.sleep(0.02)
                        continue
                    number += 1
                    self.produce(connection, number)
        except BaseException as error:
            self.failure = error
