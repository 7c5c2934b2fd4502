"""What every dialect shares: the face that the rest of Holdfast sees of a database."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple, Protocol

from holdfast.errors import ConfigError, HoldfastError
from holdfast.flow import AsyncSession, Rows, Statement, Surface
from holdfast.store.catalogue import (
    Catalogue,
    Compiled,
    Query,
    Rules,
    Style,
    catalogue_of,
    migration_files,
    own_queries,
    schema_names,
    split_statements,
)
from holdfast.values.options import StoreOptions

_PLAIN = frozenset({str, int, bool, type(None)})

# What marks a handler's transaction.
MARK = "holdfast_lent"
SCHEMA_VERSION = 16
# How the URLs of each database begin; `values/urls.py` also finds them in texts.
SCHEMES = {"postgres": ("postgresql", "postgres"), "mysql": ("mysql", "mariadb"), "sqlite": ("sqlite",)}


@lru_cache
def tables_of(dialect: str) -> tuple[str, ...]:
    """Name Holdfast's tables without their prefix: those that the migrations make, and the one that counts these."""
    return (*schema_names(dialect).tables, "meta")


@lru_cache
def _names_in(dialect: str) -> re.Pattern[str]:
    # One pattern for both, so that a prefix or schema that itself starts with holdfast_ is not replaced again.
    named = (*tables_of(dialect), *schema_names(dialect).sequences)
    return re.compile(rf"\bholdfast_(?:({'|'.join(named)})\b)?")


class Echo(NamedTuple):
    """Whether a notification came back, and whether a pooler stands between us and the server."""

    heard: bool
    pooled: bool


class NothingEnded(HoldfastError):
    """A statement that was sent together with the COMMIT found nothing, so neither took effect."""


class PlanGone(HoldfastError):
    """A statement that this connection had prepared is not there any more; the message that named it did nothing."""


class Endings(Protocol):
    """What ends lent transactions on one connection, where one message can hold several statements."""

    # What to ask once in the first such transaction; None once that was learnt.
    asks: Statement | None
    # What brings back the state before a message that found nothing.
    undo: str
    # A message failed otherwise, so that nobody knows what it left on the connection.
    spoilt: bool

    def learn(self, raw: Any, rows: Rows) -> None:
        """Take the answer to `asks`."""

    def message(self, statement: Statement, now: Any) -> str:
        """Write a message that runs the statement and commits; it raises NothingEnded, and commits nothing, if the
        statement finds nothing. `now` is None unless a test sets the clock.
        """

    def forget(self, statement: Statement) -> None:
        """Prepare the statement again with the next message: PlanGone says that it is not there any more."""


