"""End a held job, or give it back: one by one in the caller's transaction, or in batches.

A return to the queue raises the fence as a claim does, and only the holder of the current one may write.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import itemgetter
from typing import Any

from holdfast import chains
from holdfast.errors import LeaseLost, LeasesLost
from holdfast.flow import Columns, Rows, Statement, Steps, ask, flow, number_of, text_of
from holdfast.jobs.enqueueing import enqueue_many
from holdfast.life.door import Left, consequences, inherited, leaving
from holdfast.life.source import Settled
from holdfast.lines import LinedLease
from holdfast.results import WAITED_FOR
from holdfast.values.options import KEY_LENGTH, text
from holdfast.values.rows import Completion, Continued, End, Finish, Held, Lease, NewJob, Park, PutBack

# Completions are alike in all but these parameters, so that how they are sent is worked out once.
_COMPLETIONS = ("completion",)
_OWN_OF_A_COMPLETION = ("id", "fence", "result")


# Sorts a batch of held jobs by their first field: PostgreSQL finds a row's place in it by halving, and locks are taken
# in one order.
by_id: Callable[[Held | Lease | End], Any] = itemgetter(0)


def held_columns(leases: Iterable[Held | Lease | Finish]) -> Columns:
    ordered = sorted(leases, key=by_id)
    return {"id": [lease.id for lease in ordered], "fence": [lease.fence for lease in ordered]}


@flow
def settle(ends: Sequence[End] = (), lined: Sequence[LinedLease] = ()) -> Steps[Settled]:
    """Write how a batch of leases ended: finished rows move, others return or wait, lost ones change
    nothing.

    Each job may be in it once.
    Commits: its own. Safe to repeat: when the reply to COMMIT was lost, the second try finds what the first one wrote
    (a finished row with this fence, no row at all where nothing is kept, a raised fence on a returned one).
    Raises: ConfigError for a park that does not say what it waits for; nothing is written then.
    Jobs with followers are settled in a second pass, in a transaction with what follows; see `life/door.py`. Jobs that
    continue one are added in the transaction that ends it. `lined` are the leases among them that have followers from
    their claim on: they need no first pass.
    After a crash: before commit all stay leased and are reaped later; after it none of them runs again by this lease.
    """
    # The set first: it is made without a step of ours for each job, and a batch with continued ones is rare.
    if Continued in set(map(type, ends)):
        return (yield from _settle_all(ends))
    if lined:
        return (yield from _settle_lined(ends, lined))
    return (yield from _settle(ends))


def _settle_all(ends: Sequence[End]) -> Steps[Settled]:
    """Settle a batch in which some are continued: those first, in the transaction of all."""
    continued = [end for end in ends if isinstance(end, Continued)]
    written = yield from _continue(continued)
    missing = [end.finish for end in continued if str(end.id) not in written]
    if missing:
        written |= yield from _written_before(missing)
    lost = {str(end.id) for end in continued} - written
    rest = [end for end in ends if not isinstance(end, Continued)]
    settled = (yield from _settle(rest)) if rest else Settled()
    return Settled(settled.done | written, settled.lost | lost, followed=True)


def _continue(ends: Sequence[Continued]) -> Steps[set[str]]:
    """End held jobs that are continued, and add what continues them, in one transaction; return their ids.

    A lease that is lost, or was settled by an earlier try, has another fence or no row: nothing is added for it.
    """
    rows = {text_of(row[0]): row for row in (yield from ask("jobs_lock", ids=sorted(str(end.id) for end in ends)))}
    held = [end for end in sorted(ends, key=by_id) if str(end.id) in rows]
    held = [end for end in held if number_of(rows[str(end.id)][1]) == end.fence]
    if not held:
        return set()
    if kept := [str(end.id) for end in held if end.keep]:
        # The finished row says by it that its result is that of another.
        yield from ask("follow", ids=kept, bit=chains.CONTINUED)
    for name, batch in _writes([end.finish for end in held]):
        yield from ask(name, batch=batch)
    left = [leaving(end, rows[str(end.id)]) for end in held]
    passed_on: dict[int, list[NewJob]] = {}
    for end, one in zip(held, left, strict=True):
        # What waits for a job waits for the end of its chain.
        passed_on.setdefault(one.followers & (chains.JOINED | WAITED_FOR | inherited()), []).append(end.then)
    for bits, new in sorted(passed_on.items()):
        yield from enqueue_many(new, fresh=True, followers=bits or None)
    yield from consequences([one for one in left if one.followers])
    return {str(end.id) for end in held}


def _settle(ends: Sequence[End]) -> Steps[Settled]:
    writes = list(_writes(ends))
    written: set[str] = set()
    for name, batch in writes:
        rows = yield from ask(name, batch=batch, alone=len(writes) == 1, whole=True, unfollowed=True)
        written |= _ids_written(batch, rows)
    if len(written) == len(ends):
        return Settled(written)
    missing = [end for end in ends if str(end.id) not in written]
    through_door = yield from _by_the_door(missing)
    written |= through_door
    missing = [end for end in missing if str(end.id) not in written]
    if not missing:
        return Settled(written, followed=True)
    written |= yield from _written_before(missing)
    return Settled(written, {str(end.id) for end in missing} - written, followed=bool(through_door))


def _settle_lined(ends: Sequence[End], lined: Sequence[LinedLease]) -> Steps[Settled]:
    """Settle a batch with leases that say what follows their end, each of those with it in one transaction.

    A row in which something was added since the claim, or which another holds, goes the way of all others.
    """
    leases = {lease.id: lease for lease in lined}
    alike: dict[int, list[End]] = {}
    rest: list[End] = []
    for end in ends:
        lease = leases.get(end.id)
        if lease is None or lease.fence != end.fence:
            rest.append(end)
        else:
            alike.setdefault(lease.bits, []).append(end)
    settled = (yield from _settle(rest)) if rest else Settled()
    left: list[Left] = []
    missing: list[End] = []
    for bits, some in sorted(alike.items()):
        written: set[str] = set()
        for name, batch in _writes(some):
            # Named: nothing may follow for a row that another holds, and everything for the rest.
            rows = yield from ask(name, batch=batch, named=True, bits=bits)
            written |= _ids_written(batch, rows)
        missing += [end for end in some if str(end.id) not in written]
        left += [_left(end, leases[end.id]) for end in some if str(end.id) in written]
    left.sort(key=itemgetter(0))
    yield from consequences(left)
    last = (yield from _settle(missing)) if missing else Settled()
    done = settled.done | last.done | {one.id for one in left}
    return Settled(done, settled.lost | last.lost, followed=bool(left) or settled.followed or last.followed)


def _left(end: End, lease: LinedLease) -> Left:
    """Say that a job left whose row nobody has touched since its claim: what `followed` would read is in its lease."""
    if type(end) is Finish:
        # Without a frame for each step of what is below.
        about = (str(lease.id), lease.fence, lease.queue, lease.kind, lease.key, lease.bits)
        return tuple.__new__(Left, (*about, end.outcome, end.result, True, None, end.keep))  # pyright: ignore[reportUnknownMemberType]
    return leaving(end, (str(lease.id), lease.fence, lease.queue, lease.kind, lease.key, lease.bits))


def _by_the_door(ends: Sequence[End]) -> Steps[set[str]]:
    """Write the ends of held jobs that have followers, with what follows, in one transaction; return their ids.

    What was settled before, by us or by another holder, has another fence or is gone: nothing follows a second time.
    """
    rows = yield from ask("followed", ids=sorted(str(end.id) for end in ends))
    followed = {text_of(row[0]): row for row in rows}
    held = [end for end in ends if str(end.id) in followed and number_of(followed[str(end.id)][1]) == end.fence]
    if not held:
        return set()
    for name, batch in _writes(held):
        yield from ask(name, batch=batch)
    yield from consequences([leaving(end, followed[str(end.id)]) for end in sorted(held, key=by_id)])
    return {str(end.id) for end in held}


def _writes(ends: Sequence[End]) -> Iterator[tuple[str, Columns]]:
    """Sort ends into the statements that write them, each with its batch."""
    kept: list[Finish] = []
    dropped: list[Finish] = []
    returned: list[PutBack | Park] = []
    for end in ends:
        if isinstance(end, Finish):
            (kept if end.keep else dropped).append(end)
        elif not isinstance(end, Continued):
            returned.append(end)
    if kept:
        yield "finish", _finish_columns(kept)
    if dropped:
        yield "drop", held_columns(dropped)
    if returned:
        yield "put_back", return_columns(returned)


def _ids_written(batch: Columns, rows: Rows) -> set[str]:
    """Read an answer: one row without an id stands for the whole batch, which spares us a row for each."""
    all_of_them = len(rows) == 1 and rows[0][0] is None
    return set(map(str, batch["id"])) if all_of_them else {str(row[0]) for row in rows}


@flow
def completed(ends: Sequence[Finish]) -> Steps[set[str]]:
    """Tell which of these ends are written already, although their holders do not know of it: nothing is written here.

    So it is with a completion in the handler's own transaction, whose commit nobody has told the worker of.
    """
    return (yield from _written_before(ends))


def _written_before(missing: Sequence[End]) -> Steps[set[str]]:
    """Ask which writes an earlier try of the same batch had committed before its reply was lost."""
    ids = [one.id for one in missing]
    finished = {str(job_id): fence for job_id, fence in (yield from ask("settled", ids=ids))}
    live = {str(job_id): fence for job_id, fence in (yield from ask("live", ids=ids))}
    before: set[str] = set()
    for one in missing:
        job_id = str(one.id)
        if not isinstance(one, Finish):
            # A reaper raises the fence twice, so one more is this holder's own return.
            written = live.get(job_id) == one.fence + 1
        elif not one.keep:
            # A finished row of an older lease was there before; only one of a later lease says that this one was lost.
            written = job_id not in live and finished.get(job_id, one.fence) <= one.fence
        else:
            written = finished.get(job_id) == one.fence
        if written:
            before.add(job_id)
    return before


def _finish_columns(finishes: Sequence[Finish]) -> Columns:
    ordered: list[Finish] = sorted(finishes, key=by_id)
    columns = _transposed(Finish._fields, ordered)
    del columns["keep"]
    return columns


def return_columns(returns: Sequence[PutBack | Park]) -> Columns:
    return _transposed((*PutBack._fields, "waits_for"), [_returned(one) for one in sorted(returns, key=by_id)])


def _returned(one: PutBack | Park) -> tuple[Any, ...]:
    if isinstance(one, PutBack):
        return (*one, None)
    waits_for = text(one.waits_for, "waits_for", KEY_LENGTH)
    return (one.id, one.fence, one.delay_ms, one.attempts_back, one.error, one.lapses, waits_for)


def _transposed(names: Sequence[str], rows: Sequence[Sequence[Any]]) -> Columns:
    return dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))


@flow
def complete(
    lease: Lease | Held,
    result: str | None = None,
    *,
    keep: bool = True,
    then: NewJob | None = None,
    before: Sequence[Finish] = (),
) -> Steps[None]:
    """Record that the leased job succeeded; meant for a transaction that also holds the job's effect.

    `then` is added in the same transaction and continues it, instead of a result. `before`: as in `Completion`.

    Commits: with the caller's transaction when one is given, else its own.
    Raises: LeaseLost if a newer claim holds the job. Strict on purpose: a lost reply is not excused here, because the
    caller's effect would be committed a second time.
    After a crash: before commit the job stays leased and is reaped later; after it, it never runs again.
    """
    if before:
        yield from _end_before(before)
    if then is not None:
        if not (yield from _continue([Continued(lease.id, lease.fence, then, keep)])):
            raise LeaseLost(str(lease.id), lease.fence)
        return
    params = {"id": str(lease.id), "fence": lease.fence, "result": result}
    rows = yield Statement(
        "finish_one" if keep else "drop_one",
        params,
        alone=True,
        like=_COMPLETIONS,
        own=_OWN_OF_A_COMPLETION,
        last=True,
    )
    if not rows:
        yield from _end_followed(Finish(lease.id, lease.fence, "done", result, keep=keep))


@flow
def complete_all(completions: Sequence[Completion]) -> Steps[None]:
    """Record that leased jobs succeeded; for a transaction of ours that also holds their effects.

    Each job may be in it once.
    Commits: with that transaction.
    Raises: LeasesLost if a newer claim holds one of them. Strict like `complete`, and for all of them: what the lost
    ones have done stands beside what the others did, so that nothing of it may be committed.
    After a crash: as `complete`.
    """
    if before := [end for one in completions for end in one.before]:
        yield from _end_before(before)
    ends = [
        Finish(one.lease.id, one.lease.fence, "done", one.result, keep=one.keep)
        for one in completions
        if one.then is None
    ]
    continued = [Continued(one.lease.id, one.lease.fence, one.then, one.keep) for one in completions if one.then]
    if continued and len((yield from _continue(continued))) < len(continued):
        raise LeasesLost
    written: set[str] = set()
    for name, batch in _writes(ends):
        rows = yield from ask(name, batch=batch, named=True, unfollowed=True)
        written |= _ids_written(batch, rows)
    missing = [end for end in ends if str(end.id) not in written]
    if missing:
        followed = yield from _by_the_door(missing)
        if len(followed) < len(missing):
            raise LeasesLost


def _end_before(before: Sequence[Finish]) -> Steps[None]:
    """Write the ends of jobs that come before another in its line, unless that was done: theirs must not come after.

    A row that is gone, or has another fence, is left alone: its end is written, or a reaper has taken it, and with it
    what was leased behind it. Then the fence refuses the other, too.
    """
    yield from _by_the_door(before)


@flow
def kill(lease: Lease | Held, error: str, group: str) -> Steps[None]:
    """Send the leased job to the dead letters with its error.

    Commits, Raises, After a crash: as `complete`.
    """
    yield from _finish_one(Finish(lease.id, lease.fence, "dead", None, error, group))


@flow
def cancel(lease: Lease | Held, error: str | None = None) -> Steps[None]:
    """End the leased job as cancelled.

    Commits, Raises, After a crash: as `complete`.
    """
    yield from _finish_one(Finish(lease.id, lease.fence, "cancelled", None, error))


def _finish_one(end: Finish) -> Steps[None]:
    # Named: what else runs on the caller's connection, such as a listener that writes a log, may not answer for it.
    rows = yield from ask("finish", batch=_finish_columns([end]), alone=True, named=True, unfollowed=True)
    if not rows:
        yield from _end_followed(end)


def _end_followed(end: End) -> Steps[None]:
    """Write the end of a job that no statement for plain jobs has found: it has followers, or another holder."""
    if not (yield from _by_the_door([end])):
        # The same answer for "reaped" and "deleted": the holder may act on neither.
        raise LeaseLost(str(end.id), end.fence)


@flow
def retry(lease: Lease | Held, delay_ms: int, error: str) -> Steps[None]:
    """Return the leased job to its queue after a failed attempt.

    Commits: with the caller's transaction when one is given, else its own.
    Raises: LeaseLost if a newer claim holds the job.
    After a crash: before commit the job stays leased and is reaped later, with a backoff of the reaper's.
    """
    yield from _put_back_one(PutBack(lease.id, lease.fence, delay_ms, 0, error))


@flow
def snooze(lease: Lease | Held, delay_ms: int) -> Steps[None]:
    """Return the leased job for later without using an attempt.

    Commits, Raises, After a crash: as `retry`.
    """
    yield from _put_back_one(PutBack(lease.id, lease.fence, delay_ms, 1))


@flow
def release(lease: Lease | Held) -> Steps[None]:
    """Give the leased job back, to its old place and without using an attempt.

    Commits, Raises, After a crash: as `retry`.
    """
    yield from _put_back_one(PutBack(lease.id, lease.fence, None, 1))


@flow
def park(lease: Lease | Held, waits_for: str, delay_ms: int | None = None) -> Steps[None]:
    """Give the leased job back, without using an attempt, until it is woken or the delay is over.

    Commits, After a crash: as `retry`. Raises: LeaseLost; ConfigError for what cannot be waited for.
    """
    yield from _put_back_one(Park(lease.id, lease.fence, waits_for, delay_ms))


def _put_back_one(one: PutBack | Park) -> Steps[None]:
    rows = yield from ask("put_back", batch=return_columns([one]), alone=True, unfollowed=True)
    if not rows:
        yield from _end_followed(one)
