"""The connections of MySQL's drivers as we open them.

They know whether a statement is under way, in which transaction they are, and whether a handler changed their session.
The server says most of it in the flags of its answers.
"""

from __future__ import annotations

import asyncio
import re
from functools import cache, partial
from typing import Any

from holdfast.errors import OVER, TransactionError
from holdfast.values.drivers import importing

# The protocol's own limit; each connection asks its server for its own.
LARGEST_PACKET = 1 << 30
# The client says with it that it understands the news below; the flag is of no use without.
SESSION_TRACK = 1 << 23
UNDER_WAY = "another statement of this connection is under way, or was given up on"

_IN_TRANSACTION = 0x0001
# Variables, temporary tables or prepared statements of the session have changed (session_track_state_change).
_SESSION_CHANGED = 0x4000
# What ends a transaction by beginning another (a procedure may do so unseen), and the locks that outlive one: of
# neither does the server tell.
_COMMENTS = rb"(?:\s|/\*.*?\*/|--[^\n]*\n|#[^\n]*\n)*"
_BEGIN = rb"(?:begin\b|start\s+transaction\b|(?:commit|rollback)\b[^;]*\band\s+chain\b)"
_BEGINS = re.compile(_COMMENTS + _BEGIN, re.IGNORECASE | re.DOTALL)
_LOCKS = re.compile(rb"\bget_lock\s*\(|\block\s+tables?\b|\bflush\s+tables\b", re.IGNORECASE)


class Watched:
    """What is known of a connection between two statements."""

    packet = LARGEST_PACKET
    server_status: int
    # A statement was sent and its answer was not read to the end: nobody can tell what the next answer belongs to.
    under_way = False
    # What a handler has of it: its statements may be anything.
    lent: Any = None
    # The session is no longer as we opened it.
    changed = False
    # Rises with each transaction, so that one can be told from the next.
    transactions = 0
    # The next message is that of a statement that `sending` has seen.
    _seen = False

    def sending(self, sql: Any, error: type[Exception]) -> None:
        """Note that a statement is sent; refuse it where its answer could not be told from another's."""
        check_size(sql, self.packet, error)
        if self.under_way:
            raise error(0, UNDER_WAY)
        if self.lent is not None or not self.server_status & _IN_TRANSACTION:
            self._count(sql)
        self.under_way = self._seen = True

    def message(self, sql: Any) -> None:
        """Note a message. What a handler sends past `query` changes the session, for all we know.

        The drivers have methods for that: `autocommit`, `select_db`, `set_charset` and others.
        """
        if self._seen:
            self._seen = False
        elif self.lent is not None:
            self.changed = True
            self._count(sql)

    def _count(self, sql: Any) -> None:
        """Count the transaction that a statement begins, and note the locks that outlive it."""
        if not self.server_status & _IN_TRANSACTION:
            self.transactions += 1
            return
        text = sql if isinstance(sql, bytes | bytearray) else sql.encode(errors="replace")
        self.transactions += bool(_BEGINS.match(text))
        self.changed = self.changed or bool(_LOCKS.search(text))

    def asking(self) -> str:
        """Return what asks for the server's flags."""
        self._seen = True
        return "do 0"

    def connecting(self) -> None:
        """Note that a session is opened; a handler that opens another one has not said what we say to ours."""
        self.changed = self.changed or self.lent is not None

    def answered(self) -> None:
        self.under_way = False
        self.changed = self.changed or bool(self.server_status & _SESSION_CHANGED)

    def refused(self, error: Exception) -> bool:
        """Note an error of the server's own: the next answer will be in step. Tell whether to ask for its flags.

        An error carries none, and some errors (a deadlock) end the whole transaction.
        """
        code = error.args[0] if error.args else 0
        if not isinstance(code, int) or not code or 2000 <= code < 3000:
            # The client library's own: the connection is lost or out of step.
            return False
        self.under_way = False
        return bool(self.server_status & _IN_TRANSACTION)

    def opened(self) -> None:
        """Take the session as it is now for the one that we want."""
        self.changed = False

    def which_transaction(self) -> int | None:
        """Return what tells the open transaction from others; None outside of one."""
        return self.transactions if self.server_status & _IN_TRANSACTION else None

    @property
    def idle(self) -> bool:
        streaming = getattr(getattr(self, "_result", None), "unbuffered_active", False)
        return not (self.under_way or self.changed or streaming or self.server_status & _IN_TRANSACTION)


