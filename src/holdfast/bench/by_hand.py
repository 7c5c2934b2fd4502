"""What the raw-SQL loops share: the name of their tables, payloads, and how batches are made and worked off."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from functools import cache
from typing import Any

import msgspec

from holdfast.bench.effects import Effects

# As many connections for effects as a store has in its pool.
CREW = 10
# What a job is put back with that fails at its first attempt: a line as a traceback ends with.
ERROR = "ConnectionError: the other side is away"
FAILING = ("returns Retry", "raises", "raises, own words")

Jobs = Sequence[Sequence[Any]]
"""Claimed jobs: id, fence, payload, attempts."""


@cache
def written(sql: str, prefix: str) -> str:
    return sql.replace("bench_raw", f"{prefix}_raw")


def payload(order: int) -> str:
    return msgspec.json.encode({"order": order, "amount": 12.5}).decode()


def stamp(sent: int) -> str:
    return msgspec.json.encode({"sent": sent}).decode()


def age(payload: str) -> float:
    """Return the milliseconds since a stamped job set out."""
    return float(time.monotonic_ns() - msgspec.json.decode(payload)["sent"]) / 1e6


def effect_row(job: Sequence[Any]) -> int:
    return Effects.row(msgspec.json.decode(job[2])["order"])


def parted(jobs: Jobs, handler: str) -> tuple[Jobs, Jobs]:
    """Handle jobs; return those that fail, which they do once where the handler is of that kind, and those done."""
    for job in jobs:
        msgspec.json.decode(job[2])
    if handler not in FAILING:
        return [], jobs
    return [job for job in jobs if job[3] == 1], [job for job in jobs if job[3] > 1]


class Loops(ABC):
    """Loops over async connections: each claims a batch and settles it, until nothing is left."""

    connections: list[Any]
    sync: Any
    effect: Effects
    url: str
    dialect: Any

    async def enqueue_in(self, count: int) -> None:
        self.sync.execute("begin")
        await self.enqueue_one(count)
        self.sync.execute("commit")

    async def enqueue_many(self, count: int, per_call: int, handler: str = "async def", keep: bool = True) -> None:
        for start in range(0, count, per_call):
            await self._insert([payload(order) for order in range(start, min(start + per_call, count))])

    async def drain(self, count: int, keep: bool, handler: str = "async def") -> float:
        if handler.startswith("effect"):
            return await (asyncio.to_thread(self._effects_on_threads) if handler.endswith(", def") else self._effects())
        began = time.perf_counter()
        await asyncio.gather(*(self._loop(connection, keep, handler) for connection in self.connections))
        return time.perf_counter() - began

    async def _loop(self, connection: Any, keep: bool, handler: str) -> None:
        while jobs := await self._claim(connection):
            failed, done = parted(jobs, handler)
            if failed:
                await self._put_back(connection, failed)
            if done:
                await self._settle(connection, done, keep)

    async def _effects(self) -> float:
        """Claim batches and work each off on ten connections, a transaction for every job."""
        crew = [await self.dialect.aconnect(self.url, "holdfast-bench") for _ in range(CREW)]
        began = time.perf_counter()
        while jobs := await self._claim(self.connections[0]):
            shared = iter(jobs)
            await asyncio.gather(*(self._each(connection, shared) for connection in crew))
        took = time.perf_counter() - began
        for connection in crew:
            await self._hang_up(connection)
        return took

    async def _each(self, connection: Any, shared: Iterator[Sequence[Any]]) -> None:
        for job in shared:
            await self._effect(connection, job)

    def _effects_on_threads(self) -> float:
        """As `_effects`, each connection on a thread."""
        with ExitStack() as stack:
            crew = [stack.enter_context(closing(self.dialect.connect(self.url))) for _ in range(CREW)]
            threads = stack.enter_context(ThreadPoolExecutor(CREW))
            began = time.perf_counter()
            while jobs := self._claim_sync():
                list(threads.map(self._each_sync, crew, [iter(jobs)] * CREW))
            return time.perf_counter() - began

    def _each_sync(self, connection: Any, shared: Iterator[Sequence[Any]]) -> None:
        for job in shared:
            self._effect_sync(connection, job)

    async def effects(self) -> int:
        return int(self.sync.execute(self.effect.count).fetchone()[0])

    @abstractmethod
    async def enqueue_one(self, count: int) -> None:
        """Add jobs one by one on the sync connection."""

    @abstractmethod
    async def _insert(self, payloads: list[str]) -> None:
        """Add jobs in one transaction."""

    @abstractmethod
    async def _claim(self, connection: Any) -> Jobs:
        """Take a batch: id, fence, payload, attempts."""

    @abstractmethod
    def _claim_sync(self) -> Jobs:
        """Take a batch on the sync connection."""

    @abstractmethod
    async def _settle(self, connection: Any, jobs: Jobs, keep: bool) -> None:
        """Finish a batch in one transaction, each job under its fence."""

    @abstractmethod
    async def _put_back(self, connection: Any, jobs: Jobs) -> None:
        """Make a batch due again, with the text of its error and under a higher fence."""

    @abstractmethod
    async def _effect(self, connection: Any, job: Sequence[Any]) -> None:
        """Write one job's effect and finish it under its fence, in one transaction."""

    @abstractmethod
    def _effect_sync(self, connection: Any, job: Sequence[Any]) -> None:
        """As `_effect`, on a sync connection."""

    @abstractmethod
    async def _hang_up(self, connection: Any) -> None:
        """Close an async connection."""
