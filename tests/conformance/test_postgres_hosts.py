"""Several hosts in one URL: which is taken, what is said where none will do, and a host that changes its part."""

import asyncio
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import asyncpg
import psycopg
import pytest

from holdfast import Holdfast, Job, admin, jobs
from holdfast.errors import AccessRefused, ConfigError, DatabaseUnavailable, ReadOnlyDatabase
from holdfast.flow import Flow
from holdfast.store import Store, migrate
from holdfast.store.dialects.postgres.hosts import OF_SEVERAL, Hosts, each_host, split_url
from holdfast.testing.make import new_job
from holdfast.values.options import StoreOptions
from tests.servers import HOST, Postgres, free_port


@pytest.fixture
def changeable(pg_url: str) -> Iterator[Postgres]:
    """A server of this test's own, with a database of the same name."""
    with Postgres() as server:
        server.create_database(pg_url.rpartition("/")[2])
        yield server


def set_read_only(server: Postgres) -> None:
    """Have a server take no more writes, on connections that are open either: as a failover leaves one behind."""
    server.execute("alter system set default_transaction_read_only = on")
    server.execute("select pg_reload_conf()")
    deadline = time.monotonic() + 30
    while server.execute("show transaction_read_only") != [("on",)]:
        assert time.monotonic() < deadline
    # Sessions hear of it one by one.
    time.sleep(0.05)


Colour = Callable[[Store, Flow[Any]], Any]


@pytest.fixture(params=["sync", "async"])
def colour(request: pytest.FixtureRequest) -> Iterator[Colour]:
    """Run flows as callers of either colour do, on connections that last."""
    stores: list[Store] = []
    with asyncio.Runner() as runner:

        def run(store: Store, work: Flow[Any]) -> Any:
            stores.append(store)
            return store.run(work) if request.param == "sync" else runner.run(store.arun(work))

        yield run
        for store in stores:
            runner.run(store.aclose())


def connect_timeout(seconds: float) -> StoreOptions:
    return StoreOptions(connect_timeout=seconds)


def ids_at(url: str) -> set[str]:
    with Holdfast(url) as hf:
        return {job.id for job in hf.store.run(admin.list_jobs())}


def before(pg_url: str, host: str, **query: str) -> str:
    """Name another host before the one of a URL."""
    front, _, rest = pg_url.partition("@")
    settings = "&".join(f"{name}={value}" for name, value in query.items())
    return f"{front}@{host},{rest}{'?' if settings else ''}{settings}"


def test_where_no_host_takes_writes_that_is_said_of_each(colour: Colour, changeable: Postgres, pg_url: str) -> None:
    set_read_only(changeable)
    dead, standby = f"{HOST}:{free_port()}", f"{HOST}:{changeable.port}"
    store = Store(before(changeable.url(pg_url.rpartition("/")[2]), dead), connect_timeout(2))
    with pytest.raises(
        ReadOnlyDatabase, match=rf"none of 2 hosts will do: {dead}: .*; {standby}: it takes no writes"
    ) as caught:
        colour(store, migrate.version())
    assert caught.value.exit_code == 4


def test_a_host_that_does_not_know_the_database_yet_is_passed_over(
    colour: Colour, pg_url: str, changeable: Postgres
) -> None:
    changeable.drop_database(pg_url.rpartition("/")[2])
    assert colour(Store(before(pg_url, f"{HOST}:{changeable.port}")), migrate.version()) == 0


def test_where_every_host_refuses_that_is_said_at_once(colour: Colour, pg_url: str, changeable: Postgres) -> None:
    store = Store(before(f"{pg_url.rpartition('/')[0]}/nothere", f"{HOST}:{changeable.port}"))
    with pytest.raises(AccessRefused, match=r"none of 2 hosts will do: .*does not exist; .*does not exist"):
        colour(store, migrate.version())


def test_a_host_that_refuses_does_not_end_the_tries_while_another_may_answer(
    colour: Colour, pg_url: str, changeable: Postgres
) -> None:
    """A standby that does not know the password refuses, while the primary starts again."""
    name = pg_url.rpartition("/")[2]
    changeable.drop_database(name)
    dead = f"{HOST}:{free_port()}"
    store = Store(before(changeable.url(name), dead), connect_timeout(2))
    with pytest.raises(DatabaseUnavailable, match=rf"none of 2 hosts will do: {dead}: .*; .*does not exist") as caught:
        colour(store, migrate.version())
    assert not isinstance(caught.value, AccessRefused)


