"""How connections to PostgreSQL open: several hosts in one URL, and databases and sessions in other encodings."""

import asyncio
import json
import socket
import time
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from holdfast import Holdfast, Retry, admin
from holdfast.errors import DatabaseUnavailable
from holdfast.testing.inline import run_due
from tests.proxy import Proxy
from tests.servers import HOST, Postgres, free_port


def one(word: str = "") -> None: ...


def refuse() -> None:
    raise ValueError("schön kaputt 😀")


def use(hf: Holdfast) -> None:
    """Do a little of everything: sync, async, and a worker that runs what was added."""
    hf.migrate()
    handler = hf.job(kind="one")(one)
    added = [handler.enqueue(word="é😀").id, handler.using(idempotency_key="k").enqueue(word="é").id]

    def wait() -> None:
        deadline = time.monotonic() + 60
        while hf.store.run(admin.count_jobs(admin.Filter(states=("done",)))) < 3:
            assert time.monotonic() < deadline
            time.sleep(0.05)

    async def main() -> None:
        added.append((await handler.using(unique="u").aenqueue(word="😀")).id)
        async with hf.worker(poll=0.05):
            await asyncio.to_thread(wait)
        await hf.aclose()

    asyncio.run(main())
    assert {job.id for job in hf.store.run(admin.list_jobs())} == set(added)


def test_a_failure_is_told_in_its_own_words_whatever_the_encoding(encoded: str) -> None:
    with Holdfast(encoded) as hf:
        hf.migrate()
        handler = hf.job(kind="ärger", retry=Retry(max_attempts=1))(refuse)
        handler.enqueue()
        run_due(hf, raise_errors=False)
        [group] = hf.store.run(admin.dead_groups())
        assert (group.kind, group.error_message) == ("ärger", "schön kaputt 😀")


def words(hf: Holdfast) -> set[str]:
    return {json.loads(job.payload)["word"] for job in hf.store.run(admin.list_jobs())}


@pytest.fixture
def silent() -> Iterator[str]:
    """The address of a host that accepts a connection and never says a word."""
    with socket.create_server((HOST, 0)) as deaf:
        yield f"{HOST}:{deaf.getsockname()[1]}"


@pytest.fixture
def replica(postgres: Postgres, pg_url: str) -> Iterator[str]:
    """The address of another server, which takes no writes."""
    with Postgres() as server:
        server.create_database(pg_url.rpartition("/")[2])
        server.execute("alter system set default_transaction_read_only = on")
        server.execute("select pg_reload_conf()")
        yield f"{HOST}:{server.port}"


def several(pg_url: str, *before: str, **query: str) -> str:
    """Put other hosts before the one that a URL names."""
    front, _, rest = pg_url.partition("@")
    settings = "&".join(f"{name}={value}" for name, value in query.items())
    return f"{front}@{','.join([*before, rest])}{'?' if settings else ''}{settings}"


def test_a_dead_first_host_is_passed_over(pg_url: str) -> None:
    with Holdfast(several(pg_url, f"{HOST}:{free_port()}")) as hf:
        use(hf)


def test_a_silent_first_host_is_passed_over(pg_url: str, silent: str) -> None:
    with Holdfast(several(pg_url, silent), connect_timeout=2) as hf:
        use(hf)


def test_a_first_host_that_takes_no_writes_is_passed_over(pg_url: str, replica: str) -> None:
    with Holdfast(several(pg_url, replica, target_session_attrs="read-write")) as hf:
        use(hf)


def test_one_of_several_hosts_takes_writes_though_the_url_does_not_ask_for_it(pg_url: str, replica: str) -> None:
    with Holdfast(several(pg_url, replica)) as hf:
        use(hf)


def test_the_listener_finds_the_host_that_takes_writes(pg_url: str, replica: str) -> None:
    with Holdfast(pg_url, listen_url=several(pg_url, replica)) as hf:
        use(hf)
        assert hf.store.echo(5.0).heard


def test_hosts_may_stand_in_the_settings_too(pg_url: str, postgres: Postgres) -> None:
    name = pg_url.rpartition("/")[2]
    ports = f"{free_port()},{postgres.port}"
    with Holdfast(f"postgresql:///{name}?user=postgres&host={HOST},{HOST}&port={ports}") as hf:
        use(hf)


def test_hosts_that_are_all_dead_are_an_outage(pg_url: str) -> None:
    dead = f"postgresql://postgres@{HOST}:{free_port()},{HOST}:{free_port()}/none"
    with Holdfast(dead, connect_timeout=1) as hf:
        handler = hf.job(kind="one")(one)
        with pytest.raises(DatabaseUnavailable):
            hf.store.run_once(admin.list_jobs())

        async def main() -> None:
            with pytest.raises(DatabaseUnavailable):
                await hf.store.arun_once(admin.list_jobs())
            await hf.aclose()

        asyncio.run(main())
        assert handler.kind == "one"


def test_a_server_that_accepts_and_says_nothing_is_an_outage(pg_url: str, pg_proxy: Proxy) -> None:
    pg_proxy.blackhole()
    with Holdfast(pg_proxy.url(pg_url), connect_timeout=1) as hf, pytest.raises(DatabaseUnavailable):
        hf.store.run_once(admin.list_jobs())


@pytest.fixture
def ascii_url(postgres: Postgres) -> Iterator[str]:
    """A database that knows no encoding, as initdb makes them in the C locale."""
    name = f"ascii_{time.monotonic_ns()}"
    postgres.start().execute(f"create database {name} encoding 'SQL_ASCII' template template0")
    yield postgres.url(name)
    postgres.drop_database(name)


@pytest.fixture(params=["ascii", "setting", "url"])
def encoded(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """A database, or settings, whose sessions speak something else than UTF-8 unless asked."""
    if request.param == "ascii":
        return str(request.getfixturevalue("ascii_url"))
    url = str(request.getfixturevalue("pg_url"))
    if request.param == "url":
        return f"{url}?client_encoding=LATIN1"
    monkeypatch.setenv("PGCLIENTENCODING", "LATIN1")
    return url


def test_texts_are_what_they_were_in_any_encoding(encoded: str) -> None:
    with Holdfast(encoded) as hf:
        use(hf)
        assert words(hf) == {"é😀", "é", "😀"}


KEYED: list[dict[str, Any]] = [{}, {"idempotency_key": "ké"}, {"unique": "ü"}]


def test_a_caller_of_a_database_without_an_encoding_enqueues(ascii_url: str) -> None:
    with Holdfast(ascii_url) as hf:
        hf.migrate()
        handler = hf.job(kind="ärger")(one)
        for said in KEYED:
            with psycopg.connect(ascii_url) as tx:
                first, second = [handler.using(tx=tx, **said).enqueue(word="é😀") for _ in range(2)]
            assert (first.id == second.id, second.created) == (bool(said), not said)
        assert words(hf) == {"é😀"}


def test_an_async_caller_of_a_database_without_an_encoding_enqueues(ascii_url: str) -> None:
    async def main() -> None:
        with Holdfast(ascii_url) as hf:
            handler = hf.job(kind="ärger")(one)
            for said in KEYED:
                async with await psycopg.AsyncConnection.connect(ascii_url) as tx:
                    first, second = [await handler.using(tx=tx, **said).aenqueue(word="é😀") for _ in range(2)]
                assert (first.id == second.id, second.created) == (bool(said), not said)
            await hf.aclose()

    with Holdfast(ascii_url) as hf:
        hf.migrate()
    asyncio.run(main())
