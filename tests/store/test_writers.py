"""The thread that async transactions of a SQLite file share: who waits in line, who is told, who is left behind."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import DatabaseBusy, TransactionError
from holdfast.flow import Flow, Steps
from holdfast.store import Store, writers
from holdfast.store.sqlite_async import ThreadedLent
from holdfast.store.writers import Writer
from holdfast.values.options import StoreOptions


class Silent:
    """Hears of a completion, and does nothing about it."""

    def sending(self) -> None: ...
    def committed(self) -> None: ...


def _nothing() -> Steps[None]:
    return
    yield


NOTHING: Flow[None] = Flow("nothing", _nothing)


# How long one waits in line, where nobody should wait in vain, and where a test waits for that.
PATIENT, IMPATIENT = 60.0, 0.3


@pytest.fixture
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    patience = getattr(request, "param", PATIENT)
    store = Store(f"sqlite:///{tmp_path}/test.db", StoreOptions(busy_timeout=patience))
    with store.link() as link:
        link.tell("create table effects (what text)")
    yield store
    store.close()


def lent_by(store: Store) -> ThreadedLent:
    lent = store.alend()
    assert isinstance(lent, ThreadedLent)
    return lent


def effects(store: Store) -> list[str]:
    with store.link() as link:
        return [what for (what,) in link.raw.execute("select what from effects order by rowid")]


async def write(store: Store, what: str) -> None:
    lent = lent_by(store)
    tx = await lent.begin()
    await tx.execute("insert into effects values (?)", what)
    await lent.complete(NOTHING, Silent())


def threads() -> int:
    return sum(thread.name.startswith("holdfast-transaction") for thread in threading.enumerate())


def test_many_transactions_at_once_take_turns_on_one_thread(store: Store) -> None:
    before = threads()

    async def scene() -> int:
        await asyncio.gather(*(write(store, str(n)) for n in range(30)))
        return threads()

    assert asyncio.run(scene()) == before + 1
    assert effects(store) == [str(n) for n in range(30)]


@pytest.mark.parametrize("store", [IMPATIENT], indirect=True)
def test_who_waits_too_long_behind_an_open_transaction_is_told_so(store: Store) -> None:
    async def scene() -> None:
        first = lent_by(store)
        tx = await first.begin()
        await tx.execute("insert into effects values ('first')")
        with pytest.raises(DatabaseBusy, match="was not over within"):
            await write(store, "second")
        await first.complete(NOTHING, Silent())
        await write(store, "third")

    asyncio.run(scene())
    assert effects(store) == ["first", "third"]


@pytest.mark.parametrize("store", [IMPATIENT], indirect=True)
def test_who_waits_too_long_is_told_so_while_the_open_transaction_goes_on_and_on(store: Store) -> None:
    """Perhaps it goes on until the one that waits is done: without an answer, both would wait for ever."""

    async def scene() -> None:
        first = lent_by(store)
        tx = await first.begin()
        await tx.execute("insert into effects values ('first')")
        waiting = asyncio.ensure_future(write(store, "second"))
        async with asyncio.timeout(20):
            while not waiting.done():
                await tx.execute("select 1")
                await asyncio.sleep(0.01)
        with pytest.raises(DatabaseBusy, match="was not over within"):
            await waiting
        await first.complete(NOTHING, Silent())
        await write(store, "third")

    asyncio.run(scene())
    assert effects(store) == ["first", "third"]


@pytest.mark.parametrize("store", [IMPATIENT], indirect=True)
def test_a_transaction_that_could_not_begin_can_begin_later(store: Store) -> None:
    async def scene() -> None:
        first, second = lent_by(store), lent_by(store)
        await (await first.begin()).execute("insert into effects values ('first')")
        tx = await second.begin()
        with pytest.raises(DatabaseBusy):
            await tx.execute("insert into effects values ('refused')")
        await first.complete(NOTHING, Silent())
        await tx.execute("insert into effects values ('second')")
        await second.complete(NOTHING, Silent())

    asyncio.run(scene())
    assert effects(store) == ["first", "second"]


def test_who_is_done_is_told_while_the_next_one_takes_its_time(store: Store) -> None:
    """The thread tells of an end together with the next statement; a long one must not keep the news back."""
    go_on = threading.Event()

    async def scene() -> None:
        first, second = lent_by(store), lent_by(store)
        await (await first.begin()).execute("insert into effects values ('first')")
        await second.begin()
        slow = second.call(lambda lent: go_on.wait(20) and lent.link.raw.execute("insert into effects values ('slow')"))
        # It returns only because the loop looks by itself: the thread is inside of the other's statement.
        await first.complete(NOTHING, Silent())
        assert not slow.done()
        go_on.set()
        await slow
        await second.complete(NOTHING, Silent())

    asyncio.run(scene())
    assert effects(store) == ["first", "slow"]


def test_one_that_is_cancelled_in_line_writes_nothing_and_holds_nobody_up(store: Store) -> None:
    async def scene() -> None:
        first, second = lent_by(store), lent_by(store)
        await (await first.begin()).execute("insert into effects values ('first')")
        tx = await second.begin()
        waiting = asyncio.ensure_future(tx.execute("insert into effects values ('never')"))
        await asyncio.sleep(0)
        waiting.cancel()
        # As the block of a cancelled task does.
        await second.roll_back(asyncio.CancelledError())
        await first.complete(NOTHING, Silent())
        await write(store, "third")
        with pytest.raises(TransactionError, match="over"):
            await tx.execute("insert into effects values ('late')")

    asyncio.run(scene())
    assert effects(store) == ["first", "third"]


def test_a_commit_goes_on_when_its_task_is_cancelled(store: Store) -> None:
    heard: list[str] = []

    class Hears(Silent):
        def committed(self) -> None:
            heard.append("committed")

    async def scene() -> None:
        lent = lent_by(store)
        await (await lent.begin()).execute("insert into effects values ('first')")
        ending = asyncio.ensure_future(lent.complete(NOTHING, Hears()))
        await asyncio.sleep(0)
        ending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await ending
        assert heard == ["committed"]

    asyncio.run(scene())
    assert effects(store) == ["first"]


def test_two_event_loops_share_the_line(store: Store) -> None:
    async def some(name: str) -> None:
        for n in range(20):
            await write(store, f"{name} {n}")

    other = threading.Thread(target=lambda: asyncio.run(some("a")))
    other.start()
    asyncio.run(some("b"))
    other.join()
    assert sorted(effects(store)) == sorted(f"{name} {n}" for name in "ab" for n in range(20))


def test_the_thread_ends_when_its_store_is_closed_and_another_serves_what_comes(store: Store) -> None:
    def served_by() -> list[threading.Thread]:
        return [thread for thread in threading.enumerate() if thread.name.startswith("holdfast-transaction")]

    before = served_by()
    asyncio.run(write(store, "first"))
    [mine] = [thread for thread in served_by() if thread not in before]
    store.close()
    mine.join(20)
    assert not mine.is_alive()
    asyncio.run(write(store, "second"))
    assert effects(store) == ["first", "second"]


class Handed:
    """The lock of a writer, behind which somebody starts another thread as soon as one has said that it ends."""

    def __init__(self, writer: Writer) -> None:
        self._writer, self._lock = writer, writer._lock

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *error: object) -> None:
        ended = not self._writer._running
        self._lock.release()
        if ended:
            self._writer.start()


@pytest.mark.parametrize("why", ["closed", "idle"])
def test_a_thread_that_ends_while_another_is_started_does_not_go_on_beside_it(
    store: Store, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two of them would take each other's calls: a turn that one has, the other cannot give back."""
    before = threading.enumerate()
    asyncio.run(write(store, "first"))
    [mine] = [one for one in threading.enumerate() if one not in before and one.name.startswith("holdfast-transaction")]
    writer: Any = store._writer
    writer._lock = Handed(writer)
    if why == "closed":
        writer.close()
    else:
        monkeypatch.setattr(writers, "IDLE_SECONDS", 0.05)
        # It sleeps for the time of before until something comes.
        asyncio.run(write(store, "second"))
    mine.join(5)
    assert not mine.is_alive()
    writer._lock = writer._lock._lock
    asyncio.run(write(store, "last"))
    assert effects(store)[-1] == "last"


def test_an_error_of_a_statement_reaches_its_task_and_the_transaction_goes_on(store: Store) -> None:
    async def scene() -> Any:
        lent = lent_by(store)
        tx = await lent.begin()
        with pytest.raises(Exception, match="no such table"):
            await tx.execute("insert into nowhere values (1)")
        await tx.execute("insert into effects values ('first')")
        await lent.complete(NOTHING, Silent())

    asyncio.run(scene())
    assert effects(store) == ["first"]


@pytest.mark.parametrize("where", ["test.db", ":memory:"])
def test_a_forked_child_starts_a_thread_of_its_own(where: str, tmp_path: Path) -> None:
    store = Store("sqlite:///:memory:" if where == ":memory:" else f"sqlite:///{tmp_path}/{where}", StoreOptions())
    with store.link() as link:
        link.tell("create table effects (what text)")
    asyncio.run(write(store, "the parent's"))
    if (child := os.fork()) == 0:
        # Whatever happens here, the child must not go on as a second pytest.
        try:
            asyncio.run(asyncio.wait_for(write(store, "the child's"), 20))
            os._exit(0 if "the child's" in effects(store) else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    store.close()
