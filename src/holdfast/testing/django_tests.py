"""Django's tests run on databases of their own; a Holdfast made at import still names the one of development.

Nothing here imports Django: it looks at what the application has loaded.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from holdfast.app import Holdfast
from holdfast.errors import ConfigError
from holdfast.flow import Steps, flow, run_text
from holdfast.store.dialects.sqlite import path_of

_VENDORS = {"postgres": "postgresql", "mysql": "mysql", "sqlite": "sqlite"}
_NAME = {"postgres": "select current_database()", "mysql": "select database()"}


async def acheck_database(app: Holdfast) -> None:
    """Refuse a database that is not Django's test database, where Django's tests use one of the same kind.

    Raises: ConfigError.
    """
    if known := _known(app):
        _compare(known, path_of(app.url) if app.store.embedded else await app.store.arun(_database_name(app)))


def check_database(app: Holdfast) -> None:
    """The sync twin of `acheck_database`."""
    if known := _known(app):
        _compare(known, path_of(app.url) if app.store.embedded else app.store.run(_database_name(app)))


def _known(app: Holdfast) -> list[Any]:
    """List Django's connections to databases of the application's kind, while its tests run."""
    if app.store.in_memory or not is_testing():
        return []
    return list(_connections(_VENDORS[app.store.dialect.name]))


def _compare(known: list[Any], name: Any) -> None:
    if not any(is_test_database(one) and _same(_name(one), name) for one in known):
        theirs = " and ".join(sorted(map(_name, known)))
        raise ConfigError(
            "database",
            f"run_due runs jobs for real, isolate() deletes them, and Django's tests run on {theirs}: give "
            "Holdfast the URL of the test database, or say own_database=True if this one is for tests, too",
            name,
        )


def is_testing() -> bool:
    """Tell whether Django's test environment is set up: then, and only then, mails are collected here."""
    return hasattr(sys.modules.get("django.core.mail"), "outbox")


def _connections(vendor: str) -> Iterator[Any]:
    connections: Any = getattr(sys.modules.get("django.db"), "connections", ())
    for alias in connections:
        connection = connections[alias]
        if connection.vendor == vendor:
            yield connection


def is_test_database(connection: Any) -> bool:
    """Tell a test database from one that this test has not asked for: that is still the one of development."""
    settings: dict[str, Any] = connection.settings_dict.get("TEST") or {}
    named = settings.get("NAME")
    if not named:
        return _name(connection).startswith("test_")
    # Copies for parallel tests have a suffix, SQLite's before the extension.
    stem, extension = os.path.splitext(str(named))
    return re.fullmatch(rf"{re.escape(stem)}(_\w+)?{re.escape(extension)}", _name(connection)) is not None


@flow
def _database_name(app: Holdfast) -> Steps[str]:
    [[name]] = yield from run_text("database_name", _NAME[app.store.dialect.name])
    return str(name)


def _name(connection: Any) -> str:
    return str(connection.settings_dict["NAME"])


def _same(one: str, other: str) -> bool:
    # Names of databases are not paths, and then this changes neither.
    return one == other or (os.sep in one + other and Path(one).resolve() == Path(other).resolve())
