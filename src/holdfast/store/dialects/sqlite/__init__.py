"""SQLite: the standard library's sqlite3, in WAL mode, one writer at a time.

Its queries do not belong here: each room has them in its folder `sql`.
"""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Self
from urllib.parse import unquote

import msgspec

from holdfast import errors
from holdfast.errors import ConfigError, HoldfastError
from holdfast.flow import Columns, Statement
from holdfast.store.catalogue import Query, Rules, Style
from holdfast.store.dialects.base import MARK, Dialect, chain, is_plain
from holdfast.store.dialects.sqlite.waker import SqliteWatcher
from holdfast.store.wakers import Emit, Opens, Wake, Waker
from holdfast.values.options import StoreOptions

MEMORY = ":memory:"
OLDEST = (3, 35, 0)  # RETURNING
# What may pass, so that the same write may succeed later; all else that SQLite refuses is the data.
_PASSES = ("full", "readonly", "read-only", "out of memory", "interrupted", "disk")


class Sqlite(Dialect):
    name: ClassVar[str] = "sqlite"
    style: ClassVar[Style] = "qmark"
    embedded: ClassVar[bool] = True
    hears_every_commit: ClassVar[bool] = True
    # One writer at a time: the next enqueue begins when the one before has committed.
    orders_commits: ClassVar[bool] = True
    begin: ClassVar[str] = "begin immediate"
    mark: ClassVar[str] = f"savepoint {MARK}"
    insist: ClassVar[str] = f"release savepoint {MARK}"
    # Always bound: SQLite's own clock counts milliseconds.
    own_now: ClassVar[str] = ":now"
    told_now: ClassVar[str] = ":now"

    def binding(self, statements: Sequence[str], rules: Rules) -> bool:
        """Tell whether a batch is of held jobs (`-- bind: held`), each found by its id."""
        return "held" in rules

    def bind(self, statement: Statement, query: Query, now: Any) -> dict[str, Any]:
        given = statement.params
        params = dict(given) if is_plain(given.values()) else {name: plain(value) for name, value in given.items()}
        params["now"] = plain(now) if now is not None else self.own_time()
        if statement.batch is not None:
            columns = {name: plain_column(column) for name, column in statement.batch.items()}
            if query.by_rows:
                return params | columns
            if query.binding:
                return params | held_jobs(columns)
            params["batch"] = json.dumps(list(zip(*columns.values(), strict=True)), ensure_ascii=False)
        return params

    def file_of(self, url: str) -> str | None:
        path = path_of(url)
        return None if path == MEMORY else path

    def own_time(self) -> int:
        return time.time_ns() // 1000

    def found(self, rows: Sequence[Sequence[Any]]) -> str:
        return msgspec.json.encode([row[0] for row in rows]).decode()

    def connect(self, url: str) -> sqlite3.Connection:
        return connect(url, self.options)

    def cursors(self, raw: Any) -> Callable[[], Any]:
        return partial(raw.cursor, LenientCursor)

    def is_idle(self, raw: Any) -> bool:
        try:
            return not raw.in_transaction
        except sqlite3.ProgrammingError:
            # Closed, or another thread's.
            return False

    def transaction_of(self, raw: Any) -> Any:
        return raw.in_transaction or None

    def make_plain(self, raw: Any) -> None:
        raw.row_factory, raw.text_factory = None, str

    def is_spoilt(self, raw: Any) -> bool:
        changed = (raw.isolation_level, raw.row_factory, raw.text_factory) != (None, None, str)
        if changed:
            raw.isolation_level, raw.row_factory, raw.text_factory = None, None, str
        # Two pragmas, because one SELECT of both took 9 µs instead of 4. The list has a temporary database from the
        # first time on that somebody looks there or puts something into it.
        [(read_only,)] = raw.execute("pragma query_only")
        [(_, _, file), *more] = raw.execute("pragma database_list")
        if file:
            return changed or bool(read_only or more)
        # A database in memory is gone with its connection: tidied up instead.
        raw.execute("pragma query_only = off")
        for (table,) in raw.execute("select name from sqlite_temp_master where type = 'table'").fetchall():
            raw.execute(f'drop table temp."{table}"')
        return False

    def waker(self, store: Opens, worker: str, wake: Wake, emit: Emit) -> Waker:
        return SqliteWatcher(store, path_of(store.url), worker, wake, emit)

    def translate(self, error: BaseException) -> HoldfastError | None:
        cause = next((e for e in chain(error) if isinstance(e, sqlite3.Error)), None)
        if cause is None:
            return None
        text = " ".join(str(cause).split())
        if "locked" in text or "busy" in text:
            detail = (
                "another connection is writing; if that is an open transaction of yours, give its connection as tx="
            )
            return errors.DatabaseBusy("busy", detail)
        if isinstance(cause, sqlite3.IntegrityError) and "UNIQUE" in text:
            return errors.UniqueViolation(text)
        if f"no such savepoint: {MARK}" in text:
            return errors.TransactionEnded()
        if "no such table" in text:
            return errors.SchemaMissing(text)
        if "unable to open" in text or "disk I/O" in text or "Cannot operate on a closed" in text:
            return errors.DatabaseUnavailable(text)
        return errors.QueryFailed(text, data_refused=not any(word in text for word in _PASSES))


