"""What `doctor` asks the database, on every store; what only PostgreSQL knows, on a server set up for it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from holdfast import jobs
from holdfast.admin import health
from holdfast.store import Store, migrate
from holdfast.store.catalogue import schema_names
from holdfast.testing import Do, new_job
from holdfast.values.options import StoreOptions
from tests.servers import Postgres

TABLES = {f"holdfast_{name}" for name in schema_names("postgres").tables}


def indexes(store: Store) -> dict[str, str]:
    """Name the indexes that the store's migrations make and keep, each with the statement that drops it."""
    text = "".join(step.sql for step in store.migrations)
    gone = set(re.findall(r"drop index (\w+)", text))
    names = [name for name in re.findall(r"index (\w+) (?:on|\()", text) if name not in gone]
    mysql = store.dialect.name == "mysql"
    return {name: f"drop index {name}" + (f" on {name.rsplit('_', 2)[0]}" if mysql else "") for name in names}


def test_a_fresh_store_misses_no_index(do: Do) -> None:
    assert do(health.missing_indexes()) == []


def test_every_index_of_the_migrations_is_missed_when_it_is_gone(store: Store) -> None:
    # Tables of its own: MySQL cannot roll a dropped index back.
    other = Store(store.url.partition("?")[0], StoreOptions(prefix="gone"))
    other.run(migrate.apply(other.migrations))
    drops = indexes(other)
    with other.link() as link:
        for drop in drops.values():
            link.tell(drop)
        assert other.run(health.missing_indexes()) == sorted(drops)
        for table in (*TABLES, "holdfast_meta"):
            link.tell(f"drop table {other.dialect.place(table)}")
    other.close()


def test_every_table_has_its_size(do: Do, store: Store) -> None:
    do(jobs.enqueue(new_job()))
    found = {one.table: one for one in do(health.table_health())}
    assert set(found) - {"(file)"} == TABLES
    sized = [found["(file)"]] if store.embedded else [found[table] for table in TABLES]
    assert all(one.total_bytes and one.total_bytes >= 8192 for one in sized)
    assert found["holdfast_jobs"].to_dict()["table"] == "holdfast_jobs"


def test_nobody_listens_and_nothing_is_held_in_a_store_at_rest(do: Do) -> None:
    assert do(health.listener_state()) == []
    assert do(health.long_transactions(older_than=600)) == []


def test_only_an_embedded_store_is_a_file(do: Do, store: Store, tmp_path: Path) -> None:
    assert do(health.database_file()) == (str(tmp_path / "test.db") if store.embedded else None)


def test_another_prefix_has_indexes_and_tables_of_its_own(tmp_path: Path) -> None:
    store = Store(f"sqlite:///{tmp_path}/other.db", StoreOptions(prefix="acme"))
    store.run(migrate.apply(store.migrations))
    assert store.run(health.missing_indexes()) == []
    assert {one.table for one in store.run(health.table_health())} >= {"acme_jobs", "acme_finished"}
    store.close()


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    """A server that allows prepared transactions and logical slots."""
    with Postgres(settings={"max_prepared_transactions": "5", "wal_level": "logical"}) as server:
        yield server.start()


@pytest.fixture
def pg(server: Postgres) -> Iterator[Store]:
    url = server.fresh_database()
    store = Store(url, StoreOptions(schema="work"))
    store.run(migrate.apply(store.migrations))
    yield store
    store.close()
    server.drop_database(url.rpartition("/")[2])


def test_an_open_transaction_is_found_with_its_age(pg: Store) -> None:
    with psycopg.connect(pg.url, application_name="report") as idle:
        idle.execute("set transaction isolation level repeatable read")
        idle.execute("select 1")
        [found] = pg.run(health.long_transactions(older_than=0))
        assert (found.holder, found.name, found.pid) == ("session", "postgres", idle.info.backend_pid)
        assert (found.application, found.state, found.query) == ("report", "idle in transaction", "select 1")
        assert found.age is not None
        assert 0 < found.age < 60
        assert found.xmin_age is not None
        assert found.to_dict()["query_started_at"].endswith("+00:00")
        assert pg.run(health.long_transactions(older_than=60)) == []


def test_a_transaction_in_another_database_holds_nothing_here(pg: Store, server: Postgres) -> None:
    with psycopg.connect(server.url()) as other:
        other.execute("select 1")
        assert pg.run(health.long_transactions(older_than=0)) == []


def test_a_forgotten_prepared_transaction_is_found(pg: Store) -> None:
    with psycopg.connect(pg.url, autocommit=True) as connection:
        connection.execute("begin")
        connection.execute("create table t ()")
        connection.execute("prepare transaction 'forgotten'")
        [found] = pg.run(health.long_transactions(older_than=0))
        connection.execute("rollback prepared 'forgotten'")
    assert (found.holder, found.name, found.pid) == ("prepared", "forgotten", None)


def test_a_forgotten_slot_is_found(pg: Store) -> None:
    with psycopg.connect(pg.url, autocommit=True) as connection:
        connection.execute("select pg_create_logical_replication_slot('forgotten', 'pgoutput')")
        found = pg.run(health.long_transactions(xids=0))
        assert pg.run(health.long_transactions()) == []
        connection.execute("select pg_drop_replication_slot('forgotten')")
    assert [(one.holder, one.name, one.state, one.age) for one in found] == [("slot", "forgotten", "inactive", None)]


def test_an_index_that_is_not_valid_counts_as_missing(pg: Store) -> None:
    assert pg.run(health.missing_indexes()) == []
    with psycopg.connect(pg.url, autocommit=True) as connection:
        connection.execute(
            "update pg_index set indisvalid = false where indexrelid = 'work.holdfast_jobs_claim_idx'::regclass"
        )
    assert pg.run(health.missing_indexes()) == ["holdfast_jobs_claim_idx"]


def test_a_listening_worker_is_seen(pg: Store) -> None:
    with psycopg.connect(pg.url, application_name="holdfast-listener", autocommit=True) as listener:
        listener.execute("listen holdfast_wake")
        [found] = pg.run(health.listener_state())
        assert (found.pid, found.state, found.address) == (listener.info.backend_pid, "idle", "127.0.0.1")
        assert found.quiet is not None
        assert found.quiet < 60


def test_rows_are_estimated_by_the_statistics(pg: Store) -> None:
    pg.run(jobs.enqueue_many([new_job() for _ in range(50)]))
    with psycopg.connect(pg.url, autocommit=True) as connection:
        connection.execute("vacuum analyze work.holdfast_jobs")
    found = {one.table: one for one in pg.run(health.table_health())}
    assert (found["work.holdfast_jobs"].live_rows, found["work.holdfast_jobs"].dead_rows) == (50, 0)
