"""What an application writes, and what it gets. A comment `reveals:` is what pyright says of the line's expression."""

from collections.abc import Coroutine, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, assert_type, reveal_type

from holdfast import (
    Bound,
    Cancel,
    Debounce,
    Enqueued,
    Enqueueing,
    Handler,
    Holdfast,
    Job,
    Retry,
    Snooze,
    Throttle,
)
from holdfast.events import JobDone
from holdfast.testing.inline import Ran, arun_due, enqueued, run_due
from holdfast.worker import Worker

hf = Holdfast("sqlite:///shop.db", prefix="shop", pool_size=5, busy_timeout=timedelta(seconds=3), notify=None)


@hf.job
def plain(order_id: int, note: str = "") -> str:
    return f"{order_id}{note}"


@hf.job(queue="mail", retry=Retry(max_attempts=5), lease=timedelta(seconds=30), timeout=60, priority=3)
async def with_job_first(job: Job, order_id: int) -> Retry | Snooze | Cancel | None:
    await job.aprogress({"order": order_id})
    async with job.transaction() as tx:
        await tx.execute("update orders set sent = true where id = $1", order_id)
    return Snooze(timedelta(minutes=1)) if job.headers.get("later") else None


@hf.job(kind="orders.bill")
def with_keywords_only(*, order_id: int, amount: float) -> None: ...


@hf.job
def with_job_alone(job: Job) -> None:
    with job.transaction() as tx:
        tx.execute("delete from orders")


@hf.enqueue_hook
def trace(new: Enqueueing) -> dict[str, str] | None:
    return {"kind": new.kind, "queue": new.queue} if "kind" not in new.headers else None


@hf.middleware
async def timed(job: Job, call_next: Any) -> Any:
    return await call_next(job)


# What pyright shows when the mouse rests on it.
reveal_type(plain)  # reveals: Handler[(order_id: int, note: str = ""), str]
reveal_type(plain.enqueue)  # reveals: (order_id: int, note: str = "") -> Enqueued
reveal_type(plain.aenqueue)  # reveals: (order_id: int, note: str = "") -> CoroutineType[Any, Any, Enqueued]
reveal_type(plain.bind)  # reveals: (order_id: int, note: str = "") -> Bound
reveal_type(plain.using(key="a").enqueue)  # reveals: (order_id: int, note: str = "") -> Enqueued
reveal_type(with_job_first.enqueue)  # reveals: (order_id: int) -> Enqueued
reveal_type(with_keywords_only.enqueue)  # reveals: (*, order_id: int, amount: float) -> Enqueued
reveal_type(with_job_alone.enqueue)  # reveals: () -> Enqueued
reveal_type(with_job_alone)  # reveals: Handler[(), None]
reveal_type(trace)  # reveals: (new: Enqueueing) -> (dict[str, str] | None)
reveal_type(hf.worker())  # reveals: Worker
reveal_type(hf.enqueue_many([plain.bind(1)]))  # reveals: list[Enqueued]
reveal_type(plain(1))  # reveals: str
reveal_type(enqueued(hf, plain)[0].payload)  # reveals: str


async def enqueue(connection: object) -> None:
    assert_type(plain.enqueue(9182), Enqueued)
    assert_type(plain.enqueue(order_id=9182, note="by name"), Enqueued)
    assert_type(await plain.aenqueue(9182, "by place"), Enqueued)
    # The worker gives `job`, so the caller does not.
    assert_type(with_job_first.enqueue(order_id=9182), Enqueued)
    assert_type(await with_job_first.aenqueue(9182), Enqueued)
    assert_type(with_job_alone.enqueue(), Enqueued)
    assert_type(with_keywords_only.bind(order_id=1, amount=9.5), Bound)
    said = with_job_first.using(
        tx=connection,
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
        notify=False,
    )
    assert_type(said.enqueue(order_id=9182), Enqueued)
    assert_type(await said.aenqueue(order_id=9182), Enqueued)
    assert_type(plain.using(run_after=datetime.now(UTC), priority=None).bind(1), Bound)
    assert_type(plain.using(debounce=Debounce("doc:7", wait=5, max_wait=timedelta(minutes=1))).enqueue(1), Enqueued)
    assert_type(plain.using(throttle=Throttle("doc:7", window=60), expires=datetime.now(UTC)).bind(1), Bound)
    assert_type(plain.using(expires=timedelta(hours=1)).bind(1), Bound)
    assert_type(hf.enqueue_many([plain.bind(n) for n in range(10)], tx=connection), list[Enqueued])
    assert_type(await hf.aenqueue_many([with_job_first.bind(order_id=1)]), list[Enqueued])
    assert_type(hf.enqueue("plain", {"order_id": 1}, priority=3, tx=connection), Enqueued)
    assert_type(await hf.aenqueue("other", check=False, window=60.0), Enqueued)
    assert_type(hf.bind("plain", {"order_id": 1}, key="order:1"), Bound)
    added = plain.enqueue(1)
    assert_type((added.id, added.created), tuple[str, bool])


async def run() -> None:
    worker = hf.worker(queues=["mail"], concurrency=50, poll=0.5, drain=timedelta(minutes=1), name="web", buffer=0)
    assert_type(worker, Worker)
    async with worker:
        pass
    assert_type(run_due(hf, ahead=timedelta(hours=1)), list[Ran])
    assert_type(await arun_due(hf), list[Ran])
    hf.on(JobDone, lambda event: print(event.kind))


jobs = hf.foreign.pdo(table="queue_jobs")


@jobs.handler("urn:order")
def from_php(job: Job, order_id: int) -> None:
    headers: Mapping[str, str] = job.headers
    print(headers["trace_id"], order_id)


def kind_of(handler: Handler[[int], Coroutine[Any, Any, Any]]) -> str:
    """A handler's type says what it takes and what it gives."""
    return handler.kind


assert_type(kind_of(with_job_first), str)
assert_type(from_php.kind, str)
