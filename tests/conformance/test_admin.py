"""Looking at jobs by hand, on every store and in both colours."""

from __future__ import annotations

import json
from datetime import datetime, timedelta

import pytest

from holdfast import admin, jobs
from holdfast.admin import Filter
from holdfast.errors import ConfigError, JobNotFound
from holdfast.testing import Clock, Do, failure
from holdfast.values.ids import new_id
from tests.conformance.people import buried, claimed, crowded, enqueued


def ids_of(views: list[admin.JobView]) -> list[str]:
    return [view.id for view in views]


def test_live_and_finished_jobs_are_one_list_newest_first(do: Do, clock: Clock) -> None:
    dead = buried(do, clock)
    done = enqueued(do)
    do(jobs.complete(claimed(do), '{"n":1}'))
    leased = enqueued(do)
    claimed(do)
    pending = enqueued(do)
    assert ids_of(do(admin.list_jobs())) == [pending, leased, done, dead]
    assert ids_of(do(admin.list_jobs(newest=False))) == [dead, done, leased, pending]
    assert [job.state for job in do(admin.list_jobs())] == ["pending", "leased", "done", "dead"]


def test_pages_hold_every_job_once(do: Do, clock: Clock) -> None:
    made = [enqueued(do) for _ in range(7)]
    for lease in do(jobs.claim("mail", limit=4)):
        do(jobs.complete(lease))
    for newest in (True, False):
        seen: list[str] = []
        while page := do(admin.list_jobs(limit=3, after=seen[-1] if seen else None, newest=newest)):
            seen += ids_of(page)
        assert seen == (made[::-1] if newest else made)


def test_a_live_job_shows_all_it_holds(do: Do, clock: Clock) -> None:
    job_id = enqueued(do, "mail", "send", payload='{"to":"ada"}', priority=3, key="k", unique="u", headers='{"a":"b"}')
    lease = claimed(do)
    do(jobs.progress(lease, '{"done":0.5}'))
    job = do(admin.show(job_id))
    assert (job.id, job.state, job.queue, job.kind, job.priority) == (job_id, "leased", "mail", "send", 3)
    assert (job.payload, job.headers, job.progress, job.result) == ('{"to":"ada"}', {"a": "b"}, {"done": 0.5}, None)
    assert (job.attempts, job.max_attempts, job.fence, job.key, job.unique) == (1, 5, lease.fence, "k", "u")
    assert (job.leased_by, job.leased_at, job.finished_at) == ("w1", clock.now, None)
    assert job.lease_expires_at == clock.now + timedelta(milliseconds=lease.lease_ms)
    assert (job.available_at, job.created_at) == (clock.now, clock.now)
    assert (job.errors, job.last_error, job.group, job.replays, job.cancel_requested) == ([], None, None, 0, False)


def test_a_finished_job_shows_its_result_and_its_errors(do: Do, clock: Clock) -> None:
    job_id = enqueued(do)
    do(jobs.retry(claimed(do), 0, failure("at first")))
    clock.advance(5)
    do(jobs.complete(claimed(do), '{"n":1}'))
    job = do(admin.show(job_id))
    assert (job.state, job.result, job.finished_at) == ("done", {"n": 1}, clock.now)
    assert [error["message"] for error in job.errors] == ["at first"]
    assert job.last_error == json.loads(failure("at first"))


def test_a_job_is_ready_for_json(do: Do, clock: Clock) -> None:
    told = do(admin.show(buried(do, clock, payload='{"n":1}'))).to_dict()
    assert json.loads(json.dumps(told)) == told
    assert (told["payload"], told["state"], told["errors"][0]["type"]) == ({"n": 1}, "dead", "ValueError")
    assert datetime.fromisoformat(told["finished_at"]) == clock.now
    assert told["finished_at"].endswith("+00:00")


@pytest.mark.parametrize("typed", ["", "mail", "01a1e115", "' or true --"])
def test_what_is_not_an_id_names_no_job(do: Do, typed: str) -> None:
    for action in (admin.show(typed), admin.run_now(typed, "me"), admin.retry(typed, "me"), admin.cancel(typed, "me")):
        with pytest.raises(JobNotFound):
            do(action)


def test_an_id_may_be_typed_in_capitals(do: Do, clock: Clock) -> None:
    job_id = enqueued(do)
    assert do(admin.show(f" {job_id.upper()}\n")).id == job_id


