"""One worker serves all shards, a ring of workers shares them, and a shard that is down costs its own jobs alone."""

import asyncio
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg
import pytest

from holdfast import Continue, Holdfast, Job, Run, events
from holdfast.errors import ConfigError, DatabaseUnavailable, RunNotFound
from holdfast.sinks import Function
from holdfast.values.shards import stamp_of
from holdfast.worker import registry
from tests.proxy import Proxy
from tests.servers import Postgres
from tests.shards.stage import COUNT, count_in, key_in, shards, until

PATIENCE = 60


def play(hf: Holdfast, scene: Callable[[], Any], **options: Any) -> Any:
    async def whole() -> Any:
        async with asyncio.timeout(PATIENCE), hf.worker(**{"poll": 0.05} | options):
            answer = await scene()
        await hf.aclose()
        return answer

    return asyncio.run(whole())


def test_a_worker_runs_the_jobs_of_every_shard(hf: Holdfast) -> None:
    ran: list[int] = []

    @hf.job
    async def send(n: int) -> int:
        ran.append(n)
        return n * 2

    @hf.job
    def count(job: Job, n: int) -> int:
        with job.transaction():
            ran.append(n)
        return n

    added = [send.using(key=key_in(hf, shard)).enqueue(shard) for shard in range(COUNT)]
    added += [count.using(key=key_in(hf, shard)).enqueue(10 + shard) for shard in range(COUNT)]

    async def scene() -> list[Any]:
        return [await hf.aresult(one, PATIENCE) for one in added]

    assert play(hf, scene)[:COUNT] == [0, 2, 4]
    assert sorted(ran) == [0, 1, 2, 10, 11, 12]
    assert [count_in(hf, shard) for shard in range(COUNT)] == [0] * COUNT
    assert hf.result(added[1], 0) == 2


def test_chains_batches_and_what_runs_after_others(hf: Holdfast) -> None:
    @hf.job
    async def second(n: int) -> int:
        return n + 1

    @hf.job
    async def first(n: int) -> Any:
        return Continue(second.bind(n))

    @hf.job
    async def last(job: Job) -> int:
        return (await job.aparents()).done

    chain = first.using(key=key_in(hf, 2)).enqueue(1)
    parents = [first.using(key=key_in(hf, 1)).enqueue(n) for n in range(3)]
    child = last.using(after=parents).enqueue()
    with hf.batch(then=last.bind()) as batch:
        batch.add_many(second.bind(n) for n in range(20))

    async def scene() -> tuple[Any, Any]:
        await hf.aresult(batch.id, PATIENCE)
        return await hf.aresult(chain, PATIENCE), await hf.aresult(child, PATIENCE)

    assert play(hf, scene) == (2, 3)


def test_runs_are_found_by_their_ids(hf: Holdfast) -> None:
    @hf.workflow
    async def ship(run: Run, n: int) -> int:
        return n

    @hf.workflow
    async def fulfil(run: Run, n: int) -> Any:
        approved = await run.signal("approved")
        return [approved, await run.child(ship, n)]

    handles = [fulfil.start(n, id=f"order-{n}") for n in range(6)]
    assert {stamp_of(hf.run(f"order-{n}").get().job_id) for n in range(6)} == {
        hf.shard_of(f"order-{n}") for n in range(6)
    }
    assert not fulfil.start(1, id="order-1").created
    unnamed = fulfil.start(7)

    async def scene() -> list[Any]:
        for n in range(6):
            assert await hf.asignal(f"order-{n}", "approved", n)
        await unnamed.asignal("approved", 7)
        with pytest.raises(RunNotFound):
            await hf.asignal("order-99", "approved")
        return [await one.aresult(PATIENCE) for one in (*handles, unnamed)]

    assert play(hf, scene) == [[n, n] for n in (*range(6), 7)]


def test_events_go_by_their_keys(hf: Holdfast) -> None:
    sent: list[str] = []

    async def take(message: Any) -> None:
        sent.append(str(message.event.data["n"]))

    hf.route("order.*", to=Function(take), ordered=True)
    keys = [key_in(hf, shard) for shard in range(COUNT)]
    for n in range(12):
        published = hf.publish("order.made", {"n": n}, key=keys[n % COUNT])
        assert stamp_of(published.id) == n % COUNT

    async def scene() -> None:
        await until(lambda: len(sent) == 12)

    play(hf, scene)
    by_key = [[n for n in map(int, sent) if n % COUNT == part] for part in range(COUNT)]
    assert by_key == [list(range(part, 12, COUNT)) for part in range(COUNT)]


def test_a_schedule_ticks_once_for_all(files: Callable[..., Holdfast]) -> None:
    hf = files()
    ran: list[str] = []

    @hf.job
    async def tick(job: Job) -> None:
        ran.append(job.id)

    hf.schedule("often", tick.bind(), every=1)

    async def scene() -> None:
        async with asyncio.timeout(PATIENCE), hf.worker(poll=0.05), hf.worker(poll=0.05):
            await until(lambda: len(ran) >= 3)
        await hf.aclose()

    asyncio.run(scene())
    assert len(ran) == len(set(ran))


