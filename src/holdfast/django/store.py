"""The store of a Django project: its flows run on Django's own connection, in the transaction that is open there.

A worker's own connections are not Django's: `beside` gives it a plain store at the same place.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from asgiref.sync import async_to_sync, sync_to_async
from django.db import Error as DjangoError
from django.db import connections, transaction

from holdfast.django.care import close_if_unusable, is_of_a_test
from holdfast.django.databases import url_of
from holdfast.django.settings import migrate_command
from holdfast.errors import (
    ConfigError,
    DatabaseBusy,
    DatabaseUnavailable,
    HoldfastError,
    SchemaMissing,
    TransactionError,
)
from holdfast.flow import Flow, Statement
from holdfast.store import Store
from holdfast.store.connections import AsyncLink, Link
from holdfast.store.lending import Completes
from holdfast.store.sessions import translated
from holdfast.testing.django_tests import is_test_database, is_testing
from holdfast.values.options import StoreOptions

T = TypeVar("T")
# For what handlers write beside a transaction that they have open.
CONNECTIONS_APART = 2


class DjangoStore(Store):
    """Runs flows on `connections[alias]` of the calling thread.

    Inside `transaction.atomic()` they are part of it, else each has a transaction of its own. Async ones run where
    Django's own async calls do: on the one thread that `sync_to_async` keeps for what is bound to a thread.
    """

    joins = True

    def __init__(self, alias: str, options: StoreOptions) -> None:
        self.alias = alias
        self._apart: Store | None = None
        # How many attempts run inside the transaction of a test.
        self._marks = 0
        super().__init__(url_of(connections[alias]), options)

    def _make_ready(self) -> None:
        """Nothing: Django's migrations make the tables, in memory too."""

    @property
    def url(self) -> str:
        # Asked for each time: Django's test runner renames the database after everything was imported.
        return url_of(connections[self.alias])

    def beside(self, pool_size: int) -> Store:
        if self.in_memory:
            rule = "is in memory, where only Django's own connection sees it; a worker needs a file or a server"
            raise ConfigError(f'DATABASES["{self.alias}"]', rule, connections[self.alias].settings_dict["NAME"])
        self._keep_to_tests()
        return Store(self.url, replace(self.options, pool_size=pool_size), beside=self)

    # Flows

    def run(self, work: Flow[T], again: Callable[[], Flow[T]] | None = None) -> T:
        # Inside a transaction of the caller's there is nothing to try again: what failed has broken it.
        return self.run_once(work) if self.open_tx() is not None else super().run(work, again)

    def run_once(self, work: Flow[T]) -> T:
        connection = connections[self.alias]
        if self.open_tx() is not None:
            return self.run_in(connection, work, work.name)
        with self.atomic():
            return self.run_in(connection, work, work.name)

    def run_in(self, tx: Any, work: Flow[T], what: str = "the job") -> T:
        with self._told_of_tables():
            return super().run_in(tx, work, what)

    def tell_in(self, tx: Any, statement: Statement, what: str) -> None:
        with self._told_of_tables():
            super().tell_in(tx, statement, what)

    @contextmanager
    def _told_of_tables(self) -> Iterator[None]:
        """Say of tables that are missing how they are made in a Django project."""
        try:
            yield
        except SchemaMissing as error:
            if type(error) is not SchemaMissing:
                raise
            raise TablesMissing(self, error.detail) from error

    async def arun(self, work: Flow[T], again: Callable[[], Flow[T]] | None = None) -> T:
        return await sync_to_async(self.run)(work, again)

    def arun_once(self, work: Flow[T]) -> Awaitable[T]:
        return sync_to_async(self.run_once)(work)

    def run_async(self, main: Coroutine[Any, Any, T]) -> T:
        async def whole() -> T:
            return await main

        return async_to_sync(whole)()

    async def on_its_thread(self, fn: Callable[[], T]) -> T:
        return await sync_to_async(fn)()

    def open_tx(self) -> Any:
        connection = connections[self.alias]
        # Nothing is opened to find that out: an event loop may ask, too.
        is_open = connection.connection is not None
        autocommit = connection.autocommit if is_open else connection.settings_dict["AUTOCOMMIT"]
        return connection if connection.in_atomic_block or not autocommit else None

    def looks_aside(self, tx: Any) -> bool:
        # Tests count the queries of what they call.
        return not is_testing() and super().looks_aside(tx)

    def apart(self) -> Store:
        if self.open_tx() is None or self.embedded or is_of_a_test(connections[self.alias]):
            return self
        if self._apart is None or self._apart.url != self.url:
            self._apart = self.beside(CONNECTIONS_APART)
        return self._apart

    def mark(self) -> Callable[[bool], None] | None:
        connection = connections[self.alias]
        if not is_of_a_test(connection):
            return None
        # Told as a test's own, so that what is durable may begin in it.
        block: Any = transaction.atomic(using=self.alias)
        block._from_testcase = True
        block.__enter__()
        self._marks += 1

        def leave(failed: bool) -> None:
            self._marks -= 1
            broken = connection.needs_rollback
            with suppress(DjangoError) if failed else translated(self.dialect):
                block.__exit__(None, None, None)
            # What has not failed is not undone without a word: the test's next statement says what is wrong.
            connection.needs_rollback = broken and not failed

        return leave

    def close(self) -> None:
        apart, self._apart = self._apart, None
        if apart is not None:
            apart.close()
        super().close()

    @contextmanager
    def atomic(self) -> Iterator[None]:
        """Have a transaction of our own on Django's connection; one that is lost is closed, so that the next is new."""
        connection = connections[self.alias]
        try:
            with translated(self.dialect), _at_once(connection), transaction.atomic(using=self.alias):
                yield
        except DatabaseUnavailable:
            if not connection.in_atomic_block:
                connection.close()
            raise

    # Transactions of handlers

    def lend(self) -> DjangoLent:
        return DjangoLent(self)

    # One transaction for several threads is not to be had: each has its own connection.
    share = lend

    def alend(self) -> Any:
        if self.in_memory:
            raise TransactionError(
                "`async with job.transaction()` opens a connection of its own, and only Django's sees this database in "
                "memory: use a `def` handler, or a database in a file or on a server."
            )
        if self._marks:
            raise TransactionError(
                "`async with job.transaction()` opens a connection of its own, which sees nothing of this test's "
                "transaction, not even the job: use TransactionTestCase, or a `def` handler."
            )
        self._follow()
        return super().alend()

    def open(self) -> Link:
        self._keep_to_tests()
        return super().open()

    async def aopen(self, url: str | None = None, name: str = "holdfast") -> AsyncLink:
        self._keep_to_tests()
        return await super().aopen(url, name)

    @contextmanager
    def link(self) -> Iterator[Link]:
        self._follow()
        with super().link() as link:
            yield link

    def _follow(self) -> None:
        """Leave the connections of our own that go where the alias no longer does."""
        self._keep_to_tests()
        if self.url != self._url:
            self.close()
            self._url = self.url

    def _keep_to_tests(self) -> None:
        """Open nothing of our own at the database of development while tests run: Django stops its own alone.

        Raises: ConfigError.
        """
        connection = connections[self.alias]
        if not is_testing() or self.in_memory or is_test_database(connection):
            return
        rule = (
            "is not a test database, and tests run: a worker would run the jobs that are in it. Use "
            f"TransactionTestCase, with {self.alias!r} in its `databases`; if this database is for tests, name it in "
            '["TEST"]["NAME"], too'
        )
        raise ConfigError(f'DATABASES["{self.alias}"]', rule, connection.settings_dict["NAME"])


