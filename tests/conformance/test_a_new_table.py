"""A migration that makes a table is all that it takes: prefix, schema, sizes and missing indexes follow."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.admin import health
from holdfast.store import Store, catalogue, migrate
from holdfast.store.dialects import base
from holdfast.values.options import StoreOptions

APART = "create table holdfast_extra (id integer);\ncreate index holdfast_extra_id_idx on holdfast_extra (id);\n"
NEW = {
    "postgres": APART,
    "sqlite": APART,
    "mysql": "create table holdfast_extra (id integer, index holdfast_extra_id_idx (id));\n",
}


@pytest.fixture
def _one_more(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """One more migration; behind the store, whose tables other tests of the session share."""
    folder = tmp_path / "migrations"
    shutil.copytree(catalogue.MIGRATIONS, folder)
    for name, text in NEW.items():
        (folder / name / "9999_extra.sql").write_text(text)
    monkeypatch.setattr(catalogue, "MIGRATIONS", folder)
    _forget()
    yield
    monkeypatch.undo()
    _forget()


def _forget() -> None:
    for cached in (catalogue.schema_names, base.tables_of, base._names_in):
        cached.cache_clear()


@pytest.mark.usefixtures("_one_more")
def test_a_table_that_a_migration_adds_is_known_everywhere(store: Store) -> None:
    other = Store(store.url.partition("?")[0], StoreOptions(prefix="more"))
    other.run(migrate.apply(other.migrations))
    try:
        assert "extra" in other.dialect.tables
        assert other.dialect.place("holdfast_extra") == "more_extra"
        assert "more_extra" in {one.table for one in other.run(health.table_health())}
        assert other.run(health.missing_indexes()) == []
        with other.link() as link:
            link.tell("drop index more_extra_id_idx" + (" on more_extra" if store.dialect.name == "mysql" else ""))
        assert other.run(health.missing_indexes()) == ["more_extra_id_idx"]
    finally:
        with other.link() as link:
            for table in other.dialect.tables:
                link.tell(f"drop table {other.dialect.table(table)}")
        other.close()
