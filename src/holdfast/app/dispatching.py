"""Remote steps: say where runs dispatch them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.app.base import Base
from holdfast.errors import ConfigError
from holdfast.values.retry import Duration
from holdfast.values.spelling import spelt

if TYPE_CHECKING:
    from holdfast.foreign import RemoteEngine


class Dispatches(Base):
    """The face by which an application has its remote steps done elsewhere."""

    @spelt
    def remote_engine(
        self,
        prefix: str = "durable",
        *,
        partition: str | None = None,
        transport: Any = None,
        poll: Duration = 0.5,
        lost_after: Duration = 10,
        name: str | None = None,
    ) -> RemoteEngine:
        """Say where `run.remote(…)` dispatches: to workers in any language that share two tables of this database.

        prefix: the tables are `<prefix>_transport_tasks` and `<prefix>_transport_results`; they are made at their first
        use. One prefix per engine. partition: the namespace of the workers. poll: the longest pause between two looks
        for results. lost_after: how long both the task and the result of a step may be missing before it is sent again.
        transport: another way than the tables, such as `SqsTransport(…)`. name: what `run.remote(engine=…)` calls it,
        by default the prefix, for an application with several.
        """
        from holdfast.foreign.durable import engine as making

        if transport is None:
            made = making.engine_over_tables(self.context, prefix, partition, name, poll, lost_after)
        else:
            made = transport.engine(self.context, prefix, partition, name, poll)
        if made.name in self.context.engines:
            raise ConfigError("remote_engine", "each engine is declared once; give this one another name=", made.name)
        self.context.engines[made.name] = made
        return made
