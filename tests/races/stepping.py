"""Two flows stepped by hand, statement by statement, each on a connection of its own: a race without luck.

A statement that has to wait for the other transaction runs on a thread; `blocked` returns once the server itself says
that it waits.
"""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import closing, contextmanager
from typing import Any, Generic, TypeVar

import psycopg
import pymysql
import pytest

from holdfast.flow import Flow, Statement
from holdfast.store import Store
from holdfast.store.connections import Link

T = TypeVar("T")

PATIENCE = 20.0
_WAITS = "select cardinality(pg_blocking_pids(%s)) > 0"
# Who waits is a session on the node of the tables, and Citus knows for whom: its ids end in ten digits of the process.
_WAITS_ON_CITUS = "select count(*) > 0 from citus_lock_waits where waiting_gpid %% 10000000000 = %s"

# For a race that PostgreSQL alone can run: InnoDB locks a row before it looks whether the row is meant.
on_postgres = pytest.mark.parametrize("race_url", ["postgres"], indirect=True)


class Stepped(Generic[T]):
    """A flow in an open transaction that goes on when it is told to."""

    def __init__(self, work: Flow[T], link: Link) -> None:
        self.link = link
        self._steps = work.start()
        self._value: T | None = None
        self.next: Statement | None = None
        self.open = False
        self._advance(lambda: next(self._steps))

    def begin(self) -> None:
        """Open the transaction, which the first step does by itself."""
        if not self.open:
            self.link.tell(self.link.dialect.begin)
            self.open = True

    def step(self) -> str:
        """Run the next statement and return its name."""
        assert self.next is not None, "the flow has no statement left"
        self.begin()
        ran, rows = self.next.name, self.link.session.run(self.next)
        self._advance(lambda: self._steps.send(rows))
        return ran

    def step_through(self, name: str) -> None:
        """Run statements up to and including the next one of this name."""
        while self.step() != name:
            pass

    def rest(self) -> T:
        """Run what is left and return the flow's value; the transaction stays open."""
        while self.next is not None:
            self.step()
        return self._value  # type: ignore[return-value]

    def commit(self) -> T:
        """Run what is left, commit, and return the flow's value."""
        value = self.rest()
        self._end("commit")
        return value

    def rollback(self) -> None:
        self._end("rollback")

    def _end(self, how: str) -> None:
        if self.open:
            self.open = False
            self.link.tell(how)

    def _advance(self, go: Any) -> None:
        try:
            self.next = go()
        except StopIteration as stop:
            self.next, self._value = None, stop.value


@contextmanager
def stepped(store: Store, work: Flow[T]) -> Iterator[Stepped[T]]:
    """Start a flow on a connection of its own; what was not committed is rolled back at the end."""
    with store.link() as link:
        one = Stepped(work, link)
        try:
            yield one
        finally:
            one.rollback()


def on_thread(call: Any) -> "Future[Any]":
    """Run a call on a thread of its own."""
    answer: Future[Any] = Future()

    def run() -> None:
        try:
            answer.set_result(call())
        except BaseException as error:
            answer.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return answer


def blocked(one: Stepped[Any], call: Any) -> "Future[Any]":
    """Start a call of `one` on a thread and return when the server says that its connection waits for a lock."""
    answer = on_thread(call)
    mysql = one.link.dialect.name == "mysql"
    with _observer_of_mysql(one.link.raw) if mysql else _observer(one.link.raw) as waits:
        wait_until_blocked(waits, answer)
    return answer


def wait_until_blocked(waits: Callable[[], bool], answer: "Future[Any]") -> None:
    deadline = time.monotonic() + PATIENCE
    while not waits():
        assert not answer.done(), f"it did not wait: {answer.exception() or answer.result()!r}"
        assert time.monotonic() < deadline, "it neither waits nor ends"


@contextmanager
def _observer(raw: Any) -> Iterator[Callable[[], bool]]:
    with psycopg.connect(raw.info.dsn, password=raw.info.password, autocommit=True) as observer:
        [[citus]] = observer.execute("select to_regclass('pg_catalog.citus_lock_waits') is not null").fetchall()
        asked = (_WAITS_ON_CITUS if citus else _WAITS, (raw.info.backend_pid,))
        yield lambda: bool(observer.execute(*asked).fetchone()[0])  # type: ignore[index]


@contextmanager
def _observer_of_mysql(raw: Any) -> Iterator[Callable[[], bool]]:
    asked = (
        "select count(*) from information_schema.innodb_trx where trx_mysql_thread_id = %s and trx_state = 'LOCK WAIT'"
    )
    with closing(pymysql.connect(host=raw.host, port=raw.port, user="root", autocommit=True)) as observer:
        cursor = observer.cursor()

        def waits() -> bool:
            # InnoDB shows the same again to one that asks again within 100 ms.
            time.sleep(0.12)
            cursor.execute(asked, (raw.thread_id(),))
            return bool(cursor.fetchone()[0])

        yield waits


class Counted(Generic[T]):
    """A flow that counts its starts; `again` waits for the next one."""

    def __init__(self, work: Flow[T]) -> None:
        self.starts = 0
        self._started = threading.Semaphore(0)
        self.flow: Flow[T] = Flow(work.name, lambda: self._start(work))

    def _start(self, work: Flow[T]) -> Any:
        self.starts += 1
        self._started.release()
        return work.start()

    def wait_for_start(self) -> None:
        assert self._started.acquire(timeout=PATIENCE), "the flow was not started"


def again_and_again(store: Store, first: Any, second: Any, end: str) -> tuple[Any, Any, int]:
    """Hold the write lock with the first flow until the second has met it twice; return both answers."""
    counted = Counted(second)
    with stepped(store, first) as one:
        one.rest()
        answer = on_thread(lambda: store.run(counted.flow))
        for _ in range(2):
            counted.wait_for_start()
        value = one.commit() if end == "commit" else one.rollback()
        return value, answer.result(PATIENCE), counted.starts