def test_a_queue_with_a_limit_is_in_one_shard(hf: Holdfast) -> None:
    hf.queue("stripe", concurrency=2)
    running, most = 0, 0

    @hf.job(queue="stripe")
    async def charge(n: int) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.02)
        running -= 1

    added = [charge.using(key=f"customer:{n}").enqueue(n) for n in range(12)]
    assert len({stamp_of(one.id) for one in added}) == 1

    async def scene() -> None:
        for one in added:
            await hf.aresult(one, PATIENCE)

    play(hf, scene)
    assert most == 2


def test_workers_are_in_the_registry_of_every_shard(hf: Holdfast) -> None:
    @hf.job
    async def send() -> None: ...

    async def scene() -> list[int]:
        return [len(await store.arun(registry.workers())) for store in hf.stores.ours]

    assert play(hf, scene) == [1] * COUNT
    assert [store.run(registry.workers())[0].status for store in hf.stores.ours] == ["stopped"] * COUNT


@pytest.mark.parametrize("count, most", [(1, 7), (2, 7), (3, 4), (8, 3)])
def test_a_worker_has_few_connections_to_each_of_many_shards(tmp_path: Path, count: int, most: int) -> None:
    with Holdfast(shards=[f"sqlite:///{tmp_path}/{n}.db" for n in range(count)]) as hf:

        @hf.job
        async def send() -> None: ...

        assert [branch.store.options.pool_size for branch in hf.worker().branches] == [most] * count


def test_a_server_has_as_many_connections_of_a_worker_as_were_said(request: pytest.FixtureRequest) -> None:
    with shards("databases", request) as make, ExitStack() as stack:
        hf, other = make(), make()

        @hf.job
        async def send(n: int) -> None: ...

        for n in range(300):
            other.enqueue("send", {"n": n}, key=f"key:{n}", check=False)
        at = [stack.enter_context(psycopg.connect(store.url, autocommit=True)) for store in hf.stores.ours]
        sql = "select (select count(*) from holdfast_jobs), (select count(*) from pg_stat_activity where datname = %s)"

        def look() -> list[tuple[int, int]]:
            return [one.execute(sql, [one.info.dbname]).fetchone() or (0, 0) for one in at]

        before, most = [sessions for _, sessions in look()], 0

        async def scene() -> None:
            nonlocal most
            left = 1
            while left:
                found = look()
                left = sum(jobs for jobs, _ in found)
                most = max(most, *(now - then for (_, now), then in zip(found, before, strict=True)))
                await asyncio.sleep(0.01)

        play(hf, scene)
        # Four of its own and one to listen.
        assert 1 <= most <= 5


def test_a_ring_shares_the_shards(files: Callable[..., Holdfast], monkeypatch: pytest.MonkeyPatch) -> None:
    from holdfast.worker.rounds.ring import RingRound

    monkeypatch.setattr(RingRound, "every_seconds", 0.1)
    first, second = files(), files()
    for hf in (first, second):

        @hf.job(kind="send")
        async def send(n: int) -> None: ...

    added: list[Any] = []

    async def scene() -> None:
        async with asyncio.timeout(PATIENCE):
            async with first.worker(ring=True, poll=0.05) as one, second.worker(ring=True, poll=0.05) as two:
                await until(lambda: shared_out(one, two))
                added.extend([await first.aenqueue("send", {"n": n}, key=f"key:{n}") for n in range(12)])
                for each in added:
                    await first.aresult(each, PATIENCE)
            # Who is left takes all of them.
            async with first.worker(ring=True, poll=0.05) as alone:
                await until(lambda: not any(branch.aside for branch in alone.branches))
        await first.aclose()
        await second.aclose()

    asyncio.run(scene())


def shared_out(one: Any, two: Any) -> bool:
    """Tell whether each shard is seen to by one of two workers."""
    return all(a.aside != b.aside for a, b in zip(one.branches, two.branches, strict=True))


def test_a_shard_that_is_down_costs_its_own_jobs_alone(postgres: Postgres, request: pytest.FixtureRequest) -> None:
    with shards("databases", request) as make, Proxy(postgres.port) as proxy:
        urls = [store.url for store in make().stores.ours]
        # The first is the one that has the registry first, the schedules and the map: not even that one is needed.
        hf = Holdfast(shards=[proxy.url(urls[0]), *urls[1:]], connect_timeout=1.0)
        keys = [key_in(hf, shard) for shard in range(COUNT)]
        said: list[events.Event] = []
        hf.on(events.Event, said.append)

        @hf.job
        async def send(n: int) -> int:
            return n

        hurt = send.using(key=keys[0]).enqueue(0)
        hf.close()
        proxy.blackhole()
        proxy.reset_all()

        async def scene() -> list[int]:
            with pytest.raises(DatabaseUnavailable):
                await send.using(key=keys[0]).aenqueue(9)
            well = [await send.using(key=keys[n]).aenqueue(n) for n in (1, 2)]
            answers = [await hf.aresult(one, PATIENCE) for one in well]
            proxy.heal()
            return [*answers, await hf.aresult(hurt, PATIENCE)]

        assert play(hf, scene) == [1, 2, 0]
        hf.close()


def test_what_would_be_in_the_wrong_shard_is_refused(files: Callable[..., Holdfast]) -> None:
    hf = files()
    hf.queue("orders", ordered=True)

    @hf.job(queue="orders", key="order:{n}")
    async def step(n: int) -> None: ...

    hf.schedule("daily", step.bind(1), every=60)
    with pytest.raises(ConfigError, match=r"ticks are jobs of the first one.*enqueue that one"):
        hf.worker()
