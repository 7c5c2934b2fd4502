"""Jobs whose end somebody waits for: marks, looks, and what is kept for those who wait."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import admin, jobs, lines, results
from holdfast.flow import Flow, Steps, flow
from holdfast.results import LEFT, WAITED_FOR
from holdfast.testing.clock import Clock
from holdfast.testing.look import Do, Look
from holdfast.testing.make import failure, new_job
from holdfast.testing.suite_door import Crash
from holdfast.values.queues import QueueSettings
from holdfast.values.rows import Finish, Lease, PutBack


def leased(do: Do, count: int = 1, **fields: Any) -> list[Lease]:
    do(jobs.enqueue_many([new_job(**fields) for _ in range(count)]))
    return do(jobs.claim("mail", limit=count))


def waited_for(do: Do, count: int = 1, **fields: Any) -> list[Lease]:
    """Enqueue jobs, claim them, and have somebody wait for them."""
    leases = leased(do, count, **fields)
    assert do(results.mark([lease.job_id for lease in leases])) == {lease.job_id for lease in leases}
    return leases


def unkept(lease: Lease, result: str | None = '{"n": 1}') -> Finish:
    return Finish(lease.id, lease.fence, "done", result, keep=False)


def kept(look: Look) -> list[tuple[str, str, str, str | None]]:
    rows = look.rows("select job_id, queue, kind, cast(result as text) from holdfast_results order by job_id")
    return [(str(job), queue, kind, result) for job, queue, kind, result in rows]


def how(do: Do, job_id: str) -> str | None:
    """Tell how a job is, as those who wait for it see it."""
    seen = do(results.look([job_id])).get(job_id)
    return None if seen is None else seen.state


def test_a_look_tells_where_each_job_is(do: Do, clock: Clock) -> None:
    pending, leased_, done, dead, cancelled = [new_job() for _ in range(5)]
    do(jobs.enqueue_many([leased_, done, dead]))
    held = {lease.job_id: lease for lease in do(jobs.claim("mail", limit=3))}
    do(jobs.enqueue_many([pending, cancelled]))
    ends = [
        Finish(done.id, held[done.id].fence, "done", '"r"'),
        Finish(dead.id, held[dead.id].fence, "dead", None, failure()),
    ]
    do(jobs.settle(ends))
    do(admin.cancel(cancelled.id, None))
    ids = [job.id for job in (pending, leased_, done, dead, cancelled, new_job())]
    seen = do(results.look(ids))
    assert [seen[job_id].state if job_id in seen else None for job_id in ids] == [
        "pending",
        "leased",
        "done",
        "dead",
        "cancelled",
        None,
    ]
    assert {(one.queue, one.kind, one.marked, one.result) for one in seen.values()} == {("mail", "noop", False, None)}


def test_a_job_that_lives_a_second_time_is_over_for_those_who_wait(do: Do, clock: Clock, look: Look) -> None:
    """A first enqueue that the database runs long after its repeat adds a job that is finished already."""
    job = new_job()
    do(jobs.enqueue(job))
    [lease] = do(jobs.claim("mail", limit=1))
    do(jobs.complete(lease, '"r"'))
    do(jobs.enqueue(job, fresh=True))
    assert len(look.live()) == len(look.over()) == 1
    assert (how(do, job.id), do(admin.get(job.id)).state) == ("done", "done")


def test_a_mark_is_seen_and_set_once(do: Do, clock: Clock) -> None:
    first, second = leased(do, 2)
    ids = [first.job_id, second.job_id]
    assert do(results.mark([first.job_id])) == {first.job_id}
    assert do(results.mark(ids)) == {second.job_id}
    assert {job_id: seen.marked for job_id, seen in do(results.look(ids)).items()} == dict.fromkeys(ids, True)


def test_a_mark_may_be_for_the_jobs_of_some_queues_only(do: Do, clock: Clock) -> None:
    mail, other = new_job(), new_job("other")
    do(jobs.enqueue_many([mail, other]))
    assert do(results.mark([mail.id, other.id], ["other", "third"])) == {other.id}
    assert do(results.mark([mail.id, other.id], [])) == set()


def test_a_job_that_has_ended_cannot_be_marked(do: Do, clock: Clock) -> None:
    [lease] = leased(do)
    do(jobs.complete(lease))
    assert do(results.mark([lease.job_id])) == set()


@pytest.mark.parametrize("result", ['{"n": 1}', '"schlüssel 🦑"', "null", None])
def test_a_job_of_which_nothing_is_kept_leaves_its_result_to_those_who_wait(
    do: Do, clock: Clock, look: Look, result: str | None
) -> None:
    [lease] = waited_for(do)
    do(jobs.settle([unkept(lease, result)]))
    assert (look.live(), look.over()) == ([], [])
    seen = do(results.look([lease.job_id]))[lease.job_id]
    assert (seen.state, seen.queue, seen.kind, seen.result) == (LEFT, "mail", "noop", result)


def test_a_completion_of_which_nothing_is_kept_leaves_its_result_to_those_who_wait(
    do: Do, clock: Clock, look: Look
) -> None:
    [lease] = waited_for(do)
    do(jobs.complete(lease, '{"n": 2}', keep=False))
    assert kept(look) == [(lease.job_id, "mail", "noop", '{"n": 2}')]


def test_nothing_is_left_of_a_job_that_nobody_waits_for(do: Do, clock: Clock, look: Look) -> None:
    [lease] = leased(do)
    do(jobs.settle([unkept(lease)]))
    assert (kept(look), how(do, lease.job_id)) == ([], None)


def test_what_has_a_finished_row_leaves_no_second_result(do: Do, clock: Clock, look: Look) -> None:
    done, dead, cancelled = waited_for(do, 3)
    ends = [
        Finish(done.id, done.fence, "done", '"r"'),
        Finish(dead.id, dead.fence, "dead", None, failure()),
        Finish(cancelled.id, cancelled.fence, "cancelled"),
    ]
    do(jobs.settle(ends))
    assert kept(look) == []
    assert [how(do, lease.job_id) for lease in (done, dead, cancelled)] == ["done", "dead", "cancelled"]


def test_a_batch_leaves_the_results_of_those_that_are_waited_for(do: Do, clock: Clock, look: Look) -> None:
    leases = leased(do, 450)
    marked = [lease.job_id for lease in leases[::2]]
    do(results.mark(marked))
    do(jobs.settle([unkept(lease, str(n)) for n, lease in enumerate(leases)]))
    assert [(job_id, result) for job_id, _, _, result in kept(look)] == [
        (lease.job_id, str(n)) for n, lease in enumerate(leases) if n % 2 == 0
    ]


def test_a_settle_that_is_repeated_leaves_one_result(do: Do, clock: Clock, look: Look) -> None:
    [lease] = waited_for(do)
    first = do(jobs.settle([unkept(lease)]))
    assert do(jobs.settle([unkept(lease)])) == first
    assert len(kept(look)) == 1


def test_a_lost_lease_leaves_no_result(do: Do, clock: Clock, look: Look) -> None:
    [lease] = waited_for(do)
    clock.pass_lease(lease)
    do(jobs.reap(backoff=lambda kind, attempt: 0))
    assert do(jobs.settle([unkept(lease)])).lost == {lease.job_id}
    assert (kept(look), how(do, lease.job_id)) == ([], "pending")


def test_a_crash_after_any_statement_leaves_the_job_or_its_result(do: Do, clock: Clock, look: Look) -> None:
    [lease] = waited_for(do)
    work = jobs.settle([unkept(lease)])
    for after in range(1, 6):
        try:
            do(_dying(work, after))
        except Crash:
            assert (how(do, lease.job_id), kept(look)) == ("leased", [])
        else:
            break
    else:
        raise AssertionError("it has more statements than that")
    assert (how(do, lease.job_id), len(kept(look))) == (LEFT, 1)


@flow
def _dying(work: Flow[Any], after: int) -> Steps[Any]:
    """Run a flow, and die after that many of its statements, before anything is committed."""
    steps = work.start()
    rows: Any = None
    for _ in range(after):
        try:
            rows = yield steps.send(rows)
        except StopIteration as stop:
            return stop.value
    steps.close()
    raise Crash


def test_what_is_left_is_rolled_back_with_the_transaction_of_the_caller(do: Do, clock: Clock, look: Look) -> None:
    [lease] = waited_for(do)

    @flow
    def undone() -> Steps[None]:
        yield from jobs.complete(lease, '"r"', keep=False)
        raise Crash

    with pytest.raises(Crash):
        do(undone())
    assert (how(do, lease.job_id), kept(look)) == ("leased", [])


def test_a_mark_outlives_returns_and_is_there_at_the_end(do: Do, clock: Clock, look: Look) -> None:
    [lease] = waited_for(do)
    do(jobs.settle([PutBack(lease.id, lease.fence, 0, 0, failure())]))
    assert kept(look) == []
    [again] = do(jobs.claim("mail", limit=1))
    do(jobs.park(again, "children"))
    do(jobs.wake([again.job_id]))
    [last] = do(jobs.claim("mail", limit=1))
    do(jobs.settle([unkept(last)]))
    assert how(do, lease.job_id) == LEFT


def test_a_mark_outlives_the_death_and_the_replay_of_its_job(do: Do, clock: Clock, look: Look) -> None:
    [lease] = waited_for(do)
    do(jobs.kill(lease, failure(), "group"))
    do(admin.replay(admin.Filter(ids=(lease.job_id,)), 1, None))
    assert do(results.look([lease.job_id]))[lease.job_id].marked
    [again] = do(jobs.claim("mail", limit=1))
    do(jobs.settle([unkept(again)]))
    assert how(do, lease.job_id) == LEFT


def test_a_mark_and_a_line_keep_out_of_each_others_way(do: Do, clock: Clock, look: Look) -> None:
    ordered = QueueSettings(ordered=True, concurrency=2)
    do(lines.declare({"mail": ordered}))
    first, second = new_job(key="a"), new_job(key="a")
    do(jobs.enqueue_many([first, second]))
    do(results.mark([first.id]))
    [lease] = do(lines.claim("mail", ordered, limit=1, worker="worker", leases={"noop": 60_000})).leases
    assert lease.job_id == first.id
    do(results.mark([second.id]))
    do(jobs.settle([unkept(lease)]))
    [after] = do(lines.claim("mail", ordered, limit=1, worker="worker", leases={"noop": 60_000})).leases
    assert after.job_id == second.id
    do(jobs.settle([unkept(after)]))
    assert [job_id for job_id, *_ in kept(look)] == [first.id, second.id]
    assert look.rows("select held from holdfast_queues where name = 'mail'")[0][0] == 0


def test_a_job_that_was_cancelled_before_it_ran_passes_the_door_with_its_mark(do: Do, clock: Clock) -> None:
    job = new_job()
    do(jobs.enqueue(job))
    do(results.mark([job.id]))
    assert do(admin.cancel(job.id, None)) == "cancelled"
    assert how(do, job.id) == "cancelled"
    assert do(admin.discard(admin.Filter(ids=(job.id,), states=("cancelled",)), 1, None)) == [job.id]
    assert how(do, job.id) is None


def test_what_is_kept_for_those_who_wait_is_pruned_in_chunks_and_young_rows_stay(
    do: Do, clock: Clock, look: Look
) -> None:
    old, young = waited_for(do, 5), waited_for(do, 2)
    do(jobs.settle([unkept(lease) for lease in old]))
    clock.advance(results.KEPT_SECONDS - 1)
    do(jobs.settle([unkept(lease) for lease in young]))
    assert do(results.prune()) == 0
    clock.advance(2)
    assert [do(results.prune(limit=2)) for _ in range(4)] == [2, 2, 1, 0]
    assert [job_id for job_id, *_ in kept(look)] == sorted(lease.job_id for lease in young)


def test_a_mark_is_known_to_every_process_that_ends_jobs() -> None:
    from holdfast.life import door

    assert door.attached() & WAITED_FOR
