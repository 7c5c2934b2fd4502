"""Transactions on connections of ours that the application's own statements run in, ended by a completion.

What ends one is written once (`ending`), as a generator of messages and statements; `Lent` and `AsyncLent` send them in
their colour. Whatever goes wrong, the transaction is rolled back and the connection given back, or closed where its
state is not known. Written with few calls and no generators around the block: a handler pays for each of them.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeAlias

from holdfast.errors import TransactionEnded
from holdfast.flow import Flow, Rows, Statement
from holdfast.store.connections import AsyncLink, Link
from holdfast.store.dialects.base import Endings, NothingEnded, PlanGone
from holdfast.store.pool import AsyncLoan, AsyncPool, Loan, Pool

# What to send: a message as it is, or a statement, whose rows are wanted.
Sent: TypeAlias = Generator[str | Statement, Rows, None]


class Completes(Protocol):
    """Who is told how the completion of a job goes."""

    def sending(self) -> None:
        """Hear that it is about to be sent."""

    def committed(self) -> None:
        """Hear that it is committed, as soon as that is known."""


def ending(work: Flow[None], link: Link | AsyncLink) -> Sent:
    """Say what completes and commits a lent transaction.

    Where the database takes several statements in a message, the completion and the COMMIT are one: a completion that
    finds nothing fails there, so that nothing behind it is run. What was done before it is still there at the savepoint
    before it, and the flow goes on as it would have: the job has followers, or its lease is lost.
    """
    steps = work.start()
    committed = False
    try:
        statement = next(steps)
        if link.endings is not None and statement.last:
            committed = yield from _at_once(statement, link.endings, link.clock())
            statement = steps.send(((statement.name,),) if committed else ())
        while not committed:
            statement = steps.send((yield statement))
        raise RuntimeError(f"{work!r} went on behind its last statement, which is committed")
    except StopIteration:
        pass
    finally:
        steps.close()
    if committed:
        return
    # Not `yield from`: a list takes no answers.
    for message in link.ends:  # noqa: UP028
        yield message


def _at_once(statement: Statement, endings: Endings, now: Any) -> Generator[str, Rows, bool]:
    """Send a statement together with the COMMIT; False if it found nothing, and the transaction is open as before."""
    try:
        try:
            yield endings.message(statement, now)
        except PlanGone:
            # A driver drops everything that is prepared after a rollback (psycopg), and so may a handler.
            yield endings.undo
            endings.forget(statement)
            yield endings.message(statement, now)
    except NothingEnded:
        yield endings.undo
        return False
    except BaseException:
        endings.spoilt = True
        raise
    return True


class Lent:
    """A transaction in the application's hands, on a sync connection."""

    __slots__ = ("_loan", "_mine", "_turn", "link")

    def __init__(self, pool: Pool, turn: AbstractContextManager[None] | None) -> None:
        self._loan = Loan(pool)
        # Where the database has one writer, its turn comes before the connection.
        self._turn = turn
        self.link: Link
        self._mine: Any = None

    def begin(self) -> Any:
        """Borrow a connection and begin; returns what the application's own statements go through."""
        if self._turn is not None:
            self._turn.__enter__()
        try:
            link = self.link = self._loan.__enter__()
            try:
                link.begin_lent()
                self._mine = link.dialect.transaction_of(link.raw)
                return link.dialect.lend(link.raw)
            except BaseException as error:
                self._loan.__exit__(None, error, None)
                raise
        except BaseException:
            self._give_up_turn()
            raise

    def complete(self, work: Flow[None], completes: Completes) -> None:
        """Complete the job and commit.

        Raises: TransactionEnded where the database, or the application, has ended the transaction meanwhile; LeaseLost.
        Nothing is committed then.
        """
        link = self.link
        try:
            self.keep()
            completes.sending()
            self._send(ending(work, link))
            completes.committed()
        except BaseException as error:
            self.roll_back(error)
            raise
        self._over(None)

    def keep(self) -> None:
        """Take the connection back from the application, and keep what it did. Raises: TransactionEnded."""
        link = self.link
        link.dialect.take_back(link.raw)
        insist_on(self._mine, link.dialect.transaction_of(link.raw))

    def admit(self, marks: Sequence[str]) -> Any:
        """Let somebody else into the transaction, behind these marks."""
        link = self.link
        link.dialect.make_plain(link.raw)
        for mark in marks:
            link.tell(mark)
        return link.dialect.lend(link.raw)

    def undo(self) -> None:
        """Undo what was done since the last mark."""
        link = self.link
        link.dialect.take_back(link.raw)
        link.tell(link.dialect.undo_savepoint)

    def _send(self, sending: Sent) -> None:
        link = self.link
        try:
            one = next(sending)
            while True:
                try:
                    rows: Rows = ()
                    if isinstance(one, str):
                        link.tell(one)
                    else:
                        rows = link.session.run(one)
                except Exception as error:
                    one = sending.throw(error)
                else:
                    one = sending.send(rows)
        except StopIteration:
            return

    def roll_back(self, error: BaseException) -> None:
        """Undo what was done, because of an error; what the application did to its session goes with it."""
        self.link.dialect.take_back(self.link.raw)
        try:
            self.link.roll_back()
        finally:
            self._over(error)

    def _over(self, error: BaseException | None) -> None:
        try:
            self.link.look_over()
            self._loan.__exit__(None, error, None)
        finally:
            self._give_up_turn()

    def _give_up_turn(self) -> None:
        if self._turn is not None:
            self._turn.__exit__(None, None, None)


