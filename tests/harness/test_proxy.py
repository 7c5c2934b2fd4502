"""What the proxy promises to the fault tests, tried on a real PostgreSQL server."""

import asyncio
import time

import asyncpg
import psycopg
import pytest
from psycopg import OperationalError

from tests.proxy import Proxy
from tests.servers import Postgres


@pytest.fixture
def url(pg_url: str, pg_proxy: Proxy) -> str:
    """The test's database by way of the proxy, with a table of marks."""
    with psycopg.connect(pg_url) as direct:
        direct.execute("create table marks (mark text)")
    return pg_proxy.url(pg_url)


def marks(url: str) -> list[str]:
    with psycopg.connect(url) as direct:
        return [mark for (mark,) in direct.execute("select mark from marks order by mark")]


def test_the_url_keeps_everything_but_the_address(postgres: Postgres, pg_proxy: Proxy) -> None:
    original = f"postgresql://me:secret@localhost:{postgres.port}/shop?application_name=x"
    assert pg_proxy.url(original) == f"postgresql://me:secret@127.0.0.1:{pg_proxy.port}/shop?application_name=x"


def test_the_url_of_another_server_is_refused(pg_proxy: Proxy) -> None:
    with pytest.raises(ValueError, match="not to"):
        pg_proxy.url("postgresql://127.0.0.1:1/shop")


def test_ordinary_work_passes_unchanged(url: str) -> None:
    with psycopg.connect(url) as connection:
        [(text,)] = connection.execute("select repeat('x', 1000000)").fetchall()
    assert len(text) == 1_000_000


def test_a_cut_commit_is_committed_though_its_client_sees_an_error(url: str, pg_url: str, pg_proxy: Proxy) -> None:
    with psycopg.connect(url) as connection:
        connection.execute("insert into marks values ('kept')")
        pg_proxy.cut_commit_reply()
        with pytest.raises(OperationalError):
            connection.commit()
    assert marks(pg_url) == ["kept"]
    assert pg_proxy.cuts == 1


def test_a_cut_commit_through_the_extended_protocol_is_committed(url: str, pg_url: str, pg_proxy: Proxy) -> None:
    def commit_in_a_pipeline() -> None:
        with psycopg.connect(url, autocommit=True) as connection, connection.pipeline():
            connection.execute("begin")
            connection.execute("insert into marks values (%s)", ["kept"])
            pg_proxy.cut_commit_reply()
            connection.execute("commit")
            connection.execute("select 1").fetchall()

    with pytest.raises(OperationalError):
        commit_in_a_pipeline()
    assert marks(pg_url) == ["kept"]


def test_a_cut_commit_of_asyncpg_is_committed(url: str, pg_url: str, pg_proxy: Proxy) -> None:
    async def insert() -> None:
        connection = await asyncpg.connect(url)
        pg_proxy.cut_commit_reply()
        async with connection.transaction():
            await connection.execute("insert into marks values ($1)", "kept")

    with pytest.raises((ConnectionError, asyncpg.PostgresConnectionError)):
        asyncio.run(insert())
    assert marks(pg_url) == ["kept"]


def test_only_the_ordered_number_of_commits_is_cut(url: str, pg_url: str, pg_proxy: Proxy) -> None:
    pg_proxy.cut_commit_reply(times=2)
    for mark in ("a", "b"):
        connection = psycopg.connect(url)
        connection.execute("insert into marks values (%s)", [mark])
        with pytest.raises(OperationalError):
            connection.commit()
    with psycopg.connect(url) as connection:
        connection.execute("insert into marks values ('c')")
    assert marks(pg_url) == ["a", "b", "c"]
    assert pg_proxy.cuts == 2


@pytest.mark.parametrize("parameters", [None, ["kept"]], ids=["simple", "extended"])
def test_a_cut_autocommit_statement_is_committed(
    url: str, pg_url: str, pg_proxy: Proxy, parameters: list[str] | None
) -> None:
    statement = "insert into marks values (%s) returning mark" if parameters else "insert into marks values ('kept')"
    with psycopg.connect(url, autocommit=True) as connection:
        pg_proxy.drop_reply(lambda tag: tag.startswith("INSERT"))
        with pytest.raises(OperationalError):
            connection.execute(statement, parameters)
    assert marks(pg_url) == ["kept"]


