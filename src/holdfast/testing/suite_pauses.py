"""Pauses: what is paused is stored, is not claimed by a source that knows of it, and is found again when resumed."""

from __future__ import annotations

import pytest

from holdfast import admin, jobs, lines
from holdfast.errors import ConfigError
from holdfast.jobs.source import JobsSource
from holdfast.testing.clock import Clock
from holdfast.testing.look import Do, Look
from holdfast.testing.make import new_job
from holdfast.values.pauses import Pause, Paused
from holdfast.values.queues import QueueSettings, Rate
from holdfast.values.rows import Lease

PAUSED_KINDS = ("noop", "send")
PAUSED_LEASES: dict[str, int] = dict.fromkeys(PAUSED_KINDS, 30_000)


def as_told(do: Do, *queues: str) -> JobsSource:
    """Make a source as a worker does that has just read what is stored."""
    source = JobsSource(queues or ("mail", "bulk"), dict.fromkeys(PAUSED_KINDS))
    source.learn_settings({name: one.settings for name, one in do(lines.stored()).items()})
    source.pause(Paused.of(do(jobs.pauses())))
    return source


def take_all(do: Do, source: JobsSource, limit: int = 9) -> list[Lease]:
    """Claim all that a worker would claim in one round."""
    claims = [source.claim(PAUSED_LEASES, limit, "w", turn=turn) for turn in source.turns()]
    return [lease for claiming in claims if claiming is not None for lease in do(claiming)]


def add_to(do: Do, queue: str = "mail", kind: str = "noop", key: str | None = None) -> str:
    return do(jobs.enqueue(new_job(queue, kind, key=key))).id


def test_a_pause_keeps_since_when_by_whom_and_why(do: Do, clock: Clock) -> None:
    assert do(jobs.pauses()) == []
    assert do(admin.pause("kind", "send", None)) is True
    assert do(admin.pause("queue", "mail", "ann", "the provider is down ¿?")) is True
    mail = Pause("queue", "mail", clock.now, "ann", "the provider is down ¿?")
    assert do(jobs.pauses()) == [mail, Pause("kind", "send", clock.now)]


def test_what_is_paused_and_what_is_stored_of_queues_is_told_in_one_answer(do: Do, clock: Clock) -> None:
    said = do(jobs.said())
    assert (said.pauses, said.stored()) == ([], {})
    do(lines.change("mail", {"concurrency": 2}, "ada"))
    do(lines.change("stored", {"ordered": True, "rate": Rate(5, per=60)}))
    clock.advance(60)
    for name, reason in (("mail", "the provider is down ¿?"), ("stored", None)):
        do(admin.pause("queue", name, "ann", reason))
    do(admin.pause("kind", "send", None))
    said = do(jobs.said())
    assert sorted(said.pauses, key=str) == sorted(do(jobs.pauses()), key=str)
    assert said.stored() == do(lines.stored())


def test_pausing_what_is_paused_changes_nothing_and_says_so(do: Do, clock: Clock) -> None:
    do(admin.pause("queue", "mail", "ann", "first"))
    [before] = do(jobs.pauses())
    clock.advance(60)
    assert do(admin.pause("queue", "mail", "bob", "second")) is False
    assert do(jobs.pauses()) == [before]
    assert [line.action for line in do(admin.audit())] == ["queue_pause"]


def test_resuming_what_is_not_paused_changes_nothing_and_says_so(do: Do, clock: Clock) -> None:
    assert do(admin.resume("queue", "mail", "ann")) is False
    do(admin.pause("kind", "mail", "ann"))
    assert do(admin.resume("queue", "mail", "ann")) is False, "a kind is not a queue"
    assert do(admin.resume("kind", "mail", "ann")) is True
    assert do(admin.resume("kind", "mail", "ann")) is False
    assert do(jobs.pauses()) == []


def test_pauses_leave_audit_lines(do: Do, clock: Clock) -> None:
    do(admin.pause("queue", "mail", "ann", "why not"))
    clock.advance(1)
    do(admin.resume("queue", "mail", "bob"))
    said = [(line.action, line.actor, line.job_id, line.detail) for line in do(admin.audit())]
    assert said == [
        ("queue_resume", "bob", None, {"queue": "mail"}),
        ("queue_pause", "ann", None, {"queue": "mail", "reason": "why not"}),
    ]


@pytest.mark.parametrize("name", ["", "x" * 101, "nul\0", 7])
def test_a_name_that_cannot_be_stored_is_refused(do: Do, name: str) -> None:
    for refused in (admin.pause("queue", name, None), admin.resume("kind", name, None)):
        with pytest.raises(ConfigError):
            do(refused)
    with pytest.raises(ConfigError, match="reason"):
        do(admin.pause("queue", "mail", None, "x" * 1001))


