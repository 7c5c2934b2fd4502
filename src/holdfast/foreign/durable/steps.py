"""The remote steps of a durable engine as an application sees them: handlers, and the worker's source."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar

from holdfast.context import Context
from holdfast.errors import ConfigError, QueryFailed, UniqueViolation
from holdfast.flow import Flow
from holdfast.foreign.durable import flows as durable_transport
from holdfast.foreign.durable.desk import DurableDesk
from holdfast.foreign.durable.flows import DurableTables, Takes
from holdfast.foreign.source import ForeignHandler, ForeignSource
from holdfast.life.source import Renewed, Settled, Source, complete_each
from holdfast.store import Store
from holdfast.values.options import HandlerOptions
from holdfast.values.retry import Duration, Retry
from holdfast.values.rows import Completion, End, Lease

P = ParamSpec("P")
R = TypeVar("R")

CREATE_TRIES = 20
CREATE_PAUSE_SECONDS = 0.05


class DurableSteps(ForeignSource):
    """The remote steps that a durable engine dispatches: serve them (`step`)."""

    def __init__(self, context: Context, name: str, tables: DurableTables, store: Store | None = None) -> None:
        super().__init__(context, name, store)
        self.tables: DurableTables = tables  # pyright: ignore[reportIncompatibleVariableOverride]
        self._takes: dict[str, Takes] = {}

    def step(
        self, name: str, *, timeout: Duration | None = None, concurrency: int | None = None
    ) -> Callable[[Callable[P, R]], ForeignHandler[P, R]]:
        """Register a function for a step: it takes the step's input as its one argument, or none.

        `job: Job` is injected; `job.headers` has run_id, seq and step_id. What it returns is the step's output. An
        exception is a failure that the engine may retry; `Fatal` is one that it does not.
        """
        self.tables.group(name)
        lease = self.tables.lease_ms / 1000
        options = HandlerOptions(retry=Retry(max_attempts=1), lease=lease, timeout=timeout, concurrency=concurrency)
        return lambda fn: self._register(name, fn, options)

    def _check(self, handler: ForeignHandler[..., Any]) -> None:
        self._takes[handler.kind] = _takes(handler)

    def create_schema(self) -> None:
        """Make both tables if they are not there, beside other programs that may be doing so at this moment."""
        for name in ("create_tasks", "create_results", "create_index"):
            for again in range(CREATE_TRIES):
                try:
                    self._run(durable_transport.create_table(self.tables, name))
                    break
                except (UniqueViolation, QueryFailed) as error:
                    _raise_unless_raced(error, again)
                    time.sleep(CREATE_PAUSE_SECONDS)

    async def acreate_schema(self) -> None:
        """The async twin of `create_schema`."""
        for name in ("create_tasks", "create_results", "create_index"):
            for again in range(CREATE_TRIES):
                try:
                    await self._arun(durable_transport.create_table(self.tables, name))
                    break
                except (UniqueViolation, QueryFailed) as error:
                    _raise_unless_raced(error, again)
                    await asyncio.sleep(CREATE_PAUSE_SECONDS)

    @property
    def desk(self) -> DurableDesk:
        """What people do with these tables: list, show, retry, look for trouble, and so on."""
        return DurableDesk(self.name, self.tables)

    # For the worker: the protocol of `holdfast.life.source.Source`

    def claim(
        self, leases: Mapping[str, int], limit: int, worker: str, *, suspects: bool = True, turn: str | None = None
    ) -> Flow[list[Lease]]:
        takes = {step: self._takes[step] for step in leases}
        return durable_transport.claim(self.tables, takes, limit, worker, self._busy(leases))

    def renew(self, leases: Sequence[Lease], worker: str, begun: Collection[Any] = ()) -> Flow[Renewed]:
        return durable_transport.renew(self.tables, leases, worker)

    def settle(self, ends: Sequence[End], worker: str, leases: Sequence[Lease] = ()) -> Flow[Settled]:
        return durable_transport.settle(self.tables, ends, worker)

    def complete(self, completion: Completion, worker: str) -> Flow[None]:
        return durable_transport.complete(self.tables, completion.lease, completion.result, worker)

    def complete_all(self, completions: Sequence[Completion], worker: str) -> Flow[None]:
        return complete_each(self, completions, worker)


def _takes(handler: ForeignHandler[..., Any]) -> Takes:
    signature = handler.signature
    names = list(signature.traits)
    if len(names) > 1:
        raise ConfigError(handler.kind, "a step takes one input: at most one parameter beside `job: Job`", names)
    return Takes(names[0], names[0] in signature.defaults) if names else Takes()


def _raise_unless_raced(error: UniqueViolation | QueryFailed, again: int) -> None:
    """Let a creator that lost a race try again: the other one's table is not visible yet, or half there."""
    raced = isinstance(error, UniqueViolation) or any(words in error.detail for words in _RACED)
    if not raced or again == CREATE_TRIES - 1:
        raise error


_RACED = ("already exists", "concurrently updated", "Duplicate key name")


# Holds it to the protocol, for type checkers.
_KIND: type[Source] = DurableSteps