def check_size(sql: Any, largest: int, error: type[Exception]) -> None:
    """Refuse what the server would answer by closing the connection: that looks like an outage and is tried again."""
    if len(sql) * 4 > largest and len(sql.encode() if isinstance(sql, str) else sql) >= largest:
        raise error(
            1153, f"a statement of {len(sql):,} characters is larger than max_allowed_packet ({largest:,} bytes)"
        )


def given_args(args: tuple[Any, ...]) -> Any:
    """Take arguments one by one, as asyncpg does, or as one sequence or mapping, as DB-API cursors do."""
    if len(args) == 1 and isinstance(args[0], tuple | list | dict):
        return args[0]
    return args or None


@cache
def sync_class() -> Any:
    """Make PyMySQL's connection one that a handler may `execute` on, as on those of the other databases."""
    with importing("pymysql", "mysql"):
        from pymysql.connections import Connection
        from pymysql.constants.COMMAND import COM_QUERY
        from pymysql.err import MySQLError, OperationalError

    class SyncConnection(Watched, Connection):  # type: ignore[misc, unused-ignore]
        def query(self, sql: Any, unbuffered: bool = False) -> Any:
            self.sending(sql, OperationalError)
            try:
                affected = super().query(sql, unbuffered)
            except MySQLError as error:
                if self.refused(error):
                    super().query(self.asking())
                raise
            self.answered()
            return affected

        def _execute_command(self, command: int, sql: Any) -> None:
            self.message(sql)
            super()._execute_command(command, sql)  # type: ignore[misc, unused-ignore]

        def connect(self, sock: Any = None) -> None:
            self.connecting()
            super().connect(sock)

        def begin(self) -> None:
            self.query("begin")

        def commit(self) -> None:
            self.query("commit")

        def rollback(self) -> None:
            self.query("rollback")

        def give_up_after(self, seconds: float | None) -> None:
            """Take the server for lost when it says nothing for this long; None: wait for it."""
            self._read_timeout = self._write_timeout = seconds

        def answer(self, sql: str) -> list[bytes]:
            """Ask, and return the packets of the answer unread: enough to tell one answer from another.

            It takes three quarters of the CPU of a cursor's execute and fetch.
            """
            self._execute_command(COM_QUERY, sql)  # type: ignore[attr-defined, unused-ignore]
            packets, ends = [], 0
            # The columns end with a packet of that kind, and the rows do.
            while ends < 2:
                packet = self._read_packet()  # type: ignore[no-untyped-call, unused-ignore]
                ends += packet.is_eof_packet()
                packets.append(packet.get_all_data())
            return packets

        def execute(self, sql: str, *args: Any) -> Any:
            cursor = self.cursor()
            cursor.execute(sql, given_args(args))
            return cursor

    return SyncConnection


