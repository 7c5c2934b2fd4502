"""Jobs are cancelled and changed in the caller's transaction: it counts if and only if that commits."""

from datetime import UTC, datetime, timedelta

import pytest

from holdfast import jobs
from tests.callers import test_decoders
from tests.callers.callers import KINDS, Aiosqlite, Asyncpg, Psycopg, Sqlite3
from tests.callers.mysql_callers import Asyncmy, PyMySQL

each_kind = pytest.mark.parametrize("kind", [*KINDS, *test_decoders.KINDS], ids=lambda kind: kind.__name__)
some_kinds = pytest.mark.parametrize(
    "kind", [Sqlite3, Aiosqlite, Psycopg, Asyncpg, PyMySQL, Asyncmy], ids=lambda kind: kind.__name__
)
LATER = datetime.now(UTC).replace(microsecond=0) + timedelta(days=1)
ODD = "schlüssel-№7-🦑"


@each_kind
def test_a_cancel_and_a_change_count_when_their_caller_commits(shop, caller):
    shop.receipt.enqueue(order=0)
    [lease] = shop.hf.store.run(jobs.claim("default", limit=1))
    first, second, third = (shop.receipt.using(key=f"{ODD}-{n}").enqueue(order=n) for n in range(3))
    caller.execute("insert into orders values (1)")
    gone = caller.cancel(shop.hf, [first, lease.job_id], actor=ODD, created_after=LATER - timedelta(days=2))
    assert (gone.cancelled, gone.requested) == ([first.id], [lease.job_id])
    changed = caller.change(shop.hf, key=f"{ODD}-1", state=["pending"], to_queue=ODD, priority=3, run_after=LATER)
    assert changed.changed == [second.id]
    assert caller.change(shop.hf, [third, lease.job_id], run_after=60).left == {lease.job_id: "leased"}
    assert shop.hf.get(first).state == "pending"
    caller.commit()
    assert shop.hf.get(first).state == "cancelled"
    assert shop.hf.get(lease.job_id).cancel_requested
    job = shop.hf.get(second)
    assert (job.queue, job.priority, job.available_at, job.key) == (ODD, 3, LATER, f"{ODD}-1")


@some_kinds
def test_a_rollback_takes_a_cancel_and_a_change_back(shop, caller):
    first, second = (shop.receipt.using(key="k").enqueue(order=n) for n in range(2))
    caller.execute("insert into orders values (1)")
    assert caller.cancel(shop.hf, first).cancelled == [first.id]
    assert caller.change(shop.hf, second, to_queue="bulk").changed == [second.id]
    caller.rollback()
    assert [(shop.hf.get(one).state, shop.hf.get(one).queue) for one in (first, second)] == [("pending", "default")] * 2
    assert shop.look("select count(*) from holdfast_audit") == [(0,)]