def test_one_host_that_takes_no_writes_is_read_and_says_so_when_it_is_written_to(
    colour: Colour, changeable: Postgres, pg_url: str
) -> None:
    set_read_only(changeable)
    store = Store(changeable.url(pg_url.rpartition("/")[2]), connect_timeout(2))
    assert colour(store, migrate.version()) == 0
    with pytest.raises(ReadOnlyDatabase, match=r"Name the primary in the URL.*read-only transaction"):
        colour(store, migrate.apply(store.migrations))


def test_a_connection_whose_server_became_read_only_is_dropped_and_the_work_done_elsewhere(
    colour: Colour, pg_url: str, changeable: Postgres
) -> None:
    here = changeable.url(pg_url.rpartition("/")[2])
    for url in (here, pg_url):
        with Holdfast(url) as one:
            one.migrate()
    store = Store(before(pg_url, f"{HOST}:{changeable.port}"), connect_timeout(5))
    first, second = new_job(), new_job()
    colour(store, jobs.enqueue(first))
    set_read_only(changeable)
    colour(store, jobs.enqueue(second))
    assert [ids_at(url) for url in (here, pg_url)] == [{first.id}, {second.id}]


def test_a_connection_that_a_handler_finds_read_only_is_not_lent_again(pg_url: str, changeable: Postgres) -> None:
    """Statements of the application's own are not ours to translate, and tell the same."""
    with Holdfast(changeable.url(pg_url.rpartition("/")[2])) as hf:
        hf.migrate()
        hf.store.run(jobs.enqueue(new_job()))
        [lease] = hf.store.run(jobs.claim("mail", limit=1))
        with hf.store.link() as link:
            link.raw.execute("create table effects (n integer)")
        set_read_only(changeable)
        job = Job(lease, hf.store)

        def attempt() -> int:
            with suppress(psycopg.errors.ReadOnlySqlTransaction), job.transaction() as tx:
                pid = int(tx.info.backend_pid)
                tx.execute("insert into effects values (1)")
            return pid

        async def async_attempt() -> int:
            with suppress(asyncpg.ReadOnlySQLTransactionError):
                async with job.transaction() as tx:
                    pid = int(tx.get_server_pid())
                    await tx.execute("insert into effects values (1)")
            return pid

        async def async_attempts() -> list[int]:
            pids = [await async_attempt() for _ in range(3)]
            await hf.aclose()
            return pids

        assert len({attempt() for _ in range(3)}) == 3
        assert len(set(asyncio.run(async_attempts()))) == 3
        assert not job.settled


@pytest.mark.parametrize("rest", ["?host={host},{host}&port={port}", "&host={host}", "?port={port}", "?host={host}"])
def test_both_drivers_read_the_settings_alike(colour: Colour, pg_url: str, postgres: Postgres, rest: str) -> None:
    """One port for all hosts, and settings that say otherwise than what stands before them."""
    name = pg_url.rpartition("/")[2]
    where = f"{HOST},{HOST}" if rest.startswith("?port") else f"unknown.invalid:{postgres.port}"
    where = f"/{name}?user=postgres&port={postgres.port}" if rest.startswith("&") else f"postgres@{where}/{name}"
    url = f"postgresql://{where}{rest.format(host=HOST, port=postgres.port)}"
    assert colour(Store(url, connect_timeout(5)), migrate.version()) == 0


@pytest.mark.parametrize(
    "url, rule",
    [
        ("postgresql://a:1,b:2/shop?host=c", "as many ports as hosts"),
        ("postgresql:///shop?host=a,b,c&port=1,2", "as many ports as hosts"),
        ("postgresql:///shop?host=a,b&port=1,x", "port must be a number"),
        ("postgresql:///shop?host=a&port=65536", "port must be a number"),
        ("postgresql://a,b/shop?target_session_attrs=master", "target_session_attrs must be one of any, read-write"),
        ("postgresql://a/shop?target_session_attrs=", "target_session_attrs must be one of any, read-write"),
        ("postgresql://a,b/shop?tcp_user_timeout=soon", "tcp_user_timeout must be a whole number"),
        ("postgresql://a/shop?connect_timeout=2.5", "connect_timeout must be a whole number"),
        (
            "postgresql://a,b/shop?hostaddr=10.0.0.1,10.0.0.2",
            "hostaddr is for libpq alone; name the address as the host",
        ),
    ],
)
def test_a_url_whose_hosts_cannot_be_told_is_refused_at_once(url: str, rule: str) -> None:
    for said in ({"url": url}, {"url": "postgresql://a/shop", "listen_url": url}):
        with pytest.raises(ConfigError, match=f"^{list(said)[-1]}: .*{rule}"):
            Holdfast(**said)


