"""What wakes a worker: see `store/wakers.py`, and the waker beside each dialect."""

from __future__ import annotations

from holdfast.store import Store
from holdfast.store.wakers import Emit, Wake, Waker


def make_waker(store: Store, worker: str, wake: Wake, emit: Emit) -> Waker | None:
    """Choose what wakes a worker of this store; None leaves it to polling."""
    if store.in_memory or not store.options.notify:
        return None
    waker: Waker | None = store.dialect.waker(store, worker, wake, emit)
    return waker
