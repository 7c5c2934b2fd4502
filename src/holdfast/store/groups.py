"""Group commit: jobs share a transaction, each behind a savepoint of its own (`@hf.job(commit="together")`).

One handler at a time is inside of a shared transaction; those that wait for their turn follow it in the same one. When
nobody waits any more, or enough have been inside, all of them are completed by one statement and committed. While that
is under way the next group grows. What one handler does is undone alone; where the transaction as a whole is lost, all
of its jobs run again. A handler is told of the end of its block only when the commit is known: for it, the block means
what it means without a group.

Written once: `Seat` and `Groups` yield what has to be done; `group_pumps.py` waits for it in either colour.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Sequence
from typing import Any, TypeVar, cast

from holdfast.errors import SharedTransactionUndone
from holdfast.flow import Flow
from holdfast.store.dialects.base import Dialect
from holdfast.store.lending import Completes

T = TypeVar("T")
# What has to be done, each a call to make or to await.
Acts = Generator[Callable[[], Any], Any, T]

# Jobs in one transaction. PostgreSQL keeps 64 subtransactions of a session at hand; with more, every reader of a row
# looks them up.
MOST_JOBS = 50
# Nobody follows into a transaction that has been open for longer: it holds the locks of all.
OPEN_SECONDS = 0.05
# Who waits for longer behind one handler begins another transaction.
PATIENCE_SECONDS = 0.005
# With each further eight that wait, one more transaction is opened beside the others, up to a limit: the loop reads the
# answers for several of them at once.
WAITING_FOR_ONE_MORE = 8
MOST_OPEN = 4
# After a transaction was lost at its end, each job has one of its own for this time: the cause is then its own, too.
ALONE_SECONDS = 10.0


class Joining(Flow[None]):
    """The completion of a job, which can be joined with those of others."""

    __slots__ = ()

    def joined(self, others: Sequence[Any]) -> Flow[None]:
        """Return what completes this one and all others."""
        raise NotImplementedError


class Group:
    """One shared transaction. It is open as long as somebody is inside of it."""

    __slots__ = (
        "ending",
        "failed_alone",
        "failure",
        "leader",
        "left",
        "lent",
        "marked",
        "opened",
        "over",
        "ready",
        "seats",
        "since",
    )

    def __init__(self, over: Any, ready: Any = None) -> None:
        # The transaction, once it has begun.
        self.lent: Any = None
        # Who began it: where threads wait, its thread ends it, because the turn to write is that thread's.
        self.leader: Seat | None = None
        self.opened = self.since = time.monotonic()
        self.seats = 0
        # Those whose block has ended well.
        self.left: list[Seat] = []
        # Whether there is a savepoint, and whether something was done behind it.
        self.marked: bool | None = None
        # Why nothing of it was committed, and whether that was the end of one job alone.
        self.failure: BaseException | None = None
        self.failed_alone = False
        # Nobody is inside any more.
        self.ending = False
        # Set when nobody is inside any more, and when all is known.
        self.ready = ready
        self.over = over


class Seat:
    """One job's part in a shared transaction; to the job it looks like a `Lent` of its own."""

    __slots__ = ("_groups", "completes", "group", "left", "work")

    def __init__(self, groups: Groups) -> None:
        self._groups = groups
        self.group: Group
        # Whether its block has ended well, so that the commit is its own.
        self.left = False
        self.work: Joining
        self.completes: Completes

    def begin(self) -> Any:
        """Wait for a turn and begin, or follow; returns what the application's own statements go through."""
        return self._groups.pump(self._begin())

    def complete(self, work: Flow[None], completes: Completes) -> Any:
        """Leave what was done to the group's commit, and wait for that.

        Raises: SharedTransactionUndone if another job, or the commit, has taken the whole transaction along; what a
        `Lent` raises where no other job was in it.
        """
        self.work, self.completes = cast(Joining, work), completes
        return self._groups.pump(self._complete())

    def roll_back(self, error: BaseException) -> Any:
        """Undo what this job did, because of an error."""
        return self._groups.pump(self._roll_back(error))

    def _begin(self) -> Acts[Any]:
        groups = self._groups
        group = self.group = yield groups.turn
        group.seats += 1
        if group.lent is None:
            lent = groups.lend()
            try:
                tx = yield lent.begin
            except BaseException:
                groups.pass_on(group)
                raise
            group.lent, group.leader = lent, self
            return tx
        try:
            tx = yield lambda: group.lent.admit(groups.marks(group))
        except BaseException as error:
            yield from self._fail(error)
            if not issubclass(type(error), Exception):
                raise
            # Somebody before it has left the transaction broken.
            groups.keep_apart()
            raise SharedTransactionUndone(error) from error
        group.marked = True
        return tx

    def _complete(self) -> Acts[None]:
        groups, group = self._groups, self.group
        try:
            yield group.lent.keep
        except BaseException as error:
            yield from self._fail(error)
            raise
        group.left.append(self)
        self.left = True
        groups.pass_on(group)
        yield lambda: groups.see_out(self)
        if group.failure is not None:
            if group.failed_alone:
                raise group.failure
            raise SharedTransactionUndone(group.failure) from group.failure

    def _roll_back(self, error: BaseException) -> Acts[None]:
        groups, group = self._groups, self.group
        if group.marked is None or not issubclass(type(error), Exception):
            # Nothing of anybody else is in it; or a statement may be under way, and nobody may wait for it.
            yield from self._fail(error)
            return
        try:
            yield group.lent.undo
        except BaseException as worse:
            yield from self._fail(worse)
            if not issubclass(type(worse), Exception):
                raise
            return
        group.marked = False
        groups.pass_on(group)
        yield lambda: groups.see_out(self)

    def _fail(self, error: BaseException) -> Acts[None]:
        """Have the whole transaction rolled back."""
        self.group.failure = error
        self._groups.pass_on(self.group)
        yield lambda: self._groups.see_out(self)


