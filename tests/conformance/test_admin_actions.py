"""Acting on jobs by hand, on every store and in both colours."""

from __future__ import annotations

from datetime import UTC, timedelta
from typing import Any

import pytest

from holdfast import admin, jobs
from holdfast.admin import Filter
from holdfast.errors import ConfigError, Conflict, JobNotFound, LeaseLost
from holdfast.flow import Steps, flow
from holdfast.testing import Clock, Do, Look, failure, new_job
from tests.conformance.people import buried, claimed, crowded, enqueued


def actions(do: Do, job_id: str) -> list[tuple[str, str | None]]:
    return [(line.action, line.actor) for line in do(admin.audit(job_id))]


# Acting on one job


def test_a_job_in_backoff_can_be_made_due(do: Do, clock: Clock) -> None:
    job_id = enqueued(do)
    do(jobs.retry(claimed(do), 3_600_000, failure()))
    assert do(jobs.claim("mail", limit=1)) == []
    do(admin.run_now(job_id, "ada"))
    assert claimed(do).job_id == job_id
    assert actions(do, job_id) == [("run_now", "ada")]


def test_making_a_due_job_due_keeps_its_place(do: Do, clock: Clock) -> None:
    first, second = enqueued(do), enqueued(do)
    clock.advance(10)
    do(admin.run_now(first, "ada"))
    assert [lease.job_id for lease in do(jobs.claim("mail", limit=2))] == [first, second]


def test_only_a_pending_job_can_be_made_due(do: Do, clock: Clock, look: Look) -> None:
    crowd = crowded(do, clock)
    before = (look.live(), look.over())
    for state in ("leased", "done", "dead", "cancelled"):
        with pytest.raises(Conflict, match=state):
            do(admin.run_now(crowd[state], "ada"))
        assert ("run_now", "ada") not in actions(do, crowd[state])
    assert (look.live(), look.over()) == before


def test_retry_makes_a_pending_job_due_and_replays_a_finished_one(do: Do, clock: Clock) -> None:
    crowd = crowded(do, clock)
    scheduled = enqueued(do, "mail", delay_ms=60_000)
    assert do(admin.retry(scheduled, "ada")) == "due"
    assert do(admin.retry(crowd["dead"], "ada")) == "replayed"
    assert do(admin.retry(crowd["cancelled"], "ada")) == "replayed"
    for job_id in (scheduled, crowd["dead"], crowd["cancelled"]):
        job = do(admin.show(job_id))
        assert (job.state, job.available_at) == ("pending", clock.now)


def test_a_leased_or_done_job_is_not_retried(do: Do, clock: Clock, look: Look) -> None:
    crowd = crowded(do, clock)
    before = (look.live(), look.over())
    for state in ("leased", "done"):
        with pytest.raises(Conflict, match=state):
            do(admin.retry(crowd[state], "ada"))
    assert (look.live(), look.over()) == before


def test_retry_tells_which_live_job_holds_the_unique_key(do: Do, clock: Clock) -> None:
    dead = buried(do, clock, unique="u")
    live = enqueued(do, unique="u")
    with pytest.raises(Conflict, match=live):
        do(admin.retry(dead, "ada"))
    assert do(admin.show(dead)).state == "dead"


def test_a_cancelled_pending_job_ends_and_never_runs(do: Do, clock: Clock, look: Look) -> None:
    job_id = enqueued(do, payload='{"n":1}', key="k", headers='{"a":"b"}', priority=4, lease_ms=5_000, bucket=9)
    do(jobs.retry(claimed(do), 0, failure()))
    [before] = look.live()
    clock.advance(3)
    assert do(admin.cancel(job_id, "ada")) == "cancelled"
    [over] = look.over()
    kept = (
        *("id", "queue", "kind", "fence", "attempts", "max_attempts", "priority", "available_at", "created_at", "key"),
        *("bucket", "unique_key", "lease_ms", "payload", "headers", "progress", "errors"),
    )
    assert [getattr(over, name) for name in kept] == [getattr(before, name) for name in kept]
    assert (over.outcome, over.finished_at) == ("cancelled", clock.now)
    assert look.live() == []
    assert do(jobs.claim("mail", limit=1)) == []
    assert actions(do, job_id) == [("cancel", "ada")]


def test_cancelling_a_leased_job_asks_its_holder_to_stop(do: Do, clock: Clock) -> None:
    job_id = enqueued(do)
    lease = claimed(do)
    assert do(admin.cancel(job_id, "ada")) == "requested"
    assert do(admin.show(job_id)).cancel_requested
    assert do(jobs.renew([(lease, 1_000)])).cancelled == {job_id}
    [line] = do(admin.audit(job_id))
    assert (line.action, line.detail["worker"], line.detail["fence"]) == ("cancel_requested", "w1", lease.fence)


