"""Talks: what a page asks of stores, one flow after the other, and the pumps that give it a colour.

As a flow is to statements, a talk is to flows: it yields what it wants to know and gets the answer sent. Each flow is a
transaction of its own, in a store of the application.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, NamedTuple, TypeVar

from holdfast.flow import Flow, Series
from holdfast.store import Store

T = TypeVar("T")


class Question(NamedTuple):
    """A flow, the store to run it on, and whether it may be repeated while a person waits."""

    store: Store
    work: Flow[Any]
    patient: bool = False


Talk = Generator[Question, Any, T]


def look(store: Store, work: Flow[T]) -> Talk[T]:
    """Ask once: a person waits, and hears at once that the database is down."""
    return (yield Question(store, work))  # type: ignore[no-any-return]


def act(store: Store, work: Flow[T]) -> Talk[T]:
    """Act, again where the database is busy: every flow that acts is safe to repeat."""
    return (yield Question(store, work, patient=True))  # type: ignore[no-any-return]


def act_all(store: Store, series: Series[T]) -> Talk[T]:
    """Act in chunks, each in a transaction of its own."""
    try:
        work = next(series)
        while True:
            work = series.send((yield from act(store, work)))
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]
    finally:
        series.close()


def run(talk: Talk[T]) -> T:
    """Run a talk on the calling thread."""
    answer: Any = None
    error: Exception | None = None
    try:
        while True:
            asked = talk.send(answer) if error is None else talk.throw(error)
            answer, error = None, None
            try:
                answer = asked.store.run(asked.work) if asked.patient else asked.store.run_once(asked.work)
            except Exception as raised:
                error = raised
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]
    finally:
        talk.close()


async def arun(talk: Talk[T]) -> T:
    """The async twin of `run`."""
    answer: Any = None
    error: Exception | None = None
    try:
        while True:
            asked = talk.send(answer) if error is None else talk.throw(error)
            answer, error = None, None
            try:
                answer = await (asked.store.arun(asked.work) if asked.patient else asked.store.arun_once(asked.work))
            except Exception as raised:
                error = raised
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]
    finally:
        talk.close()
