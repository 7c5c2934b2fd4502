"""Sessions: how a statement reaches each shape of driver.

What to send is worked out once (`calls`); a session only sends it in its colour.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from datetime import datetime
from heapq import heappop, heappush
from itertools import repeat
from typing import Any, NamedTuple

import msgspec

from holdfast.errors import HoldfastError
from holdfast.flow import Columns, Row, Rows, Session, Statement
from holdfast.store.dialects.base import Compiled, Dialect, Style

Clock = Callable[[], Any]
_BY_NAME = ("named", "pyformat")
Args = Any
Level = tuple[int, Any, str, Any]
# Of a queue: its first urgency, the time of its first job, whether that is due, and its last urgency.
Ends = tuple[int, Any, Any, int]

# What SQLAlchemy is to do with each of our statements, whatever the caller has set on connection or engine: a cursor of
# the server's takes no INSERT, and a stream is not read to its end.
ORDINARY = {"stream_results": False, "yield_per": None, "no_parameters": False}
# Outside every urgency that a job can have.
LOWEST, HIGHEST = -32_768, 32_767
# From so many queues on they are looked at together; for fewer a hop each is quicker.
MANY = 16
# As many jobs as the statement that narrows queues reads at most: then there may be others elsewhere.
SAMPLE = 1_000
LANES = ("lane_queues", "lane_priorities", "lane_belows", "lane_aboves", "lane_floors", "lane_ceilings")
# Outside every time that a job can have; without a zone, as MySQL's are.
FIRST, LAST = datetime(1000, 1, 1), datetime(9999, 1, 1)


class translated:  # noqa: N801 - reads like a function, and is a class because it is entered for every statement
    """Raise a driver's errors as ours, with the driver's as the cause."""

    __slots__ = ("_dialect",)

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Exception):
            raise_ours(self._dialect, error)


def raise_ours(dialect: Dialect, error: Exception) -> None:
    """Raise a driver's error as ours; return if it is not the driver's."""
    ours = None if isinstance(error, HoldfastError) else dialect.translate(error)
    if ours is not None:
        raise ours from error


class Call(NamedTuple):
    """What to hand to the driver: one statement with its arguments, or with those of many rows."""

    sql: str
    args: Args
    many: bool
    returns: bool


def only_call(dialect: Dialect, statement: Statement, style: Style, now: Any) -> tuple[str, Args, bool]:
    """Return the only driver call behind a statement: its SQL, its arguments, and whether rows come back."""
    pattern = statement.pattern
    if pattern is None or now is not None:
        [part] = dialect.compiled(statement, style, now is not None)
        return (*written(dialect, part, style, dialect.bind(statement, now)), part.returns)
    kept = pattern.calls.get((dialect, style))
    if kept is None:
        kept = pattern.calls[dialect, style] = Kept.of(dialect, statement, style)
    return kept.sql, kept.filled_in(statement.params, dialect.own_time()), kept.returns


class Kept(NamedTuple):
    """The driver call of a pattern: all arguments, and at which places each statement has its own."""

    sql: str
    returns: bool
    args: Args
    places: tuple[tuple[Any, str], ...]

    @classmethod
    def of(cls, dialect: Dialect, statement: Statement, style: Style) -> Kept:
        [part] = dialect.compiled(statement, style)
        sql, args = written(dialect, part, style, dialect.bind(statement, None))
        own = ("now", *statement.pattern.own) if statement.pattern else ()
        if style in _BY_NAME:
            return cls(sql, part.returns, args, tuple((name, name) for name in own))
        return cls(sql, part.returns, list(args), tuple((n, name) for n, name in enumerate(part.names) if name in own))

    def filled_in(self, params: dict[str, Any], now: Any) -> Args:
        args = self.args.copy()
        for place, name in self.places:
            args[place] = now if name == "now" else params[name]
        return args


def written(dialect: Dialect, part: Compiled, style: Style, params: dict[str, Any]) -> tuple[str, Args]:
    """Put parameters into a statement the way a driver takes them."""
    if style in _BY_NAME:
        return part.sql, params
    return part.spread(params) if dialect.spreads_lists else (part.sql, part.positional(params))


class Calls:
    """The driver calls behind one statement, in order; whoever makes them says what each one gave (`feed`)."""

    def __init__(self, dialect: Dialect, statement: Statement, style: Style, now: Any) -> None:
        self.rows: Rows = ()
        self._dialect = dialect
        self._parts = dialect.compiled(statement, style, now is not None)
        self._style = style
        self._params = dialect.bind(statement, now)
        self._columns = statement.batch if statement.name in dialect.row_wise else None
        self._before: Rows = ()

    def __iter__(self) -> Iterator[Call]:
        if len(self._parts) == 1:
            yield self._call(self._parts[0])
            return
        parts = iter(self._parts)
        for part in parts:
            if part.mark == "narrow":
                yield from self._taken_by_hops(part, next(parts), next(parts), next(parts))
            else:
                yield self._call(part)
                if not part.returns:
                    continue
            if not self.rows:
                return
            self._before = self.rows

    def _taken_by_hops(self, narrow: Compiled, survey: Compiled, hop: Compiled, take: Compiled) -> Iterator[Call]:
        in_lanes = "lane_queues" in self._params
        queues = list(dict.fromkeys(self._params["lane_queues"])) if in_lanes else self._params["queues"]
        ends: dict[str, Ends] | None = None
        if len(queues) >= MANY and self._params.get("kinds"):
            yield self._call(narrow)
            if sum(count for _, count, _ in self.rows) < SAMPLE:
                worth = {queue for queue, _, due in self.rows if due}
                queues = [queue for queue in queues if queue in worth]
        if len(queues) >= MANY:
            self._params["many"] = msgspec.json.encode(queues).decode()
            yield self._call(survey)
            ends = {queue: (first, at, due, last) for queue, first, at, due, last in self.rows}
        levels = Levels(self, hop, ends)
        yield from (self._taken_from_lanes if in_lanes else self._taken)(levels, take, queues)

    def _taken(self, levels: Levels, take: Compiled, queues: Sequence[str]) -> Iterator[Call]:
        """Take from the most urgent level that is due, whatever queue has it, then from the next, until enough."""
        taken: list[Row] = []
        known: list[Level] = []
        for queue in queues:
            yield from levels.next(known, queue, LOWEST)
        while known and self._params["limit"] > 0:
            urgency, _, queue, due = heappop(known)
            if due:
                self._params |= {"queue": queue, "urgency": urgency}
                yield self._call(take)
                taken += self.rows
                self._params["limit"] -= len(self.rows)
            if self._params["limit"] > 0:
                yield from levels.next(known, queue, urgency)
        self.rows = taken

    def _taken_from_lanes(self, levels: Levels, take: Compiled, queues: Sequence[str]) -> Iterator[Call]:
        """Take from each lane in turn, until enough; in a gap between lanes, from the first level that is there."""
        taken: dict[Any, Row] = {}
        worth = set(queues)
        for queue, priority, below, above, floor, ceiling in zip(*map(self._params.get, LANES), strict=True):
            if queue not in worth:
                continue
            found: list[Level] = []
            if priority is None:
                yield from levels.next(found, queue, -below, -above)
            elif levels.may_have(queue, -priority):
                found = [(-priority, None, queue, True)]
            for urgency, *_ in found:
                self._params |= {"queue": queue, "urgency": urgency}
                self._params |= {"floor": floor or FIRST, "ceiling": ceiling or LAST}
                yield self._call(take)
                # By id: a transaction does not skip its own locks.
                fresh = {row[0]: row for row in self.rows if row[0] not in taken}
                taken |= fresh
                self._params["limit"] -= len(fresh)
            if self._params["limit"] <= 0:
                break
        self.rows = list(taken.values())

    def hopped(self, hop: Compiled, queue: str, after: int, until: int) -> Call:
        self._params |= {"queue": queue, "urgency": after, "until": until}
        return self._call(hop)

    def _call(self, part: Compiled) -> Call:
        if "found" in part.names:
            self._params["found"] = self._dialect.found(self._before)
        if self._columns is not None:
            return Call(part.sql, self._each_row(part.names, self._columns), True, part.returns)
        return Call(*written(self._dialect, part, self._style, self._params), False, part.returns)

    def _each_row(self, names: tuple[str, ...], columns: Columns) -> list[Any]:
        """Bind the rows of the batch one by one; what is no column is the same for all."""
        values = (self._params[name] if name in columns else repeat(self._params[name]) for name in names)
        rows = zip(*values)  # noqa: B905 - a repeat has no end
        return [dict(zip(names, row, strict=True)) for row in rows] if self._style in _BY_NAME else list(rows)

    def feed(self, rows: Rows) -> None:
        if self._dialect.name == "postgres" and rows and bytes in map(type, rows[0]):
            # A database in SQL_ASCII: psycopg does not read texts then. None of our columns is binary.
            rows = [[str(cell, "utf-8", "replace") if type(cell) is bytes else cell for cell in row] for row in rows]
        self.rows = rows


class Levels:
    """Where the levels of queues are: by a hop, or by what a survey of many queues says of their ends."""

    def __init__(self, calls: Calls, hop: Compiled, ends: dict[str, Ends] | None) -> None:
        self._calls = calls
        self._hop = hop
        self._ends = ends

    def next(self, found: list[Level], queue: str, after: int, until: int = HIGHEST) -> Iterator[Call]:
        """Add the first level between two urgencies, if there is one, to a heap."""
        if self._ends is not None:
            first, at, due, last = self._ends.get(queue, (HIGHEST, None, False, LOWEST))
            if first >= until or last <= after:
                return
            if first > after:
                heappush(found, (first, at, queue, due))
                return
        yield self._calls.hopped(self._hop, queue, after, until)
        for urgency, at, due in self._calls.rows:
            heappush(found, (urgency, at, queue, due))

    def may_have(self, queue: str, urgency: int) -> bool:
        """Tell whether a queue may have jobs on a level."""
        if self._ends is None:
            return True
        first, _, _, last = self._ends.get(queue, (HIGHEST, None, False, LOWEST))
        return bool(first <= urgency <= last)


class DbapiSession:
    """A sync connection with DB-API cursors: sqlite3, psycopg, PyMySQL, Django's."""

    def __init__(self, dialect: Dialect, cursor: Callable[[], Any], style: Style, clock: Clock) -> None:
        self.dialect = dialect
        self.cursor = cursor
        self.style = style
        self.clock = clock

    def run(self, statement: Statement) -> Rows:
        with translated(self.dialect):
            cursor = self.cursor()
            try:
                return self._sent(statement, cursor)
            finally:
                cursor.close()

    def _sent(self, statement: Statement, cursor: Any) -> Rows:
        calls = Calls(self.dialect, statement, self.style, self.clock())
        for call in calls:
            (cursor.executemany if call.many else cursor.execute)(call.sql, call.args)
            if call.returns:
                calls.feed(cursor.fetchall())
        return calls.rows


