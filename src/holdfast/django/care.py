"""Django's connections around each call of a handler, as its own signals look after them around each request."""

from __future__ import annotations

from asgiref.sync import sync_to_async
from django.db import close_old_connections, reset_queries


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
