"""What every kind of foreign tables shares as a worker's source: handlers, and flows run in either colour."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, ClassVar, ParamSpec, TypeVar

from holdfast.bulk import BulkHandler
from holdfast.context import Context
from holdfast.errors import ConfigError, ForeignTablesMissing, SchemaMissing
from holdfast.flow import Flow, Series, arun_series, in_chunks, run_series
from holdfast.foreign.desk import ForeignDesk
from holdfast.foreign.tables import ForeignTables
from holdfast.handlers import Registration
from holdfast.life.expiry import Backoff
from holdfast.store import Store
from holdfast.values.annotations import place_of
from holdfast.values.options import HandlerOptions
from holdfast.values.pauses import NOTHING_PAUSED
from holdfast.values.retry import Duration, seconds
from holdfast.values.rows import Lease

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class ForeignHandler(Registration[P, R]):
    """A handler whose jobs come from foreign tables. It has no `enqueue`: they are published or dispatched there."""


class ForeignSource:
    """What all kinds share: handlers, and flows run in either colour on the store that the tables are in."""

    tables: ForeignTables
    ours = False
    # Pauses are of our own jobs: the programs that share these tables would not hear of one.
    paused = NOTHING_PAUSED

    def __init__(self, context: Context, name: str, store: Store | None = None) -> None:
        self._context = context
        # Where the tables are: the application's own database, or another.
        self.store = store or context.store
        self.name = name
        self._handlers: dict[str, ForeignHandler[..., Any]] = {}
        self.handlers: Mapping[str, ForeignHandler[..., Any]] = self._handlers

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"

    @property
    @abstractmethod
    def desk(self) -> ForeignDesk:
        """What people do with these tables: list, show, retry, look for trouble, and so on."""

    @abstractmethod
    def create_schema(self) -> None:
        """Make the tables that are not there."""

    def _register(self, kind: str, fn: Callable[P, R], options: HandlerOptions) -> ForeignHandler[P, R]:
        if kind in self.handlers:
            raise ConfigError(kind, f"has a handler on {self.name} already: {place_of(self.handlers[kind].fn)}", kind)
        if isinstance(fn, BulkHandler):
            raise ConfigError(kind, "bulk handlers are for Holdfast's own jobs; these come one by one", kind)
        handler: ForeignHandler[P, R] = ForeignHandler(fn, kind, options)
        self._check(handler)
        self._handlers[kind] = handler
        return handler

    # Flows on the store of the tables. They name their own tables where those are missing, not ours.

    def _run(self, work: Flow[T]) -> T:
        with self._naming():
            return self.store.run(work)

    async def _arun(self, work: Flow[T]) -> T:
        with self._naming():
            return await self.store.arun(work)

    def _run_in(self, tx: Any, work: Flow[T], what: str) -> T:
        with self._naming():
            return self.store.run_in(tx, work, what)

    async def _arun_in(self, tx: Any, work: Flow[T], what: str) -> T:
        with self._naming():
            return await self.store.arun_in(tx, work, what)

    @contextmanager
    def _naming(self) -> Iterator[None]:
        try:
            yield
        except SchemaMissing as error:
            raise ForeignTablesMissing(self.name, self.tables.queries.tables) from error

    def check(self) -> Flow[None]:
        """Raise ForeignTablesMissing unless the tables are there."""
        return Flow("check", self.tables.queries.check)

    def _check(self, handler: ForeignHandler[..., Any]) -> None:
        """Refuse a handler that these tables cannot serve."""

    def _busy(self, leases: Mapping[str, int]) -> frozenset[str]:
        """Name the kinds that have a handler, but no room in this worker now."""
        return frozenset(self.handlers) - leases.keys()

    def turns(self) -> Sequence[str | None]:
        return (None,)

    def again_in(self) -> float | None:
        """Nothing: these tables have no rates."""

    def executor(self, kind: str) -> str:
        return "handler"

    def ready(self, claimed: Sequence[Lease]) -> None:
        """Nothing: a job of these tables waits for no other."""

    def expired(self, leases: Sequence[Lease]) -> None:
        """Nothing: the contract says when a message is due, and not until when."""

    def begin(self, lease: Lease) -> None:
        """Nothing: the contract counts attempts as it does, and its tables have no place for more."""

    def reap(self, exclude: Sequence[Lease], limit: int, backoff: Backoff) -> None:
        """Nothing: a claim takes over what its holder left."""

    def release_strays(self, worker: str, known: Sequence[Lease]) -> Flow[int] | None:
        """Nothing: what a lost reply to a claim left behind waits for the end of its lease."""
        return None


class PrunedSource(ForeignSource):
    """Tables in which rows that are over stay until somebody deletes them."""

    prune_chunk_rows: ClassVar[int]

    def prune(self, older: Duration) -> int:
        """Delete what was over longer ago than this, and return how many rows; each chunk commits by itself."""
        return run_series(self._pruning(older), self._run)

    async def aprune(self, older: Duration) -> int:
        """The async twin of `prune`."""
        return await arun_series(self._pruning(older), self._arun)

    def _pruning(self, older: Duration) -> Series[int]:
        age = timedelta(seconds=seconds(older, "older"))
        return in_chunks(self._prune_chunk(age, self.prune_chunk_rows), self.prune_chunk_rows)

    @abstractmethod
    def _prune_chunk(self, age: timedelta, limit: int) -> Flow[int]:
        """Delete at most this many rows of this age or older."""
