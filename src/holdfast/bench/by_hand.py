"""What the raw-SQL loops share: the name of their tables, payloads, and how batches are made."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from typing import Any

import msgspec


def written(sql: str, prefix: str) -> str:
    return sql.replace("bench_raw", f"{prefix}_raw")


def payload(order: int) -> str:
    return msgspec.json.encode({"order": order, "amount": 12.5}).decode()


def stamp(sent: int) -> str:
    return msgspec.json.encode({"sent": sent}).decode()


def age(payload: str) -> float:
    """Return the milliseconds since a stamped job set out."""
    return float(time.monotonic_ns() - msgspec.json.decode(payload)["sent"]) / 1e6


class Loops(ABC):
    """Loops over async connections: each claims a batch and settles it, until nothing is left."""

    connections: list[Any]
    sync: Any

    async def enqueue_in(self, count: int) -> None:
        self.sync.execute("begin")
        await self.enqueue_one(count)
        self.sync.execute("commit")

    async def enqueue_many(self, count: int, per_call: int, handler: str = "async def", keep: bool = True) -> None:
        for start in range(0, count, per_call):
            await self._insert([payload(order) for order in range(start, min(start + per_call, count))])

    async def drain(self, count: int, keep: bool) -> float:
        began = time.perf_counter()
        await asyncio.gather(*(self._loop(connection, keep) for connection in self.connections))
        return time.perf_counter() - began

    @abstractmethod
    async def enqueue_one(self, count: int) -> None:
        """Add jobs one by one on the sync connection."""

    @abstractmethod
    async def _insert(self, payloads: list[str]) -> None:
        """Add jobs in one transaction."""

    @abstractmethod
    async def _loop(self, connection: Any, keep: bool) -> None:
        """Claim and settle until nothing is left."""
