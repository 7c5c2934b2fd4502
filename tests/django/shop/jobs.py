"""Found by `holdfast.django`: nothing imports it by name before the tests do."""

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from asgiref.sync import sync_to_async
from django.db import IntegrityError, connection, transaction

from holdfast import Bulk, Job, Retry, Run
from holdfast.django import hf
from holdfast.sinks import Function
from tests.django.shop.models import Note, Order

threads: list[int] = []
delivered: list[Any] = []
# What a test wants to see while a handler is in its transaction.
meanwhile: list[Callable[[], None]] = []


@hf.job
def pay(job: Job, order_id: int) -> str:
    threads.append(threading.get_ident())
    with job.transaction():
        Order.objects.filter(id=order_id).update(state="paid")
    return "paid"


@hf.job
def pay_by_hand(job: Job, order_id: int) -> None:
    with transaction.atomic():
        Order.objects.filter(id=order_id).update(state="paid")
        job.progress("half")
        for look in meanwhile:
            look()
        with job.once(f"paid:{order_id}") as first:
            assert first
        job.complete(result="by hand")


@hf.job(retry=Retry(max_attempts=1))
def complete_at_once(job: Job) -> None:
    job.complete()


@hf.job(retry=Retry(max_attempts=1))
def fail_after_paying(job: Job, order_id: int) -> None:
    with job.transaction():
        Order.objects.filter(id=order_id).update(state="paid")
        raise ValueError("the card was refused")


@hf.job(retry=Retry(max_attempts=1))
def undo_after_paying(job: Job, order_id: int) -> None:
    with transaction.atomic():
        with job.transaction():
            Order.objects.filter(id=order_id).update(state="paid")
        raise ValueError("the card was refused")


@hf.job(retry=Retry(max_attempts=1))
def pay_without_autocommit(job: Job, order_id: int) -> None:
    transaction.set_autocommit(False)
    try:
        with job.transaction():
            Order.objects.filter(id=order_id).update(state="paid")
    finally:
        transaction.rollback()
        transaction.set_autocommit(True)


@hf.job(retry=Retry(max_attempts=1))
def order_again(order_id: int) -> None:
    Order.objects.create(state="undone")
    Order.objects.create(id=order_id)


@hf.job
def order_again_quietly(order_id: int) -> None:
    with suppress(IntegrityError):
        order_again(order_id)


@hf.job(retry=Retry(max_attempts=1))
def ask_for_nothing() -> None:
    with transaction.atomic(durable=True):
        Order.objects.create(state="kept")
    with connection.cursor() as cursor:
        cursor.execute("select 1 from nowhere")


def refuse() -> None:
    raise ConnectionRefusedError("nobody takes mails")


@hf.job
def pay_and_fail_to_tell(job: Job, order_id: int) -> None:
    with job.transaction():
        Order.objects.filter(id=order_id).update(state="paid")
        transaction.on_commit(refuse)


@hf.job
def pay_by_hand_and_fail_to_tell(job: Job, order_id: int) -> None:
    with transaction.atomic():
        transaction.on_commit(refuse)
        Order.objects.filter(id=order_id).update(state="paid")
        job.complete()


@hf.job(retry=Retry(max_attempts=3, never=IntegrityError))
def note_for_nobody(job: Job) -> None:
    with job.transaction():
        Note.objects.create(order_id=2_000_000_000)


@hf.job(retry=Retry(max_attempts=1))
def lose_its_lease(job: Job, order_id: int) -> None:
    with job.transaction():
        Order.objects.filter(id=order_id).update(state="paid")
        with connection.cursor() as cursor:
            cursor.execute("update holdfast_jobs set fence = fence + 1")


@hf.job
def count_orders() -> int:
    return Order.objects.count()


@hf.job
async def count_later(order_id: int) -> int:
    await count_orders.aenqueue()
    return await Order.objects.acount()


@hf.bulk(size=10)
def note(orders: list[int], bulk: Bulk) -> None:
    with bulk.transaction():
        Order.objects.filter(id__in=orders).update(state="noted")


@hf.job(retry=Retry(max_attempts=1))
def read_orders() -> int:
    with connection.cursor() as cursor:
        cursor.execute("select 1")
        return int(cursor.fetchone()[0])


@hf.job(retry=Retry(max_attempts=1))
async def read_orders_async() -> int:
    return await sync_to_async(read_orders)()


@hf.bulk(retry=Retry(max_attempts=1))
def read_orders_in_bulk(numbers: list[int]) -> list[int]:
    return [read_orders() + number for number in numbers]


@hf.bulk(retry=Retry(max_attempts=1))
async def read_orders_in_bulk_async(numbers: list[int]) -> list[int]:
    return await sync_to_async(read_orders_in_bulk)(numbers)


def read_once() -> int:
    return read_orders()


@hf.workflow
async def read_orders_in_a_run(run: Run) -> int:
    return int(await run.step(read_once, retry=Retry(max_attempts=1)))


@hf.job(retry=Retry(max_attempts=1))
async def pay_in_async(job: Job, order_id: int) -> None:
    async with job.transaction():
        pass


def mark(state: str, order_id: int) -> str:
    Order.objects.filter(id=order_id).update(state=state)
    return state


def mark_in(tx: Any, order_id: int) -> str:
    assert tx is connection or tx.alias == "default"
    return mark("shipped", order_id)


@hf.workflow
async def fulfil(run: Run, order_id: int) -> str:
    await run.step(mark, "packed", order_id)
    await run.transaction(mark_in, order_id)
    return str(await run.signal("delivered"))


hf.route("order.*", to=Function(delivered.append), name="orders")