class LenientCursor(sqlite3.Cursor):
    """A cursor that reads rows with bad UTF-8 too: one such row, written by hand, must not hide all others.

    It reads strictly first: to decode each text by a function of ours would take a fiftieth of the time of a claim.
    """

    _last: tuple[str, Any] = ("", ())

    def execute(self, sql: str, parameters: Any = (), /) -> Self:
        self._last = (sql, parameters)
        return super().execute(sql, parameters)

    def fetchall(self) -> list[Any]:
        try:
            return super().fetchall()
        except sqlite3.OperationalError as error:
            # Only what reads may be run twice.
            if "decode to UTF-8" not in str(error) or not self._last[0].lstrip().startswith(("select", "with")):
                raise
        before = self.connection.text_factory
        self.connection.text_factory = _decoded
        try:
            super().execute(*self._last)
            return super().fetchall()
        finally:
            self.connection.text_factory = before


def _decoded(stored: bytes) -> str:
    return stored.decode("utf-8", "replace")


def plain(value: Any) -> Any:
    """Write a value as SQLite keeps it: times as microseconds, lists as JSON."""
    if isinstance(value, datetime):
        return round(value.timestamp() * 1_000_000)
    if isinstance(value, list):
        return json.dumps([plain(v) for v in value], ensure_ascii=False)
    return value


def plain_column(column: list[Any]) -> list[Any]:
    return column if is_plain(column) else [plain(value) for value in column]


def held_jobs(columns: Columns) -> dict[str, Any]:
    """Bind a batch of held jobs by id: reading each id out of a row of JSON took 3 of the 8 µs that a delete took."""
    ids, fences, *rest = columns.values()
    bound: dict[str, Any] = {"batch": None, "outcome": None, "size": len(ids)}
    bound["held"] = msgspec.json.encode(dict(zip(ids, fences, strict=True))).decode()
    if "outcome" in columns and _ended_alike(*rest):
        bound["outcome"] = columns["outcome"][0]
    elif not rest:
        # Dropped jobs are noted by a list of their ids.
        bound["ids"] = msgspec.json.encode(ids).decode()
    else:
        rows = zip(fences, *rest, strict=True)
        # Not by json.dumps, which took 1.7 µs instead of 0.4 for a job with its error.
        bound["batch"] = msgspec.json.encode(dict(zip(ids, rows, strict=True))).decode()
    return bound


def _ended_alike(outcomes: list[Any], *stored: list[Any]) -> bool:
    """Tell whether finished jobs have one outcome and nothing else to store, as most have."""
    return len(set(outcomes)) == 1 and all(column.count(None) == len(column) for column in stored)


def path_of(url: str) -> str:
    """Read the file name in a sqlite URL: sqlite:///relative.db, sqlite:////absolute.db, sqlite:///:memory:."""
    rest = url.partition("://")[2].partition("?")[0]
    if rest in ("", "/", f"/{MEMORY}"):
        return MEMORY
    if not rest.startswith("/"):
        raise ConfigError("url", "a SQLite URL has three slashes before a relative path: sqlite:///shop.db", url)
    return unquote(rest[1:])


def connect(url: str, options: StoreOptions) -> sqlite3.Connection:
    """Open a connection in autocommit mode with explicit BEGIN IMMEDIATE, WAL and a busy timeout."""
    if sqlite3.sqlite_version_info < OLDEST:
        raise ConfigError("sqlite", f"must be version {'.'.join(map(str, OLDEST))} or newer", sqlite3.sqlite_version)
    path = path_of(url)
    try:
        connection = sqlite3.connect(
            path, timeout=options.busy_timeout, isolation_level=None, check_same_thread=False, cached_statements=256
        )
    except sqlite3.OperationalError as error:
        # It says in all cases that it is unable to open it, and not why.
        if path != MEMORY and (why := _why_not(Path(path).absolute())):
            raise errors.FileRefused(path, why) from error
        raise
    _use_wal(connection, options.busy_timeout)
    # A rare checkpoint keeps commits cheap; FULL keeps a committed job through a power cut.
    connection.execute("pragma synchronous = full")
    connection.execute("pragma foreign_keys = on")
    return connection


def _why_not(file: Path) -> str:
    """Say why a file cannot be opened, and what to do; empty where nobody knows."""
    folder = file.parent
    if not folder.is_dir():
        return f"there is no folder {folder}. Make it (`mkdir -p {folder}`), or write another path into the URL."
    if file.is_dir():
        return "it is a folder. Write the path of a file into the URL."
    if not os.access(file if file.exists() else folder, os.R_OK | os.W_OK):
        return "this user may not read and write it. Change its owner or its mode, or write another path into the URL."
    return ""


def _use_wal(connection: sqlite3.Connection, patience: float) -> None:
    """Switch the file to WAL mode, which SQLite refuses at once, whatever the busy timeout, while somebody writes.

    A file that is in that mode already, as all but new ones of others are, needs no lock for it.
    """
    deadline = time.monotonic() + patience
    while True:
        try:
            connection.execute("pragma journal_mode = wal")
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() >= deadline:
                raise
            time.sleep(0.01)
