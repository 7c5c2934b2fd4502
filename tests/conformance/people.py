"""What the tests of the admin start from."""

from __future__ import annotations

from typing import Any

from holdfast import admin, jobs
from holdfast.testing import Clock, Do, failure, new_job
from holdfast.values.rows import Lease


def enqueued(do: Do, *args: str, **said: Any) -> str:
    return do(jobs.enqueue(new_job(*args, **said))).id


def claimed(do: Do, queue: str = "mail", worker: str = "w1") -> Lease:
    [lease] = do(jobs.claim(queue, limit=1, worker=worker))
    return lease


def buried(
    do: Do,
    clock: Clock,
    message: str = "it broke",
    group: str = "g",
    queue: str = "mail",
    kind: str = "noop",
    **said: Any,
) -> str:
    """Enqueue a job, let it fail for good a second later, and return its id."""
    job_id = enqueued(do, queue, kind, **said)
    clock.advance(1)
    do(jobs.kill(claimed(do, queue), failure(message), group))
    return job_id


def crowded(do: Do, clock: Clock) -> dict[str, str]:
    """Make one job in each state, each told from the others by every field that a filter knows."""
    dead = buried(do, clock, "Connection refused", "g1", "a", "ka", key="key-a")
    clock.advance(100)
    done = enqueued(do, "b", "kb", key="key-b")
    do(jobs.complete(claimed(do, "b", "w2")))
    clock.advance(100)
    gone = enqueued(do, "c", "kc", key="key-c")
    do(admin.cancel(gone, None))
    clock.advance(100)
    leased = enqueued(do, "d", "kd", key="key-d")
    claimed(do, "d", "w4")
    clock.advance(100)
    pending = enqueued(do, "e", "ke", key="key-e")
    do(jobs.retry(claimed(do, "e", "w5"), 0, failure("timed out")))
    clock.advance(100)
    return {"dead": dead, "done": done, "cancelled": gone, "leased": leased, "pending": pending}