def test_a_cancelled_job_whose_worker_died_is_not_run_again(do: Do, clock: Clock) -> None:
    job_id = enqueued(do)
    lease = claimed(do)
    do(admin.cancel(job_id, "ada"))
    clock.pass_lease(lease)
    do(jobs.reap())
    assert do(admin.show(job_id)).state == "cancelled"


def test_a_cancel_frees_the_unique_key(do: Do, clock: Clock) -> None:
    do(admin.cancel(enqueued(do, unique="u"), None))
    assert do(jobs.enqueue(new_job(unique="u"))).created


def test_a_finished_job_cannot_be_cancelled(do: Do, clock: Clock, look: Look) -> None:
    crowd = crowded(do, clock)
    before = look.over()
    advice = {"done": "nothing left to cancel", "dead": "discard it", "cancelled": "does not run again"}
    for state, told in advice.items():
        with pytest.raises(Conflict, match=rf"is {state} (and cannot be cancelled|already)\..*{told}"):
            do(admin.cancel(crowd[state], "ada"))
    assert look.over() == before


# Acting on many


def test_a_replayed_dead_letter_starts_anew_and_keeps_its_errors(do: Do, clock: Clock, look: Look) -> None:
    said: dict[str, Any] = {
        "payload": '{"n":1}',
        "key": "k",
        "headers": '{"a":"b"}',
        "priority": 4,
        "lease_ms": 5_000,
        "bucket": 9,
    }
    job_id = buried(do, clock, "it broke", unique="u", max_attempts=3, **said)
    [over] = look.over()
    clock.advance(60)
    assert do(admin.replay(Filter(), 10, "ada")) == admin.Replayed([job_id])
    [live] = look.live()
    kept = (
        *("id", "queue", "kind", "max_attempts", "priority", "created_at", "key", "bucket", "unique_key", "lease_ms"),
        *("payload", "headers", "progress", "errors"),
    )
    assert [getattr(live, name) for name in kept] == [getattr(over, name) for name in kept]
    assert (live.state, live.attempts, live.fence, live.available_at) == ("pending", 0, over.fence + 1, clock.now)
    assert (live.leased_by, live.leased_at, live.lease_expires_at, live.cancel_requested) == (None, None, None, False)
    assert do(admin.show(job_id)).replays == 1
    assert look.over() == []
    assert claimed(do).attempt == 1


def test_a_job_can_be_replayed_more_than_once(do: Do, clock: Clock) -> None:
    job_id = buried(do, clock, "first")
    do(admin.replay(Filter(), 10, "ada"))
    do(jobs.kill(claimed(do), failure("second"), "g"))
    do(admin.replay(Filter(), 10, "ada"))
    job = do(admin.show(job_id))
    assert job.replays == 2
    assert [error["message"] for error in job.errors] == ["first", "second"]


def test_the_holder_of_the_lease_before_a_replay_can_no_longer_write(do: Do, clock: Clock) -> None:
    enqueued(do, max_attempts=1)
    stale = claimed(do)
    clock.pass_lease(stale)
    do(jobs.reap())
    do(admin.replay(Filter(), 10, "ada"))
    assert do(jobs.renew([(stale, 1_000)])).kept == set()
    with pytest.raises(LeaseLost):
        do(jobs.complete(stale))


def test_a_replay_takes_the_oldest_up_to_its_limit(do: Do, clock: Clock) -> None:
    dead = [buried(do, clock) for _ in range(3)]
    assert do(admin.replay(Filter(), 2, "ada")).ids == dead[:2]
    assert do(admin.replay(Filter(), 2, "ada")).ids == dead[2:]
    assert do(admin.replay(Filter(), 2, "ada")).ids == []


def test_a_replay_obeys_its_filter(do: Do, clock: Clock) -> None:
    buried(do, clock, "x", "g1", "a")
    mine = buried(do, clock, "y", "g2", "b")
    buried(do, clock, "z", "g1", "b")
    assert do(admin.replay(Filter(queue="b", group="g2", error="Y"), 10, "ada")).ids == [mine]
    assert do(admin.count_jobs(Filter(states=("dead",)))) == 2


