"""How our own connections reach MySQL and MariaDB: TCP, socket, TLS, password; and what follows when one is lost."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from holdfast import jobs
from holdfast.errors import DatabaseUnavailable
from holdfast.flow import Steps, flow, run_text
from holdfast.store import Store, migrate
from holdfast.testing import new_job
from tests.servers import MariaDB

# A password holds what a URL must escape.
PASSWORD, ESCAPED = "p/w:d@%", "p%2Fw%3Ad%40%25"


@pytest.fixture(params=["mariadb", "mysql"])
def server(request: pytest.FixtureRequest) -> MariaDB:
    found: MariaDB = request.getfixturevalue(request.param)
    return found.start()


@flow
def answer(sql: str) -> Steps[object]:
    return (yield from run_text("answer", sql))[0]


async def both(store: Store, sql: str) -> list[object]:
    try:
        return [*store.run_once(answer(sql)), *await store.arun_once(answer(sql))]  # type: ignore[misc]
    finally:
        await store.aclose()


def test_a_socket_leads_to_the_same_server(server: MariaDB) -> None:
    assert asyncio.run(both(Store(server.socket_url()), "select @@port")) == [server.port] * 2


def test_a_password_is_taken_over_plain_tcp(server: MariaDB) -> None:
    server.execute(
        f"create user if not exists clerk@'%' identified by '{PASSWORD.replace('%', '%%')}'".replace("%%", "%")
    )
    server.execute("grant select on *.* to clerk@'%'")
    url = server.url().replace("root@", f"clerk:{ESCAPED}@")
    assert asyncio.run(both(Store(url), "select substring_index(user(), '@', 1)")) == ["clerk"] * 2
    with pytest.raises(DatabaseUnavailable) as refused:
        Store(url.replace(ESCAPED, "wrong-one")).run_once(answer("select 1"))
    assert "wrong-one" not in str(refused.value)


def test_tls_is_spoken_when_it_is_asked_for(request: pytest.FixtureRequest) -> None:
    # MariaDB makes itself certificates from 11.4 on; MySQL always does.
    server: MariaDB = request.getfixturevalue("mysql").start()
    asked = "select variable_value from performance_schema.session_status where variable_name = 'Ssl_cipher'"
    secure = asyncio.run(both(Store(server.url() + "?ssl_verify=none"), asked))
    assert all(cipher for cipher in secure)
    with pytest.raises(DatabaseUnavailable, match="certificate"):
        Store(server.url() + "?ssl=true").run_once(answer("select 1"))


@pytest.mark.parametrize("colour", ["sync", "async"])
def test_a_killed_connection_is_replaced_and_the_work_done(mariadb: MariaDB, mariadb_url: str, colour: str) -> None:
    with closing(Store(mariadb_url)) as store:
        store.run(migrate.apply(store.migrations))
        done = (
            kill_and_enqueue(mariadb, store, store.run) if colour == "sync" else asyncio.run(async_kill(mariadb, store))
        )
        assert done == 2


def kill_and_enqueue(mariadb: MariaDB, store: Store, run: Callable[..., object]) -> int:
    run(jobs.enqueue(new_job()))
    kill_all(mariadb, store)
    run(jobs.enqueue(new_job()))
    return len(store.run(jobs.claim("mail", limit=9)))


async def async_kill(mariadb: MariaDB, store: Store) -> int:
    await store.arun(jobs.enqueue(new_job()))
    kill_all(mariadb, store)
    await store.arun(jobs.enqueue(new_job()))
    claimed = await store.arun(jobs.claim("mail", limit=9))
    await store.aclose()
    return len(claimed)


def kill_all(mariadb: MariaDB, store: Store) -> None:
    name = store.url.rpartition("/")[2]
    for session, where in mariadb.execute("select id, db from information_schema.processlist"):
        if where == name:
            mariadb.execute(f"kill {session}")


def test_a_restart_of_the_server_costs_a_few_tries(mariadb_restarting: MariaDB) -> None:
    server = mariadb_restarting
    with closing(Store(server.fresh_database())) as store:
        store.run(migrate.apply(store.migrations))
        store.run(jobs.enqueue(new_job()))
        server.restart()
        store.run(jobs.enqueue(new_job()))
        assert len(store.run(jobs.claim("mail", limit=9))) == 2


@pytest.fixture
def mariadb_restarting() -> Iterator[MariaDB]:
    with MariaDB() as server:
        yield server
