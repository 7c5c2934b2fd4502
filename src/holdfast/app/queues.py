"""Queues: how long they keep finished jobs, in which order their jobs run, and how many at once and in a time."""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.app.registering import Registers
from holdfast.errors import ConfigError
from holdfast.values.options import QueueOptions
from holdfast.values.queues import Across, OnDead, OnRetry, Ordered, QueueSettings, Rate
from holdfast.values.reserved import unreserved
from holdfast.values.retry import Duration
from holdfast.values.spelling import spelt


class Queues(Registers):
    """The face by which an application says what belongs to a queue."""

    @spelt
    def queue(
        self,
        name: str,
        *,
        retention: Duration | Mapping[str, Duration] | None = None,
        ordered: Ordered = False,
        on_retry: OnRetry = "hold",
        on_dead: OnDead = "go_on",
        concurrency: int | None = None,
        rate: Rate | None = None,
        fair: bool = False,
        key_concurrency: int | None = None,
        key_rate: Rate | None = None,
        across: Across = "one",
    ) -> QueueOptions:
        """Set what belongs to a queue.

        retention: how long it keeps finished jobs (0 deletes at once).
        ordered: jobs of one key run one after the other, in the order of their enqueues, over all workers. on_retry: a
        job that failed holds its key until it is tried again ("hold"), or others pass it ("pass"). on_dead: a key goes
        on behind a dead letter ("go_on"), or stops until somebody has seen to it ("stop"). ordered="commit"
        (PostgreSQL) makes the order that of commits, and producers of one key wait for each other.
        concurrency, rate: how many jobs of the queue run at once, and start in a time, over all workers.
        fair: keys take turns. key_concurrency, key_rate: as concurrency and rate, for each key.
        across: with shards, a queue with concurrency or rate is kept whole in one of them ("one"), or each has a part
        of these limits, and jobs go to any ("split"). Without shards it changes nothing.

        Order and limits are stored when a worker starts, unless something is stored already: that wins, and
        `holdfast queues set` changes it. Said twice of a queue, it must say the same. Raises: ConfigError.
        """
        settings = QueueSettings(ordered, on_retry, on_dead, concurrency, rate, fair, key_concurrency, key_rate, across)
        settings.require_parts(1 if self.shards is None else len(self.shards.stores))
        unreserved(name, "queue")
        before = self.context.queues.get(name)
        if before is not None and before != QueueOptions.of(name, retention, settings):
            rule = f"hf.queue() was told of it before, with other settings ({before}); say all of it in one call"
            raise ConfigError("queue", rule, name)
        return self._declare_queue(name, retention, settings)

    def _declare_queue(
        self, name: str, retention: Duration | Mapping[str, Duration] | None, settings: QueueSettings
    ) -> QueueOptions:
        """Note what is said of a queue, for enqueues and for workers."""
        options = QueueOptions.of(name, retention, settings)
        if settings.ordered == "commit":
            self.store.dialect.require_commit_order()
            self.context.commit_ordered.add(name)
        self.context.queues[name] = options
        return options

    def queue_options(self, name: str) -> QueueOptions:
        return self.context.queue_options(name)