class TablesMissing(SchemaMissing):
    """The tables are not there, in a Django project, where its own command makes them."""

    def __init__(self, store: DjangoStore, detail: str) -> None:
        self.detail = detail
        where = f'DATABASES["{store.alias}"] has no Holdfast tables under the prefix {store.options.prefix}.'
        told = f"{where} Run `{migrate_command(store.alias)}`."
        HoldfastError.__init__(self, f"{told} ({detail})" if detail else told)


class DjangoLent:
    """A handler's transaction on Django's connection: what the ORM writes in it commits with the completion."""

    def __init__(self, store: DjangoStore) -> None:
        self._store = store
        self._block: AbstractContextManager[None]
        # Inside a transaction that somebody else ends, so that its end is not ours to tell.
        self._inner = False
        self._committed = False

    def begin(self) -> Any:
        connection = connections[self._store.alias]
        self._inner = connection.in_atomic_block
        if not self._inner:
            if self._store.open_tx() is not None:
                # `atomic()` would leave the commit to a caller who does not come, and the job count as done.
                raise TransactionError(
                    f"job.transaction() commits, and autocommit is off on Django's connection {self._store.alias!r}: "
                    'remove "AUTOCOMMIT": False from DATABASES, or do not call set_autocommit(False) before it.'
                )
            # A thread may have rested for long, and its connection was dropped meanwhile.
            close_if_unusable(connection)
        self._block = self._open(connection)
        self._block.__enter__()
        return connection

    def complete(self, work: Flow[None], completes: Completes) -> None:
        """Complete the job and commit. Raises: LeaseLost; nothing is committed then."""
        connection = connections[self._store.alias]
        try:
            completes.sending()
            self._store.run_in(connection, work, work.name)
        except BaseException as error:
            self.roll_back(error)
            raise
        if not self._inner:
            # Ahead of the callbacks of the handler: whatever these raise, the job is done.
            connection.on_commit(partial(self._tell, completes))
            connection.run_on_commit.insert(0, connection.run_on_commit.pop())
        self._block.__exit__(None, None, None)

    def _tell(self, completes: Completes) -> None:
        self._committed = True
        completes.committed()

    def roll_back(self, error: BaseException) -> None:
        """Undo what the handler did, because of an error, which goes its own way."""
        try:
            self._block.__exit__(type(error), error, error.__traceback__)
        except BaseException as raised:
            if raised is not error and raised.__cause__ is not error:
                raise

    @contextmanager
    def _open(self, connection: Any) -> Iterator[None]:
        """Have a transaction that fails as Django's own does, for handlers and policies that know its errors.

        Except where the database was busy or out of reach, which a run tries again.
        """
        try:
            with _at_once(connection), transaction.atomic(using=self._store.alias):
                yield
        except DjangoError as error:
            ours = None if self._committed else self._store.dialect.translate(error)
            if isinstance(ours, DatabaseUnavailable) and not connection.in_atomic_block:
                connection.close()
            if isinstance(ours, DatabaseUnavailable | DatabaseBusy):
                raise ours from error
            raise


@contextmanager
def _at_once(connection: Any) -> Iterator[None]:
    """Have a transaction that begins now take the lock of writers at once, where there is one for the whole file.

    One that reads first and writes then is refused when another has written in between, however long it would wait.
    """
    if connection.in_atomic_block or not hasattr(connection, "transaction_mode"):
        yield
        return
    # Once it is open: opening it sets the mode that the project has chosen.
    connection.ensure_connection()
    before, connection.transaction_mode = connection.transaction_mode, "IMMEDIATE"
    try:
        yield
    finally:
        connection.transaction_mode = before
