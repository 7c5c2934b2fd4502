"""Pydantic models as arguments and results, beside Structs and dataclasses."""

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal

import pytest
from pydantic import BaseModel, ConfigDict, Field

from holdfast import ConfigError, Holdfast, InvalidPayload, Run
from holdfast.testing.inline import run_due


class Line(BaseModel):
    sku: str
    price: Decimal


class Order(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")

    id: int
    customer: str = Field(alias="customerName")
    lines: list[Line] = []
    at: datetime | None = None
    tags: set[str] = set()


ORDER = Order(
    id=7,
    customerName="ada",
    lines=[Line(sku="x", price=Decimal("9.90"))],
    at=datetime(2026, 1, 2, tzinfo=UTC),
    tags={"gift"},
)


@pytest.fixture
def hf(sqlite_url: str) -> Iterator[Holdfast]:
    app = Holdfast(sqlite_url)
    app.migrate()
    yield app
    app.close()


def test_a_model_arrives_as_it_was_enqueued_alone_and_inside_others(hf: Holdfast) -> None:
    seen: list[object] = []

    @hf.job
    async def fulfil(order: Order, more: list[Order], maybe: Order | None = None) -> None:
        seen.append((order, more, maybe))

    fulfil.enqueue(ORDER, [ORDER], maybe=ORDER)
    fulfil.enqueue(order=ORDER, more=[])
    run_due(hf)
    assert seen == [(ORDER, [ORDER], ORDER), (ORDER, [], None)]


def test_plain_data_is_checked_as_the_model_says(hf: Holdfast) -> None:
    @hf.job
    async def fulfil(order: Order) -> None: ...

    assert '"customerName":"ada"' in fulfil.bind({"id": 1, "customerName": "ada"}).payload  # type: ignore[arg-type]
    for wrong, place in (
        ({"id": "1", "customerName": "ada"}, "id: Input should be a valid integer"),
        ({"id": 1}, "customerName: Field required"),
        ("text", "order.*object"),
    ):
        with pytest.raises(InvalidPayload, match=place) as caught:
            fulfil.enqueue(order=wrong)  # type: ignore[arg-type]
        assert caught.value.argument == "order"


def test_a_model_that_was_changed_into_something_invalid_is_refused_at_enqueue(hf: Holdfast) -> None:
    @hf.job
    async def fulfil(order: Order) -> None: ...

    broken = ORDER.model_copy(update={"id": None})
    with pytest.raises(InvalidPayload, match="order"):
        fulfil.enqueue(broken)


def test_a_model_as_result_is_read_back_as_one(hf: Holdfast) -> None:
    @hf.job
    async def fulfil() -> Order:
        return ORDER

    made = fulfil.enqueue()
    run_due(hf)
    assert hf.result(made.id, type=Order) == ORDER
    assert asyncio.run(hf.aresult(made.id))["customerName"] == "ada"


def test_steps_and_workflows_take_and_give_models(hf: Holdfast) -> None:
    async def price(order: Order) -> Line:
        return order.lines[0]

    @hf.workflow
    async def fulfil(run: Run, order: Order) -> Order:
        line = await run.step(price, order)
        return order.model_copy(update={"lines": [line, line]})

    handle = fulfil.start(order=ORDER)
    run_due(hf)
    assert len(handle.result().lines) == 2


def test_a_model_in_a_union_that_json_cannot_tell_apart_is_refused_by_name(hf: Holdfast) -> None:
    with pytest.raises(ConfigError, match="parameter what of act"):

        @hf.job
        async def act(what: Order | Line) -> None: ...
