"""Where jobs go: by their keys, with the caller's transaction, or anywhere; and ids say where they are."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from holdfast import Debounce, Enqueued, Holdfast
from holdfast.errors import ConfigError, Conflict, JobNotFound
from holdfast.values.shards import stamp_of
from tests.shards.stage import COUNT, count_in, key_in, shards


def shard_of(added: Enqueued) -> int:
    found = stamp_of(added.id)
    assert found is not None
    return found


def handlers(hf: Holdfast) -> Any:
    @hf.job
    async def send(n: int = 0) -> int:
        return n

    return send


def test_a_key_belongs_to_one_shard_and_the_id_says_which(hf: Holdfast) -> None:
    send = handlers(hf)
    for shard in range(COUNT):
        key = key_in(hf, shard)
        added = [send.using(key=key).enqueue(n) for n in range(3)]
        assert {shard_of(one) for one in added} == {shard}
        assert count_in(hf, shard) == 3
        assert hf.get(added[0]).key == key


def test_without_a_key_every_shard_gets_some(hf: Holdfast) -> None:
    send = handlers(hf)
    assert {shard_of(send.enqueue(n)) for n in range(60)} == set(range(COUNT))


def test_what_is_once_for_a_text_is_so_over_all_shards(hf: Holdfast) -> None:
    send = handlers(hf)
    assert len({send.using(unique="u:1").enqueue(n).id for n in range(12)}) == 1
    assert len({send.using(idempotency_key="i:1").enqueue(n).id for n in range(12)}) == 1
    assert len({send.using(debounce=Debounce("d:1", wait=60)).enqueue(n).id for n in range(12)}) == 1


def test_many_at_once_are_one_transaction_so_they_must_belong_together(hf: Holdfast) -> None:
    send = handlers(hf)
    keys = [key_in(hf, shard) for shard in range(COUNT)]
    mixed = [send.using(key=key).bind(n) for n, key in enumerate(keys * 4)] + [send.bind(99)]
    with pytest.raises(ConfigError, match=r"belong to several shards.*hf\.by_shard"):
        hf.enqueue_many(mixed)
    assert sum(count_in(hf, shard) for shard in range(COUNT)) == 0
    parts = hf.by_shard(mixed)
    assert sorted(map(len, parts)) == [4, 4, 5]
    for part in parts:
        assert len({shard_of(one) for one in hf.enqueue_many(part)}) == 1
    assert sum(count_in(hf, shard) for shard in range(COUNT)) == len(mixed)


def test_in_a_transaction_of_the_callers(hf: Holdfast) -> None:
    send = handlers(hf)
    assert hf.shards is not None
    home, other = key_in(hf, 0), key_in(hf, 1)
    with hf.stores.ours[1].transaction() as link:
        tx = link.raw
        if hf.shards.one_place:
            # One transaction reaches all schemas of the database.
            assert shard_of(send.using(tx=tx, key=home).enqueue(1)) == 0
            assert shard_of(send.using(tx=tx, key=other).enqueue(1)) == 1
        else:
            assert {shard_of(send.using(tx=tx).enqueue(n)) for n in range(10)} == {1}
            assert shard_of(send.using(tx=tx, key=other).enqueue(1)) == 1
            with pytest.raises(ConfigError, match=r"belongs to shard 0, and the transaction of tx= is on shard 1"):
                send.using(tx=tx, key=home).enqueue(1)
    assert count_in(hf, 1) == (1 if hf.shards.one_place else 11)


def test_an_async_transaction_of_the_callers(hf: Holdfast) -> None:
    send = handlers(hf)
    assert hf.shards is not None
    if hf.store.embedded:
        pytest.skip("SQLite has no async connections")
    key = key_in(hf, 2)

    async def scene() -> None:
        store = hf.stores.ours[2]
        async with store.alink() as link, link.transaction():
            assert shard_of(await send.using(tx=link.raw, key=key).aenqueue(1)) == 2
            if not hf.shards.one_place:  # type: ignore[union-attr]
                assert shard_of(await send.using(tx=link.raw).aenqueue(1)) == 2
        await hf.aclose()

    asyncio.run(scene())
    assert count_in(hf, 2) == (1 if hf.shards.one_place else 2)


def test_what_runs_after_others_is_where_they_are(hf: Holdfast) -> None:
    send = handlers(hf)
    first, second = (send.using(key=key_in(hf, 1)).enqueue(n) for n in range(2))
    child = send.using(after=[first, second]).enqueue(3)
    assert shard_of(child) == 1
    elsewhere = send.using(key=key_in(hf, 2)).enqueue(1)
    with pytest.raises(ConfigError, match="several shards"):
        send.using(after=[first, elsewhere]).enqueue(3)


def test_a_batch_is_in_one_shard(hf: Holdfast) -> None:
    send = handlers(hf)
    with hf.batch(then=send.using(key=key_in(hf, 2)).bind(0), seal=False) as batch:
        ids = batch.add_many(send.bind(n) for n in range(5))
        with pytest.raises(ConfigError, match="several shards"):
            batch.add(send.using(key=key_in(hf, 1)).bind(1))
    assert {stamp_of(one) for one in (batch.id, *ids)} == {2}
    assert {shard_of(one) for one in hf.extend(batch.id, [send.bind(6)])} == {2}
    assert hf.seal(batch.id)
    assert hf.get(batch.id).kind == "send"


def test_an_id_without_a_shard_is_looked_for_in_all_of_them(hf: Holdfast) -> None:
    send = handlers(hf)
    alone = Holdfast(hf.stores.ours[2].url, schema=hf.stores.ours[2].options.schema)

    @alone.job(kind="send")
    async def other(n: int) -> int:
        return n

    old = other.enqueue(1)
    assert stamp_of(old.id) is None
    assert hf.get(old).id == old.id
    with pytest.raises(JobNotFound):
        hf.get(send.enqueue(1).id.replace("0", "1"))
    alone.close()


def test_the_result_of_an_id_without_a_shard_is_found(files: Callable[..., Holdfast]) -> None:
    hf = files()

    @hf.job
    async def send(n: int) -> int:
        return n * 2

    with Holdfast(hf.stores.ours[2].url) as alone:
        old = alone.enqueue("send", {"n": 4}, check=False)

    async def scene() -> Any:
        async with hf.worker(poll=0.05):
            answer = await hf.aresult(old, 60)
        await hf.aclose()
        return answer

    assert asyncio.run(scene()) == 8
    assert hf.result(old, 0) == 8
    with pytest.raises(JobNotFound):
        hf.result(old.id.replace("0", "1"), 0)


def test_shards_keep_their_order(make: Callable[..., Holdfast]) -> None:
    first = make()
    if first.shards is None or first.shards.one_place:
        pytest.skip("schemas have their numbers in their names")
    urls = [store.url for store in first.stores.ours]
    turned = Holdfast(shards=urls[::-1])
    with pytest.raises(Conflict, match=r"says that it is shard 2.*Keep the order"):
        turned.migrate()
    with pytest.raises(Conflict, match="Keep the order"):
        handlers(turned).enqueue(1)
    turned.close()


def test_a_shard_that_is_not_set_up_says_what_to_run(make: Callable[..., Holdfast], tmp_path: Any) -> None:
    with Holdfast(f"sqlite:///{tmp_path}/alone.db") as alone:
        alone.migrate()
    with Holdfast(shards=[f"sqlite:///{tmp_path}/alone.db"]) as hf, pytest.raises(Conflict, match="migrate apply"):
        handlers(hf).enqueue(1)


def test_migrating_twice_changes_nothing(hf: Holdfast) -> None:
    known = hf.shards.go(hf.shards.map())  # type: ignore[union-attr]
    assert hf.migrate() == []
    assert hf.shards.go(hf.shards.map()) == known  # type: ignore[union-attr]
    assert known.version == 1
    assert set(known.shares().values()) <= {341, 342}


@pytest.mark.parametrize(
    "said, words",
    [
        ({"shards": 0}, "must be 1 to"),
        ({"shards": 2, "url": "sqlite:///x.db"}, "schemas of one PostgreSQL database"),
        ({"shards": []}, "list of database URLs"),
        ({"shards": "sqlite:///x.db"}, "list of database URLs"),
        ({"shards": ["sqlite:///x.db", "sqlite:///x.db"]}, "names a database twice"),
        ({"shards": ["sqlite:///x.db"], "url": "sqlite:///y.db"}, "names another database than the first"),
        ({"shards": ["postgresql://a/shop", "sqlite:///x.db"]}, "databases of one kind"),
        ({"shards": True, "url": "sqlite:///x.db"}, "list of database URLs"),
    ],
)
def test_what_cannot_be_shards_is_refused(said: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Holdfast(**said)


def test_shards_from_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setenv("HOLDFAST_SHARDS", f"sqlite:///{tmp_path}/a.db sqlite:///{tmp_path}/b.db")
    hf = Holdfast()
    assert [store.url for store in hf.stores.ours] == [f"sqlite:///{tmp_path}/{name}.db" for name in "ab"]


def test_each_server_is_listened_to_at_its_own_address(request: pytest.FixtureRequest) -> None:
    with shards("databases", request) as make:
        urls = [store.url for store in make().stores.ours]
        hf = make(listen_url=" ".join(urls))
        assert [store.options.listen_url for store in hf.stores.ours] == urls
        assert all(store.echo(5.0).heard for store in hf.stores.ours)
        with pytest.raises(ConfigError, match="listen_url: must name an address for each of 3 shards"):
            make(listen_url=urls[0])


def test_a_host_may_have_the_name_of_a_database() -> None:
    with Holdfast(shards=["postgresql://a,postgres:5432/shop", "postgresql://b/shop"]) as hf:
        assert len(hf.stores.ours) == 2
    with pytest.raises(ConfigError, match="commas between URLs"):
        Holdfast(shards=["postgresql://a/shop,postgresql://b/shop"])
