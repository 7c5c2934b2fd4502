"""Changes to a good history, each of which breaks one promise."""

from collections.abc import Callable
from datetime import timedelta

from tests.histories.rules_of_calls import STATEMENT
from tests.histories.stories import ENQUEUER, NOW, PERSON, WORKER, Story, row

Change = Callable[[Story], None]
BAD: dict[str, tuple[str, Change]] = {}


def bad(rule: str) -> Callable[[Change], Change]:
    def remember(change: Change) -> Change:
        BAD[change.__name__] = (rule, change)
        return change

    return remember


@bad("an acknowledged job is lost")
def answered_and_nothing_there(story: Story) -> None:
    story.enqueue("gone", ("e", True))


@bad("an acknowledged job is lost")
def found_and_nothing_there(story: Story) -> None:
    story.enqueue("found", ("e", False))


@bad("an acknowledged job is lost")
def committed_with_an_order_and_nothing_there(story: Story) -> None:
    story.enqueue("gone", ("e", True), tx=True)


@bad("an acknowledged job is lost")
def dropped_without_its_effect(story: Story) -> None:
    story.history.effects = [effect for effect in story.history.effects if effect.job_id != "d"]


@bad("an acknowledged job is lost")
def the_child_of_a_done_parent_is_gone(story: Story) -> None:
    story.enqueue("child2", ("e", True), inside=["a", 1])


@bad("a rolled-back or unknown job appeared")
def rolled_back_and_there(story: Story) -> None:
    story.enqueue("back", ("e", True), tx=True)
    story.history.orders.discard("back")
    story.history.events.pop()
    story.done("e", "back/0")


@bad("a rolled-back or unknown job appeared")
def rolled_back_and_started(story: Story) -> None:
    story.enqueue("back", ("e", True), tx=True)
    story.history.orders.discard("back")
    story.history.events.pop()
    story.start("e", "back/0")


@bad("a rolled-back or unknown job appeared")
def the_child_of_a_failed_attempt_is_there(story: Story) -> None:
    story.enqueue("child2", ("e", True), inside=["a", 99])
    story.done("e", "child2/0")


@bad("a rolled-back or unknown job appeared")
def nobody_asked_for_it(story: Story) -> None:
    story.done("e", "never/0")


@bad("a commit was not kept")
def committed_and_no_order(story: Story) -> None:
    story.enqueue("order2", tx=True)
    story.history.orders.discard("order2")


@bad("a commit was not kept")
def rolled_back_and_an_order(story: Story) -> None:
    story.enqueue("order2", tx=True)
    story.say("rolled back", ENQUEUER, call="order2")


@bad("an idempotency key has two jobs")
def two_answers_for_one_key(story: Story) -> None:
    story.enqueue("first", ("e", True), key="k")
    story.done("e", "first/0")
    story.enqueue("second", ("a", False), key="k")


@bad("an idempotency key has two jobs")
def a_second_job_of_a_key_whose_answer_was_lost(story: Story) -> None:
    story.enqueue("first", ("e", True), key="k")
    story.done("e", "first/0")
    story.enqueue("second", ("f", True), key="k")
    story.history.events.pop()
    story.done("f", "second/0")


@bad("two jobs with one unique key were alive")
def two_lives_that_overlap(story: Story) -> None:
    story.enqueue("unique", ("e", True), ("f", True), unique="u")
    story.done("e", "unique/0", unique="u", finished_at=NOW + timedelta(seconds=STATEMENT + 2))
    story.done("f", "unique/1", unique="u", created_at=NOW + timedelta(seconds=1))


@bad("two jobs with one unique key were alive")
def found_long_after_its_end(story: Story) -> None:
    story.enqueue("unique", ("e", True), unique="u")
    story.done("e", "unique/0", unique="u", finished_at=NOW - timedelta(seconds=STATEMENT))
    story.enqueue("again", ("e", False), unique="u")


@bad("an effect is doubled")
def an_effect_twice(story: Story) -> None:
    story.history.effects.append(story.history.effects[0])


@bad("an effect is missing")
def done_without_effect(story: Story) -> None:
    story.history.effects = [effect for effect in story.history.effects if effect.job_id != "b"]


@bad("an effect has no done job")
def an_effect_of_a_dead_letter(story: Story) -> None:
    story.change("b", state="dead", errors=[{"type": "Trouble"}])


@bad("an effect has no done job")
def an_effect_of_an_old_fence(story: Story) -> None:
    story.change("b", fence=3)
    story.start("b", "order/0", fence=3, attempt=2)


@bad("an effect has no done job")
def an_effect_of_a_discarded_job(story: Story) -> None:
    story.history.rows = [one for one in story.history.rows if one.id != "b"]
    story.act("discard", "b")


@bad("a fence was used twice, or after the end")
def two_starts_with_one_fence(story: Story) -> None:
    story.start("b", "order/0", pid=11)


