"""Flows: database work written once, for both colours and every database.

A flow is a generator that yields named statements, receives rows and returns a value. It does no I/O and never
commits. A pump runs it: `drive` on a sync session, `adrive` on an async one. A `Flow` can be started again, so a
deadlock or a lost connection re-runs the whole transaction; a test can step two flows by hand and so write a race
without threads.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any, Generic, NamedTuple, ParamSpec, Protocol, TypeVar

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
P = ParamSpec("P")

Row = Sequence[Any]
Rows = Sequence[Row]
Columns = dict[str, list[Any]]


class Surface(NamedTuple):
    """A set of tables that are not Holdfast's own: where their queries are, and what stands for each placeholder there.

    A statement carries it, so that any store can run it, also one beside the application's own.
    """

    # The room whose folder `sql` has the queries, such as foreign/pdo.
    room: str
    # What tells these tables from others in errors and logs.
    under: str
    names: tuple[tuple[str, str], ...]

    def ask(self, name: str, /, **params: Any) -> Steps[Rows]:
        """Yield one of the surface's own queries and return its rows."""
        return (yield Statement(name, params, surface=self))


class Statement(NamedTuple):
    """One named query with its parameters; a name of Holdfast's own tables, or of a `surface`.

    `batch` carries columns of equal length: a dialect binds them as arrays, as one JSON text, or row by row.
    `alone` promises that a statement needs no common transaction with what comes behind it, so that a pump may leave
    out BEGIN and COMMIT: two round trips less. The first statement that does not say so begins the transaction, which
    all others share.
    `look` on a flow's first statements marks what is read before the transaction begins, or instead of it when there is
    nothing to do; what follows may not rely on what was seen.
    `like` is the same in statements that differ in their `own` parameters only, each of which goes to any driver as it
    is: what was worked out for the first of them serves the others (see `calls.only_call`).
    `notify` says whether workers are told at commit, where the database can tell; None is the store's setting.
    `last` promises that the flow ends if the statement gives a row: what commits the transaction may go with it, in the
    same message, as long as a statement that finds nothing keeps it from being run.
    """

    name: str
    params: dict[str, Any]
    batch: Columns | None = None
    alone: bool = False
    text: str | None = None
    look: bool = False
    like: tuple[Any, ...] | None = None
    notify: bool | None = None
    surface: Surface | None = None
    own: tuple[str, ...] = ()
    last: bool = False


Steps = Generator[Statement, Rows, T]


def text_of(value: Any) -> str:
    """Read an id as text, whatever a caller's connection makes of it: bytes, a UUID, text."""
    return bytes(value).decode() if isinstance(value, bytes | bytearray | memoryview) else str(value)


def number_of(value: Any) -> int:
    """Read a whole number, whatever a caller's connection makes of it: text, bytes, a decimal."""
    return value if type(value) is int else int(text_of(value))


class Flow(Generic[T_co]):
    """A restartable piece of database work; `yield from` it inside another flow, or hand it to a store."""

    __slots__ = ("name", "start")

    def __init__(self, name: str, start: Callable[[], Steps[T_co]]) -> None:
        self.name = name
        # Begins the flow, as a pump does.
        self.start = start

    def __iter__(self) -> Steps[T_co]:
        return _joined(self.start())

    def __repr__(self) -> str:
        return f"<flow {self.name}>"


def _joined(steps: Steps[T]) -> Steps[T]:
    """Pass on the statements of a flow inside another: they share its transaction, so none of them stands alone."""
    rows: Any = None
    try:
        while True:
            statement = steps.send(rows)
            rows = yield statement._replace(alone=False) if statement.alone else statement
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]
    finally:
        steps.close()


def notifying(work: Flow[T], notify: bool | None) -> Flow[T]:
    """Return the same work, which tells workers or does not, whatever the store's setting; None leaves it to that."""
    return work if notify is None else Flow(work.name, lambda: _notifying(work.start(), notify))


def _notifying(steps: Steps[T], notify: bool) -> Steps[T]:
    rows: Any = None
    try:
        while True:
            rows = yield steps.send(rows)._replace(notify=notify)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]
    finally:
        steps.close()


def flow(steps: Callable[P, Steps[T]]) -> Callable[P, Flow[T]]:
    """Turn a generator function into a maker of restartable flows."""

    @functools.wraps(steps)
    def make(*args: P.args, **kwargs: P.kwargs) -> Flow[T]:
        return Flow(steps.__name__, lambda: steps(*args, **kwargs))

    return make


