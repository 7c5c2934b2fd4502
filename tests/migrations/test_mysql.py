"""MySQL's and MariaDB's SQL file and migrations: the same queries, each valid, and DDL that can be run again."""

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from holdfast import jobs
from holdfast.errors import ConfigError, DatabaseBusy, QueryFailed
from holdfast.store import Store, migrate
from holdfast.store.catalogue import Query, compile_statement
from holdfast.store.dialects import SCHEMA_VERSION
from holdfast.testing import new_job
from holdfast.values.options import StoreOptions
from holdfast.values.rows import Enqueued
from holdfast.worker.outage import refused
from tests.migrations.sqldiff import queries

POSTGRES, SQLITE, MYSQL = queries("postgres"), queries("sqlite"), queries("mysql")


@pytest.fixture(params=["mariadb_url", "mysql_url"], ids=["mariadb", "mysql"])
def url(request: pytest.FixtureRequest) -> str:
    found: str = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    store = Store(url)
    yield store
    store.close()


def apply(store: Store) -> list[migrate.Migration]:
    return store.run(migrate.apply(store.migrations))


def ask(store: Store, sql: str, *args: Any) -> list[tuple[Any, ...]]:
    with store.link() as link, link.raw.cursor() as cursor:
        cursor.execute(sql, args)
        return list(cursor.fetchall())


def test_the_file_holds_the_same_queries_in_the_same_order() -> None:
    assert list(MYSQL) == list(POSTGRES)


@pytest.mark.parametrize("name", MYSQL)
def test_a_query_says_what_it_is_for_in_the_words_of_another_file(name: str) -> None:
    said = MYSQL[name][0].partition("\n")[0]
    # How the lock is freed differs too.
    assert name == "schema_lock" or said in (POSTGRES[name][0].partition("\n")[0], SQLITE[name][0].partition("\n")[0])
    assert MYSQL[name][1].rstrip().endswith(";") or said.startswith("-- fragment ")


def variants(store: Store, name: str) -> list[frozenset[str]]:
    optional = store.dialect.queries[name].optional
    return [frozenset(), optional, *(frozenset({one}) for one in optional)]


def test_every_query_is_valid_on_the_migrated_server(store: Store) -> None:
    apply(store)
    texts = {"batch", "held", "found", "ids", "queues"}
    counts = {"limit", "few", "most", "skipped", "window"}
    with store.link() as link, link.raw.cursor() as cursor:
        for name in store.dialect.queries.written:
            if name == "meta_create":
                continue
            for given in variants(store, name):
                for part in store.dialect.queries[name].chosen(given, clock_is_told=True):
                    compiled = compile_statement(part, "format")
                    args = ["[]" if arg in texts else 1 if arg in counts else None for arg in compiled.names]
                    # A setting of the session cannot be explained, and does no harm.
                    explain = "" if compiled.sql.startswith("set session ") else "explain "
                    cursor.execute(f"{explain}{compiled.sql}", args)
                    cursor.fetchall()


def test_apply_makes_the_tables_once(store: Store) -> None:
    assert store.run(migrate.version()) == 0
    assert [step.number for step in apply(store)] == list(range(1, SCHEMA_VERSION + 1))
    assert apply(store) == []
    found = {
        row[0] for row in ask(store, "select table_name from information_schema.tables where table_schema = database()")
    }
    assert found == {f"holdfast_{table}" for table in store.dialect.tables}
    store.check()


def test_a_migration_that_was_cut_off_can_be_run_again(store: Store) -> None:
    with store.link() as link:
        link.tell(store.dialect.queries["meta_create"].parts[0])
        link.tell(store.migrations[0].statements[0])
    assert store.run(migrate.version()) == 0
    assert len(apply(store)) == SCHEMA_VERSION
    store.run(jobs.enqueue(new_job(idempotency_key="k")))


def test_many_migrators_at_once_make_the_tables_once(url: str) -> None:
    stores = [Store(url) for _ in range(6)]
    with ThreadPoolExecutor(6) as threads:
        done = list(threads.map(apply, stores))
    assert sorted(len(steps) for steps in done) == [0] * 5 + [SCHEMA_VERSION]
    for store in stores:
        store.close()