@bad("a fence was used twice, or after the end")
def a_start_after_the_end(story: Story) -> None:
    story.start("b", "order/0", fence=3, attempt=2)


@bad("a fence fell")
def an_old_lease_that_nobody_refused(story: Story) -> None:
    story.enqueue("late", ("e", True))
    story.done("e", "late/0", fence=3)
    story.start("e", "late/0", fence=1, pid=11)
    story.end("e", fence=1, pid=11)


@bad("a job started too often")
def one_attempt_and_two_starts(story: Story) -> None:
    story.enqueue("once", ("e", True))
    story.start("e", "once/0", most=1)
    story.done("e", "once/0", fence=3)


@bad("a job started too often")
def three_attempts_and_five_starts(story: Story) -> None:
    story.enqueue("thrice", ("e", True))
    for fence in (1, 3, 5, 7):
        story.start("e", "thrice/0", fence=fence)
    story.done("e", "thrice/0", fence=9)


@bad("a job started too often")
def an_attempt_beyond_the_last(story: Story) -> None:
    story.enqueue("beyond", ("e", True))
    story.start("e", "beyond/0", attempt=4)
    story.done("e", "beyond/0", fence=3)


@bad("a job started before it was due")
def started_before_its_delay(story: Story) -> None:
    story.enqueue("later", ("e", True), options={"run_after": 3600.0})
    story.done("e", "later/0")


@bad("a job died with attempts left")
def dead_with_attempts_left(story: Story) -> None:
    story.enqueue("early", ("e", True))
    story.start("e", "early/0")
    story.history.rows.append(row("e", "early/0", "dead", attempts=2, errors=[{"type": "Trouble"}]))


@bad("a job was cancelled by nobody")
def cancelled_and_nobody_asked(story: Story) -> None:
    story.enqueue("odd", ("e", True))
    story.history.rows.append(row("e", "odd/0", "cancelled"))


@bad("a cancelled job ran")
def cancelled_and_started(story: Story) -> None:
    story.enqueue("unwanted", ("e", True))
    story.act("cancel", "e")
    story.history.rows.append(row("e", "unwanted/0", "cancelled", fence=1))
    story.start("e", "unwanted/0", fence=1)


@bad("a job died unstarted")
def dead_and_never_started(story: Story) -> None:
    story.enqueue("innocent", ("e", True), ("f", True))
    for place, job_id in enumerate("ef"):
        story.history.rows.append(row(job_id, f"innocent/{place}", "dead", errors=[{"type": "LeaseExpired"}]))


@bad("a job died unstarted")
def dead_and_not_started_since_its_replay(story: Story) -> None:
    story.enqueue("innocent", ("e", True), ("f", True))
    for place, job_id in enumerate("ef"):
        tag = f"innocent/{place}"
        story.start(job_id, tag)
        story.act("replay", job_id)
        story.history.rows.append(row(job_id, tag, "dead", fence=4, replays=1, errors=[{"type": "LeaseExpired"}]))


@bad("a dead letter has no error")
def dead_and_silent(story: Story) -> None:
    story.enqueue("silent", ("e", True))
    story.start("e", "silent/0")
    story.history.rows.append(row("e", "silent/0", "dead"))


@bad("a job is done that nobody started")
def done_with_a_fence_of_nobody(story: Story) -> None:
    story.history.events = [event for event in story.history.events if event.get("job") != "b"]


@bad("a job is live and finished")
def a_job_twice(story: Story) -> None:
    story.history.rows.append(story.history.rows[0])


@bad("a job is stuck")
def a_job_that_waits_for_ever(story: Story) -> None:
    story.enqueue("waiting", ("e", True))
    story.history.rows.append(row("e", "waiting/0", "pending", finished_at=None))


@bad("an act of people is forgotten")
def acted_and_not_in_the_audit(story: Story) -> None:
    story.say("acted", PERSON, action="replay", ids=["b"])


@bad("an act of people is forgotten")
def cancelled_and_done_all_the_same(story: Story) -> None:
    story.act("cancel", "b")


@bad("an act of people is forgotten")
def replayed_and_not_counted(story: Story) -> None:
    story.act("replay", "b")


@bad("an outage was told as a refusal")
def a_call_that_was_refused(story: Story) -> None:
    story.enqueue("refused", ("e", True))
    story.history.events.pop()
    story.say("failed", ENQUEUER, call="refused", error="QueryFailed: cannot switch to state 11")


@bad("an outage was told as a refusal")
def an_attempt_that_was_refused(story: Story) -> None:
    story.enqueue("refused", ("e", True))
    story.start("e", "refused/0")
    story.end("e", how="QueryFailed")
    story.done("e", "refused/0", fence=3)


@bad("a process ended by itself")
def a_worker_that_broke(story: Story) -> None:
    story.say("ended by itself", 1, name="near1", victim=WORKER, code=1, said="Traceback …")
