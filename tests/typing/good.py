"""What an application writes, and what it gets: every line must pass mypy strict."""

from collections.abc import Coroutine
from datetime import UTC, datetime, timedelta
from typing import Any, assert_type

from holdfast import Bound, Enqueued, Handler, Holdfast, Job, Retry

hf = Holdfast("sqlite:///shop.db")


@hf.job
def plain(order_id: int, note: str = "") -> str:
    return f"{order_id}{note}"


@hf.job(queue="mail", retry=Retry(max_attempts=5), lease=timedelta(seconds=30), timeout=60, priority=3)
async def with_job_first(job: Job, order_id: int) -> None:
    job.progress({"order": order_id})
    async with job.transaction() as tx:
        await tx.execute("update orders set sent = true where id = $1", order_id)


@hf.job(kind="orders.bill")
def with_keywords_only(*, order_id: int, amount: float) -> None: ...


async def enqueue() -> None:
    assert_type(plain.enqueue(9182), Enqueued)
    assert_type(plain.enqueue(order_id=9182, note="by name"), Enqueued)
    assert_type(await plain.aenqueue(9182, "by place"), Enqueued)
    # The worker gives `job`, so the caller does not.
    assert_type(with_job_first.enqueue(order_id=9182), Enqueued)
    assert_type(await with_job_first.aenqueue(9182), Enqueued)
    assert_type(with_keywords_only.bind(order_id=1, amount=9.5), Bound)
    said = with_job_first.using(
        tx=object(),
        queue="bulk",
        priority=10,
        run_after=timedelta(minutes=5),
        key="order:9182",
        idempotency_key="receipt-9182",
        window=3_600,
        unique="order:9182",
        max_attempts=3,
        lease=timedelta(minutes=1),
        headers={"traceparent": "00-1-2-3"},
    )
    assert_type(said.enqueue(order_id=9182), Enqueued)
    assert_type(plain.using(run_after=datetime.now(UTC)).bind(1), Bound)
    assert_type(hf.enqueue_many([plain.bind(n) for n in range(10)], tx=object()), list[Enqueued])
    assert_type(await hf.aenqueue_many([with_job_first.bind(order_id=1)]), list[Enqueued])
    assert_type(hf.enqueue("plain", {"order_id": 1}, priority=3), Enqueued)


def kind_of(handler: Handler[[int], Coroutine[Any, Any, None]]) -> str:
    """A handler's type says what it takes and what it gives."""
    return handler.kind


assert_type(kind_of(with_job_first), str)