def test_a_paused_queue_is_not_claimed_from_and_another_is(do: Do, clock: Clock) -> None:
    add_to(do, "mail")
    bulk = add_to(do, "bulk")
    do(admin.pause("queue", "mail", None))
    assert [lease.job_id for lease in take_all(do, as_told(do))] == [bulk]
    assert take_all(do, as_told(do, "mail")) == [], "not even by a worker that serves nothing else"


def test_enqueues_go_on_in_a_pause(do: Do, clock: Clock, look: Look) -> None:
    do(admin.pause("queue", "mail", None))
    do(admin.pause("kind", "noop", None))
    added = [add_to(do), add_to(do, "bulk")]
    assert [(row.id, row.state) for row in look.live()] == [(job, "pending") for job in added]


def test_a_paused_kind_is_not_claimed_from_any_queue(do: Do, clock: Clock) -> None:
    for queue in ("mail", "bulk"):
        add_to(do, queue, "send")
    rest = [add_to(do, "mail"), add_to(do, "bulk")]
    do(admin.pause("kind", "send", None))
    assert sorted(lease.job_id for lease in take_all(do, as_told(do))) == sorted(rest)


@pytest.mark.parametrize(
    "settings", [QueueSettings(ordered=True), QueueSettings(concurrency=5), QueueSettings(fair=True)], ids=str
)
def test_a_paused_queue_with_order_or_limits_is_not_claimed_from(
    do: Do, clock: Clock, look: Look, settings: QueueSettings
) -> None:
    do(lines.declare({"mail": settings}))
    for key in ("a", "a", "b"):
        add_to(do, key=key)
    plain = add_to(do, "bulk")
    do(admin.pause("queue", "mail", None))
    source = as_told(do)
    assert [lease.job_id for lease in take_all(do, source)] == [plain]
    assert {row.state for row in look.live() if row.queue == "mail"} == {"pending"}
    do(admin.resume("queue", "mail", None))
    assert source.pause(Paused.of(do(jobs.pauses())))
    assert len(take_all(do, source)) == 3


def test_a_key_waits_behind_its_first_job_while_the_kind_of_that_is_paused(do: Do, clock: Clock, look: Look) -> None:
    do(lines.declare({"mail": QueueSettings(ordered=True)}))
    held = [add_to(do, kind="send", key="a"), add_to(do, key="a")]
    other = add_to(do, key="b")
    do(admin.pause("kind", "send", None))
    source = as_told(do)
    assert [lease.job_id for lease in take_all(do, source)] == [other]
    assert take_all(do, source) == []
    do(admin.resume("kind", "send", None))
    source.pause(Paused.of(do(jobs.pauses())))
    assert [lease.job_id for lease in take_all(do, source)] == held


def test_a_line_goes_on_where_another_kind_of_its_key_was_called_before_a_pause(do: Do, clock: Clock) -> None:
    """The line has called a job whose kind is paused: those behind it wait, and none is lost."""
    do(lines.declare({"mail": QueueSettings(ordered=True)}))
    first = add_to(do, key="a")
    source = as_told(do)
    [lease] = take_all(do, source)
    behind = [add_to(do, kind="send", key="a"), add_to(do, key="a")]
    assert take_all(do, source) == []
    do(admin.pause("kind", "send", None))
    source.pause(Paused.of(do(jobs.pauses())))
    do(jobs.complete(lease))
    assert (lease.job_id, take_all(do, source)) == (first, [])
    clock.advance(60)
    do(lines.tidy("mail"))
    assert take_all(do, source) == []
    do(admin.resume("kind", "send", None))
    source.pause(Paused.of(do(jobs.pauses())))
    assert [lease.job_id for lease in take_all(do, source)] == behind


def test_a_job_runs_once_neither_its_queue_nor_its_kind_is_paused(do: Do, clock: Clock) -> None:
    add_to(do, "mail", "send")
    do(admin.pause("queue", "mail", None))
    do(admin.pause("kind", "send", None))
    do(admin.resume("queue", "mail", None))
    assert take_all(do, as_told(do)) == []
    do(admin.resume("kind", "send", None))
    assert len(take_all(do, as_told(do))) == 1


def test_due_jobs_of_what_is_paused_are_counted(do: Do, clock: Clock) -> None:
    do(admin.pause("queue", "mail", None))
    do(admin.pause("queue", "idle", None))
    do(admin.pause("kind", "send", None))
    assert do(admin.held_up()) == []
    add_to(do)
    clock.advance(30)
    add_to(do, kind="send")
    add_to(do, "bulk", "send")
    add_to(do, "bulk")
    do(jobs.enqueue(new_job(delay_ms=60_000)))
    clock.advance(30)
    assert do(admin.held_up()) == [admin.HeldUp("queue", "mail", 2, 60.0), admin.HeldUp("kind", "send", 2, 30.0)]
    assert [(lag.queue, lag.due) for lag in do(admin.oldest_pending())] == [("mail", 2), ("bulk", 2)]
    assert [(lag.queue, lag.due) for lag in do(admin.oldest_pending(unpaused=True))] == [("bulk", 1)]
