"""What is promised of effects, attempts and ends, and to people; rules for the checker."""

from collections import Counter

from holdfast.values.views import JobView
from tests.histories.history import UNREADABLE, Found, History, Start, tag_of

# Effects


def effects_doubled(history: History) -> Found:
    """No effect is there twice."""
    for job_id, effects in history.effects_of.items():
        if len(effects) > 1:
            yield job_id, f"{len(effects)} effects, with the fences {[effect.fence for effect in effects]}"


def effects_missing(history: History) -> Found:
    """A job that is done has its effect."""
    for row in history.rows:
        if row.state == "done" and history.has_effect(row.kind) and row.id not in history.effects_of:
            yield row.id, "done, and its effect is not there"


def effects_unearned(history: History) -> Found:
    """A job that is not done has no effect, and the effect of one that is carries the fence it was done with."""
    for job_id, effects in history.effects_of.items():
        row = history.by_id.get(job_id)
        if row is None:
            if history.wanted(effects[0].tag).get("queue") != "brief":
                yield job_id, "an effect, and the job is not there"
        elif row.state != "done":
            yield job_id, f"an effect, and the job is {row.state}"
        elif all(effect.fence != row.fence for effect in effects):
            yield job_id, f"an effect of fence {effects[0].fence}, and the job was done with {row.fence}"


# Attempts


def fences_repeated(history: History) -> Found:
    """No two starts of a job have one fence, and no start is above the fence with which the job ended."""
    for job_id, starts in history.starts.items():
        for fence, count in Counter(start.fence for start in starts).items():
            if count > 1:
                yield job_id, f"{count} starts with fence {fence}"
        row = history.by_id.get(job_id)
        if row is not None and (above := [start.fence for start in starts if start.fence > row.fence]):
            yield job_id, f"started with the fences {above}, and it ended with {row.fence}"


def fences_fallen(history: History) -> Found:
    """Each start has a higher fence than those before it, except one that comes late and is refused."""
    for job_id, starts in history.starts.items():
        highest = 0
        for start in starts:
            if start.fence < highest and not _came_late(history, start):
                yield job_id, f"started with fence {start.fence} after fence {highest}, and was not refused"
            highest = max(highest, start.fence)


def _came_late(history: History, start: Start) -> bool:
    """Tell whether a worker that had lost its lease started all the same, and learned it, or died or stopped first."""
    learned = history.losses.get((start.pid, start.job), 0.0) > start.at
    unended = (start.job, start.fence) not in history.ends
    return learned or unended or start.pid in history.victims or start.pid in history.stopping


def starts_too_many(history: History) -> Found:
    """A job with one attempt starts once, one with n attempts n times, and once more if a process died with it."""
    for job_id, starts in history.starts.items():
        most = starts[0].most
        replays = sum(line.action == "replay" for line in history.acts.get(job_id, ()))
        allowed = (most + (most > 1)) * (replays + 1) + sum(_given_back(history, start) for start in starts)
        if len(starts) > allowed:
            yield job_id, f"{len(starts)} starts, and {allowed} were allowed of {most} attempts and {replays} replays"
        if beyond := [start.attempt for start in starts if start.attempt > most]:
            yield job_id, f"attempts {beyond} of {most}"


def _given_back(history: History, start: Start) -> bool:
    """Tell whether a started attempt is not counted: snoozed, released by a worker that was asked to stop, or undone
    with a transaction that it shared.
    """
    how = history.ends.get((start.job, start.fence))
    return start.pid in history.stopping or how in ("snooze", "SharedTransactionUndone")


def ran_after_cancel(history: History) -> Found:
    """A job that was cancelled while it waited does not start any more."""
    for row in history.rows:
        acts = history.acts.get(row.id)
        if row.state != "cancelled" or not acts or acts[-1].action != "cancel":
            continue
        if later := [start.fence for start in history.starts.get(row.id, ()) if start.fence >= row.fence]:
            yield row.id, f"cancelled with fence {row.fence}, and started with {later}"


def started_early(history: History) -> Found:
    """A job that was enqueued for later does not start before, unless people make it due."""
    for row in history.rows:
        delay = history.wanted(tag_of(row)).get("options", {}).get("run_after", 0.0)
        due = row.created_at.timestamp() + delay
        early = [start for start in history.starts.get(row.id, ()) if start.wall < due]
        if early and not any(line.action in ("run_now", "replay") for line in history.acts.get(row.id, ())):
            yield row.id, f"started {due - early[0].wall:.3f} s before it was due"


