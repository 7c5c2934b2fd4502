"""Change priority, time or queue of live jobs by hand, by id or by filter; what a worker holds is left alone.

A job that gets another time or queue leaves the line that it stands in, which calls its next one, and joins a line anew
once it is due: in its place by age, as it is when it is enqueued. A job that was never tried holds nobody up until
then; one that was tried holds its key, where its queue says so of retries.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any

from holdfast.admin.jobs import Filter
from holdfast.admin.picking import LiveJob, chosen, in_chunks, left_alone, lock, out_of_line
from holdfast.admin.recording import record
from holdfast.flow import Series, Steps, ask, flow, in_turn, text_of
from holdfast.life import merging
from holdfast.life.door import consequences
from holdfast.life.listing import Changed
from holdfast.lines.heads import WAITS_FOR_LINE
from holdfast.lines.leaving import LIMIT, LINE_BITS, settings_of
from holdfast.placing import Every, placed_by
from holdfast.values.changes import Change
from holdfast.values.ids import bucket
from holdfast.values.queues import QueueSettings
from holdfast.values.reserved import is_route
from holdfast.values.shards import ShardMap, stamp_of
from holdfast.values.views import iso


def change_all(
    meant: Filter,
    ids: Sequence[str] | None,
    change: Change,
    actor: str | None,
    limit: int | None = None,
    dry_run: bool = False,
) -> Series[Changed]:
    """Change the live jobs that are meant, of these ids where some are given, the oldest first.

    Commits: after each chunk. After a crash: the chunks before are done; repeat it for the rest. Where only the reply
    to a commit was lost, the jobs of that chunk are changed and may be missing from the answer.
    """
    jobs, named = yield from chosen(meant, ids, limit)
    if dry_run:
        answers = [_foreseen(jobs, change, (yield from in_turn(_kept_apart(change))))]
    else:
        act = partial(change_chunk, meant, change, actor)
        answers = yield from in_chunks(meant, [job.id for job in jobs], act)
    done = reduce(Changed.with_more, answers, Changed())
    return done.with_more(Changed(left=(yield from left_alone(named, done.seen))))


def _where(meant: Filter, change: Change, actor: str | None, ids: Sequence[str], wait: bool = False) -> Every[Changed]:
    return Every(merging.changed, lenient=False, ids=ids)


@placed_by(_where)
@flow
def change_chunk(
    meant: Filter, change: Change, actor: str | None, ids: Sequence[str], wait: bool = False
) -> Steps[Changed]:
    """Change those of these jobs that are still live and meant; without `wait`, what somebody has locked is left out.

    Commits: its own, all or none. After a crash: nothing happened; safe to repeat.
    """
    jobs = yield from lock(meant, ids, wait)
    answer = _foreseen(jobs, change, (yield from _kept_apart(change)))
    free = [job for job in jobs if job.id not in answer.left]
    if free:
        yield from _write(free, change)
        yield from record("change", actor, [(job.id, _detail(job, change)) for job in free])
        if change.joins_anew:
            told = [out_of_line(job, LINE_BITS) for job in free]
            yield from consequences([one for one in told if one.followers])
    return answer


def _write(jobs: Sequence[LiveJob], change: Change) -> Steps[None]:
    yield from ask(
        "change_live",
        ids=[job.id for job in jobs],
        priority=change.priority,
        to_queue=change.to_queue,
        run_at=change.run_at,
        delay_ms=change.delay_ms,
        joins_anew=True if change.joins_anew else None,
        mask=LIMIT | LINE_BITS,
    )


@dataclass(frozen=True, slots=True)
class _Apart:
    """A queue whose jobs belong to certain shards: it is kept in one, or its keys are in order."""

    name: str
    settings: QueueSettings
    map: ShardMap

    def why_not(self, job: LiveJob) -> str | None:
        """Say why a job cannot go there: it would be in another shard than the others that it must go by."""
        settings = self.settings
        if settings.is_limited and not settings.is_split:
            if not self._fits(job.id, self.name):
                return (
                    f"is in another shard than queue {self.name}, which is kept in one: enqueue it there, cancel this"
                )
        elif settings.is_lined and job.key is not None and not self._fits(job.id, job.key):
            return f"is in another shard than its key's line in queue {self.name}: enqueue it there, cancel this"
        return None

    def _fits(self, job_id: str, key: str) -> bool:
        part = bucket(key, self.map.buckets)
        return (stamp_of(job_id) or 0) in (self.map.owners[part], self.map.moving.get(part))


@flow
def _kept_apart(change: Change) -> Steps[_Apart | None]:
    """Read what is to be known of the queue that jobs go to; None where any shard will do, and where there are none."""
    rows = () if change.to_queue is None else (yield from ask("shard_map_read"))
    if not rows or change.to_queue is None:
        return None
    settings = yield from settings_of(change.to_queue)
    return None if settings.is_plain else _Apart(change.to_queue, settings, ShardMap.read(text_of(rows[0][1])))


def _foreseen(jobs: Sequence[LiveJob], change: Change, apart: _Apart | None) -> Changed:
    refused = {job.id: _why_not(job, change) or (apart.why_not(job) if apart is not None else None) for job in jobs}
    left = {job: why for job, why in refused.items() if why is not None}
    return Changed([job.id for job in jobs if job.id not in left], left)


def _why_not(job: LiveJob, change: Change) -> str | None:
    """Say why a job is left alone; None: it may be changed."""
    if job.is_held:
        return "leased"
    if change.to_queue is not None and is_route(job.queue):
        # The queue names the route: elsewhere nobody would know what to send, and where.
        return "belongs to a route"
    if change.run_after is not None and job.waits_for not in (None, WAITS_FOR_LINE):
        # What it waits for says when it goes on, and would write over any time.
        return f"waits for {job.waits_for}"
    return None


def _detail(job: LiveJob, change: Change) -> dict[str, Any]:
    before = {"priority": job.priority, "run_after": iso(job.available_at), "to_queue": job.queue}
    now = change.given()
    return job.place() | {"before": {name: before[name] for name in now}, "now": now}
