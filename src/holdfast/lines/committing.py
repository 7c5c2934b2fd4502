"""Enqueue in the order of commits: producers of one key wait for each other (`ordered="commit"`)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from holdfast.flow import Flow, Steps, ask

T = TypeVar("T")


def after_others(work: Flow[T], keys: Iterable[tuple[str, str]]) -> Flow[T]:
    """Return the same enqueue, which first waits for other open transactions that enqueue to these queues and keys.

    In the order of keys, so that two enqueues of many jobs never wait for each other in a circle; two transactions with
    several enqueues each may.
    Commits, After a crash: as the work; the lock ends with its transaction.
    """
    wanted = sorted(set(keys))

    def steps() -> Steps[T]:
        for queue, key in wanted:
            yield from ask("line_commit_lock", queue=queue, key=key)
        return (yield from work)

    return Flow(work.name, steps) if wanted else work
