"""What a project says in its setting `HOLDFAST`, and in the entry of `DATABASES` that it names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from django.conf import settings
from django.db import DEFAULT_DB_ALIAS, connections

from holdfast.django.databases import options_of
from holdfast.errors import ConfigError
from holdfast.values.options import StoreKeywords, only_options

_OPTIONS = tuple(StoreKeywords.__annotations__)


def said() -> dict[str, Any]:
    """Read the setting `HOLDFAST`. Raises: ConfigError."""
    given: object = getattr(settings, "HOLDFAST", None) or {}
    if not isinstance(given, Mapping):
        raise ConfigError("HOLDFAST", 'must be a dictionary such as {"database": "default"}', given)
    found = dict(cast("Mapping[str, Any]", given))
    only_options("the setting HOLDFAST", found, ("database", *_OPTIONS))
    return found


def alias() -> str:
    """Name the alias of `DATABASES` that the tables are in. Raises: ConfigError."""
    name = said().get("database", "default")
    if name not in connections.settings:
        known = ", ".join(connections.settings)
        raise ConfigError('HOLDFAST["database"]', f"must be an alias of DATABASES, which has {known}", name)
    return str(name)


def migrate_command(alias: str) -> str:
    """Write what makes the tables on an alias, as it is typed."""
    return "manage.py migrate" + ("" if alias == DEFAULT_DB_ALIAS else f" --database {alias}")


def options() -> StoreKeywords:
    """List the options of the application: those of `HOLDFAST`, then what the entry of `DATABASES` says of time."""
    own = {name: value for name, value in said().items() if name != "database"}
    return cast("StoreKeywords", options_of(connections[alias()]) | own)
