"""Django's connections around each call of a handler, as its own signals look after them around each request."""

from __future__ import annotations

from typing import Any

from asgiref.sync import sync_to_async
from django.db import connections, reset_queries


class ConnectionCare:
    """Close what is unusable or too old, before and after, on the thread whose connections the call uses.

    Without it one dropped connection would fail every later job of its thread.
    """

    def __enter__(self) -> None:
        # What DEBUG keeps of queries is of one request, or of one attempt.
        reset_queries()
        close_old_connections()

    def __exit__(self, *ended: object) -> None:
        close_old_connections()

    async def __aenter__(self) -> None:
        await sync_to_async(self.__enter__)()

    async def __aexit__(self, *ended: object) -> None:
        await sync_to_async(self.__exit__)()


def close_old_connections() -> None:
    """Do as Django's function of this name, except to the transaction of a test that jobs run in."""
    for connection in connections.all(initialized_only=True):
        close_if_unusable(connection)


def close_if_unusable(connection: Any) -> None:
    """Close a connection that is broken or has reached its CONN_MAX_AGE; never that of a test's transaction."""
    if not is_of_a_test(connection):
        connection.close_if_unusable_or_obsolete()


def is_of_a_test(connection: Any) -> bool:
    """Tell the transaction that Django's TestCase puts around a test, which sees what no other connection does."""
    return any(getattr(block, "_from_testcase", False) for block in connection.atomic_blocks)
