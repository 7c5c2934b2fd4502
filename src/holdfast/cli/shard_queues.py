"""Queues of an application with shards: what they have stored of each together, and where they differ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress

from holdfast import lines
from holdfast.cli.sharding import AWAY
from holdfast.store import Shards, Store
from holdfast.values.queues import QueueSettings
from holdfast.values.words import shards_named

Stored = Mapping[str, lines.Stored]


def whole_of(store: Store, name: str) -> QueueSettings | None:
    """Read what the shards have stored of a queue together; None where it is one store, or nothing is stored."""
    there = store.run(lines.stored(name)).get(name) if isinstance(store, Shards) else None
    return None if there is None else there.settings


def stored_by_shard(store: Store) -> dict[int, Stored]:
    """Read what each shard that answers has stored of queues; nothing where it is one store."""
    found: dict[int, Stored] = {}
    for number, one in enumerate(store.stores) if isinstance(store, Shards) else ():
        with suppress(*AWAY):
            found[number] = one.run_once(lines.stored())
    return found


def differences(by_shard: Mapping[int, Stored]) -> Iterator[str]:
    """Say of each queue of which shards have stored different settings who has which; one that has none is as it was.

    Limits that are split are told whole: the parts of them are meant to differ.
    """
    for name in sorted({name for stored in by_shard.values() for name in stored}):
        having: dict[str, list[int]] = {}
        for number, stored in by_shard.items():
            if name in stored:
                having.setdefault(str(stored[name].settings), []).append(number)
        if len(having) > 1:
            told = "; ".join(f"{shards_named(numbers)}: {settings}" for settings, numbers in having.items())
            yield f"queue {name} is stored differently: {told}"
