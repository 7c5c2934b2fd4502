"""Migrations: explicit, all or nothing, one at a time, under any prefix."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from holdfast import admin, jobs
from holdfast.admin import health
from holdfast.errors import ConfigError, QueryFailed, SchemaMismatch, SchemaMissing
from holdfast.flow import Steps, flow, run_text
from holdfast.store import Store, migrate
from holdfast.store.dialects import SCHEMA_VERSION
from holdfast.store.dialects.postgres import channel_of
from holdfast.store.migrate import Migration
from holdfast.testing import Look, new_job
from holdfast.values.options import StoreOptions
from tests.races.stepping import PATIENCE, on_thread, stepped

BAD_NAMES = ["", "a;drop table x", "Upper", "1st", "a-b", "a.b", 'a"b', "a b", "é", "x" * 41, "a\n", 7]

CATALOGUE = {
    "sqlite": "select name from sqlite_master where name not like 'sqlite_%'",
    "postgres": "select relname from pg_class where relnamespace not in "
    "(select oid from pg_namespace where nspname like 'pg_%' or nspname = 'information_schema')",
}


@flow
def text(sql: str) -> Steps[Any]:
    return (yield from run_text("text", sql))


def made(store: Store) -> set[str]:
    """Name every table and index that the database has."""
    return {row[0] for row in store.run(text(CATALOGUE[store.dialect.name]))}


@pytest.fixture(params=["sqlite_url", "pg_url"], ids=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest) -> str:
    found: str = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    """A store on an empty database."""
    store = Store(url)
    yield store
    store.close()


def apply(store: Store) -> list[Migration]:
    return store.run(migrate.apply(store.migrations))


def test_a_new_database_has_everything_still_to_run(store: Store) -> None:
    assert store.run(migrate.version()) == 0
    assert store.run(migrate.pending(store.migrations)) == store.migrations
    assert made(store) == set()


def test_apply_runs_every_migration_in_order(store: Store) -> None:
    assert [migration.number for migration in apply(store)] == list(range(1, SCHEMA_VERSION + 1))
    assert store.run(migrate.version()) == SCHEMA_VERSION
    assert store.run(migrate.pending(store.migrations)) == []
    assert {store.dialect.table(table) for table in store.dialect.tables} <= made(store)
    store.check()


def test_apply_a_second_time_runs_nothing(store: Store) -> None:
    apply(store)
    before = made(store)
    assert apply(store) == []
    assert made(store) == before


def test_both_dialects_have_the_same_migrations(sqlite_url: str, pg_url: str) -> None:
    names = [[migration.name for migration in Store(url).migrations] for url in (sqlite_url, pg_url)]
    assert names[0] == names[1]
    assert len(names[0]) == SCHEMA_VERSION


def test_the_sql_of_the_migrations_run_by_hand_makes_the_same_tables(url: str, store: Store) -> None:
    with store.link() as link:
        link.tell(store.dialect.queries["meta_create"].parts[0])
        for migration in store.migrations:
            for statement in migration.sql.split(";\n"):
                if statement.strip():
                    link.tell(statement)
    by_hand = named(store)
    other = Store(url, StoreOptions(prefix="other"))
    apply(other)
    assert {name.replace("other_", "holdfast_") for name in named(other) - by_hand} == by_hand
    other.close()


def named(store: Store) -> set[str]:
    """Name every table and index but those that the database named itself."""
    return {name for name in made(store) if "toast" not in name}


def test_tables_that_are_missing_are_named_with_the_cure(store: Store) -> None:
    with pytest.raises(SchemaMissing, match="holdfast migrate apply") as missing:
        store.check()
    assert missing.value.exit_code == 3
    with pytest.raises(SchemaMissing, match="holdfast migrate apply"):
        store.run(jobs.enqueue(new_job()))
    assert made(store) == set()


def test_a_schema_that_is_ahead_is_refused_by_check_and_by_apply(store: Store) -> None:
    apply(store)
    store.run(text("update holdfast_meta set value = '99' where key = 'schema_version'"))
    for refused in (migrate.check(SCHEMA_VERSION), migrate.pending(store.migrations), migrate.apply(store.migrations)):
        with pytest.raises(SchemaMismatch, match=r"version 99, it needs .*upgrade holdfast") as mismatch:
            store.run(refused)
        assert (mismatch.value.found, mismatch.value.expected, mismatch.value.exit_code) == (99, SCHEMA_VERSION, 3)


def test_a_schema_that_is_behind_is_refused_with_what_to_run(store: Store) -> None:
    apply(store)
    with pytest.raises(SchemaMismatch, match="run `holdfast migrate apply --app module:attribute`"):
        store.run(migrate.check(SCHEMA_VERSION + 1))


def test_only_what_is_new_runs_on_an_older_schema(store: Store) -> None:
    apply(store)
    later = Migration(SCHEMA_VERSION + 1, "later", ("create table later (id integer)",))
    assert store.run(migrate.apply([*store.migrations, later])) == [later]
    assert store.run(migrate.version()) == SCHEMA_VERSION + 1
    assert "later" in made(store)


def test_a_migration_that_fails_leaves_nothing(store: Store) -> None:
    broken = Migration(
        SCHEMA_VERSION + 1, "broken", ("create table half (id integer)", "create table half (id integer)")
    )
    with pytest.raises(QueryFailed):
        store.run(migrate.apply([*store.migrations, broken]))
    assert made(store) == set()
    assert store.run(migrate.version()) == 0
    assert apply(store) == store.migrations


def test_a_later_migration_that_fails_leaves_the_schema_as_it_was(store: Store) -> None:
    apply(store)
    before = made(store)
    broken = Migration(SCHEMA_VERSION + 1, "broken", ("create table half (id integer)", "no sql at all"))
    with pytest.raises(QueryFailed):
        store.run(migrate.apply([*store.migrations, broken]))
    assert made(store) == before
    store.check()


def test_a_migrator_that_loses_its_connection_half_way_leaves_nothing(store: Store) -> None:
    with stepped(store, migrate.apply(store.migrations)) as one:
        one.step_through(store.migrations[0].name)
        one.step()
        one.link.close()
        one.open = False
    store.close()
    again = Store(store.url)
    assert made(again) == set()
    assert apply(again) == again.migrations
    again.close()


DIE_HALF_WAY = """
import os, sys
from holdfast import migrate
from holdfast.store import Store

