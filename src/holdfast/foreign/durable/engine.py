"""Remote steps over two tables, the engine's side: tasks are written with the run's journal, results taken with it.

Safer than the other engines on these tables, in ways that workers do not notice: a task is there if and only if the run
knows that it was sent, a result goes in the commit that has it in the journal, and a repeat takes the place of the task
that may be there still.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.context import Context
from holdfast.flow import Flow, Rows, Statement, Steps, Surface, number_of, text_of
from holdfast.foreign.durable.flows import DurableTables, ascii_json
from holdfast.foreign.durable.steps import DurableSteps
from holdfast.foreign.queries import Queries, name_of
from holdfast.remote import Messenger, Result, Task, Transport
from holdfast.store import Store
from holdfast.values.options import storable
from holdfast.values.retry import Duration, seconds

# A result that was seen is not looked at again for as long as the other engines hold one.
SEEN_MS = 30_000


@dataclass(frozen=True)
class TablesTransport:
    """The two tables in the database of the runs."""

    tables: DurableTables
    lost_ms: int

    def look_ms(self) -> int:
        return self.lost_ms

    def send(self, tasks: Sequence[Task]) -> Steps[None]:
        if not tasks:
            return
        now = yield from self.tables.now()
        for task in sorted(tasks):
            yield from self.tables.ask(
                "put",
                id=task.step_id,
                run_id=task.run_id,
                seq=task.seq,
                step=task.name,
                grp=task.grp,
                # The tables have the character set that somebody gave them.
                input=ascii_json(task.input),
                attempt=task.attempt,
                at=now,
            )

    def take(self, told: Mapping[str, str | None]) -> Steps[dict[str, Result]]:
        ids = sorted(told)
        # Workers lock the task and write the result: the same order here, or the two could wait for each other.
        yield from self.tables.ask("tasks_lock", ids=ids)
        found = [_result(row) for row in (yield from self.tables.ask("outcomes", ids=ids))]
        taken = [one.step_id for one in found]
        if taken:
            # The task of a worker that wrote its result and died, or that was sent again meanwhile.
            yield from self.tables.ask("tasks_drop", ids=taken)
            yield from self.tables.ask("results_drop", ids=taken)
        return {one.step_id: one for one in found}

    def withdraw(self, steps: Sequence[str]) -> Steps[None]:
        if steps:
            yield from self.tables.ask("tasks_lock", ids=list(steps))
            yield from self.tables.ask("tasks_drop", ids=list(steps))
            yield from self.tables.ask("results_drop", ids=list(steps))

    def present(self, steps: Sequence[str]) -> Steps[set[str]]:
        rows = (yield from self.tables.ask("there", ids=list(steps))) if steps else ()
        return {text_of(row[0]) for row in rows}

    def arrived(self, limit: int) -> Steps[list[str]]:
        now = yield from self.tables.now(look=True)
        asked = {"stale": now - SEEN_MS, "limit": limit}
        rows: Rows = yield Statement("results_free", asked, look=True, surface=self.tables.queries.surface)
        return [text_of(row[0]) for row in rows]

    def claim(self, steps: Sequence[str]) -> Steps[None]:
        if steps:
            now = yield from self.tables.now()
            yield from self.tables.ask("results_stamp", ids=list(steps), holder="holdfast", at=now)

    def forget(self, steps: Sequence[str]) -> Steps[None]:
        if steps:
            yield from self.tables.ask("results_drop", ids=list(steps))


def _result(row: Sequence[Any]) -> Result:
    step, status, output, error, started_at, created_at = row
    return Result(text_of(step), text_of(status), _text(output), _text(error), _time(started_at), _time(created_at))


def _text(cell: Any) -> str | None:
    return None if cell is None else text_of(cell)


def _time(cell: Any) -> int | None:
    return None if cell is None else number_of(cell)


class RemoteEngine:
    """Where `run.remote` dispatches: made by `hf.remote_engine(…)`."""

    def __init__(
        self,
        name: str,
        transport: Transport,
        *,
        partition: str | None,
        poll: Duration,
        lost_after: float,
        steps: DurableSteps | None = None,
        messenger: Callable[[], Messenger] | None = None,
    ) -> None:
        self.name = name
        self.transport = transport
        self.partition = None if partition is None else storable(partition, "partition")
        self.poll = seconds(poll, "poll", at_least=0.01)
        self.lost_after = lost_after
        self._steps = steps
        self._prepared = False
        self.messenger = messenger

    def __repr__(self) -> str:
        return f"<RemoteEngine {self.name}>"

    def create_schema(self) -> None:
        """Make the tables if they are not there; else that is done at their first use. Nothing for messages."""
        if self._steps is not None:
            self._steps.create_schema()

    async def acreate_schema(self) -> None:
        """The async twin of `create_schema`."""
        if self._steps is not None:
            await self._steps.acreate_schema()

    async def aprepare(self) -> None:
        """Make the tables that are not there, at the first use; who may create nothing needs them to be there."""
        if self._steps is None or self._prepared:
            return
        queries = self._steps.tables.queries
        if await self._steps.store.arun(Flow("missing", queries.missing)):
            await self.acreate_schema()
        self._prepared = True


def tables_of(store: Store, prefix: str, name: str, lost_ms: int) -> TablesTransport:
    """Make the transport over the tables with this prefix, in the store of the runs."""
    tasks, results = f"{name_of(prefix, 'prefix', 39)}_transport_tasks", f"{prefix}_transport_results"
    names = {
        "foreign_tasks": tasks,
        "foreign_results": results,
        "foreign_index": f"{tasks}_grp_idx",
        "foreign_lock": tasks,
    }
    surface = Surface("foreign/durable", f"durable:{name}", tuple(names.items()))
    store.dialect.catalogue(surface)
    return TablesTransport(DurableTables(Queries(surface, (tasks, results))), lost_ms)


def engine_over_tables(
    context: Context,
    prefix: str,
    partition: str | None,
    name: str | None,
    poll: Duration,
    lost_after: Duration,
) -> RemoteEngine:
    """Make an engine whose tasks and results are rows beside the runs."""
    lost = seconds(lost_after, "lost_after", at_least=0.1, at_most=86_400)
    called = prefix if name is None else name_of(name, "name", 60)
    transport = tables_of(context.store, prefix, called, round(lost * 1000))
    steps = DurableSteps(context, f"durable:{called}", transport.tables, context.store)
    return RemoteEngine(called, transport, partition=partition, poll=poll, lost_after=lost, steps=steps)


# Holds it to the protocol, for type checkers.
_TRANSPORT: type[Transport] = TablesTransport
