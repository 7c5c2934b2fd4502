"""A test by itself: the application's jobs are its own, and so is the time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from holdfast.app import Holdfast
from holdfast.errors import Conflict, redact
from holdfast.testing.clock import Clock
from holdfast.testing.django_tests import check_database
from holdfast.testing.make import empty
from holdfast.worker.registry import status_of, workers

ALIVE = ("alive", "draining")


@contextmanager
def isolated(app: Holdfast, *, own_database: bool = False) -> Iterator[Holdfast]:
    """Let a block begin with no jobs, and leave none: `with isolated(hf): …`. The clock is set back at its end.

    It empties Holdfast's own tables, before and after; what is stored of queues and schedules goes with it. Tables
    that are missing are made.
    own_database: this database is for tests, whatever it looks like.
    Raises: Conflict while a worker is alive there, and ConfigError in Django's tests for another database than theirs;
    nothing was deleted then.
    """
    if not own_database:
        check_database(app)
    app.migrate()
    _clear(app, own_database=own_database)
    before = app.store.now
    try:
        yield app
    finally:
        app.store.now = before
        _clear(app, own_database=True)


@contextmanager
def moved_clock(app: Holdfast) -> Iterator[Clock]:
    """Give the application a clock that only the block moves, and its own one back at the end."""
    before = app.store.now
    try:
        yield Clock(app.store)
    finally:
        app.store.now = before


def _clear(app: Holdfast, *, own_database: bool) -> None:
    if not own_database and (alive := [one.id for one in app.store.run(workers()) if status_of(one) in ALIVE]):
        raise Conflict(
            f"isolate() deletes every job of {redact(app.url)}, and {alive[0]} works there: is this the database "
            "of your tests? If so, stop the worker, or say own_database=True. Nothing was deleted."
        )
    app.store.run(empty(app.store))
