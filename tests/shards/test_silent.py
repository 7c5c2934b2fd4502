"""Who is asked for a newer map while shards do not answer: looks stepped by hand, with no clock and no threads."""

from collections.abc import Callable

import pytest

from holdfast import Holdfast
from holdfast.errors import DatabaseUnavailable
from holdfast.store import Shards, growing, shard_map
from holdfast.store.trips import Asked, Trips, tried
from holdfast.values.shards import ShardMap
from tests.shards.stage import COUNT

SILENT = DatabaseUnavailable("it does not answer")


@pytest.fixture
def shards(files: Callable[..., Holdfast]) -> Shards:
    """Three shards whose map was read once."""
    found = files().shards
    assert found is not None
    found.go(found.map())
    return found


def begun(shards: Shards) -> tuple[Trips[ShardMap], Asked]:
    """Begin a look for a newer map, and tell whom it asks."""
    look = shards.map()
    [asked] = next(look)
    return look, asked


def answered(look: Trips[ShardMap], answer: object) -> ShardMap:
    with pytest.raises(StopIteration) as stop:
        look.send([answer])
    return stop.value.value  # type: ignore[no-any-return]


def test_while_two_shards_are_silent_the_third_is_asked_soon(shards: Shards) -> None:
    """Those who came later asked the two silent ones in turn, for as long as the first of them waited."""
    looks = [begun(shards) for _ in range(COUNT)]
    assert [shards.number_of(asked.store) for _, asked in looks] == [0, 1, 2]
    for look, _ in looks:
        look.close()


def test_a_look_that_was_given_up_leads_to_another_shard(shards: Shards) -> None:
    asked = list[int | None]()
    for _ in range(COUNT):
        look, one = begun(shards)
        asked.append(shards.number_of(one.store))
        look.close()
    assert asked == [0, 1, 2]


def test_who_waited_for_a_silent_shard_goes_by_what_others_have_read_meanwhile(shards: Shards) -> None:
    late, _ = begun(shards)
    other, asked = begun(shards)
    newest = shards.go(growing.move(shards, [0], 1))
    assert answered(other, tried(asked)) == newest
    assert answered(late, SILENT) == newest


def test_shards_that_did_not_answer_of_late_are_asked_last(shards: Shards) -> None:
    for number in (0, 1):
        shards.avoided.add(number)
    look, asked = begun(shards)
    assert shards.number_of(asked.store) == 2
    answered(look, tried(asked))


def test_others_go_by_the_map_of_before_while_one_asks(shards: Shards, monkeypatch: pytest.MonkeyPatch) -> None:
    look, _ = begun(shards)
    known = shards.known
    assert shards.go(shards._fresh()) is known
    monkeypatch.setattr("holdfast.store.sharded.ASKED_SECONDS", 0.0)
    other, asked = begun(shards)
    assert shards.number_of(asked.store) == 1
    for one in (look, other):
        one.close()


def test_a_change_that_is_said_again_reaches_the_shard_that_missed_it(shards: Shards) -> None:
    """A worker that serves that shard alone reads its map there, and nobody else would copy it."""
    old = shards.stores[1].run(shard_map.read())
    shards.go(growing.move(shards, [0], 2))
    with shards.stores[1].transaction() as link:
        link.raw.execute("update holdfast_shard_map set version = 1, map = ?", (old.map.text if old else "",))
    with pytest.raises(Exception, match="on their way"):
        shards.go(growing.move(shards, [0], 2))
    missed = shards.stores[1].run(shard_map.read())
    assert missed is not None
    assert missed.map == shards.known