def test_cancelled_jobs_are_replayed_and_discarded_only_when_asked_for(do: Do, clock: Clock) -> None:
    gone = enqueued(do)
    do(admin.cancel(gone, None))
    assert do(admin.replay(Filter(), 10, "ada")).ids == []
    assert do(admin.discard(Filter(), 10, "ada")) == []
    assert do(admin.replay(Filter(states=("dead", "cancelled")), 10, "ada")).ids == [gone]
    do(admin.cancel(gone, None))
    assert do(admin.discard(Filter(states=("cancelled",)), 10, "ada")) == [gone]


@pytest.mark.parametrize("state", ["pending", "leased", "done"])
def test_only_dead_and_cancelled_jobs_are_replayed_or_discarded(do: Do, clock: Clock, look: Look, state: str) -> None:
    crowd = crowded(do, clock)
    before = (look.live(), look.over())
    for work in (admin.replay, admin.discard):
        with pytest.raises(ConfigError):
            do(work(Filter(states=(state,)), 10, "ada"))
        do(work(Filter(ids=(crowd[state],)), 10, "ada"))
    assert (look.live(), look.over()) == before


def test_a_live_unique_key_is_one_conflict_and_no_failure_of_the_batch(do: Do, clock: Clock) -> None:
    held, free, plain = buried(do, clock, unique="u1"), buried(do, clock, unique="u2"), buried(do, clock)
    live = enqueued(do, unique="u1")
    foreseen = do(admin.replay(Filter(), 10, "ada", dry_run=True))
    answer = do(admin.replay(Filter(), 10, "ada"))
    assert answer == admin.Replayed([free, plain], {held: live})
    assert foreseen == answer
    assert do(admin.show(held)).state == "dead"
    assert actions(do, held) == []


def test_of_two_dead_letters_with_one_unique_key_the_older_goes_back(do: Do, clock: Clock) -> None:
    older, newer = buried(do, clock, unique="u"), buried(do, clock, unique="u")
    foreseen = do(admin.replay(Filter(), 10, "ada", dry_run=True))
    assert do(admin.replay(Filter(), 10, "ada")) == foreseen == admin.Replayed([older], {newer: older})


def test_a_dry_run_changes_nothing(do: Do, clock: Clock, look: Look) -> None:
    dead = buried(do, clock)
    before = look.over()
    assert do(admin.replay(Filter(), 10, "ada", dry_run=True)).ids == [dead]
    assert do(admin.discard(Filter(), 10, "ada", dry_run=True)) == [dead]
    assert look.over() == before
    assert look.live() == []
    assert do(admin.audit()) == []


def test_a_discarded_job_is_gone_except_for_its_audit_line(do: Do, clock: Clock) -> None:
    dead, other = buried(do, clock, "it broke", queue="a", kind="send"), buried(do, clock)
    assert do(admin.discard(Filter(kind="send"), 10, "ada")) == [dead]
    with pytest.raises(JobNotFound):
        do(admin.show(dead))
    [line] = do(admin.audit(dead))
    assert (line.at, line.action, line.actor) == (clock.now, "discard", "ada")
    assert (line.detail["queue"], line.detail["kind"]) == ("a", "send")
    assert line.detail["error"] == {"type": "ValueError", "message": "it broke"}
    assert do(admin.show(other)).state == "dead"


def test_the_audit_tells_the_latest_first(do: Do, clock: Clock) -> None:
    dead, pending = buried(do, clock), enqueued(do, "other", delay_ms=60_000)
    do(admin.replay(Filter(), 10, "ada"))
    clock.advance(1)
    do(admin.run_now(pending, "bob"))
    clock.advance(1)
    do(admin.cancel(dead, None))
    lines = do(admin.audit())
    assert [(line.action, line.job_id, line.actor) for line in lines] == [
        ("cancel", dead, None),
        ("run_now", pending, "bob"),
        ("replay", dead, "ada"),
    ]
    assert [line.at for line in lines] == [clock.now - timedelta(seconds=n) for n in range(3)]
    assert do(admin.audit(limit=1)) == lines[:1]
    assert do(admin.audit(dead)) == [lines[0], lines[2]]
    assert lines[0].to_dict()["at"] == clock.now.astimezone(UTC).isoformat()


def test_an_action_in_a_transaction_that_fails_leaves_nothing(do: Do, clock: Clock, look: Look) -> None:
    job_id = enqueued(do)
    before = look.live()

    @flow
    def cancel_and_fail() -> Steps[None]:
        yield from admin.cancel(job_id, "ada")
        raise RuntimeError("the caller's transaction fails")

    with pytest.raises(RuntimeError):
        do(cancel_and_fail())
    assert (look.live(), look.over(), do(admin.audit())) == (before, [], [])