def test_a_migrator_that_waits_too_long_says_why(url: str, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    other = Store(url)
    with other.link() as link, link.raw.cursor() as cursor:
        cursor.execute(other.dialect.queries["schema_lock"].parts[0])
        [lock] = store.dialect.queries["schema_lock"].parts
        hurried = Query(store.dialect, "schema_lock", [lock.replace("30", "0")])
        monkeypatch.setitem(store.dialect.queries, "schema_lock", hurried)
        with pytest.raises(DatabaseBusy, match="another migrator"):
            store.run_once(migrate.apply(store.migrations))
        cursor.execute(other.dialect.queries["schema_unlock"].parts[0])
    other.close()


def test_another_prefix_is_another_store(store: Store, url: str) -> None:
    other = Store(url, StoreOptions(prefix="acme"))
    apply(store)
    apply(other)
    other.run(jobs.enqueue(new_job()))
    assert store.run(jobs.claim("mail", limit=1)) == []
    assert len(other.run(jobs.claim("mail", limit=1))) == 1
    other.close()


@pytest.mark.parametrize("like", ["Mail", "máil", "mail "])
def test_names_and_keys_that_only_look_alike_are_different(store: Store, like: str) -> None:
    apply(store)
    answers = store.run(jobs.enqueue_many([new_job(q, q, unique=q, idempotency_key=q) for q in ("mail", like)]))
    assert [answer.created for answer in answers] == [True, True]
    assert store.run(jobs.enqueue(new_job("mail", "mail", idempotency_key="mail"))) == Enqueued(
        answers[0].id, created=False
    )
    for queue in ("mail", like):
        [lease] = store.run(jobs.claim(queue, limit=9, leases={queue: 1_000, "other": 5}))
        assert (lease.queue, lease.kind) == (queue, queue)


def test_a_value_that_does_not_fit_is_refused_and_not_cut(store: Store) -> None:
    apply(store)
    for job in (new_job(key="k" * 201), new_job("q" * 101), new_job(priority=40_000)):
        with pytest.raises(Exception, match="refused"):
            store.run(jobs.enqueue_many([job]))
        with pytest.raises(Exception, match="refused"):
            store.run(jobs.enqueue(job))


def test_a_batch_larger_than_a_packet_goes_in_as_several_statements(store: Store) -> None:
    apply(store)
    quotes = '"' + '\\"' * 400_000 + '"'
    new = [new_job(payload=quotes, unique=f"u{n}" if n % 2 else None) for n in range(12)]
    assert all(answer.created for answer in store.run(jobs.enqueue_many(new)))
    leases = store.run(jobs.claim("mail", limit=99))
    assert {lease.payload for lease in leases} == {quotes}


@pytest.mark.parametrize("colour", ["sync", "async"])
def test_a_statement_larger_than_a_packet_is_a_refusal_and_no_outage(store: Store, colour: str) -> None:
    apply(store)
    [[packet]] = ask(store, "select @@max_allowed_packet")
    huge = jobs.enqueue(new_job(payload="x" * packet))
    with pytest.raises(QueryFailed, match="max_allowed_packet") as error:
        store.run_once(huge) if colour == "sync" else asyncio.run(alone(store, huge))
    assert refused(error.value)
    store.run_once(jobs.enqueue(new_job()))


async def alone(store: Store, work: Any) -> Any:
    try:
        return await store.arun_once(work)
    finally:
        await store.aclose()


def test_a_schema_is_a_database_here(url: str) -> None:
    with pytest.raises(ConfigError, match="schema"):
        Store(url, StoreOptions(schema="work"))


def test_our_connections_are_set_as_we_need_them(store: Store) -> None:
    [[mode, zone, wait]] = ask(store, "select @@sql_mode, @@time_zone, @@innodb_lock_wait_timeout")
    assert "STRICT_TRANS_TABLES" in mode
    assert (zone, wait) == ("+00:00", 5)
    [[_, level]] = ask(
        store, "show variables where variable_name = 'tx_isolation' or variable_name = 'transaction_isolation'"
    )
    assert level == "READ-COMMITTED"
