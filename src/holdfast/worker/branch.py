"""A worker's side of one store. It has one branch for each store, and an outage of one costs only its own jobs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from holdfast.context import Context
from holdfast.errors import ConfigError, DatabaseBusy, DatabaseUnavailable, redact
from holdfast.events import log
from holdfast.flow import Steps
from holdfast.jobs import pauses
from holdfast.jobs.source import JobsSource
from holdfast.life.source import LearningFlow, Source, check
from holdfast.lines import Stored, declare
from holdfast.observe import Tallies
from holdfast.store import Shards, Store, migrate, shard_map
from holdfast.store.dialects import SCHEMA_VERSION
from holdfast.values.pauses import Pause, Paused
from holdfast.values.queues import QueueSettings
from holdfast.worker.begins import Begins
from holdfast.worker.db_clock import DbClock, compare_clocks
from holdfast.worker.executors import EXECUTORS
from holdfast.worker.handler_threads import Threads
from holdfast.worker.moving import MovingKeys
from holdfast.worker.outage import Outage
from holdfast.worker.patience import Patience
from holdfast.worker.pauses import Pauses
from holdfast.worker.settler import Settler
from holdfast.worker.work import BaseExecutor, Ended, Work

# The worker's own connections to a store at most, opened as they are needed: one each for claim, settle, renew, reap,
# beat, prune and ticks, so that none waits for another. The record that a suspect begins, the look for stuck rows and
# the one for jobs that have expired have none of their own: they are short, and rare or one at a time, and reap, beat
# and prune rest most of the time.
CONNECTIONS_PER_STORE = 7
# With several shards, each has fewer: in all as many as two stores, until each has the least that keeps it going.
MOST_SHARES = 2
LEAST_CONNECTIONS = 3
# And one for each broker that messages come from, and for each engine of remote steps, up to this.
CONNECTIONS_FOR_MESSAGES = 4


class Served(NamedTuple):
    """A store, and the sources on it that a worker is to serve."""

    store: Store
    sources: Sequence[Source]


class Known(NamedTuple):
    """What must be known before the first claim: what is stored of queues, what is paused, and the database's time."""

    stored: dict[str, Stored]
    pauses: list[Pause]
    clock_offset: float