def statements():
    yield "create table half (id integer)"
    os._exit(9)

store = Store(sys.argv[1])
store.run(migrate.apply([*store.migrations, migrate.Migration(99, "dies", statements())]))
"""


def test_a_migrator_that_is_killed_half_way_leaves_nothing(store: Store) -> None:
    done = subprocess.run([sys.executable, "-c", DIE_HALF_WAY, store.url], check=False)
    assert done.returncode == 9
    assert made(store) == set()
    assert apply(store) == store.migrations


def test_migrators_at_once_migrate_once(url: str) -> None:
    stores = [Store(url, StoreOptions(busy_timeout=10)) for _ in range(4)]
    answers = [on_thread(lambda store=store: apply(store)) for store in stores]
    done = [answer.result(PATIENCE) for answer in answers]
    assert sorted(len(ran) for ran in done) == [0, 0, 0, SCHEMA_VERSION]
    for store in stores:
        store.check()
        store.close()


@pytest.mark.parametrize("prefix", ["hf", "holdfast_eu", "my_holdfast", "_", "x" * 40])
def test_a_prefix_names_every_table_and_index(url: str, prefix: str) -> None:
    store = Store(url, StoreOptions(prefix=prefix))
    apply(store)
    assert {name for name in made(store) if not name.startswith((f"{prefix}_", "pg_toast"))} == set()
    assert {f"{prefix}_{table}" for table in store.dialect.tables} <= made(store)
    job = new_job()
    store.run(jobs.enqueue(job))
    assert [row.id for row in Look(store.run, store).live()] == [job.id]
    store.close()


def test_two_prefixes_live_side_by_side(url: str) -> None:
    stores = [Store(url, StoreOptions(prefix=prefix)) for prefix in ("red", "blue")]
    new = [new_job(idempotency_key="k", unique="u") for _ in stores]
    for store in stores:
        with pytest.raises(SchemaMissing):
            store.check()
        assert apply(store) == store.migrations
    for store, job in zip(stores, new, strict=True):
        assert store.run(jobs.enqueue(job)).created
    for store, job in zip(stores, new, strict=True):
        assert [lease.job_id for lease in store.run(jobs.claim("mail", limit=9))] == [job.id]
        store.close()


RESERVED = [("user", "holdfast"), ("order", "user"), ("select", "table"), ("current_user", "all")]
LONG_NAMES = [("a" * 40, "b" * 18), ("a" * 40, "b" * 40)]
SCHEMAS = [("jobs", "holdfast"), ("holdfast_app", "hf"), ("app", "holdfast_eu"), *RESERVED, *LONG_NAMES]


@pytest.mark.parametrize("schema, prefix", SCHEMAS)
def test_a_postgres_schema_holds_every_table(pg_url: str, schema: str, prefix: str) -> None:
    store = Store(pg_url, StoreOptions(schema=schema, prefix=prefix))
    apply(store)
    sql = "select tablename, schemaname from pg_tables where schemaname not in ('pg_catalog', 'information_schema')"
    assert dict(store.run(text(sql))) == {f"{prefix}_{table}": schema for table in store.dialect.tables}
    job = new_job(unique="u", idempotency_key="k")
    store.run(jobs.enqueue(job))
    [lease] = store.run(jobs.claim("mail", limit=1))
    store.run(jobs.complete(lease))
    assert [row.id for row in Look(store.run, store).over()] == [job.id]
    store.close()


@pytest.mark.parametrize("schema, prefix", [*RESERVED, *LONG_NAMES])
def test_any_name_that_is_accepted_has_everything_that_is_looked_for(pg_url: str, schema: str, prefix: str) -> None:
    store = Store(pg_url, StoreOptions(schema=schema, prefix=prefix))
    apply(store)
    assert apply(store) == []
    store.check()
    assert store.run(health.missing_indexes()) == []
    tables = [(one.table, one.live_rows is not None) for one in store.run(health.table_health())]
    assert tables == sorted((f"{schema}.{prefix}_{table}", True) for table in store.dialect.tables if table != "meta")
    store.run(jobs.enqueue(new_job(unique="u", idempotency_key="k")))
    assert len(store.run(admin.list_jobs())) == 1
    store.close()


@pytest.mark.parametrize("schema, prefix", [("order", "user"), *LONG_NAMES])
def test_an_enqueue_is_heard_under_any_name_that_is_accepted(pg_url: str, schema: str, prefix: str) -> None:
    store = Store(pg_url, StoreOptions(schema=schema, prefix=prefix))
    apply(store)
    channel = channel_of(store.options)
    heard: list[str] = []

    async def main() -> None:
        # As a worker listens.
        link = await store.aopen()
        await link.raw.add_listener(channel, lambda *about: heard.append(about[-1]))
        await store.arun(jobs.enqueue(new_job()))
        await store.arun(jobs.enqueue_many([new_job("bulk"), new_job("bulk", payload="1")]))
        await link.raw.execute("select 1")
        link.close()
        await store.aclose()

    asyncio.run(main())
    assert heard == ["mail", "bulk"]


def test_a_channel_too_long_for_a_name_is_told_from_others() -> None:
    options = [StoreOptions(schema="a" * 40, prefix="b" * length) for length in (17, 18, 39, 40)]
    channels = [channel_of(each) for each in options]
    assert [len(each) for each in channels] == [63, 63, 63, 63]
    assert len(set(channels)) == len(channels)
    assert channels[0] == f"{'a' * 40}_{'b' * 17}_wake"


def test_a_schema_that_is_there_already_is_used(pg_url: str) -> None:
    with psycopg.connect(pg_url, autocommit=True) as admin:
        admin.execute("create schema jobs")
    store = Store(pg_url, StoreOptions(schema="jobs"))
    apply(store)
    store.check()
    store.close()


def test_the_same_prefix_in_two_postgres_schemas_is_two_stores(pg_url: str) -> None:
    stores = [Store(pg_url, StoreOptions(schema=schema)) for schema in ("red", "blue")]
    for store in stores:
        apply(store)
    stores[0].run(jobs.enqueue(new_job()))
    assert [len(store.run(jobs.claim("mail", limit=9))) for store in stores] == [1, 0]
    for store in stores:
        store.close()


@pytest.mark.parametrize("name", BAD_NAMES)
@pytest.mark.parametrize("setting", ["prefix", "schema"])
def test_a_name_that_is_no_identifier_is_refused(setting: str, name: Any) -> None:
    with pytest.raises(ConfigError, match=setting):
        StoreOptions(**{setting: name})


def test_sqlite_refuses_a_schema(sqlite_url: str) -> None:
    with pytest.raises(ConfigError, match="SQLite has no schemas"):
        Store(sqlite_url, StoreOptions(schema="jobs"))


def test_a_database_in_memory_is_migrated_by_itself() -> None:
    store = Store("sqlite:///:memory:")
    store.check()
    store.close()
