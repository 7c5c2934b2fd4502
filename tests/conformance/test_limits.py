"""The largest that each option takes: no database may refuse later what was accepted at construction."""

import asyncio
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta

import pytest

from holdfast import Holdfast, Retry, admin, jobs
from holdfast.errors import ConfigError
from holdfast.store import Store
from holdfast.values.options import MOST_BUCKETS
from holdfast.values.retry import LONGEST, LONGEST_LEASE
from holdfast.values.rows import PutBack

FIRST, LAST = datetime(1000, 1, 1, tzinfo=UTC), datetime(9998, 12, 31, 23, 59, 59, tzinfo=UTC)
LONG = timedelta(seconds=LONGEST_LEASE)


def one(n: int = 0) -> None: ...


@pytest.fixture
def hf(store: Store) -> Iterator[Holdfast]:
    with Holdfast(store.url, buckets=MOST_BUCKETS) as hf:
        yield hf


def work(hf: Holdfast, over: Callable[[], bool]) -> None:
    """Run a worker until something is over."""

    def wait() -> None:
        deadline = time.monotonic() + 60
        while not over():
            assert time.monotonic() < deadline
            time.sleep(0.05)

    async def main() -> None:
        async with hf.worker(poll=0.05):
            await asyncio.to_thread(wait)
        await hf.aclose()

    asyncio.run(main())


def test_a_worker_serves_a_handler_with_the_longest_times(hf):
    longest = Retry(max_attempts=1_000_000, first_delay=LONGEST, max_delay=LONGEST, jitter=1)
    slow = hf.job(kind="slow", lease=LONG, timeout=LONGEST, retry=longest)(one)
    usual = hf.job(kind="usual")(one)
    failing = hf.job(kind="failing", lease=LONG, retry=longest)(fail)
    hf.queue("default", retention={"done": LONGEST, "dead": LONGEST, "cancelled": LONGEST})

    def seen() -> list[admin.JobView]:
        return [hf.store.run(admin.show(job_id)) for job_id in ids]

    ids = [each.enqueue().id for each in (slow, usual, failing)]
    work(hf, lambda: all(job.errors or job.finished_at for job in seen()))
    assert [job.state for job in seen()] == ["done", "done", "pending"]


def fail() -> None:
    raise RuntimeError("again in a hundred years")


def test_a_job_with_the_longest_times_is_kept(hf):
    handler = hf.job(kind="one")(one)
    said = {"lease": LONG, "window": LONGEST, "max_attempts": 1_000_000}
    made = handler.using(**said, idempotency_key="k", key="order:1").enqueue()
    many = hf.enqueue_many([handler.using(**said, unique=f"u{n}").bind(n) for n in range(3)])
    later = handler.using(run_after=LONGEST).enqueue()
    [lease, *others] = hf.store.run(jobs.claim("default", limit=9))
    assert {lease.job_id, *(other.job_id for other in others)} == {made.id, *(one.id for one in many)}
    assert lease.lease_ms == LONGEST_LEASE * 1000
    assert hf.store.run(jobs.renew([(lease, lease.lease_ms)])).kept == {lease.job_id}
    hf.store.run(jobs.settle([PutBack(lease.id, lease.fence, delay_ms=round(2 * LONGEST * 1000))]))
    assert hf.store.run(admin.show(lease.job_id)).state == "pending"
    assert hf.store.run(admin.show(later.id)).state == "pending"


@pytest.mark.parametrize("many", [True, False])
def test_the_first_and_the_last_time_are_kept_and_the_first_is_due(hf, many):
    handler = hf.job(kind="one")(one)
    using = {moment: handler.using(run_after=moment) for moment in (FIRST, LAST)}
    if many:
        ids = [each.id for each in hf.enqueue_many([each.bind(n) for n, each in enumerate(using.values())])]
    else:
        ids = [each.enqueue().id for each in using.values()]
    found = {str(job.id): job for job in hf.store.run(admin.list_jobs())}
    assert [found[job_id].available_at for job_id in ids] == [FIRST, LAST]

    work(hf, lambda: hf.store.run(admin.show(ids[0])).state == "done")
    assert hf.store.run(admin.show(ids[1])).state == "pending"


def test_every_bucket_can_be_stored(hf):
    handler = hf.job(kind="one")(one)
    hf.enqueue_many([handler.using(key=f"order:{n}").bind(n) for n in range(300)])
    for n in range(20):
        handler.using(key=f"order:{n}").enqueue()
    assert hf.store.run(admin.count_jobs()) == 320


def test_the_longest_timeouts_of_a_store_open_a_connection(store):
    day = timedelta(days=1)
    with Holdfast(store.url, busy_timeout=day, connect_timeout=day) as hf:
        handler = hf.job(kind="one")(one)
        handler.enqueue()

        async def main() -> None:
            await handler.aenqueue()
            await hf.aclose()

        asyncio.run(main())


@pytest.mark.parametrize("option", ["busy_timeout", "connect_timeout"])
def test_a_longer_timeout_is_refused_before_a_connection_is(store, option):
    with pytest.raises(ConfigError, match=rf"{option}: must be from .* to a day"):
        Holdfast(store.url, **{option: timedelta(days=1, seconds=1)})
