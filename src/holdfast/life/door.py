"""One door out: what follows when a job ends or its lease is given back, in the transaction that writes it.

A row says by itself whether anything follows: `followers` holds a bit for each surface that has a consequence for it,
and is null in plain rows. The statements that settle a batch leave followed rows alone, at no cost for the others; the
flow finds them missing from the answer and settles them in a transaction that ends here. So a plain job stays one
statement, and a follower that is added while its job is being settled is seen, or finds the job gone: both lock the
job's row. Who has marked rows itself, as a claim from a limited queue does, settles them in one pass, as long as they
hold just those bits.

A surface attaches its consequence when its module is imported, under a bit of its own. What runs here locks more rows
than one, so consequences run in the order of bits, and each gets its rows in the order of ids.

The bits are stored in rows, so one is never given to another surface. They are written down here:

    bit                  surface     what follows
    1 << 0               limits      the queue counts one job less
    1 << 1 and 1 << 2    lines       the line of the job's key goes on: an ordered one, or one of keys that take turns
    1 << 3               chains      those that wait for the job have one to wait for less
    1 << 4               chains      what the job has waited for is forgotten
    1 << 5               results     those who wait for its end are told; a result of which no row is left is kept
    1 << 6               chains      nothing: it says of a finished row that another job continues it
    1 << 7               runs        what waits in the inbox is looked for, parents are told, children are stopped
    1 << 28 to 1 << 30   the tests   what they note down
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from operator import or_
from typing import Any, Literal, NamedTuple

from holdfast.errors import ConfigError, UnknownFollowers
from holdfast.flow import Steps, number_of, text_of
from holdfast.values.rows import Continued, End, Finish, Outcome, Park, PutBack

How = Outcome | Literal["discarded", "returned", "parked"]

LAST_BIT = 1 << 30


class Left(NamedTuple):
    """A job that left: it ended, a dead letter of it was discarded, or its holder gave the lease back.

    `returned` and `parked` jobs live on: limits and ordered queues give back what the lease held, and a run that parks
    looks whether what it waits for has come already. `fence` is the one that the job left with. `held` is False for a
    job that nobody held: it was cancelled while it was pending or waiting, or discarded. One that is `then` continued
    is done, and what waits for it goes on to wait for the next of its chain. `kept` is False for one that leaves no
    finished row.
    """

    id: str
    fence: int
    queue: str
    kind: str
    key: str | None
    followers: int
    how: How
    result: str | None = None
    held: bool = True
    # The job that continues it, which the same transaction has added.
    then: str | None = None
    kept: bool = True
    # What a parked job waits for.
    waits_for: str | None = None


Consequence = Callable[[Sequence[Left]], Steps[None]]

_attached: dict[int, Consequence] = {}
_inherited: set[int] = set()


def attach(bit: int, consequence: Consequence, *, inherited: bool = False) -> None:
    """Have `consequence` run in the transaction in which jobs leave whose `followers` hold this bit.

    `inherited` says that a job which continues such a one has the bit, too.
    Raises: ConfigError for what is not a single bit, or another surface's.
    """
    if not 1 <= bit <= LAST_BIT or bit & (bit - 1):
        raise ConfigError("bit", "must be a single bit of 31", bit)
    if _attached.setdefault(bit, consequence) is not consequence:
        raise ConfigError("bit", "must be one that no other surface has", bit)
    if inherited:
        _inherited.add(bit)


def attached() -> int:
    """Return the bits of all surfaces that this process knows."""
    return reduce(or_, _attached, 0)


def inherited() -> int:
    """Return the bits that a job has from the one that it continues."""
    return reduce(or_, _inherited, 0)


def detach(bit: int) -> None:
    """Undo `attach`, for tests."""
    _attached.pop(bit, None)


def consequences(left: Sequence[Left]) -> Steps[None]:
    """Run what follows for jobs that left, which the same transaction has written.

    Raises: UnknownFollowers where this process does not know a surface whose bit is set: better the job stays than
    that something waits for ever for what should have followed.
    """
    wanted = reduce(or_, [row.followers for row in left], 0)
    for bit in (1 << place for place in range(wanted.bit_length())):
        if wanted & bit:
            rows = [row for row in left if row.followers & bit]
            if bit not in _attached:
                raise UnknownFollowers(rows[0].id, bit)
            yield from _attached[bit](rows)


def leaving(end: End, row: Sequence[Any]) -> Left:
    """Put together what was written about a lease and what its row says (the columns of `followed`)."""
    job_id, fence, queue, kind, key, followers = row
    then = end.then.id if isinstance(end, Continued) else None
    end = end.finish if isinstance(end, Continued) else end
    how: How = "returned" if isinstance(end, PutBack) else "parked"
    waits_for = end.waits_for if isinstance(end, Park) else None
    how, result, kept = (end.outcome, end.result, end.keep) if isinstance(end, Finish) else (how, None, True)
    if type(job_id) is not str or type(fence) is not int or type(followers) is not int:
        # A caller's connection may give texts and numbers in a way of its own.
        job_id, fence, queue, kind = text_of(job_id), number_of(fence), text_of(queue), text_of(kind)
        key, followers = None if key is None else text_of(key), number_of(followers)
    return Left(job_id, fence, queue, kind, key, followers, how, result, then=then, kept=kept, waits_for=waits_for)
