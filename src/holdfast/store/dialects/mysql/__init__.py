"""MySQL and MariaDB: asyncmy for async callers and the worker, PyMySQL for sync ones; one SQL file for both servers.

Its queries do not belong here: each room has them in its folder `sql`.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any, ClassVar, NamedTuple
from urllib.parse import unquote

import msgspec

from holdfast import errors
from holdfast.errors import ConfigError, HoldfastError
from holdfast.flow import AsyncSession, Statement, text_of
from holdfast.store.calls import Call, Calls
from holdfast.store.catalogue import Compiled, Query, Rules, Style
from holdfast.store.dialects.base import SCHEMES, Dialect, chain, is_of, is_plain
from holdfast.store.dialects.mysql.claim import hops
from holdfast.store.dialects.mysql.drivers import (
    LARGEST_PACKET,
    SESSION_TRACK,
    UNDER_WAY,
    async_class,
    lent_class,
    sync_class,
)
from holdfast.store.dialects.mysql.each import for_each
from holdfast.store.dialects.mysql.waker import MysqlWatcher
from holdfast.store.sessions import Clock, OwnAsyncSession
from holdfast.store.wakers import Emit, Opens, Wake, Waker
from holdfast.values import urls
from holdfast.values.options import StoreOptions

# SKIP LOCKED and JSON_TABLE; in MySQL also the binary collation without padding.
OLDEST = {"MariaDB": (10, 6, 0), "MySQL": (8, 0, 17)}
# Each server skips the other's comment, so that one text names the collation of both.
TEXT = "/*M! utf8mb4_nopad_bin */ /*!80017 utf8mb4_0900_bin */"

_DRIVERS = ("pymysql", "MySQLdb", "asyncmy", "aiomysql", "sqlalchemy")
_BUSY: dict[int, errors.BusyReason] = {
    1213: "deadlock",
    1205: "lock_timeout",
    3572: "lock_timeout",
    1020: "serialisation",  # MariaDB: the row has changed since the transaction's snapshot
}
# Wrong user, password or database, or a host that may not connect.
_REFUSED = frozenset({1044, 1045, 1049, 1130, 1698})
# What a server that is read-only says to writes, as after a failover.
_READ_ONLY = frozenset({1290, 1836})
# Connections refused, closed, killed or timed out; a server that shuts down, is not part of its
# Galera cluster (1047) or was cut off from it in a commit (1180).
_LOST = frozenset(
    {
        0,
        1040,
        1047,
        1053,
        1077,
        1079,
        1152,
        1158,
        1159,
        1160,
        1161,
        1180,
        1184,
        1203,
        1226,
    }
    | {1927, 2002, 2003, 2005, 2006, 2012, 2013, 2014, 2026, 2055, 3159, 3169, 4031}
)
# Larger than a packet, too long, out of range, not null, wrong value, a check, not JSON, a SIGNAL.
_DATA = frozenset({1048, 1136, 1153, 1264, 1265, 1292, 1366, 1406, 1452, 1644, 3140, 3141, 3819, 4025, 4038})
_SETTINGS = ("unix_socket", "ssl", "ssl_ca", "ssl_cert", "ssl_key", "ssl_verify", "charset")
_IN_LIST = re.compile(r"\bin \(:([a-z_]+)\)")
_STRICT = "STRICT_TRANS_TABLES,NO_ZERO_IN_DATE,NO_ZERO_DATE,ERROR_FOR_DIVISION_BY_ZERO,NO_ENGINE_SUBSTITUTION"


class Binding(NamedTuple):
    """How a query's parameters are bound."""

    # A parameter for each of their items: those in `in (:name)`, and those that `-- bind: lists` names. All other lists
    # are one JSON text.
    lists: frozenset[str]
    # Whether it takes the whole batch, and whether the ids and fences alone.
    batch: bool
    held: bool
    # `-- bind: hops`: its statements are not for running in their order.
    hops: bool
    # `-- bind: each`: it runs once for each item of this list.
    each: str | None


