"""Take back what its holder left: leases that ran out, and those that a worker never heard of."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, dropwhile
from typing import Any

from holdfast import lines
from holdfast.flow import Steps, ask, flow, text_of
from holdfast.jobs.settling import settle
from holdfast.life import door
from holdfast.life.expiry import Backoff, progressed, verdict
from holdfast.values.retry import Retry
from holdfast.values.rows import LAST_FENCE, End, Expired, Finish, PutBack, Reaped


def default_backoff(kind: str, attempt: int) -> float:
    return Retry().delay(attempt)


@flow
def reap(
    *,
    kinds: Sequence[str] | None = None,
    exclude: Sequence[Any] = (),
    limit: int = 100,
    backoff: Backoff = default_backoff,
    look_back: float | None = None,
) -> Steps[list[Reaped]]:
    """Take back leases that ran out: to their queue, or to the dead letters; `life/expiry.py` says which.

    `exclude` names jobs that the caller itself still works on; `backoff` gives seconds by kind and attempt.
    `look_back` leaves out leases that ran out more seconds ago than this; None looks at all.
    Nearly always there is nothing to take back, so it looks without a lock or a transaction first.
    A job that is finished already and lives a second time leaves the live table when its lease would end it, by the
    door as any other; it is not in the answer, because its finished row stays as it was.
    Commits: its own. After a crash: nothing happened; the leases are still expired and the next reaper takes them.
    """
    which: dict[str, Any] = {
        "kinds": None if kinds is None else list(kinds),
        "ids": list(exclude),
        "look_back_ms": None if look_back is None else round(look_back * 1000),
        # What follows the others is not known here: a process that knows it must take them back.
        "known": door.attached(),
    }
    if not (yield from ask("reap_pick", look=True, limit=1, lock=None, **which)):
        return []
    rows = yield from ask("reap_pick", limit=limit, lock=True, **which)
    if not rows:
        return []
    expired = yield from _with_what_is_behind([Expired(*row) for row in rows])
    if not expired:
        return []
    yield from ask("reap_mark", ids=[one.id for one in expired])
    behind = yield from _behind_others(expired)
    got_on = yield from progressed(expired)
    verdicts = {
        str(one.id): verdict(
            one._replace(fence=min(one.fence, LAST_FENCE - 1) + 1),
            backoff,
            behind=str(one.id) in behind,
            got_on=str(one.id) in got_on,
        )
        for one in expired
    }
    writes = [one.write for one in verdicts.values()]
    twins = yield from _finished_before(writes)
    # A twin leaves the live table only: to finish it again would keep the others from being written, too.
    settled = yield from settle([_dropped(one) if str(one.id) in twins else one for one in writes])
    taken = [one for one in expired if str(one.id) in settled.done - twins]
    return [Reaped(str(e.id), e.queue, e.kind, e.attempt, e.leased_by, verdicts[str(e.id)].outcome) for e in taken]


def _with_what_is_behind(expired: list[Expired]) -> Steps[list[Expired]]:
    """Add what is leased behind a job of a stint, whatever `limit` and `exclude` say, and whether it ran out or not.

    Who lost the one may be through with the others, and must not write their ends before the one has run again.
    Where some of it is in other hands for the moment, or must be taken back by another process, the whole stint stays.
    """
    ordered = sorted(str(one.id) for one in expired if (one.followers or 0) & lines.ORDER)
    if not ordered:
        return expired
    stints: dict[tuple[str, str], list[str]] = {}
    for queue, key, job_id in (yield from ask("stint_order", ids=ordered, bit=lines.ORDER)):
        stints.setdefault((text_of(queue), text_of(key)), []).append(str(job_id))
    picked = set(ordered)
    lost = [list(dropwhile(lambda one: one not in picked, stint)) for stint in stints.values()]
    rest = sorted(set(chain.from_iterable(lost)) - picked)
    if not rest:
        return expired
    taken = [Expired(*row) for row in (yield from ask("reap_behind", ids=rest, known=door.attached()))]
    there = picked | {str(one.id) for one in taken}
    stay = {one for stint in lost if not there.issuperset(stint) for one in stint}
    return [one for one in (*expired, *taken) if str(one.id) not in stay]


def _behind_others(expired: Sequence[Expired]) -> Steps[set[str]]:
    """Tell which of these jobs stand behind another of their stint: those have hardly begun, whatever happened."""
    ordered = [str(one.id) for one in expired if (one.followers or 0) & lines.ORDER]
    if not ordered:
        return set()
    first = {str(row[0]) for row in (yield from ask("stint_heads", ids=sorted(ordered)))}
    return set(ordered) - first


def _finished_before(writes: Sequence[End]) -> Steps[set[str]]:
    """Tell which of the jobs that are to end have a finished row already, from whatever cause: return their ids."""
    ids = [one.id for one in writes if isinstance(one, Finish)]
    return {str(row[0]) for row in (yield from ask("settled", ids=ids))} if ids else set()


def _dropped(end: End) -> End:
    return end._replace(keep=False) if isinstance(end, Finish) else end


@flow
def release_strays(worker: str, known: Sequence[Any]) -> Steps[int]:
    """Give back jobs that a lost reply to a claim left leased to a worker that never heard of them.

    Commits: its own. After a crash: they wait for the reaper instead.
    """
    strays = yield from ask("strays", worker=worker, ids=list(known), known=door.attached())
    if not strays:
        return 0
    settled = yield from settle([PutBack(job_id, fence, None, 1) for job_id, fence in strays])
    return len(settled.done)


@flow
def stuck(*, limit: int = 100) -> Steps[list[tuple[str, str]]]:
    """Read rows, written by hand, that no claim and no reaper can ever take: their ids, and why."""
    rows = yield from ask("stuck", limit=limit, alone=True)
    return [(str(job_id), why) for job_id, why in rows]
