"""What can be wrong with our jobs: queues that are behind or paused, leases that nobody takes back, dead letters.

Flows for `doctor` and the like. Nothing here writes.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Mapping
from datetime import timedelta

from holdfast import runs as flows
from holdfast.admin.health import clock
from holdfast.admin.jobs import Filter, count_jobs, dead_groups, expired_leases, oldest_pending
from holdfast.admin.looking import list_jobs
from holdfast.admin.pausing import held_up
from holdfast.flow import Steps, ask, flow, text_of
from holdfast.jobs import pauses as paused_now
from holdfast.life.findings import ANY_KIND, Finding, of_letters
from holdfast.observe import shown
from holdfast.observe.sampling import due_kinds
from holdfast.values.cloudevents import type_of
from holdfast.values.reserved import UNROUTED, is_route, route_of
from holdfast.values.words import age, plural

# A reaper looks every second, so a lease that ran out this long ago has nobody to take it back.
UNREAPED = timedelta(seconds=10)
LEASES_READ = 100
GROUPS_READ = 1000
# Of the events that no route takes, how many are read for their types, and how many types are named.
TYPES_READ, TYPES_NAMED = 1000, 5
RUNS_READ = 100
# A journal is read as a whole whenever its run is claimed.
LONG_JOURNAL = 5_000
# A batch that is open for this long without a member at work was probably forgotten.
UNSEALED = timedelta(hours=1)


@flow
def lag(limit_seconds: float, served: Collection[str] | None = None) -> Steps[list[Finding]]:
    """Find queues whose jobs have been due for longer, or that no live worker serves, where `served` names those.

    What is paused is not behind: `pauses` tells of it.
    """
    found = []
    for queue in (yield from oldest_pending(unpaused=True).start()):
        if queue.queue == UNROUTED:
            # Nobody serves it; `outbox` tells of it.
            continue
        waiting = f"queue {queue.queue}: {queue.due:,} due, the oldest for {age(queue.oldest_seconds)}"
        if served is not None and queue.queue not in served:
            do = f"start one whose application handles its jobs: `holdfast worker APP --queues {queue.queue}`"
            if is_route(queue.queue):
                do = f"start one whose application has the route {route_of(queue.queue)}: `holdfast relay APP`"
            found.append(Finding("lag", "problem", f"{waiting}, and no live worker serves it", do))
        elif queue.oldest_seconds > limit_seconds:
            found.append(Finding("lag", "warning", waiting, _catch_up(queue.queue)))
    return found or [Finding("lag", "ok", f"no job has been due for more than {age(limit_seconds)}")]


def _catch_up(queue: str) -> str:
    """Say what to look at where a queue is behind though it is served: a route most often because its sink is down."""
    if is_route(queue):
        errors = f"`holdfast outbox list --state pending --route {route_of(queue)}`"
        return f"see in the relay's log whether its sink is down, and in {errors} what failed; else add relays"
    look = f"`holdfast jobs list --state pending --oldest --queue {queue}`"
    return f"add workers or --concurrency; see in {look} whether it is a kind that no worker handles"


@flow
def kinds(served: Mapping[str, Collection[str]]) -> Steps[list[Finding]]:
    """Find due jobs of a kind that no live worker handles, in queues that some do serve: `served` has their kinds.

    A queue that nobody serves is told of by `lag`.
    """
    found = []
    for one in (yield from due_kinds().start()):
        if one.queue not in served or {one.kind, ANY_KIND} & set(served[one.queue]):
            continue
        seen = f"queue {one.queue}: {shown(one.due)} due of kind {one.kind}, the oldest for {age(one.oldest)}"
        do = f"start a worker whose application registers {one.kind}, or cancel them: `holdfast jobs cancel --kind"
        do = f"{do} {shlex.quote(one.kind)}`"
        found.append(Finding("kinds", "problem", f"{seen}, and no live worker handles that kind", do))
    return found or [Finding("kinds", "ok", "every kind that is due has a live worker, where its queue has one")]


@flow
def pauses() -> Steps[list[Finding]]:
    """Tell what is paused, and how much waits for it to be resumed."""
    waiting = {(one.scope, one.name): one for one in (yield from held_up().start())}
    found = []
    for one in (yield from paused_now().start()):
        late = waiting.get((one.scope, one.name))
        if late is None:
            found.append(Finding("pauses", "ok", f"{one}; nothing of it is due"))
            continue
        name = one.name if one.scope == "queue" else f"--kind {one.name}"
        seen = f"{one}; {late.due:,} due, the oldest for {age(late.oldest_seconds)}"
        found.append(Finding("pauses", "warning", seen, f"`holdfast queues resume {name}` once it may go on"))
    return found or [Finding("pauses", "ok", "nothing is paused")]


@flow
def leases() -> Steps[list[Finding]]:
    """Find leases that ran out a while ago and are still there."""
    now = yield from clock().start()
    limit = now - UNREAPED
    ran_out = yield from expired_leases(LEASES_READ).start()
    expired = [job for job in ran_out if (job.lease_expires_at or limit) < limit]
    if not expired:
        return [Finding("leases", "ok", "no lease ran out unnoticed")]
    first = expired[0]
    since = age(now - (first.lease_expires_at or limit))
    count = f"{LEASES_READ} or more leases" if len(expired) == LEASES_READ else plural(len(expired), "lease")
    oldest = f"{first.kind} {first.id}, {first.leased_by}"
    seen = f"{count} ran out and nobody took them back; the oldest {since} ago: {oldest}"
    kinds = ", ".join(sorted({job.kind for job in expired}))
    return [Finding("leases", "problem", seen, f"start a worker that handles {kinds}: only those reap them")]


@flow
def dead_letters() -> Steps[list[Finding]]:
    """Tell of dead letters by group, the largest first."""
    now = yield from clock().start()
    found = yield from dead_groups(limit=GROUPS_READ).start()
    return list(of_letters(found, now)) or [Finding("dead-letters", "ok", "there are none")]


@flow
def outbox() -> Steps[list[Finding]]:
    """Find events that no route takes: they are kept, and go nowhere."""
    waiting = Filter(states=("pending",), queue=UNROUTED)
    kept = yield from list_jobs(waiting, limit=TYPES_READ, newest=False).start()
    if not kept:
        return [Finding("outbox", "ok", "every event has a route")]
    count = yield from count_jobs(waiting).start()
    types = sorted({str(type_of(job.payload)) for job in kept})
    named = ", ".join(types[:TYPES_NAMED]) + (" and others" if len(types) > TYPES_NAMED or count > len(kept) else "")
    seen = f"{plural(count, 'event')} that no route takes: {named}"
    do = "declare a route for them, and `holdfast outbox republish --unrouted --app APP` sends them on"
    return [Finding("outbox", "warning", seen, do)]


@flow
def runs(kinds: Collection[str] | None = None) -> Steps[list[Finding]]:
    """Find runs that cannot go on with the code that is there, or that no live worker has code for, and long journals.

    `kinds` is what live workers serve; None where there is nobody to ask.
    """
    found = []
    counted = (yield from flows.live_kinds().start()) if kinds is not None else {}
    for kind, (live, due) in counted.items():
        if kind in (kinds or ()):
            continue
        seen = f"{plural(live, 'run')} of {kind}, {due:,} of them due, and no live worker serves that version"
        workflow, _, version = kind.partition("@")
        do = (
            f"deploy workers that keep @{workflow}.version({version}), or let the runs go on as another version: "
            f"`holdfast runs migrate --kind {kind} --to VERSION --app APP`"
        )
        found.append(Finding("runs", "problem" if due else "warning", seen, do))
    stuck = yield from flows.runs(flows.RunFilter(status="stuck"), RUNS_READ).start()
    if stuck:
        first = stuck[-1]
        seen = f"{plural(len(stuck), 'run')} cannot go on: {first.id} of {first.kind}: {first.stuck}"
        do = "`holdfast runs stuck` lists them; deploy code that fits, or keep the older body with @workflow.version(…)"
        found.append(Finding("runs", "problem", seen, do))
    for one in (yield from flows.long_journals(LONG_JOURNAL, 1).start()):
        seen = f"the journal of run {one.key} has {one.rows:,} rows, which each claim of it reads"
        do = "let such a run return run.continue_as_new(…) from time to time"
        found.append(Finding("runs", "warning", seen, do))
    return found or [Finding("runs", "ok", "none is stuck, every version is served, and no journal is long")]


@flow
def batches() -> Steps[list[Finding]]:
    """Find batches that nobody has sealed although all their members have ended: their callbacks wait for ever."""
    older_ms = round(UNSEALED.total_seconds() * 1000)
    rows = yield from ask("joins_unsealed", older_ms=older_ms, limit=GROUPS_READ, alone=True)
    ids = [text_of(row[0]) for row in rows]
    if not ids:
        return [Finding("batches", "ok", "none waits to be sealed and for nothing else")]
    count = plural(len(ids), "batch whose members have ended is", "batches whose members have ended are")
    seen = f"{count} not sealed, for an hour or longer: {ids[0]}"
    return [Finding("batches", "warning", seen, f"seal it, so that its callback runs: `hf.seal({ids[0]!r})`")]
