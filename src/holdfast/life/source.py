"""Where a worker's work lives: our own tables, or tables that programs in other languages share.

A source turns the steps of a job's life into flows; the worker, its slots and its settler are the same for all.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from holdfast.errors import Conflict, LeaseLost, LeasesLost
from holdfast.flow import Flow, Steps, flow
from holdfast.life.expiry import Backoff
from holdfast.values.pauses import Paused
from holdfast.values.rows import Completion, Continued, End, Finish, Lease, Park, PutBack, Reaped

T = TypeVar("T")


class LearningFlow(Flow[T]):
    """A flow from whose answer its source learns something for the next one.

    Not inside the flow: what is rolled back or repeated must not teach anything. The part of the worker that ran it
    calls `learn` with the answer, once that is committed.
    """

    __slots__ = ("learn",)

    def __init__(self, name: str, start: Callable[[], Steps[T]], learn: Callable[[T], None]) -> None:
        super().__init__(name, start)
        self.learn = learn


@dataclass(frozen=True, slots=True)
class Renewed:
    """Which leases were put off, and which of those were asked to stop."""

    kept: set[str]
    cancelled: set[str]


@dataclass(frozen=True, slots=True)
class Settled:
    """What a batch came to: ids written now or by an earlier try, and ids whose lease was lost.

    `followed` says that something followed, such as another job that is due now.
    """

    done: set[str] = field(default_factory=set[str])
    lost: set[str] = field(default_factory=set[str])
    followed: bool = field(default=False, compare=False)


class Source(Protocol):
    """One set of tables, with the handlers that serve it.

    A flow that it returns may be a `LearningFlow`.
    """

    name: str
    handlers: Mapping[str, Any]
    # Whether the tables are our own: their ids are unique by themselves.
    ours: bool
    # What may not begin now, as far as is known.
    paused: Paused

    def executor(self, kind: str) -> str:
        """Name what runs jobs of this kind, as the worker's list of executors has it."""

    def check(self) -> Flow[None] | None:
        """Raise unless the tables are there; None where the schema's version says so."""

    def turns(self) -> Sequence[str | None]:
        """List what to claim from, one after the other and each in a transaction of its own; None is all the rest."""

    def again_in(self) -> float | None:
        """Say in how many seconds to claim again, where something that is due may not start before; None: no reason."""

    def claim(
        self, leases: Mapping[str, int], limit: int, worker: str, *, suspects: bool = True, turn: str | None = None
    ) -> Flow[list[Lease]] | None:
        """Claim up to `limit` jobs of these kinds (kind → lease in milliseconds), with or without suspects.

        `turn` is one of those that `turns` gave. None where nothing may be claimed now, because it is paused.
        """

    def ready(self, claimed: Sequence[Lease]) -> Flow[list[Lease]] | None:
        """Make what is to be done before these claimed jobs may run, and gives those that may; None: nothing is."""

    def expired(self, leases: Sequence[Lease]) -> Flow[set[str]] | None:
        """Tell which of these jobs may not begin any more; None where a job never expires."""

    def begin(self, lease: Lease) -> Flow[None] | None:
        """Record that a handler is about to be called; None where the tables do not ask for it. Raises: LeaseLost."""

    def renew(self, leases: Sequence[Lease], worker: str, begun: Collection[Any] = ()) -> Flow[Renewed]:
        """Put off the end of held leases; `begun` names the jobs whose handler has been called."""

    def settle(self, ends: Sequence[End], worker: str, leases: Sequence[Lease] = ()) -> Flow[Settled]:
        """Write how leases ended, each job at most once; `leases` are those of them that are not plain ones.

        Lenient: what an earlier try of the same batch wrote counts as written.
        Raises: Conflict, before anything is written, for a park where the tables have no place for one.
        """

    def complete(self, completion: Completion, worker: str) -> Flow[None]:
        """Complete one job inside a transaction that also holds its effect. Raises: LeaseLost."""

    def complete_all(self, completions: Sequence[Completion], worker: str) -> Flow[None]:
        """Complete several jobs inside a transaction that also holds their effects. Raises: LeasesLost."""

    def reap(self, exclude: Sequence[Lease], limit: int, backoff: Backoff) -> Flow[list[Reaped]] | None:
        """Take back leases that ran out; None where a claim does so by itself."""

    def release_strays(self, worker: str, known: Sequence[Lease]) -> Flow[int] | None:
        """Give back what a lost reply to a claim left leased to us; None where it must wait for its lease to end."""


def without_parks(ends: Sequence[End], tables: str) -> list[Finish | PutBack]:
    """Return ends for tables that have no place for a job that waits, and know no chains.

    Raises: Conflict.
    """
    written = [end for end in ends if not isinstance(end, Park | Continued)]
    if len(written) < len(ends):
        raise Conflict(f"{tables} have no place for a job that waits: finish it, or return it with a delay.")
    return written


@flow
def complete_each(source: Source, completions: Sequence[Completion], worker: str) -> Steps[None]:
    """Complete jobs one after the other, for tables that have no statement for several.

    Commits: with the caller's transaction. Raises: LeasesLost.
    """
    for completion in completions:
        try:
            yield from source.complete(completion, worker)
        except LeaseLost as error:
            raise LeasesLost from error


@flow
def check(sources: Sequence[Source]) -> Steps[None]:
    """Make sure that the tables of all sources are there.

    Raises: ForeignTablesMissing, which says how to make them.
    """
    for source in sources:
        checking = source.check()
        if checking is not None:
            yield from checking
