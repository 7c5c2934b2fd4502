"""What lies at the edges of shards: wrong lists, first days, drained ones, queues that are kept in one of them."""

import asyncio
import socket
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Self

import pytest

from holdfast import Holdfast, Rate, Run
from holdfast.errors import ConfigError, Conflict, DatabaseUnavailable
from holdfast.sinks import Function
from holdfast.store import growing
from holdfast.values.ids import bucket
from holdfast.values.shards import stamp_of
from holdfast.worker import moving
from tests.shards.stage import COUNT, count_in, key_in, shards, until

PATIENCE = 60


def change(hf: Holdfast, trips: Callable[..., Any], *said: Any) -> Any:
    assert hf.shards is not None
    return hf.shards.go(trips(hf.shards, *said))


def sender(hf: Holdfast) -> Any:
    @hf.job
    async def send(n: int = 0) -> int:
        return n

    return send


def test_a_list_in_another_order_is_refused_wherever_it_differs(files: Callable[..., Holdfast]) -> None:
    first, second, third = (store.url for store in files().stores.ours)
    wrong = Holdfast(shards=[first, third, second])
    send = sender(wrong)
    with pytest.raises(Conflict, match="Keep the order"):
        send.using(key="a").enqueue()

    async def scene() -> None:
        with pytest.raises(Conflict, match="Keep the order"):
            await wrong.worker().start()
        await wrong.aclose()

    asyncio.run(scene())
    wrong.close()


def test_the_keys_of_one_database_stay_there_when_others_come(tmp_path: Path) -> None:
    urls = [f"sqlite:///{tmp_path}/{number}.db" for number in range(2)]
    with Holdfast(urls[0]) as alone:
        alone.migrate()
        old = sender(alone).using(key="customer:1").enqueue()
    with Holdfast(shards=urls) as hf:
        hf.migrate()
        send = sender(hf)
        assert {hf.shard_of(f"customer:{n}") for n in range(20)} == {0}
        assert {stamp_of(send.enqueue(n).id) for n in range(10)} == {0}
        assert hf.get(old).key == "customer:1"
        change(hf, growing.add, 1)
        assert {hf.shard_of(f"customer:{n}") for n in range(20)} == {0, 1}


def test_a_handler_of_a_drained_shard_may_still_enqueue_there(files: Callable[..., Holdfast]) -> None:
    hf = files()
    send = sender(hf)
    change(hf, growing.drain, 1)
    with hf.stores.ours[1].transaction() as link:
        assert stamp_of(send.using(tx=link.raw).enqueue().id) == 1
    with pytest.raises(Conflict, match="Shard 0 is not drained"):
        change(hf, growing.drain, 0)


def test_a_drained_shard_may_be_switched_off(files: Callable[..., Holdfast]) -> None:
    hf = files()
    change(hf, growing.drain, 2)
    change(hf, growing.arrive, range(1024))
    gone = hf.stores.ours[2]
    gone.close()
    for file in Path(gone.file or "").parent.glob("shard2.db*"):
        file.unlink()
    Path(gone.file or "").mkdir()

    @hf.workflow
    async def fulfil(run: Run) -> None: ...

    assert hf.pause("mail")
    assert fulfil.start(id="order-1").created
    assert hf.cancel(kind="send").cancelled == []
    change(hf, growing.move, [1], 0)


def test_an_event_goes_by_a_limited_route_and_another(files: Callable[..., Holdfast]) -> None:
    hf = files()

    async def take(message: Any) -> None: ...

    hf.route("order.*", to=Function(take), name="all")
    hf.route("order.made", to=Function(take), name="few", concurrency=10, rate=Rate(5, per=1))
    for n in range(20):
        assert hf.publish("order.made", {"n": n}, key=f"order:{n}").routes == ("all", "few")


def test_a_batch_is_where_its_first_members_belong(files: Callable[..., Holdfast]) -> None:
    hf = files()
    send = sender(hf)
    for n in range(12):
        key = key_in(hf, n % COUNT)
        with hf.batch(then=send.bind(), seal=False) as batch:
            batch.add(send.using(key=key).bind(n))
        assert stamp_of(batch.id) == n % COUNT
        assert hf.extend(batch.id, []) == []


def test_the_result_of_a_fork_is_found(files: Callable[..., Holdfast]) -> None:
    hf = files()

    @hf.workflow
    async def fulfil(run: Run) -> str:
        return await run.step(one)

    async def one() -> str:
        return "one"

    async def scene() -> list[str]:
        async with asyncio.timeout(PATIENCE), hf.worker(poll=0.05):
            first = await fulfil.astart(id=key_in(hf, 2, "order"))
            told = [await first.aresult(PATIENCE)]
            fork = await first.afork("one")
            told.append(await fork.aresult(PATIENCE))
        await hf.aclose()
        return told

    assert asyncio.run(scene()) == ["one", "one"]