class Mysql(Dialect):
    name: ClassVar[str] = "mysql"
    shows_holders: ClassVar[str] = "grant process on *.* to the user of this URL"
    ends_holder: ClassVar[Mapping[str, str]] = {"session": "kill {pid}"}
    style: ClassVar[Style] = "format"
    nothing: ClassVar[str] = "do 0"
    spreads_lists: ClassVar[bool] = True
    keeps_dead_rows: ClassVar[bool] = True
    migrates_as_one: ClassVar[bool] = False
    # The first plain read of a transaction decides what all later ones in it see.
    reads_aside: ClassVar[bool] = False
    # One of the same name takes the place of the older.
    next_savepoint: ClassVar[tuple[str, ...]] = ("savepoint holdfast_job",)
    own_now: ClassVar[str] = "utc_timestamp(6)"
    told_now: ClassVar[str] = "cast(:now as datetime(6))"
    quote: ClassVar[str] = "`"

    def place(self, sql: str) -> str:
        return super().place(sql.replace("collate holdfast_text", f"collate {TEXT}"))

    def binding(self, statements: Sequence[str], rules: Rules) -> Binding:
        whole = "\n".join(statements)
        each = rules.get("each", ())
        lists = frozenset(_IN_LIST.findall(whole)).union(rules.get("lists", ()), each)
        return Binding(lists, ":batch" in whole, ":held" in whole, "hops" in rules, next(iter(each), None))

    def bind(self, statement: Statement, query: Query, now: Any) -> dict[str, Any]:
        binding: Binding = query.binding
        params = statement.params
        if is_plain(params.values()):
            params = {**params, "now": plain(now)}
        else:
            params = {name: _value(value, name in binding.lists) for name, value in params.items()}
            params["now"] = plain(now)
        columns = statement.batch
        if columns is not None:
            if binding.batch:
                params["batch"] = rows_text([plain_column(column) for column in columns.values()])
            if binding.held:
                params["held"] = rows_text([columns["id"], columns["fence"]])
        return params

    def sequence(self, query: Query) -> Callable[[Calls, Sequence[Compiled]], Iterator[Call]] | None:
        if query.binding.each is not None:
            return partial(for_each, query.binding.each)
        return hops if query.binding.hops else None

    def found(self, rows: Sequence[Sequence[Any]]) -> str:
        column = [row[0] for row in rows]
        # A caller's connection may give bytes (use_unicode=False).
        return msgspec.json.encode(list(map(text_of, column)) if isinstance(column[0], bytes) else column).decode()

    def connect(self, url: str) -> Any:
        return connect(url, self.options)

    async def aconnect(self, url: str, name: str) -> Any:
        return await aconnect(url, self.options, name)

    def asession(self, raw: Any, clock: Clock) -> AsyncSession:
        # Plain, whatever a handler sets on the connection.
        from asyncmy.cursors import Cursor

        async def cursor() -> Any:
            return raw.cursor(Cursor)

        return OwnAsyncSession(self, cursor, self.style, clock)

    async def atell(self, raw: Any, sql: str) -> None:
        await raw.query(sql)

    def tell(self, raw: Any, sql: str) -> None:
        raw.query(sql)

    def is_closed(self, raw: Any) -> bool:
        return not raw.connected

    def is_idle(self, raw: Any) -> bool:
        return bool(raw.open and raw.idle)

    def ais_idle(self, raw: Any) -> bool:
        return bool(raw.connected and raw.idle)

    def transaction_of(self, raw: Any) -> Any:
        return raw.which_transaction()

    atransaction_of = transaction_of

    def lend(self, raw: Any) -> Any:
        raw.lent = True
        return raw

    def take_back(self, raw: Any) -> None:
        raw.lent = None

    def alend(self, raw: Any) -> Any:
        raw.lent = lent_class()(raw)
        return raw.lent

    def atake_back(self, raw: Any) -> None:
        if raw.lent is not None:
            raw.lent.take_back()
            raw.lent = None

    def cursors(self, raw: Any) -> Callable[[], Any]:
        from pymysql.cursors import Cursor

        return partial(raw.cursor, Cursor)

    def make_plain(self, raw: Any) -> None:
        from pymysql.cursors import Cursor

        raw.cursorclass = Cursor

    def is_spoilt(self, raw: Any) -> bool:
        from pymysql.cursors import Cursor

        return raw.cursorclass is not Cursor

    def cut(self, raw: Any) -> None:
        raw.close()

    def waker(self, store: Opens, worker: str, wake: Wake, emit: Emit) -> Waker:
        return MysqlWatcher(store, worker, wake, emit)

    def translate(self, error: BaseException) -> HoldfastError | None:
        cause = driver_error(error)
        if cause is None:
            return None
        code = code_of(cause)
        text = " ".join(str(cause).split())
        if code in _BUSY:
            return errors.DatabaseBusy(_BUSY[code])
        if UNDER_WAY in text:
            return errors.ConnectionInUse()
        if code == 1062:
            return errors.UniqueViolation(text)
        if code == 1060:
            # Only a migration adds columns, where it has seen none: on another node of a Galera cluster, whose nodes
            # have no lock in common, another migrator was quicker. Run again, it finds them.
            return errors.DatabaseBusy("busy", text)
        if code == 1146:
            return errors.SchemaMissing(text)
        if code == 2014 and type(cause).__module__.startswith("MySQLdb"):
            return errors.TransactionError(errors.UNREAD)
        if code in _REFUSED:
            return errors.AccessRefused(text)
        if code in _READ_ONLY:
            return errors.ReadOnlyDatabase(text)
        if code in _LOST or (code is None and is_lost(cause)):
            return errors.DatabaseUnavailable(text)
        return errors.QueryFailed(text, data_refused=code in _DATA)


