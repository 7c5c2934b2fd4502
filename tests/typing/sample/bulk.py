"""Bulk handlers as an application writes them: what `enqueue` takes is one item."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, assert_type, reveal_type

from holdfast import Bound, Bulk, BulkHandler, Cancel, Enqueued, Fatal, Handler, Holdfast, Retry, Snooze

hf = Holdfast("sqlite:///shop.db")


@dataclass
class Page:
    url: str


@hf.bulk(size=500, queue="index", retry=Retry(max_attempts=5), lease=timedelta(minutes=1), timeout=60, concurrency=2)
async def index(pages: list[Page], bulk: Bulk) -> None:
    async with bulk.transaction() as tx:
        await tx.executemany("insert into pages values ($1)", [(page.url,) for page in pages])
        for n in bulk.lost:
            bulk.leave_out(n, Cancel())
        bulk.jobs[0].result = {"rows": len(pages)}
    bulk.leave_out(0, Fatal("never"))
    bulk.leave_out(0, ValueError("odd"))


@hf.bulk
def plain(pages: list[int]) -> list[Retry | Snooze | Cancel | None]:
    return [None for _ in pages]


@hf.bulk(item="page", kind="pages.forget")
def forget(pages: Sequence[Page], bulk: Bulk | None = None) -> None: ...


reveal_type(index.enqueue)  # reveals: (Page) -> Enqueued
reveal_type(index.using(key="a").enqueue)  # reveals: (Page) -> Enqueued
reveal_type(plain.enqueue)  # reveals: (int) -> Enqueued
reveal_type(forget.bind)  # reveals: (Page) -> Bound
reveal_type(plain)  # reveals: BulkHandler[int, list[Retry | Snooze | Cancel | None]]


def kind_of(handler: Handler[..., Any]) -> str:
    return handler.kind


def is_one(handler: BulkHandler[Page, None]) -> int:
    return handler.size


async def enqueue() -> None:
    assert_type(index.enqueue(Page("/")), Enqueued)
    assert_type(await plain.aenqueue(3), Enqueued)
    assert_type(forget.using(key="a").bind(Page("/")), Bound)
    assert_type(hf.enqueue_many([index.bind(Page("/"))]), list[Enqueued])
    assert_type(kind_of(index), str)
    assert_type(is_one(forget), int)
    index.enqueue("/")  # error: arg-type, reportArgumentType
    index.enqueue([Page("/")])  # error: arg-type, reportArgumentType
    index.enqueue()  # error: call-arg, reportCallIssue
    index.using(priority=3).enqueue(3)  # error: arg-type, reportArgumentType
    plain.bind("1")  # error: arg-type, reportArgumentType
    forget.enqueue(Page("/"), None)  # error: call-arg, reportCallIssue


@hf.bulk(size="all")  # error: call-overload, reportArgumentType
def sized(pages: list[Page]) -> None: ...


@hf.bulk()  # error: arg-type, reportArgumentType
def single(page: Page) -> None: ...
