"""Bulk handlers: functions that take many jobs at once, and those jobs as such a function sees them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, overload

from holdfast.errors import ConfigError, Conflict, LeasesLost
from holdfast.flow import Flow, Steps
from holdfast.handlers import Application, Handler, name_for, vacant
from holdfast.job import Job, Transaction, completion_of, given_tx, quiet
from holdfast.life.source import Source
from holdfast.values.options import HandlerOptions, kind_name
from holdfast.values.payload import Signature
from holdfast.values.reserved import unreserved
from holdfast.values.retry import Cancel, Duration, Retry, Snooze, number, seconds, whole

if TYPE_CHECKING:
    from holdfast.store import Store

T = TypeVar("T")
R = TypeVar("R")
T_contra = TypeVar("T_contra", contravariant=True)
R_co = TypeVar("R_co", covariant=True)
# The most items of one call: all of them are completed by one statement.
MOST_ITEMS = 10_000
# The most seconds that a call waits for more items: who waits longer wants a debounce, or a schedule.
LONGEST_LINGER = 60.0
# Each attempt takes a tenth of the items that the one before took, so that few runs find the one that fails.
SHRINKS_BY = 10

LeftOut = Retry | Snooze | Cancel | BaseException


class Registrar(Application, Protocol):
    """What handlers are registered on: an application, or a registry."""

    handlers: dict[str, Handler[..., Any]]


class BulkHandler(Handler[[T], R_co]):
    """A function that takes the items of many jobs at once. `enqueue` takes one item and makes one job of it."""

    executor = "bulk"

    def __init__(
        self,
        app: Application,
        fn: Callable[..., R_co],
        kind: str,
        options: HandlerOptions,
        size: int,
        item: str | None = None,
        linger: float = 0.0,
    ) -> None:
        if item is not None and not _is_name(item):
            raise ConfigError("item", "must be a name, as a parameter has one", item)
        super().__init__(app, fn, kind, options, Signature.of_items(fn, Bulk, item))
        self.size = size
        self.linger = linger
        [self._item] = self.signature.traits

    def item_of(self, payload: str) -> T:
        """Read the item of one job. Raises: InvalidPayload."""
        item: T = self.signature.decode(payload, self.kind)[self._item]
        return item

    def share(self, attempt: int, max_attempts: int, lapses: int) -> int:
        """Return how many items a job may share an attempt with, itself included.

        Fewer each time, and none in its last attempt or after the death of a process: whatever was wrong with its
        neighbours does not send it to the dead letters.
        """
        if lapses or attempt >= max_attempts:
            return 1
        # An attempt that a person gave on top may come after any number of others.
        return max(1, self.size // int(SHRINKS_BY ** min(attempt - 1, 9)))


def _is_name(value: object) -> bool:
    return isinstance(value, str) and value.isidentifier()


class BulkDecorator:
    """What `@hf.bulk(…)` returns: applied to a function, it registers it; one item is what `enqueue` takes."""

    def __init__(
        self,
        app: Registrar,
        kind: str | None,
        options: HandlerOptions,
        size: int,
        item: str | None,
        linger: Duration = 0.0,
    ) -> None:
        self._app = app
        self._kind = kind
        self._options = options
        self._size = whole(size, "size", 1, MOST_ITEMS)
        self._item = item
        self._linger = number(seconds(linger, "linger"), "linger", 0.0, LONGEST_LINGER)

    @overload
    def __call__(self, fn: Callable[[list[T], Bulk], R], /) -> BulkHandler[T, R]: ...
    @overload
    def __call__(self, fn: Callable[[list[T]], R], /) -> BulkHandler[T, R]: ...
    def __call__(self, fn: Callable[..., Any], /) -> BulkHandler[Any, Any]:
        return self.register(fn)

    def register(self, fn: Callable[..., Any]) -> BulkHandler[Any, Any]:
        kind = kind_name(name_for(fn, self._kind, "hf.bulk"))
        unreserved(self._options.queue, "queue")
        vacant(self._app.handlers, kind, fn)
        handler: BulkHandler[Any, Any] = BulkHandler(
            self._app, fn, kind, self._options, self._size, self._item, self._linger
        )
        self._app.handlers[kind] = handler
        return handler


class Bulk:
    """The jobs of one call of a bulk handler, handed to one that asks for it by annotation.

    `jobs` are in the order of the items; each is a `Job` as an ordinary handler has it, with its own `result`.
    """

    def __init__(self, jobs: Sequence[Job], store: Store, source: Source, worker: str) -> None:
        self.jobs = tuple(jobs)
        # By index: how items end that the others are completed without.
        self.left_out: dict[int, LeftOut] = {}
        # True inside the block of `transaction()`.
        self.in_transaction = False
        # What its block was given.
        self.open_tx: Any = None
        # What refused the completion: from then on nothing here can be completed.
        self.refusal: LeasesLost | None = None
        # Whether it commits together with others, as a job may (`Job.shares_commit`).
        self.shares_commit = False
        self.undone = False
        # The jobs that are to be completed, and those whose completion was sent.
        self._chosen: Sequence[Job] = ()
        self._completed: Sequence[Job] = ()
        self._store = store
        self._source = source
        self._worker = worker

    def __repr__(self) -> str:
        return f"<Bulk of {len(self.jobs)} jobs of {self.jobs[0].kind if self.jobs else 'no kind'}>"

    @property
    def lost(self) -> list[int]:
        """The indexes of the items whose lease is known to be gone: another worker has them, or will."""
        return [index for index, job in enumerate(self.jobs) if job.lost]

    def leave_out(self, index: int, outcome: LeftOut) -> None:
        """Give one item an outcome of its own: Retry, Snooze, Cancel, Fatal or any other exception.

        The others are completed without it. What it has already done in the transaction is committed with theirs.
        """
        whole(index, "index", 0, len(self.jobs) - 1)
        if not isinstance(outcome, LeftOut):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError("outcome", "must be Retry(…), Snooze(…), Cancel(…), Fatal(…) or an exception", outcome)
        if self.jobs[index].completing:
            raise Conflict(f"Job {self.jobs[index].id} is complete already, or about to be.")
        self.left_out[index] = outcome

    def transaction(self) -> Transaction:
        """Open a transaction in which the effects and completions of all items commit together, fenced.

        `with` or `async with`; it gives what `Job.transaction()` gives. Leaving the block completes every item that is
        not left out; an exception rolls all back.
        Raises: LeasesLost when an item has lost its lease, at the end of the block or at once if that is known; nothing
        is written then, and the items that are left run again without an attempt used. Let it leave the handler.
        """
        self._insist_on_leases()
        return Transaction(self, self._store, self._completion)

    def complete(self, tx: Any = None) -> None:
        """Complete the items that are not left out in a transaction that the handler opened itself.

        As `Job.complete`: any connection that `tx=` takes. Raises: LeasesLost; roll back then, by letting it out.
        """
        tx = given_tx(tx, self._store, "bulk.complete()")
        with self._while_completing() as completion:
            self._store.run_in(tx, quiet(completion), f"the completion of {self!r}")

    async def acomplete(self, tx: Any) -> None:
        """The async twin of `complete`."""
        with self._while_completing() as completion:
            await self._store.arun_in(tx, quiet(completion), f"the completion of {self!r}")

    # What `Transaction` and the worker ask

    @property
    def completing(self) -> bool:
        """True from the moment the completions are sent; of each job, too, so that its lease is left alone."""
        return bool(self._completed)

    @completing.setter
    def completing(self, value: bool) -> None:
        self._completed = self._chosen if value else self._let_go()
        for job in self._completed:
            job.completing = True

    @property
    def settled(self) -> bool:
        """True once the completions were committed together with the handler's own writes."""
        return bool(self._completed) and all(job.settled for job in self._completed)

    @settled.setter
    def settled(self, value: bool) -> None:
        for job in self._completed:
            job.settled = value

    def _let_go(self) -> Sequence[Job]:
        for job in self._completed:
            job.completing = False
        return ()

    def _to_complete(self) -> list[Job]:
        """List the jobs that are neither left out nor completed one by one."""
        return [job for index, job in enumerate(self.jobs) if index not in self.left_out and not job.completing]

    def _insist_on_leases(self) -> None:
        if self.refusal is not None:
            raise Conflict(f"{self!r} has lost a lease, so nothing of it can be completed: let LeasesLost out.")
        if any(job.lost for job in self._to_complete()):
            self.refusal = LeasesLost()
            raise self.refusal

    def _completion(self, _: Any = None) -> Flow[None]:
        # What is left out from now on comes too late.
        self._chosen = self._to_complete()
        completions = [completion_of(job) for job in self._chosen]

        def steps() -> Steps[None]:
            try:
                yield from self._source.complete_all(completions, self._worker).start()
            except LeasesLost as error:
                # A handler that keeps this to itself must not pass for one that succeeded.
                self.refusal = error
                raise

        return Flow("complete_all", steps)

    @contextmanager
    def _while_completing(self) -> Iterator[Flow[None]]:
        """Keep the leases from being renewed or called lost while the completions are under way."""
        self._insist_on_leases()
        if self.in_transaction or self.completing:
            raise Conflict(f"{self!r} is complete already, or about to be; one attempt completes once.")
        completion = self._completion()
        self.completing = True
        try:
            yield completion
        except BaseException:
            self.completing = False
            raise
