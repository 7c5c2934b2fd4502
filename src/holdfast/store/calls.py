"""The driver calls behind a statement: which texts with which arguments, in which order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import repeat
from typing import Any, NamedTuple

from holdfast.flow import Columns, Rows, Statement
from holdfast.store.catalogue import Compiled, Query, Style
from holdfast.store.dialects.base import Dialect

Args = Any
_BY_NAME = ("named", "pyformat")
# How many calls of statements that are alike a query keeps; with more of them it starts over.
MOST_KEPT = 256


class Call(NamedTuple):
    """What to hand to the driver: one statement with its arguments, or with those of many rows."""

    sql: str
    args: Args
    many: bool
    returns: bool
    counted: bool = False


def only_call(dialect: Dialect, query: Query, statement: Statement, style: Style, now: Any) -> tuple[str, Args, bool]:
    """Return the only driver call behind a statement: its SQL, its arguments, and whether rows come back."""
    like = statement.like
    if like is None or now is not None:
        [part] = query.compiled(statement.params, style, now is not None)
        return (*written(dialect, part, style, dialect.bind(statement, query, now)), part.returns)
    key = (like, style, statement.notify)
    kept = query.kept.get(key)
    if kept is None:
        if len(query.kept) >= MOST_KEPT:
            query.kept.clear()
        kept = query.kept[key] = KeptCall.of(dialect, query, statement, style)
    return kept.sql, kept.filled_in(dialect, statement.params), kept.returns


def kept_calls(dialect: Dialect, query: Query, statement: Statement, style: Style) -> Sequence[KeptCall]:
    """Return the driver calls of a statement of several parts that is like others; the first that gives rows is the
    last. Empty where what they are depends on more than the parameters.
    """
    key = (statement.like, style, statement.notify)
    kept: Sequence[KeptCall] | None = query.kept.get(key)
    if kept is None:
        if len(query.kept) >= MOST_KEPT:
            query.kept.clear()
        parts = query.compiled(statement.params, style)
        plain = not (query.by_rows or query.counted) and dialect.sequence(query) is None
        in_order = plain and not any(part.returns or "found" in part.names for part in parts[:-1])
        params = dialect.bind(statement, query, None)
        kept = [KeptCall.made(dialect, part, statement, style, params) for part in parts] if in_order else []
        query.kept[key] = kept
    return kept


class KeptCall(NamedTuple):
    """The driver call of statements that are alike: all arguments, and at which places each statement has its own.

    `times` are the places of the present, where the database does not know it by itself.
    """

    sql: str
    returns: bool
    args: Args
    places: tuple[tuple[Any, str], ...]
    times: tuple[Any, ...]

    @classmethod
    def of(cls, dialect: Dialect, query: Query, statement: Statement, style: Style) -> KeptCall:
        [part] = query.compiled(statement.params, style)
        return cls.made(dialect, part, statement, style, dialect.bind(statement, query, None))

    @classmethod
    def made(
        cls, dialect: Dialect, part: Compiled, statement: Statement, style: Style, params: dict[str, Any]
    ) -> KeptCall:
        sql, args = written(dialect, part, style, params)
        places: list[tuple[Any, str]]
        if style in _BY_NAME:
            # What the statement does not name is not copied for every call.
            args = {name: args[name] for name in part.names}
            places = [(name, name) for name in part.names]
        else:
            args, places = list(args), list(enumerate(part.names))
        own = tuple((place, name) for place, name in places if name in statement.own)
        return cls(sql, part.returns, args, own, tuple(place for place, name in places if name == "now"))

    def filled_in(self, dialect: Dialect, params: dict[str, Any]) -> Args:
        args = self.args.copy()
        for place, name in self.places:
            args[place] = params[name]
        if self.times:
            now = dialect.own_time()
            for place in self.times:
                args[place] = now
        return args


def written(dialect: Dialect, part: Compiled, style: Style, params: dict[str, Any]) -> tuple[str, Args]:
    """Put parameters into a statement the way a driver takes them."""
    if style in _BY_NAME:
        return part.sql, params
    return part.spread(params) if dialect.spreads_lists else (part.sql, part.positional(params))


class Calls:
    """The driver calls behind one statement, in order; what makes them says what each one gave (`feed`)."""

    def __init__(self, dialect: Dialect, statement: Statement, style: Style, now: Any) -> None:
        query = dialect.query(statement)
        self.rows: Rows = ()
        self.params = dialect.bind(statement, query, now)
        self._dialect = dialect
        self._query = query
        self._parts = query.compiled(statement.params, style, now is not None)
        self._style = style
        self._columns = statement.batch if query.by_rows else None
        self._counted = query.counted
        self._before: Rows = ()

    def __iter__(self) -> Iterator[Call]:
        sequence = self._dialect.sequence(self._query)
        return self.in_order(self._parts) if sequence is None else sequence(self, self._parts)

    def in_order(self, parts: Sequence[Compiled]) -> Iterator[Call]:
        """Run statements one after the other; the first that is to give rows, and gives none, is the last."""
        for part in parts:
            self._before = self.rows
            yield self.call(part)
            if (part.returns or self._counted) and not self.rows:
                return

    def call(self, part: Compiled) -> Call:
        """Return the call of one statement, with the parameters as they are now."""
        if "found" in part.names:
            self.params["found"] = self._dialect.found(self._before)
        if self._columns is not None:
            return Call(part.sql, self._each_row(part.names, self._columns), True, part.returns)
        counted = self._counted and not part.returns
        return Call(*written(self._dialect, part, self._style, self.params), False, part.returns, counted)

    def _each_row(self, names: tuple[str, ...], columns: Columns) -> list[Any]:
        """Bind the rows of the batch one by one; what is not a column is the same for all."""
        values = (self.params[name] if name in columns else repeat(self.params[name]) for name in names)
        rows = zip(*values)  # noqa: B905 - a repeat has no end
        return [dict(zip(names, row, strict=True)) for row in rows] if self._style in _BY_NAME else list(rows)

    def feed(self, rows: Rows) -> None:
        self.rows = self._dialect.readable(rows)

    def feed_count(self, count: int) -> None:
        """Take how many rows a statement wrote for its answer."""
        self.rows = ((count,),) if count > 0 else ()
