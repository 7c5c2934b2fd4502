"""What every dialect shares: reading its SQL file, binding parameters, and the face the rest of Holdfast sees.

A SQL file holds the same query names in the same order for every database, so that `diff` is the review tool.
A query starts at a comment `-- name: what it does` and may be several statements, run in order in one transaction;
its rows are those of the last one that gives any, and the first that finds none ends it. Parameters are written
`:name`; `:found` is the first column of the statement before. A line that ends in `-- when name` belongs to the query
only if the caller gives that parameter, so that a filter costs nothing where it is not used and no SQL is put together
from text. A statement with a line that ends in `-- hop` finds the next level of one `:queue` above the last `:urgency`
(its urgency, its first row's time, and whether that is due), and the statement after it takes up to `:limit` rows of
one level: the levels of all `:queues` are taken from in their order, until there is enough. Two statements before them
are for many queues: `-- narrow` finds those worth a look, `-- survey` reads the first and last level of each at once.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

from holdfast.errors import ConfigError, DriverMissing, HoldfastError
from holdfast.flow import AsyncSession, Statement
from holdfast.values.options import StoreOptions

_NOTHING: frozenset[str] = frozenset()
_PLAIN = frozenset({str, int, bool, type(None)})

Style = Literal["named", "pyformat", "format", "qmark", "dollar"]

# What marks a handler's transaction.
MARK = "holdfast_lent"
TABLES = ("jobs", "finished", "dropped", "keys", "workers", "audit", "meta")
SCHEMA_VERSION = 2

# Not importlib.resources: that alone takes 13 ms to import.
_HERE = Path(__file__).parent

_HEADER = re.compile(r"^-- ([a-z][a-z0-9_]*): ", re.MULTILINE)
# The marks of optional blocks look like comments and stay.
_COMMENT = re.compile(r"^[ \t]*--(?! when [a-z_]+:$| end$).*\n?", re.MULTILINE)
_END = re.compile(r";[ \t]*(?:\n|$)")
# One pattern for both, so that a prefix or schema that itself starts with holdfast_ is not replaced again.
_NAME = re.compile(rf"\bholdfast_(?:({'|'.join(TABLES)})\b)?")
_RETURNS = re.compile(r"^\s*(select|with|pragma)\b|\breturning\b", re.IGNORECASE)
_WHEN = re.compile(r"^(?P<line>.*?)[ \t]*-- when (?P<name>[a-z_]+)[ \t]*(?P<end>\n|$)", re.MULTILINE)
_WHEN_BLOCK = re.compile(r"^[ \t]*-- when (?P<name>[a-z_]+):\n(?P<lines>.*?)^[ \t]*-- end\n", re.MULTILINE | re.DOTALL)
_MARK = re.compile(r"-- (narrow|survey|hop)[ \t]*$", re.MULTILINE)
# A string literal, a cast, or a parameter: only the last is replaced.
_TOKEN = re.compile(r"'(?:[^']|'')*'|::|:([a-z_][a-z0-9_]*)|%|\?")


@dataclass(frozen=True, slots=True)
class Compiled:
    """One statement in a driver's own parameter style; `names` gives the order of positional ones."""

    sql: str
    names: tuple[str, ...]
    returns: bool
    # What it is for in a claim that hops: narrow, survey, hop.
    mark: str | None = None

    def positional(self, params: dict[str, Any]) -> tuple[Any, ...]:
        return tuple([params[name] for name in self.names])

    def spread(self, params: dict[str, Any]) -> tuple[str, tuple[Any, ...]]:
        """Write a list as so many `%s`, its items one by one; a list of nothing is a NULL, which equals nothing."""
        values = self.positional(params)
        if list not in map(type, values):
            return self.sql, values
        lists = [(value or [None]) if isinstance(value, list) else [value] for value in values]
        pieces = self.sql.split("%s")
        marks = [", ".join(["%s"] * len(items)) for items in lists]
        text = "".join(piece + mark for piece, mark in zip(pieces, [*marks, ""], strict=True))
        return text, tuple([item for items in lists for item in items])


