"""Applications with three shards, files of SQLite or schemas of PostgreSQL, and what is in them."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from holdfast import Holdfast, Run, jobs
from holdfast.flow import Flow
from holdfast.store import Shards
from holdfast.values.failure import ErrorRecord
from holdfast.values.shards import stamp_of

SHARDS = 3
T = TypeVar("T")


@dataclass
class Shop:
    """An application with shards; `again` opens it once more, as another process would."""

    hf: Holdfast
    again: Callable[[], Holdfast]
    files: list[Path]

    @property
    def shards(self) -> Shards:
        assert isinstance(self.hf.store, Shards)
        return self.hf.store

    def run(self, work: Flow[T]) -> T:
        return self.hf.store.run(work)

    def add(self, least: int = 4, kind: str = "send") -> list[str]:
        """Enqueue jobs without a key until each shard has this many of them; return their ids by age."""
        ids: list[str] = []
        while min((list(map(stamp_of, ids)).count(number) for number in range(SHARDS)), default=0) < least:
            ids.append(self.hf.handlers[kind].using().enqueue(n=len(ids)).id)
        return sorted(ids)

    def kill(self, shard: int, count: int = 1, message: str = "no such order", queue: str = "mail") -> list[str]:
        """Send the oldest jobs of a shard to the dead letters."""
        store = self.shards.stores[shard]
        leases = store.run(jobs.claim([queue], limit=count, worker="worker-1", lease_ms=30_000))
        assert len(leases) == count
        for lease in leases:
            error = ErrorRecord(1, "ValueError", message, "…", "worker-1", "2026-05-01T00:00:00", "2026-05-01T00:00:01")
            store.run(jobs.kill(lease, error.to_json(), error.fingerprint))
        return [lease.job_id for lease in leases]

    def lose(self, shard: int) -> None:
        """Have a shard answer no more: what was its file is none."""
        self.hf.close()
        path = self.files[shard]
        for beside in path.parent.glob(f"{path.name}*"):
            beside.rename(path.parent / f"gone-{beside.name}")
        path.mkdir()
        self.hf = self.again()


def declare(hf: Holdfast) -> Holdfast:
    """Declare what the tests run."""

    @hf.job(queue="mail")
    def send(n: int) -> int:
        return n

    @hf.job(queue="orders", key="order:{n}")
    def ship(n: int) -> int:
        return n

    @hf.workflow(name="fulfil")
    async def fulfil(run: Run, n: int) -> int:
        await run.signal("approved")
        return n

    return hf


def opened(make: Callable[[], Holdfast], files: list[Path]) -> Iterator[Shop]:
    shop = Shop(declare(make()), lambda: declare(make()), files)
    shop.hf.migrate()
    yield shop
    shop.hf.close()


def on_files(where: Path) -> tuple[list[str], list[Path]]:
    files = [where / f"shard{number}.db" for number in range(SHARDS)]
    return [f"sqlite:///{path}" for path in files], files
