"""One run on one database: enqueue and hurt for a while, then heal, drain, and put the history together."""

import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from holdfast import Holdfast, admin
from holdfast.demo.crew import Crew
from holdfast.demo.proof import all_jobs
from holdfast.store import Store
from tests.faults.shared import backlog, until
from tests.histories import own
from tests.histories.history import Effect, History
from tests.histories.log import Log, read
from tests.histories.nemesis import Cast, Nemesis
from tests.histories.settings import COLOUR, FOLDER, OPTIONS, SEED, URL, WITHOUT
from tests.proxy import Proxy

# Without one job less for this time, what is left is stuck.
DRAIN = 120.0
SERVE = "--queues default,brief --poll 0.2 --log-level warning"


@dataclass(frozen=True)
class Orders:
    """What to run: where, for how long, with which seed, and what to leave out."""

    url: str
    seconds: float
    seed: str
    without: frozenset[str] = frozenset()
    restart: Callable[[], None] | None = None
    keep: Path | None = None


def run(orders: Orders) -> History:
    """Run all of it on one empty database; what the processes wrote is deleted, or moved to `keep`."""
    folder = Path(tempfile.mkdtemp(prefix="holdfast-histories-"))
    with closing(Holdfast(orders.url)) as holdfast, lines(orders.url) as proxy:
        prepare(holdfast)
        log = Log(folder / "log", "nemesis")
        cast = make_cast(orders, folder, proxy)
        try:
            hurt(orders, cast, holdfast.store, log, proxy)
            end_all(cast, folder)
            drained = drain(orders, holdfast.store, folder, log)
            return collect(orders, holdfast.store, folder, drained)
        finally:
            end_all(cast, folder)
            if orders.keep is not None:
                orders.keep.parent.mkdir(parents=True, exist_ok=True)
                shutil.move(folder, orders.keep)
            shutil.rmtree(folder, ignore_errors=True)


def prepare(holdfast: Holdfast) -> None:
    holdfast.migrate()
    with closing(holdfast.store.dialect.connect(holdfast.url)) as connection:
        for statement in own.TABLES:
            connection.execute(statement)


@contextmanager
def lines(url: str) -> Iterator[Proxy | None]:
    """Give a proxy for those whose connections shall break on the way; a file has none."""
    if url.startswith("sqlite"):
        yield None
        return
    port = int(url.rpartition(":")[2].partition("/")[0])
    with Proxy(port, protocol="postgres" if url.startswith("postgres") else None) as proxy:
        yield proxy


def make_cast(orders: Orders, folder: Path, proxy: Proxy | None) -> Cast:
    far = orders.url if proxy is None else proxy.url(orders.url)

    def crew(role: str, module: str, url: str, **said: str) -> Crew:
        (folder / role).mkdir()
        environment = {
            URL: url,
            FOLDER: str(folder / "log"),
            SEED: orders.seed,
            WITHOUT: ",".join(orders.without),
            **said,
        }
        return Crew(f"tests.histories.{module}", environment, folder / role)

    single = {OPTIONS: f"{SERVE} --drain 2 --concurrency 8"}
    double = {OPTIONS: f"{SERVE} --drain 2 --concurrency 4 --processes 2"}
    return Cast(
        workers={
            crew("near", "worker", orders.url, **single): 2,
            crew("far", "worker", far, **single): 1,
            crew("double", "worker", orders.url, **double): 1,
        },
        others={
            crew("sync", "enqueuers", far, **{COLOUR: "sync"}): 1,
            crew("async", "enqueuers", far, **{COLOUR: "async"}): 1,
            crew("people", "people", far): 1,
        },
    )


def hurt(orders: Orders, cast: Cast, store: Store, log: Log, proxy: Proxy | None) -> None:
    nemesis = Nemesis(cast, store, log, f"{orders.seed}/nemesis", proxy, orders.restart)
    nemesis.start()
    until("a worker began", lambda: nemesis.failure is not None or any(map(log.began, names(cast.workers))), 60)
    half = time.monotonic() + orders.seconds / 2
    deadline = time.monotonic() + orders.seconds
    restarted = False
    while time.monotonic() < deadline and nemesis.failure is None:
        time.sleep(0.1)
        if not restarted and time.monotonic() > half:
            restarted = True
            nemesis.restart_server()
    nemesis.stopped.set()
    nemesis.join(60)
    if nemesis.failure is not None:
        raise nemesis.failure


def names(crews: Iterable[Crew]) -> list[str]:
    return [member.name for crew in crews for member in crew.members]


def end_all(cast: Cast, folder: Path) -> None:
    for crew in cast.everyone():
        for member in crew.alive:
            member.kill()
        crew.dismiss()
    kill_orphans(folder)


def kill_orphans(folder: Path) -> None:
    """Kill what is left of the run: children that lost their parent end late by themselves.

    Told by the run's own folder in their environment: a pid alone may be somebody else's by now.
    """
    mark = f"{FOLDER}={folder / 'log'}".encode()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with suppress(OSError):
                if mark in (entry / "environ").read_bytes().split(b"\0"):
                    os.kill(int(entry.name), signal.SIGKILL)


def drain(orders: Orders, store: Store, folder: Path, log: Log) -> float | None:
    """Let one healthy worker finish everything; tells in how many seconds it did, None if it did not."""
    (folder / "healer").mkdir()
    said = {URL: orders.url, FOLDER: str(folder / "log"), OPTIONS: f"{SERVE} --concurrency 20"}
    crew = Crew("tests.histories.worker", said, folder / "healer")
    log.write("heals")
    began = moved = time.monotonic()
    least = backlog(store)
    try:
        while left := backlog(store):
            if left < least:
                # Handlers that kill their process are found out one by one: each costs a new worker and its first calm
                # second.
                least, moved = left, time.monotonic()
            if not crew.alive:
                # Handlers that take their process along are still among the jobs.
                crew.hire("healer")
            if time.monotonic() > moved + DRAIN:
                return None
            time.sleep(0.1)
        return time.monotonic() - began
    finally:
        crew.dismiss(15)


def collect(orders: Orders, store: Store, folder: Path, drained: float | None) -> History:
    with closing(store.dialect.connect(store.url)) as connection:
        effects = connection.execute("select job_id, fence, attempt, tag from effects").fetchall()
        placed = connection.execute("select call_id from orders").fetchall()
    return History(
        database=store.dialect.name,
        seconds=orders.seconds,
        drained=drained,
        events=read(folder / "log"),
        rows=list(all_jobs(store)),
        effects=[Effect(*row) for row in effects],
        orders={str(row[0]) for row in placed},
        audit=store.run(admin.audit(limit=admin.LONGEST_LIST)),
    )