def test_a_cut_asyncpg_statement_is_committed_and_shows_no_rows(url: str, pg_url: str, pg_proxy: Proxy) -> None:
    async def insert() -> None:
        connection = await asyncpg.connect(url)
        pg_proxy.drop_reply(lambda tag: tag.startswith("INSERT"))
        await connection.fetch("insert into marks values ($1) returning mark", "kept")

    with pytest.raises((ConnectionError, asyncpg.PostgresConnectionError)):
        asyncio.run(insert())
    assert marks(pg_url) == ["kept"]


def test_statements_inside_a_transaction_are_not_cut_unless_asked(url: str, pg_url: str, pg_proxy: Proxy) -> None:
    pg_proxy.drop_reply(lambda tag: tag.startswith("INSERT"))
    with psycopg.connect(url) as connection:
        connection.execute("insert into marks values ('kept')")
    pg_proxy.drop_reply(lambda tag: tag.startswith("INSERT"), inside_transactions=True)
    with psycopg.connect(url) as connection, pytest.raises(OperationalError):
        connection.execute("insert into marks values ('lost')")
    assert marks(pg_url) == ["kept"]


def test_a_failed_commit_is_not_taken_for_a_commit(url: str, pg_url: str, pg_proxy: Proxy) -> None:
    with psycopg.connect(url) as connection:
        with pytest.raises(psycopg.errors.DivisionByZero):
            connection.execute("select 1/0")
        pg_proxy.cut_commit_reply()
        connection.execute("commit")
        assert pg_proxy.cuts == 0


def test_a_reset_ends_every_connection_and_the_next_one_works(url: str, pg_proxy: Proxy) -> None:
    first, second = psycopg.connect(url), psycopg.connect(url)
    assert pg_proxy.connections == 2
    pg_proxy.reset_all()
    for connection in (first, second):
        with pytest.raises(OperationalError):
            connection.execute("select 1")
    with psycopg.connect(url) as connection:
        assert connection.execute("select 1").fetchone() == (1,)


def test_a_reset_rolls_back_the_open_transaction(url: str, pg_url: str, pg_proxy: Proxy) -> None:
    with psycopg.connect(url) as connection:
        connection.execute("insert into marks values ('lost')")
        pg_proxy.reset_all()
        with pytest.raises(OperationalError):
            connection.commit()
    assert marks(pg_url) == []


def test_a_black_hole_is_silent_and_delivers_after_healing(url: str, pg_proxy: Proxy) -> None:
    async def ask() -> None:
        connection = await asyncpg.connect(url)
        pg_proxy.blackhole()
        question = asyncio.ensure_future(connection.fetchval("select 7"))
        await asyncio.sleep(0.05)
        assert not question.done()
        pg_proxy.heal()
        assert await question == 7
        await connection.close()

    asyncio.run(ask())


def test_latency_is_paid_in_both_directions(url: str, pg_proxy: Proxy) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        pg_proxy.latency(20)
        began = time.perf_counter()
        connection.execute("select 1")
        assert time.perf_counter() - began >= 0.04


def test_a_server_that_is_down_looks_refused(postgres: Postgres) -> None:
    with Proxy(1) as proxy, pytest.raises(OperationalError):
        psycopg.connect(f"postgresql://postgres@127.0.0.1:{proxy.port}/postgres")


def test_bytes_of_another_protocol_pass_when_told_so(pg_url: str, postgres: Postgres) -> None:
    with Proxy(postgres.port, protocol=None) as proxy:
        with psycopg.connect(proxy.url(pg_url)) as connection:
            assert connection.execute("select 1").fetchone() == (1,)
        with pytest.raises(ValueError, match="PostgreSQL"):
            proxy.cut_commit_reply()
