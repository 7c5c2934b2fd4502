"""What is left of keys that have gone to another shard."""

from __future__ import annotations

from collections.abc import Collection

from holdfast.flow import Steps, ask, flow, number_of, text_of


@flow
def live_buckets(buckets: Collection[int], apart: Collection[str] = ()) -> Steps[set[int]]:
    """Tell which of these buckets have live jobs here, in other queues than those `apart`."""
    rows = yield from ask("live_buckets", buckets=sorted(buckets), apart=sorted(apart) or [""], alone=True)
    return {number_of(row[0]) for row in rows}


@flow
def live_queues(queues: Collection[str]) -> Steps[set[str]]:
    """Tell which of these queues have live jobs here."""
    rows = yield from ask("live_queues", queues=sorted(queues) or [""], alone=True)
    return {text_of(row[0]) for row in rows}
