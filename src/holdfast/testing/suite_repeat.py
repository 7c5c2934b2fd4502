"""Repeats of an enqueue whose answer was lost: the job runs once, however it ended meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from holdfast import admin, jobs
from holdfast.errors import DatabaseUnavailable
from holdfast.flow import Steps, flow
from holdfast.jobs.enqueueing import NOTED_SECONDS, REPEAT_SECONDS, Drawn, again
from holdfast.store import Store
from holdfast.testing.clock import Clock
from holdfast.testing.look import Do, Look
from holdfast.testing.make import failure, new_job
from holdfast.values.rows import Enqueued, Finish, Lease, NewJob

End = Callable[[Do, Clock, Lease], None]


def completed(do: Do, clock: Clock, lease: Lease) -> None:
    do(jobs.complete(lease, keep=False))


def settled(do: Do, clock: Clock, lease: Lease) -> None:
    do(jobs.settle([Finish(lease.id, lease.fence, "done", keep=False)]))


def pruned(do: Do, clock: Clock, lease: Lease) -> None:
    do(jobs.complete(lease))
    clock.advance(1)
    assert do(jobs.prune("done", lease.queue, 0)) == 1


def discarded(do: Do, clock: Clock, lease: Lease) -> None:
    do(jobs.kill(lease, failure(), "group"))
    assert do(admin.discard(admin.Filter(), 10, None)) == [lease.job_id]


def cancelled(do: Do, clock: Clock, lease: Lease) -> None:
    do(jobs.release(lease))
    do(admin.cancel(lease.job_id, None))
    clock.advance(1)
    assert do(jobs.prune("cancelled", lease.queue, 0)) == 1


ENDS: dict[str, End] = {end.__name__: end for end in (completed, settled, pruned, discarded, cancelled)}
SAID: list[dict[str, Any]] = [
    {},
    {"idempotency_key": "k"},
    {"unique": "u"},
    {"idempotency_key": "k", "unique": "u"},
]


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
@pytest.mark.parametrize("said", SAID, ids=lambda said: "+".join(said) or "plain")
def test_a_repeated_enqueue_of_a_job_that_left_no_row_does_not_run_it_again(
    do: Do, clock: Clock, look: Look, said: dict[str, Any], end: End
) -> None:
    job = new_job(**said)
    do(jobs.enqueue(job, fresh=True))
    [lease] = do(jobs.claim("mail", limit=1))
    end(do, clock, lease)
    assert (look.live(), look.over()) == ([], [])
    assert do(jobs.enqueue(job, drawn=Drawn.now())) == Enqueued(job.id)
    assert (look.live(), look.over()) == ([], [])


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_a_repeat_of_many_adds_only_those_that_were_not_run(do: Do, clock: Clock, look: Look, end: End) -> None:
    new = [new_job(), new_job(priority=3), new_job(idempotency_key="k"), new_job(unique="u"), new_job()]
    do(jobs.enqueue_many(new, fresh=True))
    [first, *rest] = do(jobs.claim("mail", limit=3))
    end(do, clock, first)
    waiting = look.live()
    repeat = jobs.enqueue_many(new, drawn=Drawn.now())
    for _ in range(2):
        assert do(repeat) == [Enqueued(job.id) for job in new]
        assert look.live() == waiting
    assert len(waiting) == 4 >= len(rest)


def test_a_repeat_looks_as_far_back_as_it_may_come(do: Do, clock: Clock, look: Look) -> None:
    job = new_job()
    do(jobs.enqueue(job, fresh=True))
    completed(do, clock, do(jobs.claim("mail", limit=1))[0])
    clock.advance(REPEAT_SECONDS - 1)
    do(jobs.prune_dropped())
    drawn = Drawn(time.monotonic() - (REPEAT_SECONDS - 1), time.time())
    do(again(jobs.enqueue, job, drawn))
    assert look.live() == []


@pytest.mark.parametrize("clock_of", ["monotonic", "wall"])
def test_a_repeat_that_comes_too_late_says_that_nothing_is_known(
    do: Do, store: Store, clock: Clock, look: Look, clock_of: str
) -> None:
    """By either clock: one of them stands while the machine sleeps."""
    drawn = Drawn.now()
    drawn = drawn._replace(**{clock_of: getattr(drawn, clock_of) - REPEAT_SECONDS - 1})
    new = new_job()
    with pytest.raises(DatabaseUnavailable, match="not known whether its jobs were added"):
        again(jobs.enqueue, new, drawn)
    for repeat in (jobs.enqueue(new, drawn=drawn), jobs.enqueue_many([new], drawn=drawn)):
        # It was begun in time, and has waited for a lock since.
        with pytest.raises(DatabaseUnavailable, match="not known whether its jobs were added"):
            store.run_once(repeat)
    assert look.live() == []


def test_a_repeat_leaves_a_job_that_came_back_from_the_dead_letters(do: Do, clock: Clock, look: Look) -> None:
    """Noted once, because a twin of it was dropped; what is live now is not what the repeat adds."""
    job = new_job()
    do(jobs.enqueue(job))
    do(jobs.kill(do(jobs.claim("mail", limit=1))[0], failure(), "group"))
    do(jobs.enqueue(job, fresh=True))
    completed(do, clock, do(jobs.claim("mail", limit=1))[0])
    assert do(admin.replay(admin.Filter(), 10, None)).ids == [job.id]
    [before] = look.live()
    do(jobs.enqueue(job))
    assert look.live() == [before]


def test_a_repeat_leaves_a_job_whose_drop_came_too_late(do: Do, clock: Clock, look: Look) -> None:
    new = [new_job(), new_job()]
    do(jobs.enqueue_many(new))
    held, lost = do(jobs.claim("mail", limit=2))
    do(jobs.release(lost))
    both = jobs.settle([Finish(one.id, one.fence, "done", keep=False) for one in (held, lost)])
    assert do(both) == jobs.Settled({held.job_id}, {lost.job_id})
    do(jobs.enqueue_many(new))
    assert [row.id for row in look.live()] == [lost.job_id]


def test_a_job_found_instead_of_a_dropped_one_is_left_alone(do: Do, clock: Clock, look: Look) -> None:
    first, second = new_job(unique="u", idempotency_key="k"), new_job(unique="u")
    do(jobs.enqueue(first, fresh=True))
    completed(do, clock, do(jobs.claim("mail", limit=1))[0])
    do(jobs.enqueue(second))
    do(jobs.enqueue(first))
    assert [row.id for row in look.live()] == [second.id]


def dropped(do: Do, new: list[NewJob]) -> None:
    """Run jobs one after the other, so that each is noted by itself."""
    for job in new:
        do(jobs.enqueue(job))
        [lease] = do(jobs.claim("mail", limit=1))
        do(jobs.complete(lease, keep=False))


def test_notes_of_dropped_jobs_are_pruned_in_chunks_and_young_ones_stay(do: Do, clock: Clock, look: Look) -> None:
    old, young = [new_job() for _ in range(5)], [new_job()]
    dropped(do, old)
    clock.advance(1)
    dropped(do, young)
    clock.advance(NOTED_SECONDS - 1)
    assert do(jobs.prune_dropped()) == 0
    clock.advance(0.001)
    assert [do(jobs.prune_dropped(limit=2)) for _ in range(4)] == [2, 2, 1, 0]
    [[ids]] = look.rows("select ids from holdfast_dropped")
    assert young[0].id in str(ids)


def test_jobs_pruned_long_after_their_end_are_not_noted(do: Do, clock: Clock, look: Look) -> None:
    do(jobs.enqueue(new_job()))
    do(jobs.complete(do(jobs.claim("mail", limit=1))[0]))
    clock.advance(86_400)
    assert do(jobs.prune("done", "mail", round(NOTED_SECONDS * 1000))) == 1
    assert list(look.rows("select ids from holdfast_dropped")) == []


def test_a_drop_that_is_rolled_back_is_not_noted(do: Do, clock: Clock, look: Look) -> None:
    do(jobs.enqueue(new_job()))
    [lease] = do(jobs.claim("mail", limit=1))

    @flow
    def dropped_in_vain() -> Steps[None]:
        yield from jobs.complete(lease, keep=False)
        raise ValueError("not today")

    with pytest.raises(ValueError, match="not today"):
        do(dropped_in_vain())
    assert list(look.rows("select ids from holdfast_dropped")) == []
    assert [row.id for row in look.live()] == [lease.job_id]