class OwnSession(DbapiSession):
    """A sync connection of ours, which keeps its cursor: one for each statement took psycopg 40 µs of CPU.

    Written with few calls: between two waits for the server each takes 1 µs and more.
    """

    _kept: Any = None

    def run(self, statement: Statement) -> Rows:
        # An error leaves it behind, and the next statement gets a new one.
        cursor, self._kept = self._kept, None
        try:
            cursor = cursor or self.cursor()
            rows: Rows = ()
            if statement.name in self.dialect.single:
                sql, args, returns = only_call(self.dialect, statement, self.style, self.clock())
                cursor.execute(sql, args)
                if returns:
                    rows = cursor.fetchall()
            else:
                rows = self._sent(statement, cursor)
        except Exception as error:
            raise_ours(self.dialect, error)
            raise
        self._kept = cursor
        return rows


class SqlalchemySession:
    """A sync SQLAlchemy connection, spoken to in its driver's own style."""

    def __init__(self, dialect: Dialect, connection: Any, style: Style, clock: Clock) -> None:
        self.dialect = dialect
        self.connection = connection
        self.style = style
        self.clock = clock

    def run(self, statement: Statement) -> Rows:
        with translated(self.dialect):
            calls = Calls(self.dialect, statement, self.style, self.clock())
            for call in calls:
                result = self.connection.exec_driver_sql(call.sql, call.args, ORDINARY)
                if call.returns:
                    calls.feed(result.fetchall())
        return calls.rows


