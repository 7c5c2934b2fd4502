"""What is measured every few seconds, and what finished in the meantime, which is soon pruned."""

import os
import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

import psycopg

from holdfast.demo.crew import Crew, Member
from holdfast.testing.history import Row
from holdfast.values.rows import CONTINUES_HEADER
from tests.soak.app import ENQUEUER, VETERAN
from tests.soak.ground import SHARDS, Ground

PERCENTILES = (50, 95, 99)
# Of jobs that are done as soon as somebody takes them.
MEASURED = ("plain", "book", "book_def")
# A transaction may commit a while after the time that its rows say.
COMMITTED_LATE = timedelta(seconds=10)
PAGE = os.sysconf("SC_PAGE_SIZE")

FINISHED = f"""
select id::text, outcome, queue, kind, key, fence, leased_at, headers ->> '{CONTINUES_HEADER}',
       payload ->> 'tag', attempts, extract(epoch from finished_at - created_at), finished_at
  from holdfast_finished where finished_at > %s
"""  # noqa: S608 - a name of ours
SIZES = """
select relname, pg_total_relation_size(oid) from pg_class where relkind = 'r' and relname like 'holdfast!_%' escape '!'
"""
ROWS = "select (select count(*) from holdfast_jobs), (select count(*) from holdfast_finished)"


class Finished(NamedTuple):
    """A job that has ended, as its row said before it was pruned."""

    shard: int
    row: Row
    tag: str
    attempts: int
    took: float
    at: datetime


@dataclass
class Sample:
    """One look. Memory in bytes by process; latency in seconds by percentile; rows and bytes over all shards."""

    at: float
    memory: dict[str, int]
    latency: dict[int, float] = field(default_factory=dict[int, float])
    live: int | None = None
    finished: int | None = None
    sizes: dict[str, int] = field(default_factory=dict[str, int])


class Sampler(threading.Thread):
    """Looks every few seconds. A shard that does not answer is asked again the next time."""

    def __init__(self, ground: Ground, crew: Crew, every: float) -> None:
        super().__init__(daemon=True)
        self._ground, self._crew, self._every = ground, crew, every
        self._began = time.monotonic()
        self._since = [datetime(2000, 1, 1, tzinfo=UTC)] * SHARDS
        self.stopped = threading.Event()
        self.samples: list[Sample] = []
        self.finished: dict[tuple[int, str], Finished] = {}
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            while not self.stopped.wait(self._every):
                self.look()
        except BaseException as error:
            self.failure = error

    def look(self) -> None:
        sample = Sample(time.monotonic() - self._began, memory(self._crew.alive))
        with suppress(psycopg.Error):
            new = [one for shard in range(SHARDS) for one in self.harvest(shard)]
            took = [one.took for one in new if one.row.state == "done" and one.row.kind in MEASURED]
            sample.latency = percentiles(took)
            self._measure(sample)
        self.samples.append(sample)

    def _measure(self, sample: Sample) -> None:
        live = finished = 0
        sizes: dict[str, int] = {}
        for shard in range(SHARDS):
            [[here, over]] = self._ground.query(shard, ROWS)
            live, finished = live + here, finished + over
            for name, size in self._ground.query(shard, SIZES):
                sizes[name] = sizes.get(name, 0) + int(size)
        sample.live, sample.finished, sample.sizes = live, finished, sizes

    def harvest(self, shard: int) -> list[Finished]:
        """Take what has finished since the last time, and return what is new."""
        new: list[Finished] = []
        for *about, continues, tag, attempts, took, at in self._ground.query(shard, FINISHED, self._since[shard]):
            self._since[shard] = max(self._since[shard], at - COMMITTED_LATE)
            row = Row(about[0], *about[1:], continues=continues)
            if (shard, row.id) not in self.finished:
                one = Finished(shard, row, tag, attempts, float(took), at)
                self.finished[shard, row.id] = one
                new.append(one)
        return new


def memory(members: Iterable[Member]) -> dict[str, int]:
    """Tell the resident memory of processes; of those that are killed now and then, the largest."""
    found: dict[str, int] = {}
    for member in members:
        with suppress(OSError):
            name = member.name if member.name in (ENQUEUER, VETERAN) else "killed now and then"
            resident = int(Path(f"/proc/{member.pid}/statm").read_text().split()[1]) * PAGE
            found[name] = max(found.get(name, 0), resident)
    return found


def percentiles(values: Sequence[float]) -> dict[int, float]:
    ranked = sorted(values)
    return {part: ranked[min(len(ranked) - 1, len(ranked) * part // 100)] for part in PERCENTILES if ranked}
