"""A job is looked at in the caller's transaction, which sees what it has enqueued itself."""

from datetime import UTC, datetime, timedelta

import pytest

from holdfast import JobNotFound, jobs
from tests.callers import test_decoders
from tests.callers.callers import KINDS

each_kind = pytest.mark.parametrize("kind", [*KINDS, *test_decoders.KINDS], ids=lambda kind: kind.__name__)
ODD = "schlüssel-№7-🦑"


@each_kind
def test_a_job_is_seen_by_the_transaction_that_enqueued_it_and_by_no_other(shop, caller):
    caller.execute("insert into orders values (1)")
    before = datetime.now(UTC) - timedelta(minutes=5)
    answer = caller.enqueue(shop.hf, shop.receipt.using(key=ODD, headers={"a": ODD}, priority=3).bind(order=1))
    job = caller.get(shop.hf, answer)
    assert (job.id, job.state, job.queue, job.kind, job.payload) == (
        *(answer.id, "pending", "default", "receipt"),
        '{"order":1}',
    )
    assert (job.key, job.headers, job.priority, job.attempts, job.max_attempts) == (ODD, {"a": ODD}, 3, 0, 5)
    assert (job.result, job.errors, job.leased_at, job.finished_at, job.cancel_requested) == (
        None,
        [],
        None,
        None,
        False,
    )
    assert before < job.created_at == job.available_at < datetime.now(UTC) + timedelta(minutes=5)
    with pytest.raises(JobNotFound, match="never committed"):
        shop.hf.get(answer)
    caller.commit()
    assert shop.hf.get(answer) == job


@each_kind
def test_a_finished_job_is_seen_alike_in_a_transaction_and_outside(shop, caller):
    answer = shop.receipt.enqueue(order=1)
    [lease] = shop.hf.store.run(jobs.claim("default", limit=1))
    shop.hf.store.run(jobs.complete(lease, '{"sent": "schlüssel"}'))
    caller.execute("insert into orders values (1)")
    job = caller.get(shop.hf, answer)
    assert (job.state, job.result) == ("done", {"sent": "schlüssel"})
    assert job == shop.hf.get(answer)