class Branch:
    """One store with its sources: the worker's own connections there, its patience with it, and its settler.

    `first` is the application's own store, or the first of its shards: what is done once for a worker is done there.
    `registers` is said of each of them: there the worker is in the registry. shards: how many there are. receiving:
    from how many brokers messages come to it.
    """

    def __init__(
        self,
        served: Served,
        *,
        first: bool,
        registers: bool | None = None,
        shards: int = 1,
        said: Mapping[str, QueueSettings] | None = None,
        receiving: int = 0,
    ) -> None:
        # The application's own object, on which handlers' transactions run. They may use up its connections; what
        # keeps their leases alive must not wait for one.
        self.home = served.store
        own = max(LEAST_CONNECTIONS, CONNECTIONS_PER_STORE * MOST_SHARES // max(shards, MOST_SHARES))
        self.store = served.store.beside(own + min(receiving, CONNECTIONS_FOR_MESSAGES))
        self.sources = served.sources
        self.first = first
        self.registers = first if registers is None else registers
        # There is no worker without its place in a registry; with several shards, that of another will do.
        self._must_answer = first and shards == 1
        # The shards of the application and the number of this one; None where there is one store, or this is no shard.
        self.shard: tuple[Shards, int] | None = None
        # Holds back jobs whose keys have something to finish in another shard.
        self.moving: MovingKeys | None = None
        # Whether other workers of a ring see to this shard, and this one looks at it from time to time only.
        self.aside = False
        self.has_our_tables = self.registers or any(source.ours for source in served.sources)
        # Whether something tells of its work; else it is looked for.
        self.hears_of_work = bool(self.sources) and (self.has_our_tables or self.store.dialect.hears_every_commit)
        # Whether the tables have been looked for; what was not at the start is looked for before anything else is done.
        self._checked = False
        # What the database's time is; the executors time waits by it.
        self.clock = DbClock(self.home)
        # What the code says of queues, which is stored where nothing is.
        self.said = said or {}
        # What is paused here, as the worker's parts see it.
        self.pauses: Pauses
        # Wake-ups that name another queue are not for this worker.
        self.queues = {name for source in served.sources if isinstance(source, JobsSource) for name in source.queues}

    def begin(
        self,
        context: Context,
        worker: str,
        threads: Threads,
        forget: Callable[[Iterable[Ended], bool], None],
        tallies: Tallies,
    ) -> None:
        """Make the parts that run on this store; on the event loop of the worker."""
        outage = Outage(worker, context.events.emit, redact(self.home.url))
        # Ends the pause before the next claim.
        self.wake = asyncio.Event()
        self.patience = Patience(self.store, outage, first=None if self._checked else self._tables())
        self.settler = Settler(self.patience.outlive, context.events, forget, worker, context.waits, tallies)
        if self.shard is not None:
            self.moving = MovingKeys(*self.shard, worker, self.patience)
        begins = Begins(self.patience.begin)
        self._executors = {
            name: EXECUTORS[name](context, worker, threads, begins, self.home) for name in self._executor_names()
        }

    def watch(self, running: Collection[Work], given: Mapping[Any, Any]) -> None:
        """Let the executors know all that runs in the slots, what the hooks have given, and the store's time."""
        for executor in self._executors.values():
            executor.running = running
            executor.given = given
            executor.clock = self.clock

    def wake_for(self, queue: str | None) -> None:
        """Take a hint that a job is due in a queue, or in any."""
        if queue is None or queue in self.queues:
            self.wake.set()

    def executor_for(self, source: Source, kind: str) -> BaseExecutor:
        """Find what runs jobs of this kind."""
        return self._executors[source.executor(kind)]

    def _executor_names(self) -> set[str]:
        return {source.executor(kind) for source in self.sources for kind in source.handlers}

    async def check(self) -> None:
        """Raise unless every table is there that the sources need, and every executor that they name.

        A database that is away is waited for by its own jobs alone, except an only one of ours: there is no worker
        without its place in the registry.
        """
        for name in self._executor_names() - EXECUTORS.keys():
            raise ConfigError("executor", f"must be one of {', '.join(EXECUTORS)}", name)
        if self._must_answer:
            self._learn(await self.store.arun(self._tables()))
            self._checked = True
        else:
            # Asked once, and not for long: jobs of other stores wait for this.
            with suppress(DatabaseUnavailable, DatabaseBusy, TimeoutError):
                async with asyncio.timeout(self.store.options.connect_timeout):
                    self._learn(await self.store.arun_once(self._tables()))
                self._checked = True

    def _tables(self) -> LearningFlow[Known]:
        """Raise unless the tables are there that the sources need; read what is stored of our queues, and the pauses.

        Nothing is claimed before this is known.
        """
        return LearningFlow("check", self._check_tables, self._learn)

    def _check_tables(self) -> Steps[Known]:
        if self.has_our_tables:
            yield from migrate.check(SCHEMA_VERSION)
        yield from check(self.sources)
        said = {name: self.said[name] for name in self.queues if name in self.said}
        offset = yield from compare_clocks()
        if not self.has_our_tables:
            return Known({}, [], offset)
        if self.shard is not None:
            shards, number = self.shard
            shards.learn(number, (yield from shard_map.read()))
        elif self.registers and (whole := (yield from shard_map.read())) is not None and whole.not_alone:
            log.warning("%s; this worker serves that shard alone", whole.not_alone)
        stored = yield from declare(said)
        return Known(stored, (yield from pauses()), offset)

    def _learn(self, known: Known) -> None:
        """Have our sources go by what is stored of their queues, and by what is paused; set the clock."""
        self.clock.learn_offset(known.clock_offset)
        settings = {name: one.settings for name, one in known.stored.items()}
        for source in self.sources:
            if isinstance(source, JobsSource):
                source.learn_settings(settings)
                source.pause(Paused.of(known.pauses))

    async def close(self) -> None:
        if self.store is not self.home:
            await self.store.aclose()
