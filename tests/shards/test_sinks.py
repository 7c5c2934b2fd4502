"""Events that become jobs of an application with shards: each goes where its key belongs."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from holdfast import Holdfast
from holdfast.sinks import Delivered, Failed, Jobs, Message, Outcome, SinkDown
from holdfast.testing.sinks import message
from holdfast.values.shards import stamp_of
from tests.shards.stage import COUNT, count_in, key_in

KIND = "take"


def send(hf: Holdfast, messages: Sequence[Message]) -> list[Outcome]:
    async def scene() -> list[Outcome]:
        try:
            return list(await Jobs(hf, kind=KIND).send(messages))
        finally:
            await hf.aclose()

    return asyncio.run(scene())


def test_events_of_all_keys_and_of_none_become_jobs_in_one_call(hf: Holdfast) -> None:
    keys = [key_in(hf, shard) for shard in range(COUNT)] * 2
    messages = [message(key) for key in keys] + [message() for _ in range(12)]
    told = send(hf, messages)
    receipts = [one.receipt for one in told if isinstance(one, Delivered)]
    assert len(receipts) == len(messages)
    assert [stamp_of(str(one)) for one in receipts[: len(keys)]] == [*range(COUNT)] * 2
    assert send(hf, messages) == told
    assert sum(count_in(hf, shard) for shard in range(COUNT)) == len(messages)


def test_events_for_a_shard_that_is_away_fail_alone(files: Callable[..., Holdfast]) -> None:
    hf = files()
    keys = [key_in(hf, shard) for shard in range(COUNT)]
    gone = hf.stores.ours[1].file or Path()
    hf.close()
    gone.rename(gone.with_suffix(".away"))
    first, missed, last = send(hf, [message(key) for key in keys])
    assert isinstance(first, Delivered)
    assert isinstance(last, Delivered)
    assert isinstance(missed, Failed)
    with pytest.raises(SinkDown):
        send(hf, [message(keys[1])])