@cache
def async_class() -> Any:
    """As `sync_class`, for asyncmy."""
    with importing("asyncmy", "mysql"):
        from asyncmy.connection import Connection
        from asyncmy.constants.CLIENT import MULTI_STATEMENTS
        from asyncmy.errors import MySQLError, OperationalError

    class AsyncConnection(Watched, Connection):  # type: ignore[misc, unused-ignore]
        # Of asyncmy, whose stubs do not know them.
        _client_flag: int
        _result: Any
        _affected_rows: Any

        def __init__(self, **options: Any) -> None:
            super().__init__(**options)  # type: ignore[no-untyped-call, unused-ignore]
            # asyncmy asks for it always: in `select 1; rollback; begin` nobody would see that a transaction ended.
            self._client_flag &= ~MULTI_STATEMENTS

        async def query(self, sql: Any, unbuffered: bool = False) -> Any:
            self.sending(sql, OperationalError)
            try:
                affected = await super().query(sql, unbuffered)  # type: ignore[no-untyped-call, unused-ignore]
            except MySQLError as error:
                if self.refused(error):
                    await super().query(self.asking())  # type: ignore[no-untyped-call, unused-ignore]
                raise
            self.answered()
            return affected

        async def _execute_command(self, command: int, sql: Any) -> None:
            self.message(sql)
            await super()._execute_command(command, sql)  # type: ignore[misc, unused-ignore]

        async def connect(self) -> Any:
            self.connecting()
            return await super().connect()  # type: ignore[no-untyped-call, unused-ignore]

        async def show_warnings(self) -> Any:
            # asyncmy's cursors ask for them by themselves: as a statement, so that nothing else is sent meanwhile.
            before = self._result, self._affected_rows
            try:
                await self.query("show warnings")
                return self._result.rows
            finally:
                self._result, self._affected_rows = before

        async def past(self, run: Any, *args: Any, **options: Any) -> Any:
            """Run what sends its own messages, alone as a statement is."""
            if self.lent is None:
                return await run(*args, **options)
            if self.under_way:
                raise OperationalError(0, UNDER_WAY)
            self.under_way = True
            try:
                value = await run(*args, **options)
            except MySQLError as error:
                if self.refused(error):
                    await super().query(self.asking())  # type: ignore[no-untyped-call, unused-ignore]
                raise
            self.under_way = False
            return value

        async def prepare(self, query: Any) -> Any:
            statement = await self.past(super().prepare, query)
            statement.execute = partial(self.past, statement.execute)
            statement.execute_bulk = partial(self.past, statement.execute_bulk)
            return statement

        async def autocommit(self, value: Any) -> None:
            await self.past(super().autocommit, value)

        async def select_db(self, db: Any) -> None:
            await self.past(super().select_db, db)

        async def set_charset(self, charset: Any) -> None:
            await self.past(super().set_charset, charset)

        async def ping(self, reconnect: bool = True) -> None:
            await self.past(super().ping, reconnect)

        async def begin(self) -> None:
            await self.query("begin")

        async def commit(self) -> None:
            await self.query("commit")

        async def rollback(self) -> None:
            await self.query("rollback")

        async def execute(self, sql: str, *args: Any) -> Any:
            cursor = self.cursor()
            await cursor.execute(sql, given_args(args))
            return cursor

        async def fetch(self, sql: str, *args: Any) -> Any:
            return await (await self.execute(sql, *args)).fetchall()

        def close(self) -> None:
            # With TLS a plain close waits for the server's goodbye: a loop that ends now would leave the socket open.
            transport: asyncio.Transport | None = getattr(self, "_transport", None)
            if transport is not None:
                transport.abort()
            super().close()  # type: ignore[no-untyped-call, unused-ignore]

    return AsyncConnection


@cache
def lent_class() -> Any:
    """Make what a handler gets of an async connection: the same until it is taken back, then nothing."""
    own = async_class()

    class LentConnection:
        __slots__ = ("_raw",)
        _raw: Any

        def __init__(self, raw: Any) -> None:
            object.__setattr__(self, "_raw", raw)

        def take_back(self) -> None:
            object.__setattr__(self, "_raw", None)

        def __getattr__(self, name: str) -> Any:
            raw = self._raw
            if raw is None:
                raise TransactionError(OVER)
            return getattr(raw, name)

        def __setattr__(self, name: str, value: Any) -> None:
            # Whatever it is, the next borrower would find it.
            self.__getattr__("connecting")()
            setattr(self._raw, name, value)

        # To `tx=`, and to isinstance, it is a connection.
        __class__ = property(lambda self: own)

        def cursor(self, cursor: Any = None) -> Any:
            # Made on the proxy, so that a cursor that outlives the block is refused with it.
            return (cursor or self._cursor_cls)(self, echo=self._echo, query_callback=self._query_callback)

        execute, fetch = own.execute, own.fetch

        async def __aenter__(self) -> Any:
            return self

        async def __aexit__(self, *error: Any) -> None:
            await self.__getattr__("__aexit__")(*error)

    return LentConnection
