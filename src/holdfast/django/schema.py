"""Holdfast's own migrations as an operation of Django's: one for each version of the tables."""

from __future__ import annotations

from typing import Any

from django.db import router
from django.db.migrations.operations.base import Operation

from holdfast.django.application import application
from holdfast.flow import Steps, flow
from holdfast.store import migrate
from holdfast.store.migrate import Migration


class HoldfastSchema(Operation):
    """Bring Holdfast's tables to a version, on the alias that holds them and on no other.

    Tables that `holdfast migrate` has brought there, or further, are left as they are.
    """

    reduces_to_sql = False
    reversible = False

    def __init__(self, version: int) -> None:
        self.version = version

    def state_forwards(self, app_label: str, state: Any) -> None:
        """Nothing: the tables are no models."""

    def database_forwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        alias, app = schema_editor.connection.alias, application()
        if alias != app.alias or not router.allow_migrate(alias, app_label, holdfast=True):
            return
        store = app.store
        known = [one for one in store.migrations if one.number <= self.version]
        with migrate.explained(all_or_nothing=store.dialect.migrates_as_one):
            store.run(_bring_to(self.version, known))

    def database_backwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        raise NotImplementedError("Holdfast's tables are not taken back to an older version.")

    def describe(self) -> str:
        return f"Bring Holdfast's tables to version {self.version}"

    @property
    def migration_name_fragment(self) -> str:
        return f"version_{self.version}"


@flow
def _bring_to(version: int, known: list[Migration]) -> Steps[None]:
    if (yield from migrate.version()) < version:
        yield from migrate.apply(known)
