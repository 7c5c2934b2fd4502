"""The ring: everyone finds the same owner, each bucket has one, and a change moves only its share."""

import random

import pytest

from holdfast.values.ring import Ring, moved, place

BUCKETS = 1024
WORKERS = [f"worker-{n}" for n in range(1, 6)]

# Also in docs/guides/ring.md: programs in other languages may want to work it out, too.
PLACES = {"a#0": 12349103225281887769, "bucket:0": 15852797756189715738}
OWNERS = ["c", "a", "a", "c", "b", "c", "c", "b"]


def test_places_and_owners_are_those_of_the_vectors() -> None:
    assert {text: place(text) for text in PLACES} == PLACES
    assert [Ring(["a", "b", "c"]).owner(bucket) for bucket in range(8)] == OWNERS


def test_the_order_in_which_workers_are_named_changes_nothing() -> None:
    shuffled = random.Random(7).sample(WORKERS, len(WORKERS))
    assert moved(WORKERS, [*shuffled, *shuffled], BUCKETS) == []


def test_every_bucket_has_one_owner_and_shares_are_about_equal() -> None:
    ring = Ring(WORKERS)
    shares = [ring.owned(worker, BUCKETS) for worker in WORKERS]
    assert sorted(bucket for share in shares for bucket in share) == list(range(BUCKETS))
    assert all(0.6 < len(share) / (BUCKETS / len(WORKERS)) < 1.4 for share in shares)


@pytest.mark.parametrize("gone", WORKERS)
def test_a_worker_that_leaves_moves_its_own_buckets_only(gone: str) -> None:
    left = [worker for worker in WORKERS if worker != gone]
    assert moved(WORKERS, left, BUCKETS) == Ring(WORKERS).owned(gone, BUCKETS)
    assert moved(left, WORKERS, BUCKETS) == Ring(WORKERS).owned(gone, BUCKETS)


def test_nobody_owns_anything_where_there_are_no_workers() -> None:
    assert Ring([]).owner(3) is None
    assert Ring([]).owned("a", BUCKETS) == []