class Dialect(ABC):
    """One database: its SQL, its way to bind, its errors and its clock."""

    name: ClassVar[str]
    # The parameter style of our own sync connections.
    style: ClassVar[Style]
    begin: ClassVar[str] = "begin"
    # A statement that does nothing but be answered.
    nothing: ClassVar[str] = "select 1"
    # What undoes a handler's changes to its session; sent behind the COMMIT or ROLLBACK of its transaction.
    tidy: ClassVar[str] = ""
    # What marks a handler's transaction where the driver cannot tell it from the next, and what fails at its end if the
    # mark is gone, because the transaction is another one by then; the error names `MARK`.
    mark: ClassVar[str] = ""
    insist: ClassVar[str] = ""
    # What lets one job of several in a transaction be undone alone: the first savepoint, what sets the next one in its
    # place, each a message, and what goes back to it and leaves it there.
    savepoint: ClassVar[str] = "savepoint holdfast_job"
    next_savepoint: ClassVar[tuple[str, ...]] = ("release savepoint holdfast_job", "savepoint holdfast_job")
    undo_savepoint: ClassVar[str] = "rollback to savepoint holdfast_job"
    # True where the database is a library in our process: it has no server, no clock of its own and no async driver, so
    # that async callers get the sync pump on a thread.
    embedded: ClassVar[bool] = False
    # Whether one database has several schemas, which one transaction can write to.
    has_schemas: ClassVar[bool] = False
    # Whether what wakes workers tells of every commit, and not of new jobs of ours alone.
    hears_every_commit: ClassVar[bool] = False
    # True where a deleted row stays in the indexes until the server has cleaned up: claims begin at a floor then.
    keeps_dead_rows: ClassVar[bool] = False
    # Whether an enqueue can wait for the others of its key, so that jobs come in the order of commits.
    orders_commits: ClassVar[bool] = False
    # Whether a read of ours in a caller's transaction leaves what the caller's own reads see as it is.
    reads_aside: ClassVar[bool] = True
    # True where the driver has no arrays: a list becomes a parameter for each item, as `in (:kinds)` wants them.
    spreads_lists: ClassVar[bool] = False
    # False where each statement that changes a table commits by itself: a migration that fails leaves what ran before.
    migrates_as_one: ClassVar[bool] = True
    # How `:now` is written when the database tells the time, and when a test does.
    own_now: ClassVar[str]
    told_now: ClassVar[str]
    # What names that other programs chose are quoted with.
    quote: ClassVar[str] = '"'

    # True where the database itself can tell workers of new jobs.
    notifies: ClassVar[bool] = False
    # How to end what holds an old snapshot, by what it is, with its {pid} or {name}.
    ends_holder: ClassVar[Mapping[str, str]] = {}
    # What lets a user see what others' transactions hold, where that is a right of its own.
    shows_holders: ClassVar[str] = ""
    # How to clean a {table} of dead rows by hand; empty where they are not counted, or need nobody.
    cleans_table: ClassVar[str] = ""
    # What to mind when an index is made again under running workers.
    remakes_index: ClassVar[str] = ""

    def __init__(self, options: StoreOptions) -> None:
        self.options = options
        # Which lines of queries the options decide on.
        self.lines: Mapping[str, bool] = {}
        # The queries of Holdfast's own tables.
        self.queries = Catalogue(self, own_queries(self.name))
        self._surfaces: dict[Surface, Catalogue] = {}

    def require_commit_order(self) -> None:
        """Raise ConfigError unless enqueues can be ordered by their commits here."""
        if not self.orders_commits:
            rule = '"commit" needs PostgreSQL or SQLite; here use ordered=True, which goes by the order of enqueues'
            raise ConfigError("ordered", rule, "commit")

    def query(self, statement: Statement) -> Query:
        """Return what a statement names."""
        if statement.surface is not None:
            return self.catalogue(statement.surface)[statement.name]
        if statement.text is not None:
            return Query(self, statement.name, (statement.text,))
        return self.queries[statement.name]

    def catalogue(self, surface: Surface) -> Catalogue:
        """Return the queries of tables that are not Holdfast's own.

        Raises: ConfigError when these tables are not served on this database.
        """
        found = self._surfaces.get(surface)
        if found is None:
            found = self._surfaces[surface] = catalogue_of(self, surface)
        return found

    @property
    def tables(self) -> tuple[str, ...]:
        """Holdfast's tables without their prefix."""
        return tables_of(self.name)

    def place(self, sql: str) -> str:
        """Put the configured prefix (and schema) on every Holdfast name."""
        return _names_in(self.name).sub(lambda m: self.table(m[1]) if m[1] else f"{self.options.prefix}_", sql)

    def table(self, name: str) -> str:
        return f"{self.options.prefix}_{name}"

    def found(self, rows: Sequence[Sequence[Any]]) -> Any:
        """Bind `:found`, the first column of what the statement before gave."""
        return [row[0] for row in rows]

    def readable(self, rows: Rows) -> Rows:
        """Make texts of what a caller's connection gave as bytes, where that may be."""
        return rows

    def migrations(self) -> list[tuple[int, str, tuple[str, ...]]]:
        return [(n, title, tuple(map(self.place, split_statements(text)))) for n, title, text in self.migration_text()]

    def migration_text(self) -> list[tuple[int, str, str]]:
        return migration_files(self.name)

    @abstractmethod
    def binding(self, statements: Sequence[str], rules: Rules) -> Any:
        """Read how a query's parameters are bound from its statements and its `-- bind` lines, for `bind`."""

    @abstractmethod
    def bind(self, statement: Statement, query: Query, now: Any) -> dict[str, Any]:
        """Return all parameters as the driver takes them; `now` is None unless a test sets the clock."""

    def sequence(self, query: Query) -> Callable[[Any, Sequence[Compiled]], Iterator[Any]] | None:
        """Return what makes a query's calls (see `store/calls.py`) where its statements do not simply run in order."""
        return None

    def echo(self, listening: Any, speaking: Any, timeout: float) -> Echo:
        """Send a notification from one sync connection of ours and wait for it on another."""
        raise NotImplementedError(f"{self.name} has no notifications")

    def encoding(self, raw: Any) -> str | None:
        """Name the encoding of a sync connection's database; None where every text can be kept."""
        return None

    def file_of(self, url: str) -> str | None:
        """Name the file that a URL means; None where a server has the data, or the memory."""
        return None

    def own_time(self) -> Any:
        """Return what `now` is bound to where no test has set the clock: nothing, if the server knows the time."""
        return None

    @abstractmethod
    def connect(self, url: str) -> Any:
        """Open a sync connection in autocommit mode; transactions are begun explicitly."""

    async def aconnect(self, url: str, name: str) -> Any:
        """Open an async connection in autocommit mode, under a name that the server shows."""
        raise NotImplementedError(f"{self.name} has no async driver")

    def asession(self, raw: Any, clock: Callable[[], Any]) -> AsyncSession:
        """Make a session on an async connection of ours."""
        raise NotImplementedError(f"{self.name} has no async driver")

    async def atell(self, raw: Any, sql: str) -> None:
        """Run BEGIN, COMMIT or ROLLBACK on an async connection of ours."""
        await raw.execute(sql)

    def tell(self, raw: Any, sql: str) -> None:
        """Run BEGIN, COMMIT or ROLLBACK on a sync connection of ours."""
        raw.execute(sql)

    def cursors(self, raw: Any) -> Callable[[], Any]:
        """Return what makes cursors for our own statements on a sync connection of ours."""
        return raw.cursor  # type: ignore[no-any-return]

    def is_closed(self, raw: Any) -> bool:
        """Tell whether an async connection of ours is known to be closed."""
        return bool(raw.is_closed())

    @abstractmethod
    def is_idle(self, raw: Any) -> bool:
        """Tell whether a sync connection of ours is known to be outside of any transaction and statement.

        In doubt it is not: the next borrower would run inside a stranger's transaction, or read a stranger's answer.
        """

    def ais_idle(self, raw: Any) -> bool:
        """As `is_idle`, of an async connection."""
        raise NotImplementedError(f"{self.name} has no async driver")

    @abstractmethod
    def transaction_of(self, raw: Any) -> Any:
        """Return what tells a sync connection's open transaction from others, as far as it can be told; None: none."""

    def atransaction_of(self, raw: Any) -> Any:
        """As `transaction_of`, of an async connection."""
        raise NotImplementedError(f"{self.name} has no async driver")

    def lend(self, raw: Any) -> Any:
        """Let the application's own statements into the transaction of a sync connection; return what it gets."""
        return raw

    def take_back(self, raw: Any) -> None:
        """Undo `lend`, before the transaction ends; once more does no harm."""
        return None

    def make_plain(self, raw: Any) -> None:
        """Undo how the application before has rows made on a sync connection, for the next one in its transaction."""
        return None

    def alend(self, raw: Any) -> Any:
        """As `lend`, of an async connection. What it returns can be taken back: other tasks may still have it."""
        raise NotImplementedError(f"{self.name} has no async driver")

    def atake_back(self, raw: Any) -> None:
        """As `take_back`, of an async connection."""
        return None

    def endings(self) -> Endings | None:
        """Make what ends lent transactions on a new connection of ours; None where each statement is a message."""
        return None

    def is_spoilt(self, raw: Any) -> bool:
        """Tell whether the application left a sync connection changed in a way that no statement undoes."""
        return False

    def cut(self, raw: Any) -> None:
        """Close an async connection at once, whatever it is doing."""
        raw.terminate()

    def socket_of(self, raw: Any) -> Any:
        """Return the socket under an async connection of ours, if it is still there."""
        transport = getattr(raw, "_transport", None)
        return None if transport is None else transport.get_extra_info("socket")

    def waker(self, store: Any, worker: str, wake: Callable[[str | None], None], emit: Callable[[Any], None]) -> Any:
        """Make what wakes a worker (see `store/wakers.py`); None leaves it to polling."""
        return None

    def hears_ends(self, store: Any, name: str, wake: Callable[[str | None], None], emit: Callable[[Any], None]) -> Any:
        """Make what wakes those who wait for jobs to end; None leaves it to polling."""
        return None

    @abstractmethod
    def translate(self, error: BaseException) -> HoldfastError | None:
        """Map a driver's error to ours; None for what is not the driver's."""


def is_plain(values: Iterable[Any]) -> bool:
    """Tell whether values go to any driver as they are, as most do: their types say so at once."""
    return _PLAIN.issuperset(map(type, values))


def chain(error: BaseException) -> list[BaseException]:
    """List an error with what SQLAlchemy and Django wrapped in it."""
    found: list[BaseException] = []
    todo: list[BaseException | None] = [error]
    while todo:
        one = todo.pop()
        if one is None or one in found:
            continue
        found.append(one)
        todo += [one.__cause__, getattr(one, "orig", None)]
    return found


def is_of(kind: type, drivers: Sequence[str]) -> bool:
    """Tell an error of a driver, or of what Django has around one; all else of Django's has nothing to do with it."""
    module = kind.__module__
    return module.partition(".")[0] in drivers or module.startswith("django.db.")
