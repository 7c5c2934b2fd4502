"""Callers' connections to MySQL that do not speak utf8mb4: what they cannot carry is refused.

A server whose sql_mode is not strict stores question marks in place of characters that the connection's set does not
have, without an error. The drivers refuse by themselves what cannot be written in other sets than utf8mb3, in their own
words.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from holdfast.errors import TransactionError
from holdfast.flow import AsyncSession, Rows, Session, Statement

WHOLE = "utf8mb4"
# Characters of up to three bytes; `utf8` still means the same on both servers by default.
_SHORT = ("utf8", "utf8mb3")
_LAST_SHORT = "\uffff"


def careful(session: Session, charset: str) -> Session:
    """Return a session that sends only what a connection with this character set can carry."""
    return session if charset == WHOLE else CarefulSession(session, charset)


def acareful(session: AsyncSession, charset: str) -> AsyncSession:
    """The async twin of `careful`."""
    return session if charset == WHOLE else AsyncCarefulSession(session, charset)


class CarefulSession:
    """A sync session on a connection with another character set than utf8mb4."""

    def __init__(self, inner: Session, charset: str) -> None:
        self.inner = inner
        self.charset = charset

    def run(self, statement: Statement) -> Rows:
        with _carried(statement, self.charset):
            return self.inner.run(statement)


class AsyncCarefulSession:
    """The async twin of `CarefulSession`."""

    def __init__(self, inner: AsyncSession, charset: str) -> None:
        self.inner = inner
        self.charset = charset

    async def run(self, statement: Statement) -> Rows:
        with _carried(statement, self.charset):
            return await self.inner.run(statement)


@contextmanager
def _carried(statement: Statement, charset: str) -> Iterator[None]:
    if charset in _SHORT:
        for text in _texts(statement):
            if not text.isascii() and (longest := max(text)) > _LAST_SHORT:
                raise _refusal(longest, charset)
    try:
        yield
    except UnicodeEncodeError as error:
        raise _refusal(error.object[error.start], charset) from error


def _texts(statement: Statement) -> Iterator[str]:
    values: Iterable[Any] = statement.params.values()
    for value in values:
        if isinstance(value, str):
            yield value
    for column in (statement.batch or {}).values():
        for value in column:
            if isinstance(value, str):
                yield value


def _refusal(character: str, charset: str) -> TransactionError:
    return TransactionError(
        f"The connection given as tx= has the character set {charset}, which cannot carry {character!r}. "
        f"Connect with charset={WHOLE}."
    )
