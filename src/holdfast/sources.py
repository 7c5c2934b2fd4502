"""Where a worker's jobs live: our own table, or tables that programs in other languages share.

A source turns the steps of a job's life into flows; the worker, its slots and its settler are the same for all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from holdfast import jobs
from holdfast.flow import Flow, Steps, flow
from holdfast.jobs import Backoff, Renewed, Settled
from holdfast.model import Finish, Lease, PutBack, Reaped


class Source(Protocol):
    """One set of tables, with the handlers that serve it."""

    name: str
    handlers: Mapping[str, Any]

    def check(self) -> Flow[None] | None:
        """Raise unless the tables are there; None where the schema's version says so."""

    def claim(self, leases: Mapping[str, int], limit: int, worker: str) -> Flow[list[Lease]]:
        """Claim up to `limit` jobs of these kinds (kind → lease in milliseconds)."""

    def renew(self, leases: Sequence[Lease], worker: str) -> Flow[Renewed]:
        """Put off the end of held leases."""

    def settle(self, finishes: Sequence[Finish], returns: Sequence[PutBack], worker: str) -> Flow[Settled]:
        """Write outcomes."""

    def complete(self, lease: Lease, result: str | None, *, keep: bool, worker: str) -> Flow[None]:
        """Complete one job inside a transaction that also holds its effect. Raises: LeaseLost."""

    def reap(self, exclude: Sequence[Lease], limit: int, backoff: Backoff) -> Flow[list[Reaped]] | None:
        """Take back leases that ran out; None where a claim does so by itself."""

    def release_strays(self, worker: str, known: Sequence[Lease]) -> Flow[int] | None:
        """Give back what a lost reply to a claim left leased to us; None where it must wait for its lease to end."""


class JobsSource:
    """Our own tables."""

    name = "jobs"

    def __init__(self, queues: Sequence[str], handlers: Mapping[str, Any]) -> None:
        self.queues = queues
        self.handlers = handlers

    def check(self) -> None:
        """Nothing: whoever uses these tables has compared their version."""

    def claim(self, leases: Mapping[str, int], limit: int, worker: str) -> Flow[list[Lease]]:
        return jobs.claim(self.queues, limit=limit, worker=worker, leases=leases)

    def renew(self, leases: Sequence[Lease], worker: str) -> Flow[Renewed]:
        return jobs.renew([(lease, lease.lease_ms) for lease in leases])

    def settle(self, finishes: Sequence[Finish], returns: Sequence[PutBack], worker: str) -> Flow[Settled]:
        return jobs.settle(finishes, returns)

    def complete(self, lease: Lease, result: str | None, *, keep: bool, worker: str) -> Flow[None]:
        return jobs.complete(lease, result, keep=keep)

    def reap(self, exclude: Sequence[Lease], limit: int, backoff: Backoff) -> Flow[list[Reaped]]:
        return jobs.reap(
            kinds=list(self.handlers), exclude=[lease.id for lease in exclude], limit=limit, backoff=backoff
        )

    def release_strays(self, worker: str, known: Sequence[Lease]) -> Flow[int]:
        return jobs.release_strays(worker, [lease.id for lease in known])


# For work that is made outside a worker: it belongs to our own tables, and nothing is claimed through it.
OURS: Source = JobsSource((), {})


@flow
def check(sources: Sequence[Source]) -> Steps[None]:
    """Make sure that the tables of all sources are there.

    Raises: ForeignTablesMissing, which says how to make them.
    """
    for source in sources:
        checking = source.check()
        if checking is not None:
            yield from checking