class AsyncDbapiSession:
    """An async connection with DB-API cursors: psycopg's AsyncConnection, aiosqlite."""

    def __init__(self, dialect: Dialect, cursor: Callable[[], Awaitable[Any]], style: Style, clock: Clock) -> None:
        self.dialect = dialect
        self.cursor = cursor
        self.style = style
        self.clock = clock

    async def run(self, statement: Statement) -> Rows:
        with translated(self.dialect):
            cursor = await self.cursor()
            try:
                return await self._sent(statement, cursor)
            finally:
                await cursor.close()

    async def _sent(self, statement: Statement, cursor: Any) -> Rows:
        calls = Calls(self.dialect, statement, self.style, self.clock())
        for call in calls:
            await (cursor.executemany if call.many else cursor.execute)(call.sql, call.args)
            if call.returns:
                calls.feed(await cursor.fetchall())
        return calls.rows


class OwnAsyncSession(AsyncDbapiSession):
    """An async connection of ours, which keeps its cursor as `OwnSession` does."""

    _kept: Any = None

    async def run(self, statement: Statement) -> Rows:
        cursor, self._kept = self._kept, None
        try:
            cursor = cursor or await self.cursor()
            rows: Rows = ()
            if statement.name in self.dialect.single:
                sql, args, returns = only_call(self.dialect, statement, self.style, self.clock())
                await cursor.execute(sql, args)
                if returns:
                    rows = await cursor.fetchall()
            else:
                rows = await self._sent(statement, cursor)
        except Exception as error:
            raise_ours(self.dialect, error)
            raise
        self._kept = cursor
        return rows


class AsyncpgSession:
    """An asyncpg connection; its own cache keeps statements prepared."""

    def __init__(self, dialect: Dialect, connection: Any, clock: Clock) -> None:
        self.dialect = dialect
        self.connection = connection
        self.clock = clock

    async def run(self, statement: Statement) -> Rows:
        try:
            if statement.name in self.dialect.single:
                sql, args, _ = only_call(self.dialect, statement, "dollar", self.clock())
                rows: Rows = await self.connection.fetch(sql, *args)
                return rows
            calls = Calls(self.dialect, statement, "dollar", self.clock())
            for call in calls:
                calls.feed(await self.connection.fetch(call.sql, *call.args))
        except Exception as error:
            raise_ours(self.dialect, error)
            raise
        return calls.rows


class GreenSession:
    """An async SQLAlchemy connection: a sync session on it runs inside its greenlet."""

    def __init__(self, run_sync: Callable[..., Awaitable[Any]], inner: Session) -> None:
        self.run_sync = run_sync
        self.inner = inner

    async def run(self, statement: Statement) -> Rows:
        rows: Rows = await self.run_sync(lambda _: self.inner.run(statement))
        return rows
