"""Enqueues in the order of commits: a repeat takes the lock of its key, as the first try did."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.errors import DatabaseBusy
from holdfast.flow import Flow
from holdfast.sinks import Function


class Tried(Exception):
    """Ends a test at its second try."""


@pytest.mark.parametrize("how", ["enqueue", "aenqueue", "enqueue_many", "publish", "publish_many"])
def test_a_repeat_waits_for_the_others_of_its_key(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    hf = Holdfast("postgresql://localhost/nobody_connects")
    hf.queue("orders", ordered="commit")
    hf.route("#", to=Function(print), name="all", ordered="commit")
    tries: list[str] = []

    @hf.job(queue="orders", key="{key}")
    async def ship(key: str) -> None: ...

    def run_once(work: Flow[Any]) -> Any:
        tries.append(next(work.start()).name)
        raise DatabaseBusy("busy", "a deadlock") if len(tries) == 1 else Tried

    async def arun_once(work: Flow[Any]) -> Any:
        return run_once(work)

    monkeypatch.setattr(hf.store, "run_once", run_once)
    monkeypatch.setattr(hf.store, "arun_once", arun_once)
    calls: dict[str, Callable[[], Any]] = {
        "enqueue": lambda: ship.enqueue("k"),
        "aenqueue": lambda: asyncio.run(ship.aenqueue("k")),
        "enqueue_many": lambda: hf.enqueue_many([ship.bind("k"), ship.bind("k")]),
        "publish": lambda: hf.publish("order.created", 1, key="k"),
        "publish_many": lambda: hf.publish_many([hf.draft("order.created", 1, key="k", idempotency_key="once")]),
    }
    with pytest.raises(Tried):
        calls[how]()
    assert tries == ["line_commit_lock"] * 2