def test_a_url_says_how_long_a_connection_to_its_server_may_take(colour: Colour) -> None:
    """As it does for libpq; the setting of all databases is left to what says nothing."""
    with socket.create_server((HOST, 0)) as deaf:
        url = f"postgresql://postgres@{HOST}:{deaf.getsockname()[1]}/shop?connect_timeout=1"
        with pytest.raises(DatabaseUnavailable):
            colour(Store(url, connect_timeout(86_400)), migrate.version())


def test_the_host_that_answered_last_is_tried_first() -> None:
    """Else one that has vanished costs each new connection its time-out."""
    hosts, url = Hosts(lambda _: None), "postgresql://a,b,c/shop"
    search = hosts.search(url)
    search.found(list(search)[1])
    assert [at.hosts for at in hosts.search(url)] == ["b", "a", "c"]
    assert [at.hosts for at in hosts.search("postgresql://a,b,c/other")] == ["a", "b", "c"]
    # Where any will do, the order is a wish.
    search = hosts.search(f"{url}?target_session_attrs=any")
    search.found(list(search)[1])
    assert [at.hosts for at in hosts.search(f"{url}?target_session_attrs=any")] == ["a", "b", "c"]


@pytest.mark.parametrize("query", ["", "?target_session_attrs=any"])
def test_a_host_that_gave_no_answer_is_tried_after_the_others(query: str) -> None:
    """Also before any has answered, and where any will do."""
    hosts, url = Hosts(lambda _: DatabaseUnavailable("no answer")), f"postgresql://a,b,c/shop{query}"
    search = hosts.search(url)
    silent = next(iter(search))
    search.failed(silent, TimeoutError())
    assert [at.hosts for at in hosts.search(url)] == ["b", "c", "a"]
    search.found(silent)
    assert [at.hosts for at in hosts.search(url)] == ["a", "b", "c"]


def test_a_host_that_refused_keeps_its_place() -> None:
    hosts, url = Hosts(lambda _: ReadOnlyDatabase("a standby")), "postgresql://a,b/shop"
    search = hosts.search(url)
    search.failed(next(iter(search)), OSError())
    assert [at.hosts for at in hosts.search(url)] == ["a", "b"]


@pytest.mark.parametrize("given, seconds", [({}, 10), ({"keepalives_idle": "77"}, 77)])
def test_a_host_that_vanishes_is_noticed_in_both_colours(pg_url: str, given: dict[str, str], seconds: int) -> None:
    store = Store(before(pg_url, f"{HOST}:{free_port()}", **given))
    with store.link() as link, socket.socket(fileno=os.dup(link.raw.fileno())) as sync:
        found = [watched(sync)]

    async def main() -> None:
        async with store.alink() as link:
            found.append(watched(store.dialect.socket_of(link.raw)))
        await store.aclose()

    asyncio.run(main())
    assert found == [(1, seconds, 5, 3, int(OF_SEVERAL["tcp_user_timeout"]))] * 2


def watched(link: Any) -> tuple[int, ...]:
    options = ("TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT", "TCP_USER_TIMEOUT")
    rest = [link.getsockopt(socket.IPPROTO_TCP, getattr(socket, name)) for name in options]
    return (int(link.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) != 0), *rest)


@pytest.mark.parametrize(
    "query, tries",
    [
        ("", [("a:1", "read-write"), ("b", "read-write")]),
        ("?target_session_attrs=any", [("a:1", "any"), ("b", "any")]),
        ("?target_session_attrs=read-write", [("a:1", "read-write"), ("b", "read-write")]),
        ("?target_session_attrs=prefer-standby", [("a:1", "standby"), ("b", "standby"), ("a:1", "any"), ("b", "any")]),
    ],
)
def test_hosts_are_tried_in_their_order(query: str, tries: list[tuple[str, str | None]]) -> None:
    found = each_host(split_url(f"postgresql://ann:s3cret@a:1,b/shop{query}"))
    assert [(one.hosts, one.query.get("target_session_attrs")) for one in found] == tries


def test_hosts_are_tried_in_any_order_if_the_url_says_so() -> None:
    url = split_url("postgresql://a,b,c,d/shop?load_balance_hosts=random")
    orders = {tuple(one.hosts for one in each_host(url)) for _ in range(50)}
    assert len(orders) > 1
    assert {tuple(sorted(order)) for order in orders} == {("a", "b", "c", "d")}