def split_queries(text: str) -> dict[str, tuple[str, ...]]:
    """Read a SQL file into its named queries, each a tuple of statements."""
    headers = list(_HEADER.finditer(text))
    ends = [h.start() for h in headers[1:]] + [len(text)]
    queries = {}
    for header, end in zip(headers, ends, strict=True):
        name = header[1]
        if name in queries:
            raise ConfigError("query", "each name once in a SQL file", name)
        queries[name] = split_statements(text[header.start() : end])
    return queries


def split_statements(text: str) -> tuple[str, ...]:
    """Split SQL at each semicolon that ends a line; comments go."""
    return tuple(part.strip() for part in _END.split(_COMMENT.sub("", text)) if part.strip())


def optional_names(parts: Sequence[str]) -> frozenset[str]:
    """Name the parameters that decide which lines a query has."""
    marks = (mark.finditer(part) for part in parts for mark in (_WHEN, _WHEN_BLOCK))
    return frozenset(match["name"] for found in marks for match in found)


def chosen(sql: str, given: frozenset[str]) -> str:
    """Leave out the lines, and the blocks of lines, whose parameter is not given; and all marks."""
    blocks = _WHEN_BLOCK.sub(lambda block: block["lines"] if block["name"] in given else "", sql)
    return _WHEN.sub(lambda line: line["line"] + line["end"] if line["name"] in given else "", blocks)


def compile_statement(sql: str, style: Style) -> Compiled:
    """Write `:name` parameters the way a driver wants them."""
    names: list[str] = []

    def write(match: re.Match[str]) -> str:
        name = match[1]
        if name is None:
            # Also inside a literal: these styles read every percent sign.
            return match[0].replace("%", "%%") if style in ("pyformat", "format") else match[0]
        if style == "named":
            return f":{name}"
        if style == "pyformat":
            return f"%({name})s"
        if style == "dollar":
            if name not in names:
                names.append(name)
            return f"${names.index(name) + 1}"
        names.append(name)
        return "%s" if style == "format" else "?"

    text = _TOKEN.sub(write, sql)
    if not names:
        names = list(dict.fromkeys(m[1] for m in _TOKEN.finditer(sql) if m[1]))
    mark = _MARK.search(sql)
    return Compiled(text, tuple(names), bool(_RETURNS.search(sql)), mark[1] if mark else None)


@lru_cache
def read_sql(name: str) -> str:
    return _HERE.joinpath("sql", f"{name}.sql").read_text("utf-8")


def migration_files(name: str) -> list[tuple[int, str, str]]:
    """List (number, title, text) of a dialect's migrations in their order."""
    folder = _HERE / "migrations" / name
    found = []
    for entry in folder.iterdir():
        match = re.fullmatch(r"(\d{4})_(\w+)\.sql", entry.name)
        if match:
            found.append((int(match[1]), match[2], entry.read_text("utf-8")))
    return sorted(found)


class Echo(NamedTuple):
    """Whether a notification came back, and whether a pooler stands between us and the server."""

    heard: bool
    pooled: bool


