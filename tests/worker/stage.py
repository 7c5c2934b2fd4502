"""A database with Holdfast's tables, an application on it, and ways to run a worker and look at what came of it."""

import asyncio
import re
import sqlite3
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any, TypeVar

import psycopg

from holdfast import Holdfast, admin
from holdfast.events import Event
from holdfast.store import Store
from holdfast.values.ids import new_id
from holdfast.values.views import JobView
from holdfast.worker import Worker
from tests.keeper import Keeper

T = TypeVar("T")
E = TypeVar("E", bound=Event)

DEADLINE = 100.0


class Stage:
    """`hf` is the application; what it says is kept in `said`. Looking and meddling use connections of their own."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.is_sqlite = url.startswith("sqlite")
        self.said: list[Event] = []
        self._store = Store(url)
        self._keeper = Keeper(lambda: psycopg.connect(url, autocommit=True, prepare_threshold=None))
        self.hf = self.app()

    def app(self, url: str | None = None, **options: Any) -> Holdfast:
        """Make another application on the same database; its events are kept too."""
        hf = Holdfast(url or self.url, **options)
        hf.on(Event, self.said.append)
        return hf

    def close(self) -> None:
        self.hf.close()
        self._store.close()
        self._keeper.close()

    # Running

    def work(
        self, body: Callable[[Worker], Awaitable[T]] | None = None, hf: Holdfast | None = None, **options: Any
    ) -> T:
        """Run a worker while `body` runs, or until no job is live; then stop it and close the application."""
        app = hf or self.hf

        async def scene() -> Any:
            try:
                async with app.worker(**options) as worker:
                    return await (self.until_empty(worker) if body is None else body(worker))
            finally:
                await app.aclose()

        return asyncio.run(scene())  # type: ignore[no-any-return]

    async def until(self, true: Callable[[], Any], what: str = "") -> Any:
        """Wait until something is true, and return it."""
        deadline = time.monotonic() + DEADLINE
        while not (value := true()):
            assert time.monotonic() < deadline, f"in vain: {what or true}; said: {self.said[-20:]}"
            await asyncio.sleep(0.01)
        return value

    async def until_empty(self, _worker: Worker | None = None) -> None:
        await self.until(lambda: not self.live(), "no live jobs")

    async def until_said(self, kind: type[E], count: int = 1) -> list[E]:
        await self.until(lambda: len(self.heard(kind)) >= count, f"{count} of {kind.__name__}")
        return self.heard(kind)

    def heard(self, kind: type[E]) -> list[E]:
        return [event for event in self.said if isinstance(event, kind)]

    # Looking and meddling

    def show(self, job: Any) -> JobView:
        return self._store.run(admin.show(getattr(job, "id", job)))

    def live(self) -> int:
        [[count]] = self.sql("select count(*) from holdfast_jobs")
        return int(count)

    def state(self, job: Any) -> str:
        return self.show(job).state

    def run(self, work: Any) -> Any:
        return self._store.run(work)

    async def arun(self, work: Any) -> Any:
        """Write while a worker runs on this loop: it may be inside a transaction that this has to wait for."""
        return await asyncio.to_thread(self.run, work)

    def sql(self, text: str, *params: Any) -> list[Any]:
        """Run one statement with `?` parameters on a connection that only looks use, in autocommit."""
        if self.is_sqlite:
            connection = sqlite3.connect(self.url.removeprefix("sqlite:///"), timeout=20, isolation_level=None)
            try:
                return connection.execute(text, params).fetchall()
            finally:
                connection.close()
        if self.url.startswith("mysql"):
            with self._store.link() as link, link.raw.cursor() as cursor:
                cursor.execute(re.sub(r"\bkey\b", "`key`", text.replace("?", "%s")), params or None)
                return list(cursor.fetchall())
        return self._keeper.run(text.replace("?", "%s").encode(), params or None)

    def steal(self, job: Any) -> None:
        """Let the lease of a job be taken by somebody else."""
        self.sql("update holdfast_jobs set fence = fence + 2, leased_by = 'thief' where id = ?", job.id)

    def put(self, kind: str, payload: str, queue: str = "default") -> str:
        """Insert a row by hand, as a program in another language would."""
        job_id = new_id()
        moment = time.time_ns() // 1000 if self.is_sqlite else datetime.now(UTC)
        self.sql(
            "insert into holdfast_jobs (id, queue, kind, payload, available_at, created_at, max_attempts)"
            " values (?, ?, ?, ?, ?, ?, 5)",
            *(job_id, queue, kind, payload, moment, moment),
        )
        return job_id
