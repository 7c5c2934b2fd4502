"""Control: jobs cancelled and changed by hand, by id and by filter, with all that follows."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from holdfast import admin, jobs, lines
from holdfast.admin import Cancelled, Change, Changed, Filter
from holdfast.errors import ConfigError
from holdfast.flow import Flow, Series, run_series
from holdfast.results import mark
from holdfast.testing.clock import Clock
from holdfast.testing.look import Do, Look
from holdfast.testing.make import failure, new_job
from holdfast.testing.suite_chains import child_of, claim_met, parents_of
from holdfast.testing.suite_debounce import call, due_in
from holdfast.testing.suite_order import ORDERED, PASS, add, done, drain, ids, line_rows, say, states, take
from holdfast.values.ids import new_id, new_ids
from holdfast.values.queues import QueueSettings, Rate
from holdfast.values.rows import Finish, Lease, PutBack

FAIR = QueueSettings(fair=True, key_concurrency=1)


def all_of(do: Do, series: Series[Any], sizes: list[int] | None = None) -> Any:
    """Run a series as an application does, each flow in a transaction of its own; note how many jobs each has seen."""

    def run(work: Flow[Any]) -> Any:
        answer = do(work)
        if sizes is not None and isinstance(answer, Cancelled | Changed):
            sizes.append(len(answer.seen))
        return answer

    return run_series(series, run)


def cancel_jobs(do: Do, named: list[str] | None = None, limit: int | None = None, **said: Any) -> Cancelled:
    answer: Cancelled = all_of(do, admin.cancel_all(Filter(**said), named, "ann", limit))
    return answer


def change_jobs(do: Do, change: Change, named: list[str] | None = None, **said: Any) -> Changed:
    answer: Changed = all_of(do, admin.change_all(Filter(**said), named, change, "ann"))
    return answer


def actions(do: Do, job: str) -> list[tuple[str, str | None]]:
    return [(line.action, line.actor) for line in do(admin.audit(job))]


def outcomes(look: Look) -> dict[str, str]:
    return {row.id: row.outcome for row in look.over()}


def put_back(do: Do, lease: Lease, delay_ms: int = 60_000) -> None:
    do(jobs.settle([PutBack(lease.id, lease.fence, delay_ms, 0, failure())]))


# Cancel


def test_a_filter_cancels_what_waits_and_asks_what_runs_to_stop(do: Do, clock: Clock, look: Look) -> None:
    [running] = add(do, None)
    [lease] = do(jobs.claim("mail", limit=1))
    [due, later] = [*add(do, None), *add(do, None, delay_ms=60_000)]
    spared = add(do, None, queue="other") + add(do, None, kind="send")
    answer = cancel_jobs(do, queue="mail", kind="noop")
    assert (set(answer.cancelled), answer.requested, answer.left) == ({due, later}, [running], {})
    assert outcomes(look) == {due: "cancelled", later: "cancelled"}
    assert do(jobs.renew([(lease, 30_000)])).cancelled == {running}
    assert states(look) == {running: "leased"} | dict.fromkeys(spared, "pending")
    assert actions(do, due) == [("cancel", "ann")]
    assert actions(do, running) == [("cancel_requested", "ann")]


@pytest.mark.parametrize("state", ["pending", "waiting", "leased"])
def test_a_cancel_obeys_the_state_it_asks_for(do: Do, clock: Clock, look: Look, state: str) -> None:
    say(do)
    [leased] = add(do, "a")
    take(do)
    [waiting] = add(do, "a")
    take(do)
    [pending] = add(do, "b")
    wanted = {"pending": pending, "waiting": waiting, "leased": leased}[state]
    answer = cancel_jobs(do, states=(state,))
    assert [*answer.cancelled, *answer.requested] == [wanted]
    assert (wanted in states(look)) == (state == "leased")


def test_every_field_of_a_filter_is_asked_when_jobs_are_locked(do: Do, clock: Clock, look: Look) -> None:
    """What is looked up first may have changed when it is locked: the filter holds there, too."""
    [job] = add(do, "a", kind="send")
    [lease] = do(jobs.claim("mail", limit=1, worker="w1"))
    do(jobs.retry(lease, 0, failure("no route")))
    others: list[dict[str, Any]] = [
        {"queue": "other"},
        {"kind": "noop"},
        {"key": "b"},
        {"states": ("waiting",)},
        {"error": "another"},
        {"created_after": clock.now + timedelta(seconds=1)},
        {"created_before": clock.now},
        {"worker": "w1"},
    ]
    for said in others:
        assert do(admin.cancel_chunk(Filter(**said), None, [job])) == Cancelled()
    fitting = Filter(queue="mail", kind="send", key="a", error="NO ROUTE", created_after=clock.now)
    assert do(admin.cancel_chunk(fitting, None, [job])).cancelled == [job]


def test_a_cancel_by_ids_tells_what_became_of_each(do: Do, clock: Clock) -> None:
    [gone] = add(do, None)
    [lease] = do(jobs.claim("mail", limit=1))
    do(jobs.complete(lease))
    [waits, other] = [*add(do, None), *add(do, None, queue="other")]
    unknown = new_id()
    answer = cancel_jobs(do, [gone, waits, other, unknown], queue="mail")
    assert answer == Cancelled([waits], [], {gone: "done", other: "no match", unknown: "unknown"})
    assert cancel_jobs(do, [waits]) == Cancelled(left={waits: "cancelled"})
    assert cancel_jobs(do, []) == Cancelled(), "no ids are not all jobs"


def test_a_limit_takes_the_oldest(do: Do, clock: Clock, look: Look) -> None:
    added = sorted(add(do, None, None, None))
    assert cancel_jobs(do, limit=2).cancelled == added[:2]
    assert cancel_jobs(do, added, limit=1) == Cancelled([added[2]], [], dict.fromkeys(added[:2], "cancelled"))


def test_a_dry_run_of_control_changes_nothing(do: Do, clock: Clock, look: Look) -> None:
    [running] = add(do, None)
    do(jobs.claim("mail", limit=1))
    [waits] = add(do, None)
    before = look.live()
    foreseen = all_of(do, admin.cancel_all(Filter(), None, "ann", dry_run=True))
    assert foreseen == Cancelled([waits], [running])
    foreseen = all_of(do, admin.change_all(Filter(), None, Change(priority=5), "ann", dry_run=True))
    assert foreseen == Changed([waits], {running: "leased"})
    assert (look.live(), look.over(), do(admin.audit())) == (before, [], [])


def test_many_jobs_are_cancelled_in_bounded_transactions(do: Do, clock: Clock, look: Look) -> None:
    """Each transaction writes a chunk, whatever the filter finds."""
    new = new_ids(1_001)
    do(jobs.enqueue_many([new_job(id=each) for each in new]))
    sizes: list[int] = []
    answer: Cancelled = all_of(do, admin.cancel_all(Filter(queue="mail"), None, None), sizes)
    assert sorted(answer.cancelled) == sorted(new)
    assert look.live() == []
    assert sorted(sizes) == [1, 500, 500]


def test_a_cancelled_running_job_of_an_ordered_key_frees_its_line(do: Do, clock: Clock, look: Look) -> None:
    say(do)
    [first, second] = add(do, "a", "a")
    [lease] = take(do, 1)
    assert take(do) == []
    assert cancel_jobs(do, [first]).requested == [first]
    assert do(jobs.renew([(lease, 30_000)])).cancelled == {first}
    do(jobs.settle([Finish(lease.id, lease.fence, "cancelled")]))
    assert outcomes(look) == {first: "cancelled"}
    assert drain(do) == [second]
    assert line_rows(look) == []


@pytest.mark.parametrize("settings", [ORDERED, FAIR, QueueSettings(key_concurrency=1)], ids=str)
def test_a_line_goes_on_when_those_in_front_are_cancelled(
    do: Do, clock: Clock, look: Look, settings: QueueSettings
) -> None:
    """The one that the line has called, and some that wait behind it, are cancelled in one transaction."""
    say(do, settings)
    added = add(do, "a")
    [lease] = take(do, 1, settings)
    added += add(do, "a", "a", "a")
    take(do, 1, settings, worker="other")
    done(do, lease)
    assert cancel_jobs(do, added[1:3]).cancelled == sorted(added[1:3])
    assert drain(do, settings) == added[3:]
    assert line_rows(look) == []


def test_cancelled_waiting_jobs_give_no_place_of_a_limit_back(do: Do, clock: Clock, look: Look) -> None:
    limited = QueueSettings(concurrency=1)
    say(do, limited)
    add(do, None)
    [lease] = take(do, 1, limited)
    put_back(do, lease, 0)
    [held] = take(do, 1, limited)
    waits = add(do, None, None)
    assert sorted(cancel_jobs(do, waits).cancelled) == sorted(waits)
    assert [int(row[0]) for row in look.rows("select held from holdfast_queues")] == [1]
    done(do, held)
    assert [int(row[0]) for row in look.rows("select held from holdfast_queues")] == [0]


def test_what_waits_for_cancelled_jobs_goes_on(do: Do, clock: Clock, look: Look) -> None:
    parents = add(do, None, None, delay_ms=60_000)
    child = do(jobs.enqueue(child_of(*parents))).id
    assert claim_met(do) == []
    assert states(look)[child] == "waiting"
    assert sorted(cancel_jobs(do, parents).cancelled) == sorted(parents)
    assert parents_of(do, child).cancelled == 2
    assert ids(claim_met(do)) == [child]


def test_a_job_and_those_that_wait_for_it_are_cancelled_together(do: Do, clock: Clock, look: Look) -> None:
    [parent] = add(do, None, delay_ms=60_000)
    child = do(jobs.enqueue(child_of(parent))).id
    assert claim_met(do) == []
    assert sorted(cancel_jobs(do, queue="mail").cancelled) == sorted([parent, child])
    assert outcomes(look) == {parent: "cancelled", child: "cancelled"}


def test_a_cancel_frees_unique_keys_and_ends_what_is_waited_for(do: Do, clock: Clock, look: Look) -> None:
    taken = do(jobs.enqueue(new_job(unique="u"))).id
    do(mark([taken]))
    assert cancel_jobs(do, kind="noop").cancelled == [taken]
    assert do(jobs.enqueue(new_job(unique="u"))).created


def test_a_call_after_the_cancel_of_a_debounced_job_adds_another(do: Do, clock: Clock, look: Look) -> None:
    first = do(jobs.enqueue(call(1))).id
    assert cancel_jobs(do, [first]).cancelled == [first]
    second = do(jobs.enqueue(call(2)))
    assert second.created
    assert list(states(look)) == [second.id]


def test_a_cancelled_job_that_lives_a_second_time_leaves_the_finished_row(do: Do, clock: Clock, look: Look) -> None:
    twin, other = add(do, None, None)
    [lease] = [one for one in do(jobs.claim("mail", limit=2)) if one.job_id == twin]
    do(jobs.complete(lease, '"kept"'))
    columns = "id, queue, kind, payload, available_at, created_at, max_attempts"
    look.change(f"insert into holdfast_jobs ({columns}) select {columns} from holdfast_finished")  # noqa: S608
    answer = cancel_jobs(do, [twin, other])
    assert (answer.cancelled, answer.requested) == ([twin], [other])
    assert [(row.id, row.outcome, row.result) for row in look.over()] == [(twin, "done", '"kept"')]


# Change


def test_priority_time_and_queue_are_changed(do: Do, clock: Clock, look: Look) -> None:
    [job] = add(do, None, unique="u", idempotency_key="i", scope="noop")
    keys = look.key_rows()
    answer = change_jobs(do, Change(priority=7, run_after=timedelta(minutes=5), to_queue="bulk"), [job])
    assert answer == Changed([job])
    [row] = look.live()
    assert (row.priority, row.queue, due_in(row, clock)) == (7, "bulk", 300)
    assert (row.unique_key, row.fence, row.attempts, row.state) == ("u", 0, 0, "pending")
    assert look.key_rows() == keys
    assert not do(jobs.enqueue(new_job(unique="u"))).created, "the unique key is held wherever the job is"
    assert do(jobs.claim(["mail", "bulk"], limit=1)) == []
    clock.advance(300)
    assert ids(do(jobs.claim("bulk", limit=1))) == [job]


def test_a_change_is_audited_with_what_was_there_before(do: Do, clock: Clock) -> None:
    [job] = add(do, None, priority=3)
    before = clock.now
    at = clock.now + timedelta(hours=1)
    change_jobs(do, Change(priority=-2, run_after=at, to_queue="bulk"), [job])
    [line] = do(admin.audit(job))
    assert (line.action, line.actor, line.detail["queue"], line.detail["kind"]) == ("change", "ann", "mail", "noop")
    assert line.detail["before"] == {"priority": 3, "run_after": before.isoformat(), "to_queue": "mail"}
    assert line.detail["now"] == {"priority": -2, "run_after": at.isoformat(), "to_queue": "bulk"}


def test_what_a_change_does_not_name_stays(do: Do, clock: Clock, look: Look) -> None:
    [job] = add(do, "a", priority=4, delay_ms=60_000, lease_ms=5_000, headers='{"h":"1"}')
    [before] = look.live()
    change_jobs(do, Change(priority=5), [job])
    assert look.live() == [before._replace(priority=5)]
    change_jobs(do, Change(to_queue="bulk"), [job])
    assert look.live() == [before._replace(priority=5, queue="bulk")]


def test_a_leased_job_is_left_alone_and_told(do: Do, clock: Clock, look: Look) -> None:
    [job] = add(do, None)
    do(jobs.claim("mail", limit=1))
    before = look.live()
    assert change_jobs(do, Change(priority=5, run_after=60, to_queue="bulk"), queue="mail") == Changed(
        [], {job: "leased"}
    )
    assert look.live() == before
    assert actions(do, job) == []


def test_a_change_by_filter_takes_what_fits_and_ends(do: Do, clock: Clock, look: Look) -> None:
    mine, other = add(do, None, None), add(do, None, kind="send")
    assert sorted(change_jobs(do, Change(to_queue="bulk"), queue="mail", kind="noop").changed) == sorted(mine)
    assert {row.id: row.queue for row in look.live()} == dict.fromkeys(mine, "bulk") | {other[0]: "mail"}
    assert change_jobs(do, Change(to_queue="bulk"), queue="mail", kind="noop") == Changed()


def test_a_job_that_waits_for_its_parents_keeps_its_time(do: Do, clock: Clock, look: Look) -> None:
    [parent] = add(do, None, delay_ms=60_000)
    child = do(jobs.enqueue(child_of(parent))).id
    claim_met(do)
    assert change_jobs(do, Change(run_after=0, priority=3), [child]) == Changed([], {child: "waits for parents"})
    assert change_jobs(do, Change(priority=3, to_queue="bulk"), [child]) == Changed([child])
    [row] = [row for row in look.live() if row.id == child]
    assert (row.state, row.waits_for, row.queue, row.priority) == ("waiting", "parents", "bulk", 3)
    cancel_jobs(do, [parent])
    assert ids(claim_met(do, queue="bulk")) == [child]


def test_a_job_of_a_line_that_is_put_off_lets_the_others_go_on(do: Do, clock: Clock, look: Look) -> None:
    """One that was never tried holds nobody up, and joins its line when it is due, in its place by age."""
    say(do)
    [first] = add(do, "a")
    [lease] = take(do)
    clock.advance(1)
    [second, third] = add(do, "a", "a")
    take(do, worker="other")
    done(do, lease)
    assert change_jobs(do, Change(run_after=60), [second]) == Changed([second])
    [held] = take(do)
    assert held.job_id == third
    clock.advance(60)
    assert take(do) == [], "one at a time"
    [fourth] = add(do, "a")
    done(do, held)
    assert drain(do) == [second, fourth]
    assert (line_rows(look), first not in states(look)) == ([], True)


def test_a_job_that_was_tried_holds_its_key_until_its_new_time(do: Do, clock: Clock, look: Look) -> None:
    say(do)
    [first, second] = add(do, "a", "a")
    [lease] = take(do, 1)
    put_back(do, lease)
    assert change_jobs(do, Change(run_after=3600), [first]) == Changed([first])
    clock.advance(120)
    assert take(do) == []
    assert change_jobs(do, Change(run_after=0), [first]) == Changed([first])
    assert drain(do) == [first, second]


def test_where_retries_are_passed_a_job_that_was_tried_holds_nobody(do: Do, clock: Clock) -> None:
    say(do, PASS)
    [first, second] = add(do, "a", "a")
    [lease] = take(do, 1, PASS)
    put_back(do, lease, 0)
    change_jobs(do, Change(run_after=3600), [first])
    assert drain(do, PASS) == [second]


@pytest.mark.parametrize("settings", [ORDERED, FAIR, QueueSettings(key_concurrency=1)], ids=str)
def test_a_line_goes_on_when_the_job_it_called_moves_to_another_queue(
    do: Do, clock: Clock, look: Look, settings: QueueSettings
) -> None:
    say(do, settings)
    [first] = add(do, "a")
    [lease] = take(do, 1, settings)
    [called, behind] = add(do, "a", "a")
    take(do, 1, settings, worker="other")
    done(do, lease)
    assert change_jobs(do, Change(to_queue="plain"), [called]) == Changed([called])
    assert drain(do, settings) == [behind]
    [moved] = do(jobs.claim("plain", limit=9))
    assert moved.job_id == called
    do(jobs.complete(moved))
    assert (line_rows(look), look.live(), first in outcomes(look)) == ([], [], True)


def test_a_job_that_waits_for_its_line_is_free_of_it_when_it_moves(do: Do, clock: Clock, look: Look) -> None:
    say(do)
    [first] = add(do, "a")
    [lease] = take(do)
    [moved, later, behind] = add(do, "a", "a", "a")
    assert take(do, worker="other") == []
    assert {states(look)[one] for one in (moved, later, behind)} == {"waiting"}
    change_jobs(do, Change(to_queue="plain"), [moved])
    change_jobs(do, Change(run_after=60), [later])
    rows = {row.id: (row.state, row.waits_for, row.queue) for row in look.live()}
    assert rows[moved] == ("pending", None, "plain")
    assert rows[later] == ("pending", None, "mail")
    assert ids(do(jobs.claim("plain", limit=9))) == [moved], "beside the one that runs in its old queue"
    done(do, lease)
    assert drain(do) == [behind]
    clock.advance(60)
    assert drain(do) == [later]
    assert (line_rows(look), first in outcomes(look)) == ([], True)


@pytest.mark.parametrize("act", ["cancel", "move", "put off"])
def test_a_line_that_relies_on_a_ticket_is_told_when_that_goes(do: Do, clock: Clock, look: Look, act: str) -> None:
    """A job for later stands in front when it is due, and the line, which has not called it, waits for its claim."""
    say(do)
    [front] = add(do, "a", delay_ms=1_000)
    clock.advance(0.5)
    add(do, "a")
    [lease] = take(do)
    [behind] = add(do, "a")
    assert take(do, worker="other") == []
    clock.advance(1)
    done(do, lease)
    assert states(look) == {front: "pending", behind: "waiting"}
    if act == "cancel":
        cancel_jobs(do, [front])
    else:
        change_jobs(do, Change(to_queue="plain") if act == "move" else Change(run_after=60), [front])
    assert drain(do) == [behind]


def test_moved_jobs_stand_in_their_new_line_by_age(do: Do, clock: Clock, look: Look) -> None:
    """Whatever queue they were enqueued to: the order of one key is that of the enqueues."""
    do(lines.declare({"mail": ORDERED, "old": ORDERED}))
    added: list[str] = []
    for queue in ("old", "mail", "old", "mail"):
        clock.advance(1)
        added += add(do, "a", queue=queue)
    assert sorted(change_jobs(do, Change(to_queue="mail"), queue="old").changed) == sorted(added[::2])
    assert drain(do) == added


def test_a_moved_job_counts_for_the_limit_of_its_new_queue_only(do: Do, clock: Clock, look: Look) -> None:
    limited = QueueSettings(concurrency=1)
    do(lines.declare({"mail": limited, "bulk": limited}))
    [job] = add(do, None)
    [lease] = take(do, 1, limited)
    put_back(do, lease, 0)
    change_jobs(do, Change(to_queue="plain"), [job])
    [moved] = do(jobs.claim("plain", limit=1))
    change_jobs(do, Change(to_queue="bulk"), [job])
    do(jobs.release(moved))
    change_jobs(do, Change(to_queue="bulk"), [job])
    assert len(do(lines.claim("bulk", limited, limit=9)).leases) == 1
    held = {str(name): int(count) for name, count in look.rows("select name, held from holdfast_queues")}
    assert held == {"mail": 0, "bulk": 1}


def test_the_delivery_of_an_event_stays_with_its_route(do: Do, clock: Clock, look: Look) -> None:
    [job] = add(do, None, queue="route:orders", kind="route:orders")
    assert change_jobs(do, Change(to_queue="bulk"), [job]) == Changed([], {job: "belongs to a route"})
    assert change_jobs(do, Change(priority=3, run_after=60), [job]) == Changed([job])
    assert [(row.queue, row.priority, due_in(row, clock)) for row in look.live()] == [("route:orders", 3, 60)]


def test_a_change_of_time_starts_no_job_of_a_key_before_its_rate(do: Do, clock: Clock) -> None:
    rated = QueueSettings(key_rate=Rate(1, per=60))
    say(do, rated)
    add(do, "a")
    [lease] = take(do, 1, rated)
    done(do, lease)
    [later] = add(do, "a")
    assert take(do, 1, rated) == []
    change_jobs(do, Change(run_after=0), [later])
    assert take(do, 1, rated) == []
    clock.advance(60)
    assert drain(do, rated) == [later]


def test_a_changed_time_counts_until_the_next_call_of_a_debounce(do: Do, clock: Clock, look: Look) -> None:
    job = do(jobs.enqueue(call(1, wait=5, max_wait=60))).id
    change_jobs(do, Change(run_after=30, to_queue="bulk"), [job])
    assert [due_in(row, clock) for row in look.live()] == [30]
    assert do(jobs.enqueue(call(2, wait=5, max_wait=60))).id == job
    [row] = look.live()
    assert (row.queue, due_in(row, clock)) == ("bulk", 5)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Change(),
        lambda: Change(priority=101),
        lambda: Change(to_queue=""),
        lambda: Change(to_queue="x" * 101),
        lambda: Change(to_queue="route:orders"),
        lambda: Change(run_after=-1),
        lambda: admin.meant_by("hf.cancel", None, False, {}),
        lambda: admin.meant_by("hf.cancel", None, False, {"queue": None}),
        lambda: admin.meant_by("hf.cancel", None, False, {"qeue": "mail"}),
        lambda: admin.meant_by("hf.cancel", None, False, {"state": "done"}),
        lambda: admin.meant_by("hf.cancel", None, False, {"state": []}),
        lambda: admin.meant_by("hf.cancel", "order-1", False, {}),
        lambda: admin.meant_by("hf.cancel", 7, False, {}),
        lambda: admin.meant_by("hf.cancel", None, True, {"queue": "mail"}),
    ],
)
def test_what_is_not_said_clearly_is_refused(wrong: Callable[[], Any]) -> None:
    with pytest.raises(ConfigError):
        wrong()