class Groups:
    """The shared transactions of one store, in one colour: who is inside, and who waits for a turn."""

    def __init__(self, lend: Callable[[], Any], dialect: Dialect) -> None:
        self.lend = lend
        self._dialect = dialect
        self._lock = threading.Lock()
        # Those that take followers.
        self._open: list[Group] = []
        self._most_open = 1 if dialect.embedded else MOST_OPEN
        self._waiting: deque[Any] = deque()
        self._alone_until = 0.0

    def seat(self) -> Seat:
        return Seat(self)

    def marks(self, group: Group) -> Sequence[str]:
        """List what has to be said so that the next one can be undone alone."""
        if group.marked is None:
            return (self._dialect.savepoint,)
        return self._dialect.next_savepoint if group.marked else ()

    def pass_on(self, group: Group) -> None:
        """Let the next one in, or have the group ended."""
        with self._lock:
            following = self._following(group)
            if following is not None:
                following.give(group)
                return
            self._close(group)
        if group.lent is not None:
            group.ending = True
            self.end(group)

    def _following(self, group: Group) -> Any:
        now = time.monotonic()
        group.since = now
        if group.failure is not None or group not in self._open:
            return None
        full = group.seats >= MOST_JOBS or now - group.opened > OPEN_SECONDS or now < self._alone_until
        return None if full and group.lent is not None else self._next_waiting()

    def _next_waiting(self) -> Any:
        while self._waiting:
            ticket = self._waiting.popleft()
            if not ticket.gone():
                return ticket
        return None

    def _close(self, group: Group) -> None:
        """Let nobody follow any more; who waits next opens another."""
        if group in self._open:
            self._open.remove(group)
            ticket = self._next_waiting()
            if ticket is not None:
                ticket.give(self._opened())

    def _opened(self) -> Group:
        group = self.group()
        self._open.append(group)
        return group

    def look(self) -> bool:
        """Begin another transaction for those that wait behind a slow handler; tells whether anybody waits still."""
        with self._lock:
            late = time.monotonic() - PATIENCE_SECONDS
            for group in [one for one in self._open if one.since <= late]:
                self._close(group)
            return bool(self._waiting)

    def keep_apart(self) -> None:
        """Give each job a transaction of its own for a while: what went wrong then is its own doing."""
        self._alone_until = time.monotonic() + ALONE_SECONDS

    def _enter(self, ticket: Any) -> Group | None:
        """Open a group, or have the ticket wait for its turn."""
        with self._lock:
            enough = min(self._most_open, 1 + len(self._waiting) // WAITING_FOR_ONE_MORE)
            if len(self._open) < enough:
                return self._opened()
            self._waiting.append(ticket)
            return None

    def _ending(self, group: Group) -> Acts[None]:
        """Commit a group that nobody is inside of, or roll it back."""
        left = group.left
        try:
            if group.failure is not None or not left:
                # Never by its truth: a handler's exception may raise when it is asked for that.
                why = SharedTransactionUndone() if group.failure is None else group.failure
                yield lambda: group.lent.roll_back(why)
                return
            for seat in left:
                seat.completes.sending()
            first, *others = (seat.work for seat in left)
            yield lambda: group.lent.complete(first.joined(others) if others else first, _All(left))
        except BaseException as error:
            if group.failure is None:
                group.failure, group.failed_alone = error, len(left) == 1
            if len(left) > 1:
                self.keep_apart()
            if not issubclass(type(error), Exception):
                raise

    # What has a colour

    def group(self) -> Group:
        raise NotImplementedError

    def pump(self, acts: Acts[T]) -> Any:
        """Do what has to be done."""
        raise NotImplementedError

    def turn(self) -> Any:
        """Wait for a turn; gives the group."""
        raise NotImplementedError

    def end(self, group: Group) -> None:
        """Have a group ended."""
        raise NotImplementedError

    def see_out(self, seat: Seat) -> Any:
        """Wait until a group is over, where the seat has something to wait for."""
        raise NotImplementedError


class _All:
    """Tells every job of a group that it is complete."""

    def __init__(self, seats: Sequence[Seat]) -> None:
        self._seats = seats

    def sending(self) -> None:
        pass

    def committed(self) -> None:
        for seat in self._seats:
            seat.completes.committed()
