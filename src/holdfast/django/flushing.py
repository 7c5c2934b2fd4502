"""Emptying our tables where Django's tests empty those of models."""

from __future__ import annotations

from typing import Any

from django.core.management import get_commands
from django.db import connections

from holdfast.django.application import application
from holdfast.store import migrate
from holdfast.testing.django_tests import is_test_database, is_testing
from holdfast.testing.make import empty


def on_migrated(using: str, plan: Any = None, **_: Any) -> None:
    """Hear that Django has migrated a database, or flushed it by a command that is not ours; then there is no plan."""
    if plan is not None or get_commands()["flush"] != "holdfast.django":
        empty_test_tables(using)


def empty_test_tables(using: str) -> None:
    """Empty our tables in a test database once Django has flushed it, or made it.

    A TransactionTestCase ends so, and a flush takes the tables of models alone: jobs would be left for the next test.
    Connections of our own are closed, too.
    """
    if not is_testing():
        return
    app = application()
    known = using == app.alias and (app.store.in_memory or is_test_database(connections[using]))
    if known and app.store.run(migrate.version()) == app.store.schema_version:
        app.store.run(empty(app.store))
    if known:
        # Opened beside Django's, for progress in a block. A server drops no database that is in use.
        app.store.close()
