"""Rules: what is promised of jobs, order and limits, each as the function that tells where a history does not keep it.

    history = History.read(folder.glob("*.jsonl"))
    history.learn(jobs)
    assert check(history, ordered=["orders"], concurrency={"stripe": 10}) == []

A rule knows nothing of databases and processes. An attempt whose worker lost its lease, or died, counts only with the
moment at which it began: code that runs on without a lease cannot be stopped, only fenced, and no promise is about it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Any, NamedTuple

from holdfast.testing.history import Attempt, History

# What rules find: a job, queue or key, and what is wrong with it.
Found = Iterator[tuple[str, str]]
# Jobs that were claimed ahead wait this long for a slot at most: starts can move together by that much.
CLAIMED_AHEAD_SECONDS = 3.0


class Violation(NamedTuple):
    """A promise that was not kept."""

    rule: str
    subject: str
    detail: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.subject}: {self.detail}"


def check(
    history: History,
    *,
    ordered: Collection[str] = (),
    concurrency: Mapping[str, int] | None = None,
    key_concurrency: Mapping[str, int] | None = None,
    rates: Mapping[str, tuple[float, float]] | None = None,
    once: bool = False,
) -> list[Violation]:
    """Hold every rule against a history; an empty list says that all were kept.

    ordered: queues whose jobs run in order of their key. concurrency, key_concurrency: limits by queue. rates: by queue
    the number of jobs that may start and the seconds in which they may. once: that no job runs twice, for tests in
    which nothing fails and nothing is killed.
    """
    found = {
        "an acknowledged job is lost": lost(history),
        "a job ran that was rolled back": unsent(history),
        "jobs of one key ran at once": overlaps(history, ordered),
        "a later job of a key began first": inversions(history, ordered),
        "a queue ran more jobs at once than its limit": over_limits(history, concurrency or {}),
        "a key ran more jobs at once than its limit": over_key_limits(history, key_concurrency or {}),
        "a queue started more jobs than its rate": over_rates(history, rates or {}),
        "a job ran twice": repeats(history) if once else iter(()),
    }
    return [Violation(rule, *each) for rule, all_of_it in found.items() for each in all_of_it]


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
            if running is not None and running.ended is not None and attempt.began < running.ended:
                both = f"{attempt.id} began {running.ended - attempt.began:.6f} s before {running.id} ended"
                yield f"{queue} {key}", both
            if attempt.is_whole and (running is None or (attempt.ended or 0.0) > (running.ended or 0.0)):
                running = attempt


def inversions(history: History, ordered: Collection[str]) -> Found:
    """A job begins only when every job of its key is over whose enqueue was committed before its own began.

    Of jobs that were enqueued together, each begins when the one before it is over. A job that died or was cancelled is
    over with its last attempt; one that never ran is over before everything.
    """
    firsts, lasts = _firsts(history), _lasts(history)
    yield from _batch_inversions(history, ordered, firsts, lasts)
    for (queue, key), jobs in _sent_by_key(history, ordered).items():
        by_commit = sorted(jobs, key=lambda one: one[1])
        earlier, latest, owner = 0, 0.0, ""
        for job_id, _, began in sorted(jobs, key=lambda one: one[2]):
            while earlier < len(by_commit) and by_commit[earlier][1] < began:
                other = by_commit[earlier][0]
                if lasts.get(other, 0.0) > latest:
                    latest, owner = lasts[other], other
                earlier += 1
            if job_id in firsts and firsts[job_id] < latest:
                yield f"{queue} {key}", f"{job_id} began before {owner}, which was enqueued earlier, was over"


def _batch_inversions(
    history: History, ordered: Collection[str], firsts: Mapping[str, float], lasts: Mapping[str, float]
) -> Found:
    for sent in history.sent:
        for one, other in pairwise(sent.ids if sent.key is not None and sent.queue in ordered else ()):
            if other in firsts and firsts[other] < lasts.get(one, 0.0):
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
    """A queue starts no more jobs in any stretch of time than its rate lets it claim.

    A rate is spent when a job is claimed, and claimed jobs may wait a little for a slot; the bound has that in it.
    """
    for queue, (count, per) in rates.items():
        starts = [attempt.began for attempt in history.attempts if attempt.queue == queue]
        first = 0
        for last, at in enumerate(starts):
            while at - starts[first] > per + CLAIMED_AHEAD_SECONDS:
                first += 1
            allowed = count * (2 * per + CLAIMED_AHEAD_SECONDS) / per + 1
            if last - first + 1 > allowed:
                yield queue, f"{last - first + 1} starts within {at - starts[first]:.3f} s, and {allowed:.0f} may be"
                break


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


def _firsts(history: History) -> dict[str, float]:
    """Say when each job first began."""
    return {attempt.id: attempt.began for attempt in reversed(history.attempts)}


def _lasts(history: History) -> dict[str, float]:
    """Say when each job was last seen to run: the end of its last whole attempt, else the begin of its last one."""
    last: dict[str, float] = {}
    for attempt in history.attempts:
        seen = attempt.ended if attempt.is_whole and attempt.ended is not None else attempt.began
        last[attempt.id] = max(seen, last.get(attempt.id, 0.0))
    return last


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
