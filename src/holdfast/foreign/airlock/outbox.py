"""Airlock's outbox table as an application sees it: handlers by event type, dead letters, and the worker's source."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import timedelta
from typing import Any, ParamSpec, TypeVar, get_args

import msgspec

from holdfast.context import Context
from holdfast.errors import ConfigError
from holdfast.flow import Flow
from holdfast.foreign.airlock import dead
from holdfast.foreign.airlock import flows as airlock
from holdfast.foreign.airlock.desk import AirlockDesk
from holdfast.foreign.airlock.flows import AirlockTables
from holdfast.foreign.airlock.messages import ANY_TYPE, Takes
from holdfast.foreign.source import ForeignHandler, PrunedSource
from holdfast.life.source import Renewed, Settled, Source, complete_each
from holdfast.outbox import Pattern, Route
from holdfast.sinks import Sink
from holdfast.store import Store
from holdfast.values.cloudevents import CloudEvent
from holdfast.values.ids import parse_id
from holdfast.values.options import HandlerOptions, text
from holdfast.values.retry import Duration, seconds
from holdfast.values.rows import Completion, End, Lease

P = ParamSpec("P")
R = TypeVar("R")


class AirlockRoute(ForeignHandler[[], Any]):
    """What stands for a handler where events are sent on: the sink, and how many go together."""

    # A worker that dies rarely dies of a message, and it holds many.
    free_lapses = 1

    def __init__(self, event_type: str, route: Route) -> None:
        async def deliver() -> None: ...

        super().__init__(deliver, event_type, HandlerOptions(retry=route.retry, lease=route.lease))
        self.route = route
        self.size = max(2, route.batch)
        self.timeout = seconds(route.timeout, "timeout")


class AirlockOutbox(PrunedSource):
    """The outbox table of Airlock's producers in Node: serve its events (`handler`), see to its dead letters."""

    prune_chunk_rows = 1000

    def __init__(self, context: Context, name: str, tables: AirlockTables, store: Store | None = None) -> None:
        super().__init__(context, name, store)
        self.tables: AirlockTables = tables  # pyright: ignore[reportIncompatibleVariableOverride]
        self._takes: dict[str, Takes] = {}

    def handler(
        self, event_type: str, *, timeout: Duration | None = None, concurrency: int | None = None
    ) -> Callable[[Callable[P, R]], ForeignHandler[P, R]]:
        """Register a function for an event type, or with "*" for every type that has no handler of its own.

        It takes the event as its one argument: annotated `CloudEvent` as that, else as the JSON object that the row
        holds, checked by the annotation. `job: Job` is injected; `job.headers` has aggregate_type, aggregate_id,
        partition_key, and idempotency_key and traceparent where there are some.
        timeout, concurrency: as for `@hf.job`. Retries are the table's.
        """
        text(event_type, "event_type", 128)
        lease = self.tables.lease_ms / 1000
        options = HandlerOptions(retry=self.tables.retry, lease=lease, timeout=timeout, concurrency=concurrency)
        return lambda fn: self._register(event_type, fn, options)

    def route(
        self,
        event_type: str = ANY_TYPE,
        *,
        to: Sink,
        timeout: Duration = 30.0,
        batch: int = 100,
        batch_bytes: int = 2**20,
    ) -> AirlockRoute:
        """Send events of a type on to a sink, or with "*" of every type that has no handler or route of its own.

        They leave as the producer wrote them, with their ids; `partition_key` is the key. Nothing is copied: the row is
        the delivery. timeout: of one call of the sink. batch, batch_bytes: the most that one call takes. Retries are
        the table's; an outage of the sink uses none.
        """
        text(event_type, "event_type", 128)
        tables = self.tables
        pattern = Pattern("#")
        route = Route("all", pattern, to, tables.retry, timeout, tables.lease_ms / 1000, batch, batch_bytes)
        if event_type in self.handlers:
            raise ConfigError(event_type, f"has a handler on {self.name} already", event_type)
        made = self._handlers[event_type] = AirlockRoute(event_type, route)
        self._takes[event_type] = Takes(None)
        return made

    def executor(self, kind: str) -> str:
        return "relay" if isinstance(self.handlers[kind], AirlockRoute) else super().executor(kind)

    def _check(self, handler: ForeignHandler[..., Any]) -> None:
        self._takes[handler.kind] = _takes(handler)

    # For applications

    def create_schema(self) -> None:
        """Make both tables if they are not there, as Airlock's own migration makes them."""
        self._run(airlock.create_schema(self.tables))

    async def acreate_schema(self) -> None:
        """The async twin of `create_schema`."""
        await self._arun(airlock.create_schema(self.tables))

    def replay(self, message_id: str, *, tx: Any = None) -> None:
        """Make a dead letter due again. Raises: JobNotFound, Conflict."""
        work = dead.replay(self.tables, parse_id(message_id))
        if tx is not None:
            self._run_in(tx, work, f"the replay of {message_id}")
        else:
            self._run(work)
            self._context.wake_workers()

    async def areplay(self, message_id: str, *, tx: Any = None) -> None:
        """The async twin of `replay`."""
        work = dead.replay(self.tables, parse_id(message_id))
        if tx is not None:
            await self._arun_in(tx, work, f"the replay of {message_id}")
        else:
            await self._arun(work)
            self._context.wake_workers()

    def discard(self, message_id: str) -> None:
        """Delete a dead letter for good; its idempotency key stays taken. Raises: JobNotFound."""
        self._run(dead.discard(self.tables, parse_id(message_id)))

    async def adiscard(self, message_id: str) -> None:
        """The async twin of `discard`."""
        await self._arun(dead.discard(self.tables, parse_id(message_id)))

    def _prune_chunk(self, age: timedelta, limit: int) -> Flow[int]:
        return dead.prune(self.tables, age, limit=limit)

    @property
    def desk(self) -> AirlockDesk:
        """What people do with these tables: list, show, retry, look for trouble, and so on."""
        return AirlockDesk(self.name, self.tables)

    # For the worker: the protocol of `holdfast.life.source.Source`

    def check(self) -> Flow[None]:
        """Raise ForeignTablesMissing or SchemaMismatch unless the tables are there as we know them."""
        return airlock.check(self.tables)

    def claim(
        self, leases: Mapping[str, int], limit: int, worker: str, *, suspects: bool = True, turn: str | None = None
    ) -> Flow[list[Lease]]:
        takes = {event_type: self._takes[event_type] for event_type in leases}
        return airlock.claim(self.tables, takes, limit, worker, self._busy(leases))

    def renew(self, leases: Sequence[Lease], worker: str, begun: Collection[Any] = ()) -> Flow[Renewed]:
        return airlock.renew(self.tables, leases, worker)

    def settle(self, ends: Sequence[End], worker: str, leases: Sequence[Lease] = ()) -> Flow[Settled]:
        return airlock.settle(self.tables, ends, worker)

    def complete(self, completion: Completion, worker: str) -> Flow[None]:
        return airlock.complete(self.tables, completion.lease, worker)

    def complete_all(self, completions: Sequence[Completion], worker: str) -> Flow[None]:
        return complete_each(self, completions, worker)

    def release_strays(self, worker: str, known: Sequence[Lease]) -> Flow[int]:
        return airlock.release_strays(self.tables, known, worker)


def _takes(handler: ForeignHandler[..., Any]) -> Takes:
    names = list(handler.signature.traits)
    if len(names) > 1:
        rule = "a handler takes the event alone: at most one parameter beside `job: Job`"
        raise ConfigError(handler.kind, rule, names)
    if not names:
        return Takes()
    [field] = msgspec.structs.fields(handler.signature.struct)
    return Takes(names[0], CloudEvent in (field.type, *get_args(field.type)))


# Holds it to the protocol, for type checkers.
_KIND: type[Source] = AirlockOutbox
