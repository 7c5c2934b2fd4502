"""What is promised to those who enqueue; rules for the checker."""

from datetime import UTC, datetime
from itertools import pairwise

from holdfast.values.views import JobView
from tests.histories.history import Found, History, tag_of

# How long a statement that ends a job may take, its process stopped in the middle of it: what a job's times in the
# tables may differ by from the times at which others saw it.
STATEMENT = 15.0


def lost(history: History) -> Found:
    """Every job that an answer named is there, or has left the trace of its end."""
    for call, wanted, job_id, created in history.answers:
        if job_id in history.by_id or history.discarded(job_id) or _done_and_dropped(history, job_id):
            continue
        yield job_id, f"{'created' if created else 'found'} by {call.name} for {wanted['tag']}, and it is not there"


def _done_and_dropped(history: History, job_id: str) -> bool:
    """Tell whether a job was done in a queue that keeps nothing: then its effect is there, or its handler returned."""
    starts = history.starts.get(job_id, ())
    if not starts or history.wanted(starts[0].tag).get("queue") != "brief":
        return False
    if history.has_effect(history.wanted(starts[0].tag)["kind"]):
        return job_id in history.effects_of
    return any(history.ends.get((job_id, start.fence)) == "returned" for start in starts)


def appeared(history: History) -> Found:
    """No job of a transaction that was rolled back is there, ran, or had an effect."""
    seen = {tag_of(row): row.id for row in history.rows}
    seen |= {start.tag: job_id for job_id, starts in history.starts.items() for start in starts}
    seen |= {effect.tag: effect.job_id for effect in history.effects}
    for tag, job_id in seen.items():
        if tag not in history.tags:
            yield job_id, f"nobody asked for {tag or 'it'}"
        elif history.tags[tag][0].fate == "rolled back":
            yield job_id, f"the transaction of {history.tags[tag][0].name} was rolled back"


def unkept_commits(history: History) -> Found:
    """What a transaction of the application's wrote is there if and only if its COMMIT was answered."""
    for call in history.calls.values():
        if call.tx and call.fate == "rolled back" and "committed" in call.said:
            yield call.name, "its commit was answered, and its order is not there"
        if call.tx and call.fate == "committed" and "rolled back" in call.said:
            yield call.name, "it was rolled back, and its order is there"


def keys_shared(history: History) -> Found:
    """All answers to an idempotency key name one job, and only one job of a key ever ran or is there."""
    answered: dict[tuple[str, str], set[str]] = {}
    for _, wanted, job_id, _ in history.answers:
        if wanted.get("key"):
            answered.setdefault((wanted["kind"], wanted["key"]), set()).add(job_id)
    made: dict[tuple[str, str], set[str]] = {}
    traces = [(row.id, tag_of(row)) for row in history.rows] + [(e.job_id, e.tag) for e in history.effects]
    traces += [(job_id, start.tag) for job_id, starts in history.starts.items() for start in starts]
    for job_id, tag in traces:
        wanted = history.wanted(tag)
        if wanted.get("key"):
            made.setdefault((wanted["kind"], wanted["key"]), set()).add(job_id)
    for what, ids_of in (("answers name", answered), ("jobs were made:", made)):
        for (kind, key), ids in ids_of.items():
            if len(ids) > 1:
                yield sorted(ids)[0], f"for key {key} of {kind} {what} {len(ids)}: {', '.join(sorted(ids))}"


def unique_alive_twice(history: History) -> Found:
    """Of the jobs with one unique key only one is alive at a time, and an answer names one that was."""
    lives: dict[tuple[str, str], list[JobView]] = {}
    for row in history.rows:
        if row.unique is not None and not row.replays:
            lives.setdefault((row.kind, row.unique), []).append(row)
    for (kind, unique), rows in lives.items():
        rows.sort(key=lambda row: row.created_at)
        for one, other in pairwise(rows):
            if _end(one) - _seconds(other.created_at) > STATEMENT:
                yield one.id, f"alive together with {other.id}, with the unique key {unique} of {kind}"
    for call, wanted, job_id, created in history.answers:
        found = history.by_id.get(job_id)
        if created or not wanted.get("unique") or wanted.get("key") or found is None or found.replays:
            continue
        if call.wall - _end(found) > STATEMENT:
            yield job_id, f"{call.name} found it by its unique key after it had ended"


def _seconds(moment: datetime) -> float:
    return moment.astimezone(UTC).timestamp()


def _end(row: JobView) -> float:
    return float("inf") if row.finished_at is None else _seconds(row.finished_at)