# Ends


def died_unstarted(history: History) -> Found:
    """No job dies without having been started, since it was enqueued or replayed.

    Except one for each process: it must be recorded that a handler is about to be called, and death may come between
    the record and the call.
    """
    for rows in history.unstarted_by_worker.values():
        for row in rows if len(rows) > 1 else ():
            yield (
                row.id,
                f"dead of {row.max_attempts} attempts, and never started, with {len(rows) - 1} others; {_errors(row)}",
            )


def _errors(row: JobView) -> str:
    return f"errors: {', '.join(str(error.get('type')) for error in row.errors) or 'none'}"


def died_silently(history: History) -> Found:
    """Every dead letter tells why."""
    for row in history.rows:
        if row.state == "dead" and not row.errors:
            yield row.id, "dead, with no error"


def died_early(history: History) -> Found:
    """A job dies of its last attempt, or because its handler says so."""
    for row in history.rows:
        fatal = str((row.last_error or {}).get("type", "")).rpartition(".")[2] in ("Fatal", *UNREADABLE)
        if row.state == "dead" and not fatal and row.attempts < row.max_attempts:
            yield row.id, f"dead after {row.attempts} of {row.max_attempts} attempts; {_errors(row)}"


def cancelled_by_nobody(history: History) -> Found:
    """A job ends as cancelled because people or its handler say so."""
    for row in history.rows:
        by_people = any(line.action.startswith("cancel") for line in history.acts.get(row.id, ()))
        by_itself = any(history.ends.get((row.id, start.fence)) == "cancel" for start in history.starts.get(row.id, ()))
        if row.state == "cancelled" and not by_people and not by_itself:
            yield row.id, "cancelled, and nobody asked for it"


def done_unstarted(history: History) -> Found:
    """A job that is done was started with the fence it was done with."""
    for row in history.rows:
        if row.state == "done" and all(start.fence != row.fence for start in history.starts.get(row.id, ())):
            yield row.id, f"done with fence {row.fence}, which no handler had"


def in_both_tables(history: History) -> Found:
    """No job is live and finished at once."""
    for job_id, count in Counter(row.id for row in history.rows).items():
        if count > 1:
            yield job_id, f"in the tables {count} times"


def stuck(history: History) -> Found:
    """After a quiet time with one healthy worker no job is left."""
    for row in history.rows:
        if row.state in ("pending", "leased"):
            yield row.id, f"still {row.state}, available at {row.available_at}, lease until {row.lease_expires_at}"


# People and processes


def acts_forgotten(history: History) -> Found:
    """What people were told had happened did happen, and is in the audit."""
    for event in history.said("acted"):
        for job_id in event["ids"]:
            if not any(_is_of(line.action, event["action"]) for line in history.acts.get(job_id, ())):
                yield job_id, f"the answer to {event['action']} named it, and the audit does not"
    for row in history.rows:
        acts = [line.action for line in history.acts.get(row.id, ()) if line.action in ("cancel", "replay", "discard")]
        if acts and acts[-1] == "cancel" and row.state != "cancelled":
            yield row.id, f"cancelled by hand, and it is {row.state}"
        if row.replays != acts.count("replay"):
            yield (
                row.id,
                f"replayed {acts.count('replay')} times, says the audit, and {row.replays} times, says the row",
            )


def _is_of(written: str, action: str) -> bool:
    return written in (("run_now", "replay") if action == "retry" else (action,))


def refused(history: History) -> Found:
    """No lost session or busy database is told as a statement that the database refuses."""
    for event in history.said("failed"):
        if event["error"].startswith("QueryFailed"):
            yield event["call"], event["error"]
    for job_id, starts in history.starts.items():
        for start in starts:
            # One that goes on in a transaction that the database has ended is refused with good reason.
            if history.ends.get((job_id, start.fence)) == "QueryFailed" and start.act != "swallow":
                yield job_id, f"attempt {start.attempt} ended with QueryFailed"


def ended_by_itself(history: History) -> Found:
    """No process ends that nobody killed or stopped, except by a handler that takes it along."""
    for event in history.said("ended by itself"):
        yield event["name"], f"pid {event['victim']} ended with code {event['code']}:\n{event['said']}"
