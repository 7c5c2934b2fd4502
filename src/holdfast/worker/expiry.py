"""The look whether jobs have expired, made right before they begin, by the database's time and for many at once.

Only jobs that say when they expire are looked for. While one look is under way, those who come share the next: however
many slots there are, a store is asked one such question at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from holdfast.flow import Flow
from holdfast.life.source import Source
from holdfast.values.expires import EXPIRES_HEADER
from holdfast.values.rows import Lease
from holdfast.worker.work import Work


def may_expire(lease: Lease) -> bool:
    """Tell whether a job says something of when it expires; from any thread, and quickly."""
    return lease.headers is not None and EXPIRES_HEADER in lease.headers


class Expiry:
    """Looks for the executors of one store; `run` as `Begins` has it."""

    def __init__(self, run: Callable[[Flow[Any]], Awaitable[Any]]) -> None:
        self._run = run
        self._one = asyncio.Lock()
        # By source: the look that begins when the one under way is over.
        self._next: dict[Source, _Look] = {}

    async def of(self, works: Sequence[Work]) -> set[str]:
        """Return the ids of those of these jobs that have expired; they are of one source, and each says when.

        Raises: DatabaseUnavailable; nothing is known then.
        """
        source = works[0].source
        look = self._next.setdefault(source, _Look())
        look.leases += [work.lease for work in works]
        async with self._one:
            if look.expired is None:
                # What comes from now on was not asked about.
                if self._next.get(source) is look:
                    del self._next[source]
                looking = source.expired(look.leases)
                # If this slot is cancelled meanwhile, the next one that shares the look makes it.
                look.expired = set() if looking is None else await self._run(looking)
        return look.expired


class _Look:
    """One question: about which jobs, and what came of it."""

    __slots__ = ("expired", "leases")

    def __init__(self) -> None:
        self.leases: list[Lease] = []
        self.expired: set[str] | None = None
