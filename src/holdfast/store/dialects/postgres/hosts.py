"""Which host a PostgreSQL URL means: one of several, as the one that takes writes changes in a failover.

Each host is a try of its own, in both colours: libpq and asyncpg take several themselves, but asyncpg has one time-out
for all of them, each reads the settings in its own way, and neither remembers which of them was good.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from urllib.parse import quote

from holdfast.errors import AccessRefused, ConfigError, DatabaseUnavailable, HoldfastError, ReadOnlyDatabase
from holdfast.store.dialects.base import SCHEMES
from holdfast.values import urls

# What is meant where several hosts are named and the URL does not say otherwise. Every store of ours writes. And who
# names several wants the next one when a host vanishes without a word: without these a lost request is noticed by the
# system after a quarter of an hour, a lost reply after two hours.
OF_SEVERAL = {
    "target_session_attrs": "read-write",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "25000",
}
# What only one host at a time can be, so that to begin with the last one saves time and changes nothing.
_ONLY_ONE_IS = ("read-write", "primary")
# For how long a host that gave no answer is tried after the others.
SILENT_SECONDS = 60.0
_SESSIONS = ("any", "read-write", "read-only", "primary", "standby", "prefer-standby")
_NUMBERS = (
    "connect_timeout",
    "keepalives",
    "keepalives_idle",
    "keepalives_interval",
    "keepalives_count",
    "tcp_user_timeout",
)

Translate = Callable[[BaseException], HoldfastError | None]


def split_url(url: str, field: str = "url") -> urls.Url:
    """Take a URL apart; a SQLAlchemy driver suffix (postgresql+asyncpg://) is ignored.

    Several hosts are tried in their order: postgresql://a,b:5433/shop?target_session_attrs=read-write.
    """
    found = urls.read(url)
    if isinstance(found, str):
        raise ConfigError(field, found, url)
    if found.scheme.partition("+")[0] not in SCHEMES["postgres"]:
        raise ConfigError(field, "must start with postgresql://", url)
    if found.addresses is None:
        raise ConfigError(field, "must name as many ports as hosts, or one port for all of them", url)
    if not all(_is_port(port) for _, port in found.addresses):
        raise ConfigError(field, "the port must be a number from 0 to 65535", url)
    if "hostaddr" in found.query:
        # Async connections have none: what the one kind of connections would reach, the other would not.
        raise ConfigError(field, "hostaddr is for libpq alone; name the address as the host instead", url)
    if found.query.get("target_session_attrs", "any") not in _SESSIONS:
        # Either driver tells of it as of a host that does not answer, which is tried again and again.
        raise ConfigError(field, f"target_session_attrs must be one of {', '.join(_SESSIONS)}", url)
    for name in _NUMBERS:
        if not found.query.get(name, "0").isdecimal():
            raise ConfigError(field, f"{name} must be a whole number", url)
    return found


def _is_port(port: str) -> bool:
    return not port or (port.isascii() and port.isdecimal() and int(port) <= 65_535)


def each_host(found: urls.Url) -> list[urls.Url]:
    """Write a URL with several hosts as one for each try, in order."""
    each = [_at(found, host, port) for host, port in found.addresses or ()]
    if len(each) == 1:
        return each
    each = [replace(one, query=OF_SEVERAL | one.query) for one in each]
    if found.query.get("load_balance_hosts") == "random":
        random.shuffle(each)
    if found.query.get("target_session_attrs") != "prefer-standby":
        return each
    wanted = ("standby", "any")
    return [replace(one, query=one.query | {"target_session_attrs": kind}) for kind in wanted for one in each]


def _at(found: urls.Url, host: str, port: str) -> urls.Url:
    """Write a URL for one of its hosts; the path of a socket stands in the settings, where both drivers look for it."""
    query = {name: value for name, value in found.query.items() if name not in ("host", "port")}
    if host.startswith(("/", "@")):
        return replace(found, hosts="", query={"host": host} | ({"port": port} if port else {}) | query)
    if not host:
        # The driver's default; a port cannot stand alone.
        return replace(found, hosts="", query=({"port": port} if port else {}) | query)
    written = f"[{quote(host, safe=':')}]" if ":" in host else quote(host, safe="")
    return replace(found, hosts=f"{written}:{port}" if port else written, query=query)


class Hosts:
    """The hosts of a store's URLs, and which of each answered last."""

    def __init__(self, translate: Translate) -> None:
        self._translate = translate
        self._last: dict[str, urls.Url] = {}
        # When a host gave no answer, by the monotonic clock.
        self._silent: dict[str, float] = {}

    def search(self, url: str) -> Search:
        """Begin to look for a host."""
        each, last = each_host(split_url(url)), self._last.get(url)
        names = list(dict.fromkeys(map(_name, each)))
        if last in each and last.query.get("target_session_attrs") in _ONLY_ONE_IS:
            each = [last, *(one for one in each if one != last)]
        # A host that vanished costs every new connection its whole time-out, if it is always tried first.
        since = time.monotonic() - SILENT_SECONDS
        each.sort(key=lambda one: self._silent.get(_name(one), -math.inf) > since)
        return Search(each, names, self._translate, partial(self._found, url), self._silence)

    def _found(self, url: str, found: urls.Url) -> None:
        self._last[url] = found
        self._silent.pop(_name(found), None)

    def _silence(self, at: urls.Url) -> None:
        self._silent[_name(at)] = time.monotonic()


class Search:
    """One look for a host: iterate over it, and say of each try how it went."""

    def __init__(
        self,
        each: list[urls.Url],
        names: list[str],
        translate: Translate,
        remember: Callable[[urls.Url], None],
        silence: Callable[[urls.Url], None],
    ) -> None:
        self._each = each
        # As the URL has them, in which order they may be told.
        self._names = names
        self._translate = translate
        self.found = remember
        self._silence = silence
        self._failed: list[tuple[urls.Url, Exception, DatabaseUnavailable]] = []

    def __iter__(self) -> Iterator[urls.Url]:
        return iter(self._each)

    def failed(self, at: urls.Url, error: Exception) -> None:
        """Note why a host cannot be used. Raises: an error that every other host would give, too."""
        ours = self._translate(error)
        # One that refuses us may be a standby that has not heard of this database or password yet.
        if len(self._each) == 1 or not isinstance(ours, DatabaseUnavailable):
            raise error
        if type(ours) is DatabaseUnavailable:
            self._silence(at)
        self._failed.append((at, error, ours))

    def in_vain(self) -> DatabaseUnavailable:
        """Say what was wrong with each host."""
        told = {_name(at): _words(ours) for at, _, ours in self._failed}
        detail = "; ".join(f"{name}: {told[name]}" for name in self._names if name in told)
        # What those said that answered is nearer to the cause than the silence of others. But a refusal is final, and
        # a host that is silent, or a standby, may take us yet.
        kinds = {type(ours) for *_, ours in self._failed}
        final = {AccessRefused} if kinds == {AccessRefused} else set[type[DatabaseUnavailable]]()
        kind = next((one for one in (*final, ReadOnlyDatabase) if one in kinds), DatabaseUnavailable)
        error = kind(f"none of {len(told)} hosts will do: {detail}")
        error.__cause__ = self._failed[-1][1]
        return error


def _words(ours: DatabaseUnavailable) -> str:
    # asyncpg speaks of an attribute of its own.
    return "it takes no writes" if isinstance(ours, ReadOnlyDatabase) else ours.detail or "no answer in time"


def _name(at: urls.Url) -> str:
    return at.hosts or at.query.get("host", "localhost")