class AsyncLent:
    """The async twin of `Lent`."""

    __slots__ = ("_loan", "_mine", "link")

    def __init__(self, pool: AsyncPool) -> None:
        self._loan = AsyncLoan(pool)
        self.link: AsyncLink
        self._mine: Any = None

    async def begin(self) -> Any:
        """As `Lent.begin`."""
        loan = self._loan
        link = self.link = loan.at_once() or await loan.in_time()
        try:
            await link.begin_lent()
            self._mine = link.dialect.atransaction_of(link.raw)
            return link.dialect.alend(link.raw)
        except BaseException as error:
            loan.over(error)
            raise

    async def complete(self, work: Flow[None], completes: Completes) -> None:
        """As `Lent.complete`."""
        link = self.link
        try:
            self._keep()
            completes.sending()
            sending = ending(work, link)
            try:
                one = next(sending)
                while True:
                    try:
                        rows = await (link.tell(one) if isinstance(one, str) else link.session.run(one))
                    except Exception as error:
                        one = sending.throw(error)
                    else:
                        one = sending.send(rows or ())
            except StopIteration:
                completes.committed()
        except BaseException as error:
            await self.roll_back(error)
            raise
        self._loan.over(None)

    def _keep(self) -> None:
        link = self.link
        link.dialect.atake_back(link.raw)
        insist_on(self._mine, link.dialect.atransaction_of(link.raw))

    async def keep(self) -> None:
        """As `Lent.keep`."""
        self._keep()

    async def admit(self, marks: Sequence[str]) -> Any:
        """As `Lent.admit`."""
        link = self.link
        for mark in marks:
            await link.tell(mark)
        return link.dialect.alend(link.raw)

    async def undo(self) -> None:
        """As `Lent.undo`."""
        link = self.link
        link.dialect.atake_back(link.raw)
        await link.tell(link.dialect.undo_savepoint)

    async def roll_back(self, error: BaseException) -> None:
        """As `Lent.roll_back`; after a cancellation the connection is closed, which rolls back without waiting."""
        self.link.dialect.atake_back(self.link.raw)
        try:
            await self.link.roll_back(error)
        except BaseException as worse:
            # Called off while it waited: nobody knows how far it came.
            self._loan.over(worse)
            raise
        self._loan.over(error)


def insist_on(mine: Any, now: Any) -> None:
    """Raise unless the open transaction is the one that was begun."""
    if now is None or now != mine:
        raise TransactionEnded