def test_an_unknown_job_is_not_found(do: Do) -> None:
    for action in (admin.show, lambda job: admin.run_now(job, "me"), lambda job: admin.cancel(job, "me")):
        with pytest.raises(JobNotFound):
            do(action(new_id()))
    with pytest.raises(JobNotFound):
        do(admin.retry(new_id(), "me"))


def filters(now: datetime, crowd: dict[str, str]) -> dict[Filter, set[str]]:
    """Say for each filter which states it must find in the crowd."""
    middle = now - timedelta(seconds=250)
    return {
        Filter(): set(crowd),
        Filter(states=("dead",)): {"dead"},
        Filter(states=("done", "leased")): {"done", "leased"},
        Filter(states=("pending", "cancelled")): {"pending", "cancelled"},
        Filter(queue="a"): {"dead"},
        Filter(queue="e"): {"pending"},
        Filter(kind="kb"): {"done"},
        Filter(kind="kd"): {"leased"},
        Filter(key="key-c"): {"cancelled"},
        Filter(key="key-e"): {"pending"},
        Filter(group="g1"): {"dead"},
        Filter(group="g2"): set(),
        Filter(worker="w2"): {"done"},
        Filter(worker="w4"): {"leased"},
        Filter(ids=(crowd["done"], crowd["pending"])): {"done", "pending"},
        Filter(created_after=middle): {"leased", "pending"},
        Filter(created_before=middle): {"dead", "done", "cancelled"},
        Filter(finished_after=middle): set(),
        Filter(finished_after=middle - timedelta(seconds=100)): {"cancelled"},
        Filter(finished_before=middle): {"dead", "done", "cancelled"},
        Filter(finished_before=middle - timedelta(seconds=100)): {"dead", "done"},
        Filter(error="connection REFUSED"): {"dead"},
        Filter(error="valueerror: timed"): {"pending"},
        Filter(error="100%"): set(),
        Filter(error="ValueError", states=("pending",)): {"pending"},
        Filter(queue="a", kind="kb"): set(),
    }


def test_each_filter_finds_and_counts_what_it_names(do: Do, clock: Clock) -> None:
    crowd = crowded(do, clock)
    states = {job_id: state for state, job_id in crowd.items()}
    for wanted, expected in filters(clock.now, crowd).items():
        found = {states[job.id] for job in do(admin.list_jobs(wanted))}
        assert found == expected, wanted
        assert do(admin.count_jobs(wanted)) == len(expected), wanted


def test_after_includes_its_moment_and_before_does_not(do: Do, clock: Clock) -> None:
    job_id = enqueued(do)
    tick = timedelta(microseconds=1)
    assert ids_of(do(admin.list_jobs(Filter(created_after=clock.now, created_before=clock.now + tick)))) == [job_id]
    assert do(admin.list_jobs(Filter(created_after=clock.now + tick))) == []
    assert do(admin.list_jobs(Filter(created_before=clock.now))) == []


@pytest.mark.parametrize("value", ["' or 1=1 --", "%", "x; drop table holdfast_jobs", ":queue", "$1"])
def test_a_filter_never_becomes_sql(do: Do, clock: Clock, value: str) -> None:
    enqueued(do)
    odd = enqueued(do, value, value, key=value)
    for wanted in (Filter(queue=value), Filter(kind=value), Filter(key=value)):
        assert ids_of(do(admin.list_jobs(wanted))) == [odd]
    assert do(admin.list_jobs(Filter(error=value))) == []


@pytest.mark.parametrize(
    "said",
    [
        {"states": ("ready",)},
        {"states": "dead"},
        {"states": None},
        {"ids": ("1",)},
        {"ids": new_id()},
        {"queue": ""},
        {"kind": 7},
        {"error": "\0"},
        {"created_after": datetime(2026, 1, 1)},
        {"finished_before": "yesterday"},
    ],
)
def test_a_filter_refuses_what_it_cannot_mean(said: dict[str, object]) -> None:
    [field] = said
    with pytest.raises(ConfigError) as refused:
        Filter(**said)  # type: ignore[arg-type]
    assert refused.value.field in (field, "id")


@pytest.mark.parametrize("limit", [0, -1, 1.5, admin.LONGEST_LIST + 1])
def test_a_limit_must_be_one(do: Do, limit: int) -> None:
    for work in (
        admin.list_jobs(limit=limit),
        admin.replay(Filter(), limit, None),
        admin.discard(Filter(), limit, None),
    ):
        with pytest.raises(ConfigError):
            do(work)


