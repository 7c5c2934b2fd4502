from __future__ import annotations

import os
import threading
import time
import uuid
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import ConfigError
from holdfast.values import ids
from holdfast.values.ids import bucket, new_id, new_ids, parse_id


def test_an_id_is_a_uuid_of_version_7_with_the_time_in_front() -> None:
    before = time.time_ns() // 1_000_000
    made = uuid.UUID(new_id())
    assert (made.version, made.variant) == (7, uuid.RFC_4122)
    # A burst in another test may have borrowed some milliseconds from the future.
    assert before <= made.int >> 80 < before + 5_000


def test_ids_are_strictly_increasing_alone_and_in_batches() -> None:
    made = [new_id(), *new_ids(5_000), new_id(), *new_ids(1), *new_ids(0), *(new_id() for _ in range(2_000))]
    assert all(earlier < later for earlier, later in pairwise(made))
    assert {parse_id(each) for each in made} == set(made)
    assert all(uuid.UUID(each).variant == uuid.RFC_4122 for each in made)


def test_ids_keep_rising_when_the_clock_steps_back(monkeypatch: pytest.MonkeyPatch) -> None:
    before = new_id()
    monkeypatch.setattr(ids, "_now", lambda: 0)
    after = [new_id(), *new_ids(3), new_id()]
    assert sorted([before, *after]) == [before, *after]


def test_threads_never_share_an_id_and_each_sees_them_rise() -> None:
    made: list[list[str]] = [[] for _ in range(4)]

    def fill(own: list[str]) -> None:
        own.extend(new_id() for _ in range(3_000))

    threads = [threading.Thread(target=fill, args=(own,)) for own in made]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({each for own in made for each in own}) == 12_000
    assert all(own == sorted(own) for own in made)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_a_forked_child_draws_its_own_randomness() -> None:
    new_id()
    read, write = os.pipe()
    with ids._clock.lock:  # as if another thread were making an id at the moment of the fork
        child = os.fork()
        if child == 0:
            os.write(write, new_id().encode())
            os._exit(0)
    os.waitpid(child, 0)
    theirs = os.read(read, 100).decode()
    os.close(read)
    os.close(write)
    assert parse_id(theirs)[19:] not in {each[19:] for each in (new_id() for _ in range(600))}


def test_a_negative_count_is_refused() -> None:
    with pytest.raises(ConfigError, match="count"):
        new_ids(-1)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "0190A3B2-0000-7000-8000-000000000000",
        "0190a3b2000070008000000000000000",
        "0190a3b2-0000-7000-8000-000000000000\n",
        "{0190a3b2-0000-7000-8000-000000000000}",
        None,
        7,
    ],
)
def test_only_the_canonical_form_is_an_id(text: object) -> None:
    with pytest.raises(ConfigError, match="lower case"):
        parse_id(text)


@pytest.mark.parametrize(
    "key, digest",
    [("", 0x811C9DC5), ("a", 0xE40C292C), ("foobar", 0xBF9CF968)],
)
def test_buckets_follow_the_published_vectors_of_fnv_1a(key: str, digest: int) -> None:
    assert bucket(key, 2**32) == digest
    assert bucket(key) == digest % 1024


@given(key=st.text(), buckets=st.integers(1, 100_000))
def test_a_bucket_is_stable_and_in_range(key: str, buckets: int) -> None:
    assert 0 <= bucket(key, buckets) < buckets
    assert bucket(key, buckets) == bucket(key, buckets)


def test_no_buckets_is_refused() -> None:
    with pytest.raises(ConfigError, match="buckets"):
        bucket("a", 0)