class Dialect(ABC):
    """One database: its SQL, its way to bind, its errors and its clock."""

    name: ClassVar[str]
    # The parameter style of our own sync connections.
    style: ClassVar[Style]
    begin: ClassVar[str] = "begin"
    # What undoes a handler's changes to its session; sent behind the COMMIT or ROLLBACK of its transaction.
    tidy: ClassVar[str] = ""
    # What marks a handler's transaction where the driver cannot tell it from the next, and what fails at its end if the
    # mark is gone, because the transaction is another one by then; the error names `MARK`.
    mark: ClassVar[str] = ""
    insist: ClassVar[str] = ""
    # True where there is no async driver: async callers get the sync pump on a thread.
    embedded: ClassVar[bool] = False
    # True where a deleted row stays in the indexes until the server has cleaned up: claims begin at a floor then.
    keeps_dead_rows: ClassVar[bool] = False
    # Queries run once per row of their batch instead of once per batch.
    row_wise: ClassVar[frozenset[str]] = frozenset()
    # True where the driver has no arrays: a list becomes so many parameters, as `in (:kinds)` wants them.
    spreads_lists: ClassVar[bool] = False

    # True where the database itself can tell workers of new jobs.
    notifies: ClassVar[bool] = False
    # How to end what holds an old snapshot, by what it is, with its {pid} or {name}.
    ends_holder: ClassVar[Mapping[str, str]] = {}

    def __init__(self, options: StoreOptions) -> None:
        self.options = options
        raw = split_queries(read_sql(self.name))
        self.queries = {name: tuple(map(self.place, parts)) for name, parts in raw.items()}
        self.optional = {name: found for name, parts in self.queries.items() if (found := optional_names(parts))}
        # What is one statement for the driver, too.
        self.single = frozenset(name for name, parts in raw.items() if len(parts) == 1) - self.row_wise
        self._compiled: dict[tuple[str, frozenset[str], Style, bool], tuple[Compiled, ...]] = {}

    def place(self, sql: str) -> str:
        """Put the configured prefix (and schema) on every Holdfast name."""
        return _NAME.sub(lambda m: self.table(m[1]) if m[1] else f"{self.options.prefix}_", sql)

    def table(self, name: str) -> str:
        return f"{self.options.prefix}_{name}"

    def compiled(self, statement: Statement, style: Style, clock_is_set: bool = False) -> tuple[Compiled, ...]:
        """Return the statements behind a name, in the driver's style."""
        if statement.text is not None:
            return (compile_statement(chosen(statement.text, given_of(statement, statement.params)), style),)
        optional = self.optional.get(statement.name)
        given = given_of(statement, optional) if optional else _NOTHING
        key = (statement.name, given, style, clock_is_set)
        found = self._compiled.get(key)
        if found is None:
            parts = [chosen(part, given) for part in self.queries[statement.name]]
            parts = parts if clock_is_set else list(map(self.by_own_clock, parts))
            found = self._compiled[key] = tuple(compile_statement(part, style) for part in parts if part.strip())
        return found

    def by_own_clock(self, sql: str) -> str:
        """Leave out of a statement what is there for a test's clock, where that takes time to read."""
        return sql

    def found(self, rows: Sequence[Sequence[Any]]) -> Any:
        """Bind `:found`, the first column of what the statement before gave."""
        return [row[0] for row in rows]

    def migrations(self) -> list[tuple[int, str, tuple[str, ...]]]:
        return [(n, title, tuple(map(self.place, split_statements(text)))) for n, title, text in self.migration_text()]

    def migration_text(self) -> list[tuple[int, str, str]]:
        return migration_files(self.name)

    @abstractmethod
    def bind(self, statement: Statement, now: Any) -> dict[str, Any]:
        """Return all parameters as the driver takes them; `now` is None unless a test sets the clock."""

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

    def lend(self, raw: Any) -> None:
        """Let the application's own statements into the transaction of a sync connection."""
        return None

    def take_back(self, raw: Any) -> None:
        """Undo `lend`, before the transaction ends."""
        return None

    def alend(self, raw: Any) -> None:
        """As `lend`, of an async connection."""
        return None

    def atake_back(self, raw: Any) -> None:
        """As `take_back`, of an async connection."""
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

    @abstractmethod
    def translate(self, error: BaseException) -> HoldfastError | None:
        """Map a driver's error to ours; None for what is not the driver's."""


def given_of(statement: Statement, optional: Iterable[str]) -> frozenset[str]:
    """Name the parameters that the caller gives, of those that lines marked `when` ask for; None is not given."""
    params = statement.params
    return frozenset([name for name in optional if params.get(name) is not None])


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


@contextmanager
def importing(driver: str, extra: str) -> Iterator[None]:
    """Say which extra of ours to install where a driver cannot be imported."""
    try:
        yield
    except ImportError as error:
        raise DriverMissing(driver, extra, str(error).partition("\n")[0]) from error
