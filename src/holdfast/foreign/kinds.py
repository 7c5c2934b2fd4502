"""How each kind of foreign tables is named where no application makes it: `pdo:jobs?retry_after=60`.

The command line reads this list, so that a further kind adds its line here and touches no command.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from holdfast.foreign.durable.engine import tables_of
from holdfast.foreign.registry import Foreign
from holdfast.foreign.source import ForeignSource
from holdfast.remote import Transport
from holdfast.store import Store


class Kind(NamedTuple):
    """One kind of foreign tables as people name it, and how its source is made of that."""

    # What stands behind the colon, in help and errors.
    rest: str
    # And what is meant where nothing does.
    default: str
    # What may be said after a question mark, and how its text is read.
    settings: Mapping[str, Callable[[str], Any]]
    open: Callable[..., ForeignSource]


def _pdo(foreign: Foreign, table: str, **settings: Any) -> ForeignSource:
    return foreign.pdo(table, **settings)


def _durable(foreign: Foreign, said: str, **settings: Any) -> ForeignSource:
    prefix, _, partition = said.partition("@")
    return foreign.durable(prefix, partition or None, **settings)


def _airlock(foreign: Foreign, table: str, **settings: Any) -> ForeignSource:
    return foreign.airlock(table, **settings)


KINDS: Mapping[str, Kind] = {
    "pdo": Kind("TABLE", "jobs", {"failed_table": str, "timezone": str, "retry_after": int}, _pdo),
    "durable": Kind("PREFIX", "durable", {"lease": float}, _durable),
    "airlock": Kind("TABLE", "airlock_messages", {"meta": str, "lease": float, "max_attempts": int}, _airlock),
}


def transport_of(store: Store, engine: str) -> Transport:
    """Make the transport of an engine of remote steps, called by the prefix of its tables. Raises: ConfigError."""
    return tables_of(store, engine, engine, 0)


def forms() -> str:
    """Say in which forms foreign tables are named: `pdo:TABLE, durable:PREFIX or airlock:TABLE`."""
    *first, last = [f"{name}:{kind.rest}" for name, kind in KINDS.items()]
    return f"{', '.join(first)} or {last}" if first else last
