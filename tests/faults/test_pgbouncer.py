"""Behind PgBouncer in transaction mode, where each transaction may run on another server session.

Two bouncers: one that keeps prepared statements apart (1.21 and newer), and one that does not, as older ones are.
There are fewer server sessions than clients, so that sessions do change hands.
"""

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import asyncpg
import psycopg
import pytest

from holdfast import Holdfast, Job, LeaseLost, jobs
from holdfast.errors import QueryFailed
from holdfast.values.rows import Finish, Lease
from tests.servers import PgBouncer, Postgres

FEW = {"default_pool_size": "3"}
ROUNDS = 20
CLIENTS = 8


@pytest.fixture(scope="module")
def modern(postgres: Postgres) -> Iterator[PgBouncer]:
    with PgBouncer(postgres, settings=FEW) as bouncer:
        if bouncer.version < (1, 21):
            pytest.skip(f"PgBouncer {bouncer.version} keeps no prepared statements in transaction mode")
        yield bouncer


@pytest.fixture(scope="module")
def plain(postgres: Postgres) -> Iterator[PgBouncer]:
    with PgBouncer(postgres, settings=FEW) as bouncer:
        if bouncer.version >= (1, 21):
            bouncer.stop()
            bouncer.settings["max_prepared_statements"] = "0"
            bouncer.start()
        yield bouncer


@pytest.fixture(params=["plain", "modern"], ids=["prepare=False", "prepare=True"])
def hf(request: pytest.FixtureRequest, pg_url: str) -> Iterator[Holdfast]:
    """An application behind PgBouncer, with prepared statements only where the bouncer keeps them."""
    bouncer: PgBouncer = request.getfixturevalue(request.param)
    with Holdfast(pg_url) as direct:
        direct.migrate()
    app = Holdfast(bouncer.url(pg_url.rpartition("/")[2]), prepare=request.param == "modern", pool_size=CLIENTS)
    app.job(receipt)
    with psycopg.connect(pg_url) as connection:
        connection.execute("create table orders (id bigint)")
    yield app
    app.close()


def receipt(order: int) -> None: ...


def count(hf: Holdfast, table: str) -> int:
    with hf.store.link() as link:
        return int(link.raw.execute(f"select count(*) from {table}").fetchone()[0])  # noqa: S608 - a name of this file


def finish(lease: Lease) -> Finish:
    return Finish(lease.id, lease.fence, "done")


def test_sync_clients_share_few_sessions(hf):
    def client(number: int) -> None:
        for n in range(ROUNDS):
            hf.enqueue("receipt", {"order": number}, idempotency_key=f"{number}/{n}")
            leases = hf.store.run(jobs.claim("default", limit=2))
            assert not hf.store.run(jobs.settle([finish(lease) for lease in leases])).lost
            for lease in hf.store.run(jobs.claim("default", limit=1)):
                with Job(lease, hf.store).transaction() as tx:
                    tx.execute("insert into orders values (%s)", (n,))
            hf.store.run(jobs.reap())

    with ThreadPoolExecutor(CLIENTS) as threads:
        list(threads.map(client, range(CLIENTS)))
    assert count(hf, "holdfast_jobs") + count(hf, "holdfast_finished") == CLIENTS * ROUNDS


def test_async_clients_share_few_sessions(hf):
    async def client(number: int) -> None:
        for n in range(ROUNDS):
            await hf.aenqueue("receipt", {"order": number}, idempotency_key=f"{number}/{n}")
            leases = await hf.store.arun(jobs.claim("default", limit=2))
            assert not (await hf.store.arun(jobs.settle([finish(lease) for lease in leases]))).lost
            for lease in await hf.store.arun(jobs.claim("default", limit=1)):
                async with Job(lease, hf.store).transaction() as tx:
                    await tx.execute("insert into orders values ($1)", n)
            await hf.store.arun(jobs.reap())

    async def main() -> None:
        async with asyncio.TaskGroup() as clients:
            for number in range(CLIENTS):
                clients.create_task(client(number))
        await hf.aclose()

    asyncio.run(main())
    assert count(hf, "holdfast_jobs") + count(hf, "holdfast_finished") == CLIENTS * ROUNDS


def test_a_lease_that_ran_out_is_reaped_and_fenced(hf):
    hf.enqueue("receipt", {"order": 1})
    [stale] = hf.store.run(jobs.claim("default", limit=1))
    hf.store.now = datetime.now(UTC) + timedelta(hours=1)
    [reaped] = hf.store.run(jobs.reap())
    assert (reaped.id, reaped.outcome) == (stale.job_id, "retry")
    with pytest.raises(LeaseLost), Job(stale, hf.store).transaction() as tx:
        tx.execute("insert into orders values (1)")
    assert count(hf, "orders") == 0


def test_a_sync_callers_transaction_takes_the_job(hf):
    with psycopg.connect(hf.url, prepare_threshold=None) as tx:
        hf.enqueue("receipt", {"order": 1}, tx=tx)
        tx.rollback()
        hf.enqueue("receipt", {"order": 2}, tx=tx)
    assert count(hf, "holdfast_jobs") == 1


def test_an_async_callers_transaction_takes_the_job(hf):
    async def main() -> None:
        connection = await asyncpg.connect(hf.url, statement_cache_size=0)
        async with connection.transaction():
            await hf.aenqueue("receipt", {"order": 1}, tx=connection)
        await connection.close()

    asyncio.run(main())
    assert count(hf, "holdfast_jobs") == 1


@pytest.mark.parametrize("hf", ["plain"], indirect=True)
def test_listen_needs_the_servers_own_address(hf, pg_url):
    """Through the bouncer nothing is heard; `listen_url` leads past it."""

    async def main() -> tuple[list[str], list[str]]:
        heard_behind: list[str] = []
        heard_direct: list[str] = []
        arrived = asyncio.Event()

        def hear(_connection: object, _pid: int, _channel: str, queue: str) -> None:
            heard_direct.append(queue)
            arrived.set()

        behind, direct = await hf.store.aopen(), await hf.store.aopen(pg_url)
        await behind.raw.add_listener("holdfast_wake", lambda *args: heard_behind.append(args[-1]))
        await direct.raw.add_listener("holdfast_wake", hear)
        await hf.aenqueue("receipt", {"order": 1})
        await asyncio.wait_for(arrived.wait(), 10)
        await asyncio.sleep(0.05)
        for link in (behind, direct):
            link.raw.terminate()
        await hf.aclose()
        return heard_behind, heard_direct

    # asyncpg warns when a connection closes with listeners on it; terminate() above is what a lost session looks like.
    assert asyncio.run(main()) == ([], ["default"])


def test_prepared_statements_fail_on_a_bouncer_that_keeps_none(plain, pg_url):
    """The reason for `prepare=False`; when this passes without it, the option has lost its use."""
    with Holdfast(pg_url) as direct:
        direct.migrate()
    hf = Holdfast(plain.url(pg_url.rpartition("/")[2]), prepare=True, pool_size=CLIENTS)

    async def client() -> None:
        for _ in range(ROUNDS):
            await hf.store.arun(jobs.claim("default", limit=1))

    async def main() -> list[BaseException | None]:
        found = await asyncio.gather(*(client() for _ in range(CLIENTS)), return_exceptions=True)
        await hf.aclose()
        return found

    failed = [error for error in asyncio.run(main()) if error is not None]
    assert failed
    assert all(isinstance(error, QueryFailed) and "prepared statement" in error.detail for error in failed)