def test_an_ordered_queue_with_a_limit_moves_as_a_whole(
    files: Callable[..., Holdfast], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(moving, "SETTLED_SECONDS", 0.2)
    monkeypatch.setattr(moving, "AGAIN_MS", 50)
    hf = files()
    hf.queue("stripe", ordered=True, concurrency=4)
    ran: dict[str, list[int]] = {}

    @hf.job(queue="stripe")
    async def charge(key: str, n: int) -> None:
        ran.setdefault(key, []).append(n)

    keys = [f"key:{n}" for n in range(6)]
    owner = hf.shard_of("stripe")
    for n in range(4):
        for key in keys:
            assert stamp_of(charge.using(key=key).enqueue(key=key, n=n).id) == owner
    change(hf, growing.move, [bucket("stripe")], (owner + 1) % COUNT)
    for n in range(4, 8):
        for key in keys:
            charge.using(key=key).enqueue(key=key, n=n)

    async def scene() -> None:
        async with asyncio.timeout(PATIENCE), hf.worker(poll=0.05):
            await until(lambda: sum(map(len, ran.values())) == 48)
        await hf.aclose()

    asyncio.run(scene())
    assert ran == {key: list(range(8)) for key in keys}


def test_what_is_in_another_shard_than_the_transaction_says_so(files: Callable[..., Holdfast]) -> None:
    hf = files()

    @hf.workflow
    async def fulfil(run: Run) -> Any:
        return await run.signal("go")

    name = key_in(hf, 1, "order")
    fulfil.start(id=name)
    with hf.stores.ours[2].transaction() as link, pytest.raises(ConfigError, match=r"is on shard 2, and .* shard 1"):
        hf.signal(name, "go", tx=link.raw)


def test_the_environment_does_not_change_a_url_in_code(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOLDFAST_SHARDS", f"sqlite:///{tmp_path}/a.db sqlite:///{tmp_path}/b.db")
    assert Holdfast(f"sqlite:///{tmp_path}/own.db").shards is None


# A shard that is silent when an application begins


@pytest.mark.parametrize("colour", ["sync", "async"])
def test_enqueues_to_other_shards_do_not_ask_one_that_was_silent(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, colour: str
) -> None:
    monkeypatch.setattr("holdfast.store.sharded.FRESH_SECONDS", 0.0)
    with shards("databases", request) as make, Silence() as silence:
        whole = make()
        urls, keys = [store.url for store in whole.stores.ours], [key_in(whole, shard) for shard in range(COUNT)]
        hf = Holdfast(shards=[silence.url, *urls[1:]], connect_timeout=0.2)

        async def scene() -> list[int]:
            counts = [silence.asked]
            for n in range(12):
                await hf.aenqueue("send", check=False, key=keys[1 + n % 2])
                counts.append(silence.asked)
            with pytest.raises(DatabaseUnavailable):
                await hf.aenqueue("send", check=False, key=keys[0])
            await hf.aclose()
            return counts

        def plain_scene() -> list[int]:
            counts = [silence.asked]
            for n in range(12):
                hf.enqueue("send", check=False, key=keys[1 + n % 2])
                counts.append(silence.asked)
            with pytest.raises(DatabaseUnavailable):
                hf.enqueue("send", check=False, key=keys[0])
            return counts

        counts = asyncio.run(scene()) if colour == "async" else plain_scene()
        hf.close()
        # Once for all, when it is not known yet which shards there are.
        assert counts == [0] + [counts[1]] * 12
        assert [count_in(whole, shard) for shard in range(COUNT)] == [0, 6, 6]


@pytest.mark.parametrize("said", [0, 1])
def test_a_shard_that_was_not_there_says_which_it_is_before_it_gets_a_job(
    files: Callable[..., Holdfast], tmp_path: Path, said: int
) -> None:
    hf = files()
    keys, stores = [key_in(hf, shard) for shard in range(COUNT)], hf.stores.ours
    late = Holdfast(shards=[f"sqlite:///{tmp_path}/late.db", *(store.url for store in stores[1:])])
    late.enqueue("send", check=False, key=keys[1])
    with (
        closing(sqlite3.connect(stores[said].file or "")) as old,
        closing(sqlite3.connect(tmp_path / "late.db")) as new,
    ):
        old.backup(new)
    if said:
        with pytest.raises(Conflict, match=r"named as shard 0 .* says that it is shard 1"):
            late.enqueue("send", check=False, key=keys[0])
    else:
        late.enqueue("send", check=False, key=keys[0])
        assert count_in(late, 0) == 1
    late.close()


@pytest.mark.parametrize("begun", ["before", "after"])
def test_jobs_that_may_go_anywhere_leave_out_a_shard_that_does_not_answer(
    files: Callable[..., Holdfast], begun: str
) -> None:
    hf = files()
    if begun == "before":
        hf.shard_of("any")
    gone = hf.stores.ours[1].file or Path()
    gone.rename(gone.with_suffix(".away"))
    hf.close()
    added, refused = list[int | None](), 0
    for _ in range(60):
        try:
            added.append(stamp_of(hf.enqueue("send", check=False).id))
        except DatabaseUnavailable:
            refused += 1
    assert set(added) == {0, 2}
    # The first who finds out.
    assert refused <= (1 if begun == "before" else 0)


class Silence:
    """A server that takes connections and never answers; `asked`: how many there were."""

    def __enter__(self) -> Self:
        self.asked = 0
        self._taken: list[socket.socket] = []
        self._server = socket.create_server(("127.0.0.1", 0))
        self.url = f"postgresql://someone@127.0.0.1:{self._server.getsockname()[1]}/nothing"
        self._thread = threading.Thread(target=self._take, daemon=True)
        self._thread.start()
        return self

    def _take(self) -> None:
        with suppress(OSError):
            while True:
                self._taken.append(self._server.accept()[0])
                self.asked += 1

    def __exit__(self, *_: object) -> None:
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self._thread.join()
        for one in self._taken:
            one.close()
