"""Claim from a queue that has order or limits: one short transaction of several statements.

Its steps, each a statement, because a statement's snapshot is older than the lock it waited for:

1. The row of a limited queue is locked: how many more may run, and start, now?
2. Tickets: due jobs in the order of any claim, locked.
3. The lines of their keys are made or locked, in the order of keys, and then read.
4. The first jobs of each line with room, by their places: `heads.py` says which to lease.
5. Those are leased, with the bits that lead their end through the door.
6. Lines note what they hold; other tickets of the keys that were tried wait for their line.

A job without a key stands in no line. A line that got nothing is closed, or calls its next job (`leaving.py`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple

from holdfast.errors import ConfigError
from holdfast.flow import Steps, ask, flow
from holdfast.life.claims import Question, by_urgency
from holdfast.lines.heads import Call, Head, Line, Wishes, pick
from holdfast.lines.leaving import FAIR, LIMIT, LINE_BITS, ORDER, heads_of, locked, write_lines
from holdfast.values.queues import QueueSettings, spent, tokens, wait_us
from holdfast.values.rows import Lease

# The most jobs of one key in one claim.
LONGEST_STINT = 2_000
# Tickets of busy keys are put aside in larger steps than a claim is long, so that a hot key does not hide the others.
PARK_AT_ONCE = 1_000
# How often a claim looks for more tickets when those it found were of busy keys.
ROUNDS = 4


class LinedLease(Lease):
    """A claimed job of a queue with order or limits: its end gives something back that others wait for."""

    __slots__ = ()
    # What the claim wrote into its `followers`; a class for each, because there are few of them and many leases.
    bits: ClassVar[int] = 0


class StintLease(LinedLease):
    """A claimed job of an ordered queue: it runs after those before it of the same key, and not beside them."""

    __slots__ = ()


class Ticket(NamedTuple):
    """A due job, picked by a claim: the columns of `tickets` in their order."""

    id: str
    key: str | None
    queue: str
    priority: int
    available_at: Any


@dataclass(frozen=True, slots=True)
class Claimed:
    """What a claim gave: leases, the tickets it saw, and in how many seconds to look again, where a rate says so."""

    leases: list[Lease] = field(default_factory=list[Lease])
    tickets: list[Ticket] = field(default_factory=list[Ticket])
    again_in: float | None = None
    # Whether it saw as many tickets as it asked for: there may be more.
    full: bool = False
    # Whether most lines had more jobs than their share of the claim, at its first look.
    deep: bool = False


class Asked(NamedTuple):
    """What a claim asks for: as in `jobs.claim`; `where` is the queue or the lanes to look in."""

    queue: str
    worker: str
    question: Question
    suspects: bool
    where: Mapping[str, Any]


@flow
def claim(
    queue: str,
    settings: QueueSettings,
    *,
    limit: int,
    worker: str = "worker",
    lease_ms: int = 30_000,
    leases: Mapping[str, int] | None = None,
    lanes: Mapping[str, list[Any]] | None = None,
    suspects: bool = True,
    buckets: Sequence[int] | None = None,
    overdue_ms: int = 10_000,
    look: int | None = None,
) -> Steps[Claimed]:
    """Lease due jobs of a queue with these settings, as its order, limits and rates allow.

    `leases`, `lanes`, `suspects`, `buckets` and `overdue_ms` as in `jobs.claim`; `look` is how many tickets to pick at
    first, by default `limit`. Commits: its own. After a crash: before the commit nothing happened; after it the jobs
    stay leased, and their line and the queue's limit count them until they are settled or reaped.
    """
    question = Question.of(leases, lease_ms, buckets, overdue_ms)
    asked = Asked(queue, worker, question, suspects, lanes or {"queues": [queue]})
    if not settings.is_limited:
        return (yield from _claim(asked, settings, limit, look))
    return (yield from _claim_limited(asked, limit, look))


def _claim_limited(asked: Asked, limit: int, look: int | None) -> Steps[Claimed]:
    rows = yield from ask("queue_lock", name=asked.queue)
    if not rows:
        return Claimed()
    [[text, _, held, tat, now]] = rows
    # What is stored now: the caller's may be a second old.
    try:
        settings = QueueSettings.from_json(text).here
    except ConfigError:
        # Another version has stored what this one cannot read: its own workers serve the queue. Workers tell of it at
        # each look at settings (`UpkeepFailed`), and go on with other queues.
        return Claimed()
    room = limit if settings.concurrency is None else min(limit, settings.concurrency - int(held))
    again = None
    if settings.rate is not None:
        room, again = min(room, tokens(settings.rate, tat, int(now))), wait_us(settings.rate, tat, int(now)) / 1e6
    if room <= 0:
        if settings.rate is not None and (right := spent(settings.rate, tat, int(now), 0)) < (tat or 0):
            # The clock was put back: what was spent would keep the rate waiting for a time that is far ahead now.
            yield from ask("queue_take", name=asked.queue, count=0, tat=right)
        return Claimed(again_in=again)
    claimed = yield from _claim(asked, settings, room, None if look is None else min(look, room))
    if count := len(claimed.leases):
        after = None if settings.rate is None else spent(settings.rate, tat, int(now), count)
        yield from ask("queue_take", name=asked.queue, count=count, tat=after)
        again = None if settings.rate is None else wait_us(settings.rate, after, int(now)) / 1e6
    return replace(claimed, again_in=_sooner(claimed.again_in, again))


def _sooner(one: float | None, other: float | None) -> float | None:
    return min((time for time in (one, other) if time is not None), default=None)


def _claim(asked: Asked, settings: QueueSettings, limit: int, look: int | None) -> Steps[Claimed]:
    if not settings.is_lined:
        tickets = yield from _tickets(asked, limit)
        taken = yield from _lease(asked, [ticket.id for ticket in tickets], LIMIT)
        return Claimed(by_urgency(taken), tickets, None, len(tickets) >= limit)
    found: list[Ticket] = []
    leases: list[Lease] = []
    calls: list[Call] = []
    size, full, deep = min(look or limit, limit), False, False
    for turn in range(1, ROUNDS + 1):
        tickets = yield from _tickets(asked, size)
        found += tickets
        full = len(tickets) >= size
        if tickets:
            # At the last look nobody else was found in front: no slot stays idle because its keys had their turn.
            eager = turn == ROUNDS and not leases
            taken, called, more = yield from _try(asked, settings, tickets, limit - len(leases), eager)
            leases += taken
            calls += called
            deep = more if turn == 1 else deep
        if not full or len(leases) >= limit:
            break
        # The tickets before are leased or put aside by now, so these are others.
        size = _more(len(found), len(leases), limit) if leases else min(PARK_AT_ONCE, 4 * size)
    # Where all tickets were of busy keys, there is more to look at.
    again = 0.0 if full and not leases else min((one.delay_us / 1e6 for one in calls if one.delay_us), default=None)
    return Claimed(leases, found, again, full, deep)


def _more(tickets: int, leases: int, limit: int) -> int:
    """Say how many more tickets may fill a claim, if they bring as many jobs as those before."""
    return max(1, min(limit - leases, math.ceil((limit - leases) * tickets / leases)))


def _tickets(asked: Asked, limit: int) -> Steps[list[Ticket]]:
    rows = yield from ask(
        "tickets",
        kinds=asked.question.kinds,
        limit=limit,
        unsuspected=None if asked.suspects else True,
        buckets=asked.question.buckets,
        overdue_ms=asked.question.overdue_ms,
        **asked.where,
    )
    return by_urgency([Ticket(*row) for row in rows])


def _try(
    asked: Asked, settings: QueueSettings, tickets: Sequence[Ticket], limit: int, eager: bool
) -> Steps[tuple[list[Lease], list[Call], bool]]:
    """Try the lines of these tickets; every ticket is leased, put aside or called when this is over, or has no line."""
    keys = list(dict.fromkeys(ticket.key for ticket in tickets if ticket.key is not None))
    loose = [ticket.id for ticket in tickets if ticket.key is None][:limit]
    plan = _Plan(settings, limit - len(loose))
    if keys:
        yield from ask("lines_open", queue=asked.queue, keys=sorted(keys))
        lines = yield from locked(asked.queue, keys)
        seen = None if eager else {ticket.id for ticket in tickets}
        plan.open([lines[key] for key in keys if key in lines], seen)
        yield from plan.read(asked)
    bits = LIMIT if settings.is_limited else 0
    line_bit = ORDER if settings.ordered else FAIR
    taken = yield from _lease(asked, plan.ids, bits | line_bit, StintLease if settings.ordered else LinedLease)
    if loose:
        taken += yield from _lease(asked, loose, bits)
    calls = yield from plan.write(asked, tickets, {str(lease.id) for lease in taken})
    return taken, calls, plan.deep


class _Plan:
    """What to do with the lines that one claim tries."""

    def __init__(self, settings: QueueSettings, limit: int) -> None:
        self.settings = settings
        self.limit = limit
        # The lines that were locked, those with room among them, and what is to be leased of each.
        self.lines: dict[str, Line] = {}
        self.free: list[Line] = []
        self.picked: dict[str, list[Head]] = {}
        # Whether most lines had more jobs than their share.
        self.deep = False

    @property
    def ids(self) -> list[str]:
        return [head.id for heads in self.picked.values() for head in heads]

    def open(self, lines: Sequence[Line], seen: set[str] | None) -> None:
        """Note which lines have room, and whose turn it is: a line that has called a job is up when that one is seen.

        An ordered one is up with any of its tickets, since the oldest comes first; it calls nobody for later, except
        where its key has a rate. `seen` None: any line that has room.
        """
        self.lines = {line.key: line for line in lines}
        any_ticket = seen is None or (self.settings.ordered and self.settings.key_rate is None)
        self.free = [
            line
            for line in lines
            if line.room(self.settings) != 0 and (any_ticket or line.called is None or line.called in (seen or ()))
        ]

    def read(self, asked: Asked) -> Steps[None]:
        """Read the first jobs of the free lines and choose."""
        left, lines = self.limit, self.free
        # All get a share: a line that was tried in vain would put its ticket aside, to call it again at once.
        share, over = divmod(left, max(1, len(lines)))
        largest = max(1, min(LONGEST_STINT, share + (over > 0)))
        heads = yield from heads_of(asked.queue, self.settings, [line.key for line in lines], largest + 1)
        self.deep = largest < LONGEST_STINT and 2 * sum(len(found) > largest for found in heads.values()) > len(lines)
        for n, line in enumerate(lines):
            own = max(1, min(LONGEST_STINT, share + (n < over)))
            allowed = [own, left, line.room(self.settings), line.starts(self.settings)]
            most = min(number for number in allowed if number is not None)
            if most > 0:
                found = pick(self.settings, heads.get(line.key, ()), Wishes(asked.question.kinds, asked.suspects, most))
                self.picked[line.key] = found
                left -= len(found)

    def write(self, asked: Asked, tickets: Sequence[Ticket], taken: set[str]) -> Steps[list[Call]]:
        """Put other tickets of all these keys aside, note what lines hold, and have those call that still have room."""
        if not self.lines:
            return []
        aside = [ticket.id for ticket in tickets if ticket.key in self.lines and ticket.id not in taken]
        if aside:
            yield from ask("line_park", ids=sorted(aside))
        after = []
        for line in self.free:
            count = sum(head.id in taken for head in self.picked.get(line.key, ()))
            after.append(line.taken(self.settings, count))
        return (yield from write_lines(asked.queue, self.settings, after))


_with_these_bits: dict[tuple[type[LinedLease], int], type[LinedLease]] = {}


def _with_bits(kind: type[LinedLease], bits: int) -> type[LinedLease]:
    if (kind, bits) not in _with_these_bits:
        _with_these_bits[kind, bits] = type(kind.__name__, (kind,), {"__slots__": (), "bits": bits})
    return _with_these_bits[kind, bits]


def _lease(asked: Asked, ids: Sequence[str], bits: int, kind: type[LinedLease] = LinedLease) -> Steps[list[Lease]]:
    """Lease jobs and return them in the order of their ids here; what others have taken meanwhile is left out."""
    if not ids:
        return []
    rows = yield from ask(
        "line_lease",
        ids=list(ids),
        kinds=asked.question.kinds,
        leases=asked.question.leases,
        lease_ms=asked.question.lease_ms,
        worker=asked.worker,
        bits=bits,
        mask=LIMIT | LINE_BITS,
    )
    marked = _with_bits(kind, bits)
    # Without the frame of `__new__` for each: there are many.
    found: dict[str, Lease] = {str(row[0]): tuple.__new__(marked, row) for row in rows}  # pyright: ignore[reportUnknownMemberType]
    return [found[job] for job in ids if job in found]
