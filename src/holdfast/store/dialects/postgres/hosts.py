"""Which host a PostgreSQL URL means: one of several, as the one that takes writes changes in a failover.

Each host is a try of its own, in both colours: libpq and asyncpg take several themselves, but asyncpg has one time-out
for all of them, each reads the settings in its own way, and neither remembers which of them was good.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
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
_NUMBERS = ("keepalives", "keepalives_idle", "keepalives_interval", "keepalives_count", "tcp_user_timeout")

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
    if numbers := found.query.get("hostaddr"):
        # libpq's, one for each host: only it knows what they are good for.
        known = zip(each, numbers.split(","), strict=False)
        each = [replace(one, query=one.query | {"hostaddr": number}) for one, number in known]
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

    def search(self, url: str) -> Search:
        """Begin to look for a host."""
        each, last = each_host(split_url(url)), self._last.get(url)
        if last in each and last.query.get("target_session_attrs") in _ONLY_ONE_IS:
            # A host that vanished costs every new connection its whole time-out, if it is always tried first.
            each = [last, *(one for one in each if one != last)]
        return Search(each, self._translate, lambda found: self._last.update({url: found}))


class Search:
    """One look for a host: iterate over it, and say of each try how it went."""

    def __init__(self, each: list[urls.Url], translate: Translate, remember: Callable[[urls.Url], None]) -> None:
        self._each = each
        self._translate = translate
        self.found = remember
        self._failed: list[tuple[urls.Url, Exception, DatabaseUnavailable]] = []

    def __iter__(self) -> Iterator[urls.Url]:
        return iter(self._each)

    def failed(self, at: urls.Url, error: Exception) -> None:
        """Note why a host cannot be used. Raises: an error that every other host would give, too."""
        ours = self._translate(error)
        # One that refuses us may be a standby that has not heard of this database or password yet.
        if len(self._each) == 1 or not isinstance(ours, DatabaseUnavailable):
            raise error
        self._failed.append((at, error, ours))

    def in_vain(self) -> DatabaseUnavailable:
        """Say what was wrong with each host."""
        told = {_name(at): _words(ours) for at, _, ours in self._failed}
        detail = "; ".join(f"{name}: {words}" for name, words in told.items())
        # What those said that answered is nearer to the cause than the silence of others.
        kinds = {type(ours) for *_, ours in self._failed}
        kind = next((one for one in (AccessRefused, ReadOnlyDatabase) if one in kinds), DatabaseUnavailable)
        error = kind(f"none of {len(told)} hosts will do: {detail}")
        error.__cause__ = self._failed[-1][1]
        return error


def _words(ours: DatabaseUnavailable) -> str:
    # asyncpg speaks of an attribute of its own.
    return "it takes no writes" if isinstance(ours, ReadOnlyDatabase) else ours.detail or "no answer in time"


def _name(at: urls.Url) -> str:
    return at.hosts or at.query.get("host", "localhost")
