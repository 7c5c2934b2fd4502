"""Holdfast's own migrations as an operation of Django's: one for each version of the tables."""

from __future__ import annotations

from typing import Any

from django.db import connections, router
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.operations.base import Operation
from django.db.migrations.recorder import MigrationRecorder

from holdfast.django.application import application
from holdfast.flow import Steps, flow
from holdfast.store import Store, migrate
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
        if _are_kept_on(schema_editor.connection.alias, app_label):
            _bring(application().store, self.version)

    def database_backwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        raise NotImplementedError("Holdfast's tables are not taken back to an older version.")

    def describe(self) -> str:
        return f"Bring Holdfast's tables to version {self.version}"

    @property
    def migration_name_fragment(self) -> str:
        return f"version_{self.version}"


def make_tables(app_config: Any, using: str, plan: Any = None, verbosity: int = 1, **said: Any) -> None:
    """Make the tables that `manage.py migrate` was expected to make, and has not.

    Django notes for each database which migrations have run there, whatever the alias, the prefix and the schema were
    in `HOLDFAST` at that time. And where migrations are switched off (`MIGRATION_MODULES`, or `MIGRATE` of a test
    database) it makes the tables of managed models alone. Called at the end of a `migrate`; a flush has no plan.
    """
    label = app_config.label
    if plan is None or any(migration.app_label == label for migration, _ in plan) or not _are_kept_on(using, label):
        return
    store, version = application().store, _version_noted(using, label)
    if version > store.run(migrate.version()):
        if verbosity >= 1 and (out := said.get("stdout")) is not None:
            out.write(f"  Making Holdfast's tables, which are not in {using!r} as HOLDFAST has them now")
        _bring(store, version)


def _are_kept_on(alias: str, app_label: str) -> bool:
    return alias == application().alias and router.allow_migrate(alias, app_label, holdfast=True)


def _version_noted(alias: str, app_label: str) -> int:
    """Tell to which version Django's migrations have come; where they are switched off, that is the newest."""
    module, _ = MigrationLoader.migrations_module(app_label)
    if module is None:
        return application().store.schema_version
    applied = MigrationRecorder(connections[alias]).applied_migrations()
    return max((int(name[:4]) for app, name in applied if app == app_label and name[:4].isdecimal()), default=0)


def _bring(store: Store, version: int) -> None:
    known = [one for one in store.migrations if one.number <= version]
    with migrate.explained(all_or_nothing=store.dialect.migrates_as_one):
        store.run(_bring_to(version, known))


@flow
def _bring_to(version: int, known: list[Migration]) -> Steps[None]:
    if (yield from migrate.version()) < version:
        yield from migrate.apply(known)
