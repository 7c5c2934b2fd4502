"""A test by itself: the application's jobs are its own, and so is the time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from holdfast.app import Holdfast
from holdfast.errors import Conflict, redact
from holdfast.flow import Steps, flow, run_text
from holdfast.store import Store, migrate
from holdfast.testing.clock import Clock
from holdfast.testing.django_tests import check_database
from holdfast.testing.make import empty


@contextmanager
def isolated(app: Holdfast, *, own_database: bool = False) -> Iterator[Holdfast]:
    """Let a block begin with no jobs, and leave none: `with isolated(hf): …`. The clock is set back at its end.

    It empties Holdfast's own tables, before and after; what is stored of queues and schedules goes with it. Tables
    that are missing are made.
    own_database: this database is for tests, whatever it looks like.
    Raises: Conflict while a worker is alive there, or has fallen silent and not been called dead, before the block or
    at its end; ConfigError in Django's tests for another database than theirs. Nothing was deleted or migrated then.
    """
    if not own_database:
        check_database(app)
        _refuse_workers(app)
    app.migrate()
    app.store.run(empty(app.store))
    before = app.store.now
    try:
        yield app
    finally:
        app.store.now = before
        if not own_database:
            _refuse_workers(app)
        app.store.run(empty(app.store))


@contextmanager
def moved_clock(app: Holdfast) -> Iterator[Clock]:
    """Give the application a clock that only the block moves, and its own one back at the end."""
    before = app.store.now
    try:
        yield Clock(app.store)
    finally:
        app.store.now = before


def _refuse_workers(app: Holdfast) -> None:
    if workers := app.store.run(_not_gone(app.store)):
        raise Conflict(
            f"isolate() deletes every job of {redact(app.url)}, and {workers[0]} works there, or fell silent and may "
            "come back: is this the database of your tests? If so, stop the worker, or say own_database=True. "
            "Nothing was deleted."
        )


@flow
def _not_gone(store: Store) -> Steps[list[str]]:
    """List the workers that have neither stopped nor been called dead.

    Of tables of any version, because none may be migrated before; and without a clock, because tests move theirs.
    """
    if not (yield from migrate.version().start()):
        return []
    table = store.dialect.table("workers")
    look = f"select id from {table} where status in ('alive', 'draining') order by id"  # noqa: S608 - a name of ours
    return [str(row[0]) for row in (yield from run_text("workers_not_gone", look))]