def ask(
    name: str, /, *, batch: Columns | None = None, alone: bool = False, look: bool = False, **params: Any
) -> Steps[Rows]:
    """Yield one named statement and return its rows."""
    return (yield Statement(name, params, batch, alone, None, look))


def run_text(name: str, text: str) -> Steps[Rows]:
    """Yield SQL that is not in the catalogue, such as that of a migration; `name` is for errors and logs."""
    return (yield Statement(name, {}, text=text))


class Session(Protocol):
    """A sync connection inside a transaction (or about to run one statement alone)."""

    def run(self, statement: Statement) -> Rows: ...


class AsyncSession(Protocol):
    """The async twin of `Session`."""

    async def run(self, statement: Statement) -> Rows: ...


Around = Callable[[Statement], AbstractContextManager[Any] | None]
AsyncAround = Callable[[Statement], AbstractAsyncContextManager[Any] | None]


def drive(work: Flow[T], session: Session, around: Around | None = None) -> T:
    """Run a flow on a sync session and return its value; `around` gives the transaction that it needs, if any."""
    steps = work.start()
    try:
        first = next(steps)
        while first.look:
            first = steps.send(session.run(first))
        if around is None:
            return _pump(steps, first, session)
        while (block := around(first)) is None:
            first = steps.send(session.run(first))
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]
    with block:
        return _pump(steps, first, session)


def _pump(steps: Steps[T], statement: Statement, session: Session) -> T:
    # StopIteration must end here, inside the transaction's block: leaking it would roll back.
    try:
        while True:
            statement = steps.send(session.run(statement))
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]
    finally:
        steps.close()


def adrive(work: Flow[T], session: AsyncSession, around: AsyncAround | None = None) -> Coroutine[Any, Any, T]:
    """Run a flow on an async session and return its value; `around` as in `drive`.

    A function that returns a coroutine: each coroutine within another is woken and put to sleep with it.
    """
    steps = work.start()
    try:
        first = next(steps)
    except StopIteration as stop:
        return _given(stop.value)
    return _alook(steps, first, session, around) if first.look else _abegin(steps, first, session, around)


async def _given(value: T) -> T:
    return value


async def _alook(steps: Steps[T], first: Statement, session: AsyncSession, around: AsyncAround | None) -> T:
    try:
        while first.look:
            first = steps.send(await session.run(first))
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]
    return await _abegin(steps, first, session, around)


def _abegin(
    steps: Steps[T], first: Statement, session: AsyncSession, around: AsyncAround | None
) -> Coroutine[Any, Any, T]:
    if around is None:
        return _apump(steps, first, session)
    block = around(first)
    return _aalone(steps, first, session, around) if block is None else _apump_within(block, steps, first, session)


async def _aalone(steps: Steps[T], statement: Statement, session: AsyncSession, around: AsyncAround) -> T:
    try:
        while True:
            statement = steps.send(await session.run(statement))
            block = around(statement)
            if block is not None:
                break
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]
    async with block:
        return await _apump(steps, statement, session)


async def _apump_within(
    block: AbstractAsyncContextManager[Any], steps: Steps[T], first: Statement, session: AsyncSession
) -> T:
    async with block:
        return await _apump(steps, first, session)


async def _apump(steps: Steps[T], statement: Statement, session: AsyncSession) -> T:
    try:
        while True:
            statement = steps.send(await session.run(statement))
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]
    finally:
        steps.close()


# Several flows, one after the other, each in a transaction of its own: what one transaction should not hold at once.
Series = Generator[Flow[Any], Any, T]


def in_turn(work: Flow[T]) -> Series[T]:
    """Yield the next flow of a series and return its value."""
    return (yield work)  # type: ignore[no-any-return]


def in_chunks(work: Flow[int], rows: int) -> Series[int]:
    """Repeat a flow that acts on up to `rows` rows and returns how many, until there were fewer; return their sum."""
    total, count = 0, rows
    while count == rows:
        count = yield from in_turn(work)
        total += count
    return total


def run_series(series: Series[T], run: Callable[[Flow[Any]], Any]) -> T:
    """Run the flows of a series, each by `run`, and return the value of the series."""
    try:
        work = next(series)
        while True:
            work = series.send(run(work))
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]
    finally:
        series.close()


async def arun_series(series: Series[T], run: Callable[[Flow[Any]], Awaitable[Any]]) -> T:
    """The async twin of `run_series`."""
    try:
        work = next(series)
        while True:
            work = series.send(await run(work))
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]
    finally:
        series.close()