def _value(value: Any, stays_a_list: bool) -> Any:
    if isinstance(value, list) and not stays_a_list:
        return msgspec.json.encode(value).decode()
    return plain(value)


def plain(value: Any) -> Any:
    """Write a time as DATETIME(6) keeps it: in UTC, without a zone."""
    if isinstance(value, datetime):
        return value.astimezone(UTC).replace(tzinfo=None).isoformat(" ", "microseconds")
    return value


def plain_column(column: list[Any]) -> list[Any]:
    return column if is_plain(column) else [plain(value) for value in column]


def rows_text(columns: Sequence[Sequence[Any]]) -> str:
    """Write columns as one JSON text, an array of rows."""
    return msgspec.json.encode(list(zip(*columns, strict=True))).decode()


def driver_error(error: BaseException) -> BaseException | None:
    """Return the innermost error that a driver, or the network under it, raised."""
    ours = [e for e in chain(error) if is_of(type(e), _DRIVERS) or isinstance(e, OSError | TimeoutError | EOFError)]
    return ours[-1] if ours else None


def code_of(error: BaseException) -> int | None:
    """Read the server's or the client library's error number."""
    code = error.args[0] if error.args else None
    return code if isinstance(code, int) and not isinstance(error, OSError) else None


def is_lost(error: BaseException) -> bool:
    """Tell a lost or refused connection from a wrong call, where no number says it."""
    return isinstance(error, OSError | TimeoutError | EOFError) or type(error).__name__ == "InterfaceError"


@dataclass(frozen=True, slots=True)
class Address:
    """A URL taken apart, as both drivers want it."""

    database: str
    host: str
    port: int
    user: str | None
    password: str
    unix_socket: str | None
    tls: ssl.SSLContext | None

    def arguments(self) -> dict[str, Any]:
        common = {"database": self.database, "user": self.user, "password": self.password.encode(), "ssl": self.tls}
        where = {"unix_socket": self.unix_socket} if self.unix_socket else {"host": self.host, "port": self.port}
        return common | where | {"charset": "utf8mb4", "autocommit": True, "client_flag": SESSION_TRACK}


def split_url(url: str) -> Address:
    """Read mysql://user:password@host:3306/database?ssl_ca=…; a driver suffix (mysql+pymysql) is ignored."""
    found = checked(url)
    host, _, port = found.hosts.rpartition(":") if re.search(r":[0-9]*$", found.hosts) else (found.hosts, "", "")
    return Address(
        found.database,
        unquote(host.strip("[]")) or "127.0.0.1",
        int(port or 3306),
        found.user,
        found.password or "",
        found.query.get("unix_socket"),
        tls_context(found.query, url),
    )


def checked(url: str) -> urls.Url:
    """Read a URL, or say which rule it breaks; nothing on this machine is looked at."""
    found = urls.read(url)
    if isinstance(found, str):
        raise ConfigError("url", found, url)
    if found.scheme.partition("+")[0] not in SCHEMES["mysql"]:
        raise ConfigError("url", "must start with mysql:// or mariadb://", url)
    if "," in found.hosts:
        raise ConfigError("url", "must name one host", url)
    if not found.database:
        raise ConfigError("url", "must name a database: mysql://user@host/shop", url)
    # A password first: what comes after it may be a part of it.
    if strange := sorted(set(found.query) - set(_SETTINGS), key=urls.secret, reverse=True):
        raise ConfigError("url", f"may set {', '.join(_SETTINGS)}, not {strange[0]}", url)
    return found


