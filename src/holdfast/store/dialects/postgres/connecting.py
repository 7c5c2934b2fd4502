"""How connections of ours to PostgreSQL are opened."""

from __future__ import annotations

import re
import socket
from dataclasses import replace
from typing import Any

from holdfast.store.dialects.postgres.drivers import async_class
from holdfast.store.dialects.postgres.endings import PLANS_LIVE
from holdfast.store.dialects.postgres.hosts import Hosts
from holdfast.values import urls
from holdfast.values.drivers import importing
from holdfast.values.options import StoreOptions

# What libpq reads about the network, and the options of a socket; in milliseconds and seconds, as these are.
_WATCHES = {
    "keepalives_idle": "TCP_KEEPIDLE",
    "keepalives_interval": "TCP_KEEPINTVL",
    "keepalives_count": "TCP_KEEPCNT",
    "tcp_user_timeout": "TCP_USER_TIMEOUT",
}
# asyncpg sends what it does not know to the server, which refuses it.
_NOT_FOR_ASYNCPG = frozenset(
    {"options", "application_name", "connect_timeout", "client_encoding", "load_balance_hosts", "keepalives", *_WATCHES}
)


def connect(url: str, options: StoreOptions, hosts: Hosts) -> Any:
    """Open a psycopg connection that commits only when told to, to the first host that is what the URL asks for."""
    with importing("psycopg", "postgres"):
        import psycopg

    search = hosts.search(url)
    for at in search:
        try:
            raw = psycopg.connect(
                at.written("postgresql"),
                autocommit=True,
                connect_timeout=max(1, int(_patience(at, options))),
                prepare_threshold=5 if options.prepare else None,
                application_name="holdfast",
                # A database in SQL_ASCII, or PGCLIENTENCODING, would have psycopg read and write texts in other ways.
                client_encoding="utf8",
            )
        except Exception as error:
            search.failed(at, error)
        else:
            search.found(at)
            return raw
    raise search.in_vain()


async def aconnect(url: str, options: StoreOptions, hosts: Hosts, name: str) -> Any:
    """Open an asyncpg connection; hosts as in `connect`."""
    with importing("asyncpg", "postgres"):
        import asyncpg

    search = hosts.search(url)
    for at in search:
        # Where asyncpg takes libpq's `options=-c name=value`.
        settings = dict(re.findall(r"-c\s*([\w.]+)=(\S+)", at.query.get("options", "")))
        query = {name: value for name, value in at.query.items() if name not in _NOT_FOR_ASYNCPG}
        try:
            raw = await asyncpg.connect(
                replace(at, query=query).written("postgresql"),
                timeout=_patience(at, options),
                statement_cache_size=200 if options.prepare else 0,
                max_cached_statement_lifetime=PLANS_LIVE,
                connection_class=async_class(),
                server_settings={"application_name": name} | settings,
            )
        except Exception as error:
            search.failed(at, error)
        else:
            search.found(at)
            watch(raw._transport.get_extra_info("socket"), at)
            return raw
    raise search.in_vain()


def _patience(at: urls.Url, options: StoreOptions) -> float:
    """Give the seconds that a connection may take: the URL's, where it says some: they are about that server."""
    return int(at.query.get("connect_timeout") or 0) or options.connect_timeout


def watch(link: Any, at: urls.Url) -> None:
    """Have the system notice a host that is gone without a word, as libpq does by the same settings."""
    if link is None or link.family not in (socket.AF_INET, socket.AF_INET6):
        return
    if at.query.get("keepalives") != "0":
        link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for setting, option in _WATCHES.items():
        if int(at.query.get(setting, 0)) and hasattr(socket, option):
            link.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), int(at.query[setting]))
