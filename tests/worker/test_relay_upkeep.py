"""What a relay cleans up: delivered events, each for as long as its route says."""

import asyncio
from datetime import timedelta

import pytest

from holdfast.sinks import Function, Message
from holdfast.worker.rounds.prune import Prune
from tests.worker.stage import Stage


def test_deliveries_are_pruned_by_the_retention_of_their_route(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Prune, "every_seconds", 0.05)
    hf = stage.hf

    async def deliver(message: Message) -> None: ...

    hf.route("order.*", to=Function(deliver), name="brief", retention=timedelta(milliseconds=20))
    hf.route("#", to=Function(deliver), name="archive", retention=timedelta(days=30))

    def kept() -> list[str]:
        return [str(row[0]) for row in stage.sql("select queue from holdfast_finished")]

    async def scene() -> None:
        async with hf.relay():
            await hf.apublish_many([hf.draft("order.created", n) for n in range(5)])
            await stage.until_empty()
            await stage.until(lambda: "route:brief" not in kept(), "the brief ones are deleted")
        await hf.aclose()

    asyncio.run(scene())
    assert kept() == ["route:archive"] * 5
