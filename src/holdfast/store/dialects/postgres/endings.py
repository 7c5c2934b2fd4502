"""What ends a handler's transaction on PostgreSQL: its job's completion and the COMMIT in one message."""

from __future__ import annotations

import re
import time
from datetime import datetime
from typing import Any

from holdfast.flow import Rows, Statement
from holdfast.store.catalogue import Query
from holdfast.store.dialects.base import Dialect

# Seconds after which a prepared statement is made again. PostgreSQL keeps a plan until the table is analysed, and one
# made while the table was small reads all of it: at 4,000 jobs a second a claim took 15 ms after half a minute.
PLANS_LIVE = 10
SAVEPOINT = "holdfast_end"
# What the names of prepared statements begin with.
PREPARED = "holdfast_"
_PLACE = re.compile(r"\$(\d+)")
_ESCAPED = re.compile(r"(['\\])")


class PostgresEndings:
    """The endings of one connection.

    A message of several statements has no parameters, so values stand in it as literals, and what is run again and
    again is prepared by SQL's own PREPARE: half of the server's time for a completion is to parse and plan it. Not
    behind a pooler, which may send the next transaction to another session.
    """

    undo = f"rollback to savepoint {SAVEPOINT}"

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        # A pooler hands out a process id of its own; the server tells the real one.
        prepares = dialect.options.prepare
        self.asks = Statement("backend", {}, text="select pg_backend_pid()") if prepares else None
        self.spoilt = False
        self._prepares = False
        # When each prepared statement was made, by the monotonic clock.
        self._made: dict[str, float] = {}

    def learn(self, raw: Any, rows: Rows) -> None:
        own = raw.get_server_pid() if hasattr(raw, "get_server_pid") else raw.info.backend_pid
        self._prepares, self.asks = own == rows[0][0], None

    def message(self, statement: Statement, now: Any) -> str:
        given = {**statement.params, "or_fail": True, "now": now}
        query = self._dialect.query(statement)
        [part] = query.compiled(given, "dollar", now is not None)
        values = [literal(given[name]) for name in part.names]
        first = ""
        if self._prepares and now is None:
            first = self._preparing(query, part.sql)
            run = f"execute {PREPARED}{query.name}({', '.join(values)})"
        else:
            run = _PLACE.sub(lambda place: values[int(place[1]) - 1], part.sql)
        dialect = self._dialect
        return f"{dialect.insist}; savepoint {SAVEPOINT}; {first}{run}; commit; {dialect.tidy}"

    def forget(self, statement: Statement) -> None:
        self._made.pop(self._dialect.query(statement).name, None)

    def _preparing(self, query: Query, sql: str) -> str:
        """Write what prepares a statement, where it is not prepared or its plan may be out of date."""
        made, now = self._made.get(query.name), time.monotonic()
        if made is not None and now - made < PLANS_LIVE:
            return ""
        self._made[query.name] = now
        gone = "" if made is None else f"deallocate {PREPARED}{query.name}; "
        return f"{gone}prepare {PREPARED}{query.name} as {sql}; "


def literal(value: Any) -> str:
    """Write a value as SQL that means the same whatever a handler has set for its session."""
    if value is None:
        return "null"
    if isinstance(value, int):
        return str(int(value))
    text = value.isoformat() if isinstance(value, datetime) else str(value)
    return "E'" + _ESCAPED.sub(r"\\\1", text) + "'"
