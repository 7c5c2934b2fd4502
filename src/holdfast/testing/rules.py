"""Rules: what is promised of jobs, each as the function that tells where a history does not keep it.

    history = History.read(folder.glob("*.jsonl"))
    history.learn(jobs)
    assert check(history, ordered=["orders"], concurrency={"stripe": 10}) == []

A rule knows nothing of databases and processes. An attempt whose worker died counts only with the moment at which it
began, and one whose worker lost its lease does not count: code that runs on without a lease cannot be stopped, only
fenced, and no promise is about it.
A handler that completes its job itself is over for the database with that commit, which a history does not show: let
handlers of ordered and limited queues that are to be checked end with it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from itertools import pairwise
from math import ceil
from typing import Any, NamedTuple, TypedDict, Unpack

from holdfast.testing.history import Attempt, History, Row
from holdfast.testing.rules_of_chains import Found, callbacks, continuations, early_children, ticks

# Jobs that were claimed ahead wait this long for a slot at most: starts can move together by that much.
CLAIMED_AHEAD_SECONDS = 3.0


class Violation(NamedTuple):
    """A promise that was not kept."""

    rule: str
    subject: str
    detail: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.subject}: {self.detail}"


class Promises(TypedDict, total=False):
    """What is promised beyond what holds of every job.

    ordered: queues whose jobs run in order of their key. concurrency, key_concurrency: limits by queue. rates,
    key_rates: by queue the number of jobs that may start and the seconds in which they may. chains: kinds whose every
    completion is continued by another job. schedules: by name the ticks that were owed, each of which has a job.
    once: that no job runs twice, for tests in which nothing fails and nothing is killed.
    """

    ordered: Collection[str]
    concurrency: Mapping[str, int]
    key_concurrency: Mapping[str, int]
    rates: Mapping[str, tuple[float, float]]
    key_rates: Mapping[str, tuple[float, float]]
    chains: Collection[str]
    schedules: Mapping[str, Collection[datetime]]
    once: bool


def check(history: History, **promises: Unpack[Promises]) -> list[Violation]:
    """Hold every rule against a history; an empty list says that all were kept. Keywords as in `Promises`."""
    found = by_rule(history, **promises)
    return [Violation(rule, *each) for rule, all_of_it in found.items() for each in all_of_it]


def by_rule(history: History, **promises: Unpack[Promises]) -> dict[str, Found]:
    """Return what each rule finds, by what it is called when it was broken."""
    ordered = promises.get("ordered", ())
    return {
        "an acknowledged job is lost": lost(history),
        "a job ran that was rolled back": unsent(history),
        "a job lives on after its end": doubles(history),
        "a job is done by a claim that did not do it": stale_ends(history),
        "jobs of one key ran at once": overlaps(history, ordered),
        "a later job of a key began first": inversions(history, ordered),
        "a queue ran more jobs at once than its limit": over_limits(history, promises.get("concurrency", {})),
        "a key ran more jobs at once than its limit": over_key_limits(history, promises.get("key_concurrency", {})),
        "a queue started more jobs than its rate": over_rates(history, promises.get("rates", {})),
        "a key started more jobs than its rate": over_key_rates(history, promises.get("key_rates", {})),
        "a completion has not one continuation": continuations(history, promises.get("chains", ())),
        "a job began before one that it runs after was over": early_children(history),
        "a batch did not call back after its last member": callbacks(history),
        "a tick has not one job": ticks(history, promises.get("schedules", {})),
        "a job ran twice": repeats(history) if promises.get("once") else iter(()),
    }


def lost(history: History) -> Found:
    """A job whose enqueue was committed has ended, or is still there."""
    for sent in history.sent:
        for job_id in sent.ids if sent.committed is not None else ():
            if job_id not in history.outcomes and job_id not in history.left:
                yield job_id, "its enqueue was committed, and it neither ended nor lives"


def unsent(history: History) -> Found:
    """A job whose enqueue was rolled back never runs."""
    gone = {job_id for sent in history.sent if sent.rolled_back for job_id in sent.ids}
    for attempt in history.attempts:
        if attempt.id in gone:
            yield attempt.id, "its enqueue was rolled back, and it ran"


def doubles(history: History) -> Found:
    """A job has one row, nothing claims it once it has ended, and a claim calls its handler once."""
    for job_id, count in Counter(row.id for row in history.rows).items():
        if count > 1:
            yield job_id, f"it has {count} rows"
    ended = {row.id: row.fence for row in history.rows if row.id not in history.left}
    for attempt in history.attempts:
        if attempt.fence > ended.get(attempt.id, attempt.fence):
            yield attempt.id, f"it ran with fence {attempt.fence}, and ended with fence {ended[attempt.id]}"
    for (job_id, fence), count in Counter((attempt.id, attempt.fence) for attempt in history.attempts).items():
        if count > 1:
            yield job_id, f"it ran {count} times with fence {fence}"


def stale_ends(history: History) -> Found:
    """A job that is done was done by its last claim: a handler was called with that fence, and it did not fail.

    Otherwise a holder that had lost its lease has ended it. Jobs of which no call was written down are left out, and
    those that ran again after their end, which another rule finds.
    """
    attempts: dict[str, dict[int, Attempt]] = defaultdict(dict)
    for attempt in history.attempts:
        attempts[attempt.id][attempt.fence] = attempt
    for row in history.rows:
        if row.state != "done" or row.id not in attempts:
            continue
        last = attempts[row.id].get(row.fence)
        if last is None and row.fence > max(attempts[row.id]):
            yield row.id, f"it is done with fence {row.fence}, and handlers had {sorted(attempts[row.id])}"
        elif last is not None and last.failed:
            yield row.id, f"it is done with fence {row.fence}, and the handler that had it raised {last.error}"


def repeats(history: History) -> Found:
    """No job runs twice where nothing failed and nothing died."""
    seen: set[str] = set()
    for attempt in history.attempts:
        if attempt.id in seen:
            yield attempt.id, f"attempt {attempt.attempt} with fence {attempt.fence}"
        seen.add(attempt.id)


def overlaps(history: History, ordered: Collection[str]) -> Found:
    """No two attempts of an ordered key run at the same time."""
    for (queue, key), attempts in _by_key(history, ordered).items():
        running: Attempt | None = None
        for attempt in attempts:
            if attempt.lost:
                continue
            if running is not None and running.ended is not None and attempt.began < running.ended:
                both = f"{attempt.id} began {running.ended - attempt.began:.6f} s before {running.id} ended"
                yield f"{queue} {key}", both
            if attempt.is_whole and (running is None or (attempt.ended or 0.0) > (running.ended or 0.0)):
                running = attempt


def inversions(history: History, ordered: Collection[str]) -> Found:
    """A job begins when those of its key have ended whose enqueue was committed before its own began.

    Of jobs that were enqueued together, each begins when the one before it has. A process that dies may leave the ends
    of several jobs of a key unwritten: they run again, in their order. So the last time that a job begins, those before
    it are over; and the first time, each of them has ended once. A job that died or was cancelled is over with its last
    attempt; one that never ran is over before everything.
    """
    times = (history.first_ends(), history.firsts()), (history.lasts(), history.last_begins())
    for ends, begins in times:
        yield from _batch_inversions(history, ordered, begins, ends)
        for (queue, key), jobs in _sent_by_key(history, ordered).items():
            by_commit = sorted(jobs, key=lambda one: one[1])
            earlier, latest, owner = 0, 0.0, ""
            for job_id, _, began in sorted(jobs, key=lambda one: one[2]):
                while earlier < len(by_commit) and by_commit[earlier][1] < began:
                    other = by_commit[earlier][0]
                    if ends.get(other, 0.0) > latest:
                        latest, owner = ends[other], other
                    earlier += 1
                if job_id in begins and begins[job_id] < latest:
                    yield f"{queue} {key}", f"{job_id} began before {owner}, which was enqueued earlier, was over"


def _batch_inversions(
    history: History, ordered: Collection[str], begins: Mapping[str, float], ends: Mapping[str, float]
) -> Found:
    for sent in history.sent:
        for one, other in pairwise(sent.ids if sent.key is not None and sent.queue in ordered else ()):
            if other in begins and begins[other] < ends.get(one, 0.0):
                yield f"{sent.queue} {sent.key}", f"{other} began before {one}, which came first in its batch, was over"


def over_limits(history: History, limits: Mapping[str, int]) -> Found:
    """A queue never runs more jobs at once than its limit, by the leases that were kept."""
    attempts = _grouped((attempt.queue, attempt) for attempt in history.attempts if attempt.queue in limits)
    for queue, all_of_it in attempts.items():
        most = _most_at_once(all_of_it)
        if most > limits[queue]:
            yield queue, f"{most} at once, and its limit is {limits[queue]}"


def over_key_limits(history: History, limits: Mapping[str, int]) -> Found:
    """A key never runs more jobs at once than its queue lets it."""
    for (queue, key), attempts in _by_key(history, limits).items():
        most = _most_at_once(attempts)
        if most > limits[queue]:
            yield f"{queue} {key}", f"{most} at once, and its limit is {limits[queue]}"


def over_rates(history: History, rates: Mapping[str, tuple[float, float]]) -> Found:
    """A queue starts no more jobs in any stretch of time than its rate lets it claim."""
    for queue, rate in rates.items():
        rows = [row for row in history.rows if row.queue == queue]
        yield from _over_rate(queue, rate, rows, [one for one in history.attempts if one.queue == queue])


def over_key_rates(history: History, rates: Mapping[str, tuple[float, float]]) -> Found:
    """A key starts no more jobs in any stretch of time than the rate of its queue lets it claim."""
    rows = _grouped(((row.queue, row.key), row) for row in history.rows if row.key and row.queue in rates)
    attempts = _by_key(history, rates)
    for queue, key in sorted(rows.keys() | attempts.keys()):
        place = (queue, key)
        yield from _over_rate(f"{queue} {key}", rates[queue], rows.get(place, ()), attempts.get(place, ()))


def _over_rate(name: str, rate: tuple[float, float], rows: Iterable[Row], attempts: Iterable[Attempt]) -> Found:
    """Compare claims with a rate, by the database's time, or where no rows are known the starts that handlers made.

    A rate is spent when a job is claimed, and claimed jobs may wait a little for a slot; the bound of starts has that
    in it.
    """
    count, per = rate
    claims = sorted(row.claimed.timestamp() for row in rows if row.claimed is not None)
    moments = claims or [attempt.began for attempt in attempts]
    allowed = count if claims else count * ceil((per + CLAIMED_AHEAD_SECONDS) / per)
    first = 0
    for last, at in enumerate(moments):
        # By whole microseconds: databases keep no shorter times.
        while round((at - moments[first]) * 1e6) >= round(per * 1e6):
            first += 1
        if last - first + 1 > allowed:
            yield name, f"{last - first + 1} starts within {at - moments[first]:.6f} s, and {allowed:.0f} may be"
            return


def _by_key(history: History, queues: Collection[str]) -> dict[tuple[str, str], list[Attempt]]:
    """Group attempts by queue and key, those of one key in the order of time."""
    return _grouped(
        ((attempt.queue, attempt.key), attempt)
        for attempt in history.attempts
        if attempt.key is not None and attempt.queue in queues
    )


def _sent_by_key(history: History, queues: Collection[str]) -> dict[tuple[str, str], list[tuple[str, float, float]]]:
    """Group what was enqueued and committed: by queue and key the id, the commit and the begin of each."""
    return _grouped(
        ((sent.queue, sent.key), (job_id, sent.committed, sent.began))
        for sent in history.sent
        if sent.key is not None and sent.committed is not None and sent.queue in queues
        for job_id in sent.ids
    )


def _most_at_once(attempts: Iterable[Attempt]) -> int:
    """Count how many whole attempts ran at the same time at most; one that ends makes room for one that begins then."""
    moments: list[tuple[float, int]] = []
    for attempt in attempts:
        if attempt.ended is not None and attempt.is_whole:
            moments += [(attempt.began, 1), (attempt.ended, -1)]
    most = now = 0
    for _, step in sorted(moments):
        now += step
        most = max(most, now)
    return most


def _grouped(pairs: Iterable[tuple[Any, Any]]) -> dict[Any, list[Any]]:
    groups: dict[Any, list[Any]] = defaultdict(list)
    for name, value in pairs:
        groups[name].append(value)
    return dict(groups)