def test_queues_are_counted_by_kind_and_state(do: Do, clock: Clock) -> None:
    buried(do, clock)
    buried(do, clock)
    enqueued(do)
    do(jobs.complete(claimed(do)))
    do(admin.cancel(enqueued(do), None))
    enqueued(do)
    claimed(do)
    enqueued(do)
    enqueued(do)
    enqueued(do, delay_ms=60_000)
    enqueued(do, "files", "scan", delay_ms=60_000)
    first, second = do(admin.counts())
    assert first == admin.QueueCount("files", "scan", 1, 0, 1, 0, 0, 0, 0)
    assert second == admin.QueueCount("mail", "noop", 3, 2, 1, 1, 1, 2, 1)
    clock.advance(60)
    assert [(count.due, count.scheduled) for count in do(admin.counts())] == [(1, 0), (3, 0)]


def test_a_queue_lags_by_its_oldest_due_job(do: Do, clock: Clock) -> None:
    enqueued(do, "slow", priority=-5)
    clock.advance(30)
    enqueued(do, "slow", priority=5)
    enqueued(do, "quick")
    enqueued(do, "later", delay_ms=60_000)
    clock.advance(2.5)
    assert do(admin.oldest_pending()) == [admin.Lag("slow", 2, 32.5), admin.Lag("quick", 1, 2.5)]


def test_a_lease_counts_as_expired_until_it_is_reaped(do: Do, clock: Clock) -> None:
    late, later = enqueued(do, lease_ms=2_000), enqueued(do, lease_ms=1_000)
    enqueued(do, lease_ms=60_000)
    do(jobs.claim("mail", limit=3))
    assert do(admin.expired_leases()) == []
    clock.advance(3)
    assert ids_of(do(admin.expired_leases())) == [later, late]
    assert ids_of(do(admin.expired_leases(limit=1))) == [later]
    do(jobs.reap())
    assert do(admin.expired_leases()) == []


def test_dead_letters_are_grouped_with_their_latest_error(do: Do, clock: Clock) -> None:
    # Neither the first nor the last by letter or by id: the latest is told by time alone.
    buried(do, clock, "user 5 is missing", "g1", "b")
    first_at = clock.now
    buried(do, clock, "user 9 is missing", "g1", "a")
    latest = buried(do, clock, "user 7 is missing", "g1", "b")
    other = buried(do, clock, "no disk", "g2", "b")
    buried(do, clock, "user 8 is missing", "g1", "a", "scan")
    groups = do(admin.dead_groups())
    assert [(one.group, one.kind, one.count) for one in groups] == [
        ("g1", "noop", 3),
        ("g1", "scan", 1),
        ("g2", "noop", 1),
    ]
    assert (groups[0].error_type, groups[0].error_message) == ("ValueError", "user 7 is missing")
    assert (groups[0].queues, groups[0].sample_id) == (["a", "b"], latest)
    assert (groups[0].first_at, groups[0].last_at) == (first_at, first_at + timedelta(seconds=2))
    assert groups[2].sample_id == other
    assert json.loads(json.dumps(groups[0].to_dict()))["last_at"].endswith("+00:00")


def test_the_latest_error_of_a_group_is_not_that_of_the_latest_id(do: Do, clock: Clock) -> None:
    old, new = enqueued(do), enqueued(do)
    first, second = do(jobs.claim("mail", limit=2))
    assert [first.job_id, second.job_id] == [old, new]
    do(jobs.kill(second, failure("z at first"), "g"))
    clock.advance(1)
    do(jobs.kill(first, failure("a at last"), "g"))
    [group] = do(admin.dead_groups())
    assert (group.error_message, group.sample_id) == ("a at last", old)


def test_groups_of_dead_letters_obey_a_filter(do: Do, clock: Clock) -> None:
    buried(do, clock, "x", "g1", "a")
    mine = buried(do, clock, "y", "g1", "b")
    buried(do, clock, "z", "g2", "a")
    [group] = do(admin.dead_groups(Filter(queue="b")))
    assert (group.count, group.queues, group.sample_id) == (1, ["b"], mine)
    assert len(do(admin.dead_groups(limit=1))) == 1
    assert do(admin.dead_groups(Filter(error="none such"))) == []
    with pytest.raises(ConfigError):
        do(admin.dead_groups(Filter(states=("done",))))
