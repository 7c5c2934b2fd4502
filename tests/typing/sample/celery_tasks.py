"""Tasks of those who come from Celery: calls are typed like the function, and `self` is not asked for."""

from datetime import UTC, datetime
from typing import Any, assert_type, reveal_type

from holdfast import Bound
from holdfast.celery import (
    AsyncResult,
    Celery,
    EagerResult,
    Signature,
    Task,
    chain,
    chord,
    current_app,
    group,
    shared_task,
)

app = Celery("shop", holdfast="sqlite:///shop.db", task_always_eager=False)


@shared_task
def add(x: int, y: int = 1) -> int:
    return x + y


@shared_task(bind=True, autoretry_for=(OSError,), retry_backoff=True, max_retries=3)
def fetch(self: Task[..., Any], url: str) -> str:
    try:
        return f"{self.request.id}{self.request.retries}{url}"
    except ValueError as error:
        raise self.retry(exc=error, countdown=5) from error


@app.task(queue="mail", time_limit=60, rate_limit="10/m")
async def send(order_id: int) -> None: ...


reveal_type(add.delay)  # reveals: (x: int, y: int = 1) -> (AsyncResult | EagerResult)
reveal_type(fetch.delay)  # reveals: (url: str) -> (AsyncResult | EagerResult)
reveal_type(add(1, 2))  # reveals: int


async def call(session: object) -> None:
    assert_type(add.delay(1, y=2), AsyncResult | EagerResult)
    assert_type(await send.adelay(order_id=1), AsyncResult)
    assert_type(add.using(tx=session, countdown=5).delay(1), AsyncResult | EagerResult)
    assert_type(add.apply_async((1,), eta=datetime.now(UTC), queue="mail", priority=3), AsyncResult | EagerResult)
    assert_type(add.s(1), Signature)
    chain(add.s(1), add.s(2)).delay()
    group(add.s(n) for n in range(3)).apply_async(tx=session)
    chord([add.s(1), add.s(2)])(add.s()).get(timeout=3)
    assert_type(add.handler.bind(1), Bound)
    current_app.send_task("add", kwargs={"x": 1})
    add.delay("1")  # error: arg-type, reportArgumentType
    add.delay()  # error: call-arg, reportCallIssue
    fetch.delay(1)  # error: arg-type, reportArgumentType
    fetch.delay("a", "b")  # error: call-arg, reportCallIssue
    await send.adelay("1")  # error: arg-type, reportArgumentType
    add.using(key="a").delay("1")  # error: arg-type, reportArgumentType
    add.apply_async((1,), countdown="soon")  # error: arg-type, reportArgumentType
    add.apply_async((1,), colour="red")  # error: call-arg, reportCallIssue
    add.using(priority="high")  # error: arg-type, reportArgumentType


@shared_task(max_retries="many")  # error: call-overload, reportArgumentType
def broken() -> None: ...
