"""The checker sees each broken promise: a good history, and one change at a time that makes it a bad one."""

from datetime import timedelta

import pytest

from tests.histories.bad_stories import BAD
from tests.histories.checker import RULES, check
from tests.histories.stories import NOW, WORKER, Story, good, row


@pytest.fixture
def story() -> Story:
    return good()


def test_a_history_in_which_every_promise_was_kept_has_no_violation(story: Story) -> None:
    assert check(story.history) == []


@pytest.mark.parametrize("name", BAD)
def test_a_broken_promise_is_found(story: Story, name: str) -> None:
    rule, change = BAD[name]

    change(story)

    assert story.broken() == {rule}


def test_every_rule_has_a_history_that_breaks_it() -> None:
    assert {rule for rule, _ in BAD.values()} == set(RULES)


# What looks odd and breaks no promise


def test_a_discarded_dead_letter_is_not_lost(story: Story) -> None:
    story.enqueue("discarded", ("e", True))
    story.start("e", "discarded/0")
    story.act("discard", "e")

    assert story.broken() == set()


def test_a_call_of_unknown_end_may_have_left_its_job_or_not(story: Story) -> None:
    story.enqueue("there", ("e", True))
    story.history.events.pop()
    story.done("e", "there/0")
    story.enqueue("absent", ("f", True))
    story.history.events.pop()

    assert story.broken() == set()


@pytest.mark.parametrize("how", ["it learns so", "it dies", "it was stopped"])
def test_a_start_of_a_lost_lease_is_explained(story: Story, how: str) -> None:
    story.enqueue("late", ("e", True))
    story.done("e", "late/0", fence=3)
    if how == "it was stopped":
        story.say("stopped", 1, victim=11)
    story.start("e", "late/0", fence=1, pid=11)
    if how != "it dies":
        story.end("e", fence=1, pid=11)
    if how == "it learns so":
        story.say("lease lost", 11, job="e", attempt=1)

    assert story.broken() == set()


@pytest.mark.parametrize("how", ["snoozed", "released", "replayed"])
def test_attempts_that_were_given_back_are_not_too_many(story: Story, how: str) -> None:
    story.enqueue("back", ("e", True))
    story.start("e", "back/0", most=1)
    story.end("e", how="snooze" if how == "snoozed" else "Trouble")
    if how == "released":
        story.say("worker stopping", WORKER, worker="w", why="")
    if how == "replayed":
        story.act("replay", "e")
    story.done("e", "back/0", fence=3, replays=int(how == "replayed"))

    assert story.broken() == set()


def test_of_each_process_one_job_may_die_between_the_record_of_its_start_and_the_start(story: Story) -> None:
    story.enqueue("unlucky", ("e", True), ("f", True))
    for place, (job_id, worker) in enumerate((("e", "one"), ("f", "other"))):
        error = {"type": "LeaseExpired", "worker": worker}
        story.history.rows.append(row(job_id, f"unlucky/{place}", "dead", errors=[error]))

    assert story.broken() == set()


def test_a_fatal_error_needs_no_further_attempts(story: Story) -> None:
    story.enqueue("fatal", ("e", True))
    story.start("e", "fatal/0")
    error = {"type": "holdfast.errors.Fatal"}
    story.history.rows.append(row("e", "fatal/0", "dead", attempts=1, errors=[error]))

    assert story.broken() == set()


def test_a_job_for_later_may_be_made_due(story: Story) -> None:
    story.enqueue("later", ("e", True), options={"run_after": 3600.0})
    story.act("run_now", "e")
    story.done("e", "later/0")

    assert story.broken() == set()


def test_a_payload_that_cannot_be_read_dies_unstarted(story: Story) -> None:
    story.enqueue("bad", ("e", True), ("f", True))
    for place, job_id in enumerate("ef"):
        error = {"type": "holdfast.errors.InvalidPayload"}
        story.history.rows.append(row(job_id, f"bad/{place}", "dead", errors=[error]))

    assert story.broken() == set()


def test_a_handler_that_goes_on_in_a_transaction_that_is_over_is_refused(story: Story) -> None:
    story.enqueue("swallowed", ("e", True))
    story.start("e", "swallowed/0", act="swallow")
    story.end("e", how="QueryFailed")
    story.done("e", "swallowed/0", fence=3)

    assert story.broken() == set()


def test_a_unique_job_may_follow_another(story: Story) -> None:
    story.enqueue("unique", ("e", True), ("f", True), unique="u")
    story.done("e", "unique/0", unique="u")
    story.done("f", "unique/1", unique="u", created_at=NOW + timedelta(seconds=1))

    assert story.broken() == set()
