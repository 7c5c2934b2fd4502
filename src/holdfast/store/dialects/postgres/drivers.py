"""asyncpg's connections as we open them, and what a handler gets of one: a proxy that can be taken back.

asyncpg's own pool does the same with the same parts. They are private, as is what is asked of psycopg's connections;
tests hold what we rely on.
"""

from __future__ import annotations

from functools import cache
from operator import is_not
from typing import Any, NoReturn

from holdfast.errors import OVER, TransactionError
from holdfast.values.drivers import importing


class _Refuses(type):
    def __getattr__(cls, name: str) -> NoReturn:
        raise TransactionError(OVER)


class _Over(metaclass=_Refuses):
    """Stands where a connection stood: whatever is asked of it, the transaction is over."""

    def __getattr__(self, name: str) -> NoReturn:
        raise TransactionError(OVER)


@cache
def async_class() -> Any:
    """Make asyncpg's connection one that knows whether a handler left something on it that no statement undoes."""
    with importing("asyncpg", "postgres"):
        from asyncpg import Connection

    class AsyncConnection(Connection):  # type: ignore[misc, unused-ignore]
        __slots__ = ("changed",)

        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            self.changed = False

        # These ask the pool of a proxied connection to do it for all its connections. We have no such pool.

        def _drop_global_statement_cache(self) -> None:
            self._drop_local_statement_cache()

        def _drop_global_type_cache(self) -> None:
            self._drop_local_type_cache()

        async def set_type_codec(self, *args: Any, **options: Any) -> None:
            self.changed = True
            await super().set_type_codec(*args, **options)

        async def reset_type_codec(self, *args: Any, **options: Any) -> None:
            self.changed = True
            await super().reset_type_codec(*args, **options)

        async def set_builtin_type_codec(self, *args: Any, **options: Any) -> None:
            self.changed = True
            await super().set_builtin_type_codec(*args, **options)

        async def add_listener(self, *args: Any) -> None:
            self.changed = True
            await super().add_listener(*args)

        def add_log_listener(self, callback: Any) -> None:
            self.changed = True
            super().add_log_listener(callback)

        def add_termination_listener(self, callback: Any) -> None:
            self.changed = True
            super().add_termination_listener(callback)

        def add_query_logger(self, callback: Any) -> None:
            self.changed = True
            super().add_query_logger(callback)

    return AsyncConnection


def has_own_adapters(raw: Any) -> bool:
    """Tell whether types, loaders or dumpers were registered on a psycopg connection.

    Its maps are psycopg's own until then, and copies from then on.
    """
    from psycopg import adapters as usual

    own = raw.adapters
    return (
        own.types._registry is not usual.types._registry  # type: ignore[attr-defined, unused-ignore]
        or any(map(is_not, own._loaders, usual._loaders))
        or any(map(is_not, own._dumpers.values(), usual._dumpers.values()))
        or any(map(is_not, own._dumpers_by_oid, usual._dumpers_by_oid))
    )


@cache
def lent_class() -> Any:
    """Make asyncpg's proxy one that says ours when it is used too late; to asyncpg's users it is a Connection."""
    from asyncpg.pool import PoolConnectionProxy

    class LentConnection(PoolConnectionProxy):  # type: ignore[misc, unused-ignore]
        __slots__ = ()

        def take_back(self) -> None:
            raw = self._detach()
            # Cursors, prepared statements and inner transactions that were made here are refused from now on.
            raw._pool_release_ctr += 1
            self._con = _Over()  # type: ignore[misc, unused-ignore]

    return LentConnection