def tls_context(settings: dict[str, str], url: str) -> ssl.SSLContext | None:
    """Make what TLS needs from the URL's settings; None where they ask for none.

    ssl_verify: `full` (certificate and host name), `ca` (certificate only), `none`; `full` by default.
    """
    if settings.get("ssl", "").lower() in ("false", "0", "no", "off", "disabled"):
        return None
    if not any(name.startswith("ssl") for name in settings):
        return None
    verify = settings.get("ssl_verify", "full").lower()
    if verify not in ("full", "ca", "none"):
        raise ConfigError("url", "ssl_verify must be full, ca or none", url)
    try:
        context = ssl.create_default_context(cafile=settings.get("ssl_ca"))
        if "ssl_cert" in settings:
            context.load_cert_chain(settings["ssl_cert"], settings.get("ssl_key"))
    except (OSError, ssl.SSLError) as error:
        raise ConfigError("url", f"the TLS files cannot be read ({error})", url) from error
    context.check_hostname = verify == "full"
    context.verify_mode = ssl.CERT_NONE if verify == "none" else ssl.CERT_REQUIRED
    return context


def opening(options: StoreOptions) -> tuple[str, ...]:
    """List what every connection of ours says first; the last statement's row goes to `check`."""
    wait = max(1, round(options.busy_timeout))
    return (
        "set session transaction isolation level read committed",
        f"set session time_zone = '+00:00', sql_mode = '{_STRICT}', innodb_lock_wait_timeout = {wait}, "
        "group_concat_max_len = 1000000, session_track_state_change = 1",
        "select version(), @@sql_mode, @@max_allowed_packet",
    )


def check(version: str, sql_mode: str, packet: int = LARGEST_PACKET) -> int:
    """Refuse a server that lacks what the claim needs, or that did not take our settings; return its largest packet."""
    brand = "MariaDB" if "mariadb" in version.lower() else "MySQL"
    # Old MariaDB servers put 5.5.5- in front, for replicas that knew nothing else.
    numbers = re.findall(r"\d+", version.removeprefix("5.5.5-"))[:3]
    oldest = OLDEST[brand]
    if tuple(map(int, numbers)) < oldest:
        rule = f"{brand} must be version {'.'.join(map(str, oldest))} or newer: older ones have no SKIP LOCKED"
        raise ConfigError("server", rule, version)
    if "STRICT_TRANS_TABLES" not in sql_mode:
        raise ConfigError(
            "sql_mode", "must hold STRICT_TRANS_TABLES, else the server changes values in silence", sql_mode
        )
    return packet


def connect(url: str, options: StoreOptions) -> Any:
    """Open a PyMySQL connection that commits only when told to (autocommit with explicit BEGIN)."""
    timeout = max(1, int(options.connect_timeout))
    address = split_url(url)
    # By default PyMySQL 2 tries TLS unverified, reading the machine's authorities for each connection: 35 ms of CPU.
    plain = {"ssl_disabled": address.tls is None}
    # PyMySQL's time-out for connecting ends with the network's part; a server may accept and then say nothing.
    silent = {"read_timeout": timeout, "write_timeout": timeout}
    raw = sync_class()(**address.arguments(), **plain, **silent, connect_timeout=timeout, program_name="holdfast")
    try:
        with raw.cursor() as cursor:
            for statement in opening(options):
                cursor.execute(statement)
            raw.packet = check(*cursor.fetchone())
    except BaseException:
        raw.close()
        raise
    raw.opened()
    raw.give_up_after(None)
    return raw


async def aconnect(url: str, options: StoreOptions, name: str) -> Any:
    """Open an asyncmy connection."""
    timeout = max(1, int(options.connect_timeout))
    raw = async_class()(**split_url(url).arguments(), connect_timeout=timeout, program_name=name)
    task = asyncio.current_task()
    cancelled = task.cancelling() if task else 0
    try:
        await raw.connect()
        if task is not None and task.cancelling() > cancelled:
            # Python 3.11's wait_for, which asyncmy uses here, forgets a cancel that comes with the answer.
            raise asyncio.CancelledError
        async with raw.cursor() as cursor:
            for statement in opening(options):
                await cursor.execute(statement)
            raw.packet = check(*await cursor.fetchone())
    except BaseException:
        raw.close()
        raise
    raw.opened()
    return raw
