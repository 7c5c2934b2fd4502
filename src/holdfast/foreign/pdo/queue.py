"""The PHP queue tables as an application sees them: handlers, publishing, and the worker's source."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import timedelta
from typing import Any, ParamSpec, TypeVar

from holdfast.context import Context
from holdfast.flow import Flow
from holdfast.foreign.pdo import dead as pdo_dead
from holdfast.foreign.pdo import flows as pdo
from holdfast.foreign.pdo.desk import PdoDesk
from holdfast.foreign.pdo.flows import PdoTables, Stamps
from holdfast.foreign.source import ForeignHandler, PrunedSource
from holdfast.life.source import Renewed, Settled, Source, complete_each
from holdfast.store import Store
from holdfast.values.options import HandlerOptions, text
from holdfast.values.retry import Duration, seconds
from holdfast.values.rows import Completion, End, Lease

P = ParamSpec("P")
R = TypeVar("R")


class PdoQueue(PrunedSource):
    """The queue tables of PHP programs: serve their messages (`handler`) and send them some (`publish`)."""

    prune_chunk_rows = 500

    def __init__(
        self, context: Context, name: str, tables: PdoTables, queues: Sequence[str], store: Store | None = None
    ) -> None:
        super().__init__(context, name, store)
        self.tables: PdoTables = tables  # pyright: ignore[reportIncompatibleVariableOverride]
        self.queues = queues
        self._stamps = Stamps()

    def handler(
        self, urn: str, *, timeout: Duration | None = None, concurrency: int | None = None
    ) -> Callable[[Callable[P, R]], ForeignHandler[P, R]]:
        """Register a function for a urn: it takes keys of `data` as arguments, checked by its annotations.

        Keys that it does not take are ignored. `job: Job` is injected; `job.headers` has trace_id, message_id and lang.
        timeout, concurrency: as for `@hf.job`. Retries are the queue's.
        """
        text(urn, "urn", 255)
        lease = self.tables.lease_ms / 1000
        options = HandlerOptions(retry=self.tables.backoff, lease=lease, timeout=timeout, concurrency=concurrency)
        return lambda fn: self._register(urn, fn, options)

    # For applications

    def create_schema(self) -> None:
        """Make both tables if they are not there."""
        self._run(pdo.create_schema(self.tables))

    async def acreate_schema(self) -> None:
        """The async twin of `create_schema`."""
        await self._arun(pdo.create_schema(self.tables))

    def publish(
        self,
        urn: str,
        data: Mapping[str, Any],
        *,
        queue: str | None = None,
        delay: Duration = 0,
        trace_id: str | None = None,
        tx: Any = None,
    ) -> int:
        """Add a message and return the row's id; `tx` is the caller's connection, as everywhere.

        Raises: InvalidPayload, PayloadTooLarge (65,535 bytes with its envelope).
        """
        work = self._publishing(urn, data, queue, delay, trace_id)
        if tx is not None:
            return self._run_in(tx, work, urn)
        return self._published(self._run(work))

    async def apublish(
        self,
        urn: str,
        data: Mapping[str, Any],
        *,
        queue: str | None = None,
        delay: Duration = 0,
        trace_id: str | None = None,
        tx: Any = None,
    ) -> int:
        """The async twin of `publish`."""
        work = self._publishing(urn, data, queue, delay, trace_id)
        if tx is not None:
            return await self._arun_in(tx, work, urn)
        return self._published(await self._arun(work))

    def _publishing(
        self, urn: str, data: Mapping[str, Any], queue: str | None, delay: Duration, trace_id: str | None
    ) -> Flow[int]:
        # Made here and not in the flow: a repeated flow must not give the message another id.
        envelope = pdo.message(self.tables, urn, data, queue, trace_id)
        return pdo.publish(self.tables, envelope, queue or self.tables.queue, seconds(delay, "delay"))

    def _published(self, row_id: int) -> int:
        self._context.wake_workers()
        return row_id

    def replay(self, failed_id: int, *, tx: Any = None) -> int:
        """Put a dead letter back into its queue and return the new row's id. Raises: JobNotFound, Conflict."""
        work = pdo_dead.replay(self.tables, failed_id)
        if tx is not None:
            return self._run_in(tx, work, f"the replay of {failed_id}")
        return self._published(self._run(work))

    async def areplay(self, failed_id: int, *, tx: Any = None) -> int:
        """The async twin of `replay`."""
        work = pdo_dead.replay(self.tables, failed_id)
        if tx is not None:
            return await self._arun_in(tx, work, f"the replay of {failed_id}")
        return self._published(await self._arun(work))

    def discard(self, failed_id: int) -> None:
        """Delete a dead letter for good. Raises: JobNotFound."""
        self._run(pdo_dead.discard(self.tables, failed_id))

    async def adiscard(self, failed_id: int) -> None:
        """The async twin of `discard`."""
        await self._arun(pdo_dead.discard(self.tables, failed_id))

    def _prune_chunk(self, age: timedelta, limit: int) -> Flow[int]:
        return pdo_dead.prune(self.tables, age, limit=limit)

    @property
    def desk(self) -> PdoDesk:
        """What people do with these tables: list, show, retry, look for trouble, and so on."""
        return PdoDesk(self.name, self.tables)

    # For the worker: the protocol of `holdfast.life.source.Source`

    def claim(
        self, leases: Mapping[str, int], limit: int, worker: str, *, suspects: bool = True, turn: str | None = None
    ) -> Flow[list[Lease]]:
        takes = {urn: self.handlers[urn].signature.traits for urn in leases}
        return pdo.reserve(self.tables, self.queues, takes, limit, self._busy(leases))

    def renew(self, leases: Sequence[Lease], worker: str, begun: Collection[Any] = ()) -> Flow[Renewed]:
        return pdo.renew(self.tables, leases, self._stamps)

    def settle(self, ends: Sequence[End], worker: str, leases: Sequence[Lease] = ()) -> Flow[Settled]:
        return pdo.settle(self.tables, ends, self._stamps)

    def complete(self, completion: Completion, worker: str) -> Flow[None]:
        return pdo.complete(self.tables, completion.lease, self._stamps)

    def complete_all(self, completions: Sequence[Completion], worker: str) -> Flow[None]:
        return complete_each(self, completions, worker)


# Holds it to the protocol, for type checkers.
_KIND: type[Source] = PdoQueue
