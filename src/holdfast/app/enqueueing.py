"""Enqueueing: jobs by the name of their kind, bound jobs, many at once, and the hooks that see them all."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, cast

from holdfast import jobs, logs
from holdfast.app.base import Base
from holdfast.app.lookout import Lookout
from holdfast.bound import Bound, EnqueueHook, check_hook, likeness, with_headers
from holdfast.errors import ConfigError, DatabaseUnavailable, InvalidPayload, PayloadTooLarge, UnknownKind
from holdfast.events import JobsEnqueued
from holdfast.flow import Flow, notifying
from holdfast.jobs.enqueueing import Drawn, adding_one, again, is_plain
from holdfast.lines import after_others
from holdfast.store import Store
from holdfast.store.sharded import Within
from holdfast.tracing import Join, Tracing
from holdfast.values.ids import new_id, new_ids
from holdfast.values.options import (
    USING,
    EnqueueKeywords,
    EnqueueOptions,
    HandlerOptions,
    StoreKeywords,
    kind_name,
    only_options,
    switch,
)
from holdfast.values.payload import encode_value
from holdfast.values.rows import Enqueued, NewJob
from holdfast.values.shards import stamp_of
from holdfast.values.spelling import spelt

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

T = TypeVar("T")
H = TypeVar("H", bound=EnqueueHook)
# What is to be added: the rows, the work, and what to do instead of it once a first try has failed. A plain tuple,
# because one is made for every enqueue.
Adding = tuple[Sequence[NewJob], Flow[T], Callable[[], Flow[T]]]
_BY_NAME = "must be the name of a kind; a handler has calls of its own, as in send.{call}(order_id=1)"
_PAYLOAD = 'the arguments of the job go into its payload: hf.enqueue(kind, {"{name}": …})'
# What the calls that name a kind take beside kind and payload.
_TAKES = {
    "bind": ("check", *EnqueueKeywords.__annotations__),
    "enqueue": (*USING, "check"),
    "aenqueue": (*USING, "check"),
}


class Enqueues(Base):
    """The face by which an application adds jobs."""

    def __init__(self, url: str | None = None, **options: Unpack[StoreKeywords]) -> None:
        super().__init__(url, **options)
        self._enqueue_hooks: list[EnqueueHook] = []
        self._lookout = Lookout(self.store, alone=self.shards is None)

    def enqueue_hook(self, hook: H) -> H:
        """Call `hook(new)` for every job that is enqueued, and add the headers that it returns (None: no headers).

        `new` has `kind`, `queue` and the `headers` so far: those that the caller gave and those of hooks before it, all
        of which stay. It is called before the database is asked, in the caller's thread or event loop, and must not
        block. What it raises, the caller gets, and nothing is enqueued.
        """
        check_hook(hook)
        self._enqueue_hooks.append(hook)
        return hook

    @spelt
    def trace(self, *, tracer_provider: TracerProvider | None = None, join: Join = "auto", roots: bool = False) -> None:
        """Make OpenTelemetry spans of enqueues and attempts; before workers are made, and once.

        tracer_provider: by default OpenTelemetry's own. join: "auto" puts the first attempt of a job that was not put
        off below the span that enqueued it, and links others to it; "parent" and "link" do the one or the other always.
        roots: begin a trace for what is enqueued, or runs, outside of any; by default it is not traced.
        Raises: ConfigError; DriverMissing without the extra `otel`.
        """
        if self.context.tracing is not None:
            raise ConfigError("trace", "was called already", join)
        tracing = self.context.tracing = Tracing(tracer_provider, join, bool(switch(roots, "roots")))
        self._enqueue_hooks.append(tracing.hook)
        logs.trace_ids.append(tracing.trace_id)

    def bind(
        self,
        kind: str,
        payload: Mapping[str, Any] | None = None,
        *,
        check: bool = True,
        **options: Unpack[EnqueueKeywords],
    ) -> Bound:
        """Make a job by the name of its kind, for `enqueue_many`; options as in `Handler.using`.

        check: refuse a kind that has no handler here; False for kinds of another program.
        """
        return self._bind("bind", kind, payload, check, options)

    def _bind(
        self, call: str, kind: str, payload: Mapping[str, Any] | None, check: bool, options: EnqueueKeywords
    ) -> Bound:
        only_options(f"hf.{call}()", options, _TAKES[call], _PAYLOAD)
        if not isinstance(cast("object", kind), str):
            raise ConfigError("kind", _BY_NAME.format(call=call), kind)
        handler = self.handlers.get(kind)
        said = EnqueueOptions(**options)
        arguments = dict(payload or {})
        if handler is not None:
            return handler.bound(handler.like(said), (), arguments)
        if check:
            raise UnknownKind(kind, self.handlers)
        text = encode_value(arguments, f"payload of {kind}")
        if len(text.encode()) > self.options.payload_limit:
            raise PayloadTooLarge(kind, len(text.encode()), self.options.payload_limit)
        return Bound(text, likeness(kind_name(kind), said, HandlerOptions(), self.options.buckets))

    def enqueue(
        self,
        kind: str,
        payload: Mapping[str, Any] | None = None,
        *,
        tx: Any = None,
        notify: bool | None = None,
        check: bool = True,
        **options: Unpack[EnqueueKeywords],
    ) -> Enqueued:
        """Add a job by the name of its kind; tx, notify and options as in `Handler.using`, check as in `bind`."""
        return self.enqueue_bound(self._bind("enqueue", kind, payload, check, options), tx, notify)

    async def aenqueue(
        self,
        kind: str,
        payload: Mapping[str, Any] | None = None,
        *,
        tx: Any = None,
        notify: bool | None = None,
        check: bool = True,
        **options: Unpack[EnqueueKeywords],
    ) -> Enqueued:
        """The async twin of `enqueue`."""
        return await self.aenqueue_bound(self._bind("aenqueue", kind, payload, check, options), tx, notify)

    def enqueue_bound(self, bound: Bound, tx: Any = None, notify: bool | None = None) -> Enqueued:
        """Add one job that `bind` made."""
        if tx is not None and self._is_one_statement(bound):
            new = self._hooked_row(bound)
            self.store.tell_in(tx, adding_one(new, True, None, switch(notify, "notify")), new.kind)
            if self._lookout.is_due(tx):
                self._lookout.look(tx)
            return self._answered(new)
        return self._run(self._adding_one(bound, notify, self.within_reach(tx)), tx)

    async def aenqueue_bound(self, bound: Bound, tx: Any = None, notify: bool | None = None) -> Enqueued:
        """The async twin of `enqueue_bound`."""
        if tx is not None and self._is_one_statement(bound):
            new = self._hooked_row(bound)
            await self.store.atell_in(tx, adding_one(new, True, None, switch(notify, "notify")), new.kind)
            if self._lookout.is_due(tx):
                await self._lookout.alook(tx)
            return self._answered(new)
        return await self._arun(self._adding_one(bound, notify, await self.awithin_reach(tx)), tx)

    @spelt
    def enqueue_many(self, bound: Iterable[Bound], *, tx: Any = None, notify: bool | None = None) -> list[Enqueued]:
        """Add many jobs at once, all or none; tx and notify as in `Handler.using`."""
        return self._run(self._adding_many(bound, notify, self.within_reach(tx)), tx)

    @spelt
    async def aenqueue_many(
        self, bound: Iterable[Bound], *, tx: Any = None, notify: bool | None = None
    ) -> list[Enqueued]:
        """The async twin of `enqueue_many`."""
        return await self._arun(self._adding_many(bound, notify, await self.awithin_reach(tx)), tx)

    def _is_one_statement(self, bound: Bound) -> bool:
        """Tell whether a job in a caller's transaction is one statement, which needs no flow: most of them are."""
        return self.shards is None and not self.context.commit_ordered and is_plain(bound.like)

    def _hooked_row(self, bound: Bound) -> NewJob:
        job_id = new_id()
        if self._enqueue_hooks:
            bound = with_headers(bound, self._enqueue_hooks, self.options.payload_limit, job_id)
        return bound.new_job(job_id)

    def _answered(self, new: NewJob) -> Enqueued:
        answer = Enqueued(new.id)
        if self.events.wants(JobsEnqueued):
            self._tell((new,), answer, True)
        return answer

    def _adding_one(self, bound: Bound, notify: bool | None, within: Within | None) -> Adding[Enqueued]:
        job_id = new_id() if within is None else within.new_id(bound.like)
        if self._enqueue_hooks:
            bound = with_headers(bound, self._enqueue_hooks, self.options.payload_limit, job_id)
        new, drawn = bound.new_job(job_id), Drawn.now()
        work = jobs.enqueue(new, fresh=True)
        if self.context.commit_ordered:
            work = self._after_others(work, (new,))
        if notify is None:
            return (new,), work, lambda: again(jobs.enqueue, new, drawn)
        switch(notify, "notify")
        return (new,), notifying(work, notify), lambda: notifying(again(jobs.enqueue, new, drawn), notify)

    def _adding_many(
        self, bound: Iterable[Bound], notify: bool | None, within: Within | None
    ) -> Adding[list[Enqueued]]:
        given = all_bound(bound)
        ids = new_ids(len(given)) if within is None else within.new_ids([one.like for one in given])
        new = [one.new_job(job_id) for one, job_id in zip(self._hooked(given, ids), ids, strict=True)]
        drawn = Drawn.now()
        work = notifying(jobs.enqueue_many(new, fresh=True), switch(notify, "notify"))
        if self.context.commit_ordered:
            work = self._after_others(work, new)
        return new, work, lambda: notifying(again(jobs.enqueue_many, new, drawn), notify)

    def shard_of(self, key: str) -> int:
        """Tell which shard a key belongs to, such as that of a job, or the id of a run; 0 where there are no shards."""
        within = self.within_reach(None)
        return 0 if within is None else within.choose(key)

    async def ashard_of(self, key: str) -> int:
        """The async twin of `shard_of`."""
        within = await self.awithin_reach(None)
        return 0 if within is None else within.choose(key)

    @spelt
    def by_shard(self, bound: Iterable[Bound]) -> list[list[Bound]]:
        """Sort jobs by the shards that they belong to: `for part in hf.by_shard(jobs): hf.enqueue_many(part)`.

        Each part can be added at once. Those that belong nowhere in particular go with the largest.
        """
        given, within = all_bound(bound), self.within_reach(None)
        return ([given] if given else []) if within is None else within.sorted(given, lambda one: one.like)

    @spelt
    async def aby_shard(self, bound: Iterable[Bound]) -> list[list[Bound]]:
        """The async twin of `by_shard`."""
        given, within = all_bound(bound), await self.awithin_reach(None)
        return ([given] if given else []) if within is None else within.sorted(given, lambda one: one.like)

    def _hooked(self, given: list[Bound], ids: Sequence[str] = ()) -> list[Bound]:
        """Let the enqueue hooks add headers to jobs that are added at once; ids: theirs, where they are drawn."""
        if not self._enqueue_hooks:
            return given
        hooks, limit = self._hooks_for([(one.like.queue, one.like.kind) for one in given]), self.options.payload_limit
        return [
            with_headers(one, hooks, limit, job_id) for one, job_id in zip(given, ids or [""] * len(given), strict=True)
        ]

    def _hooks_for(self, new: Sequence[tuple[str, str]]) -> list[EnqueueHook]:
        """Return the hooks for what is added at once, each by queue and kind: several have one span, not one each."""
        hooks, tracing = self._enqueue_hooks, self.context.tracing
        if tracing is None or len(new) < 2:
            return hooks
        return [tracing.hook_of_many(new) if hook == tracing.hook else hook for hook in hooks]

    def _after_others(self, work: Flow[T], new: Sequence[NewJob]) -> Flow[T]:
        """Have an enqueue to queues in the order of commits wait for the others of its keys."""
        ordered = self.context.commit_ordered
        return after_others(work, [(job.queue, job.key) for job in new if job.key is not None and job.queue in ordered])

    def _repeat(self, adding: Adding[T]) -> Callable[[], Flow[T]]:
        """Return what makes the repeat of an enqueue, which waits for others as the first try did."""
        new, _, instead = adding
        return (lambda: self._after_others(instead(), new)) if self.context.commit_ordered else instead

    def within_reach(self, tx: Any) -> Within | None:
        """Find out which shards new work may go to; None where there are no shards."""
        return None if self.shards is None else self.shards.go(self.shards.within(tx))

    async def awithin_reach(self, tx: Any) -> Within | None:
        """The async twin of `within_reach`."""
        return None if self.shards is None else await self.shards.ago(self.shards.within(tx))

    def _store_of(self, new: Sequence[NewJob], tx: Any) -> Store:
        """Return the store that new rows are for: their ids say the shard. What `tx` is on has said which it is."""
        if self.shards is None or not new:
            return self.store
        number = stamp_of(new[0].id) or 0
        return self.shards.go(self.shards.sure_of(number)) if tx is None else self.shards.of(number)

    async def _astore_of(self, new: Sequence[NewJob], tx: Any) -> Store:
        """The async twin of `_store_of`."""
        if self.shards is None or not new:
            return self.store
        number = stamp_of(new[0].id) or 0
        return await self.shards.ago(self.shards.sure_of(number)) if tx is None else self.shards.of(number)

    def _avoid(self, new: Sequence[NewJob]) -> None:
        """Let jobs that may go to any shard leave out for a while the one that these were for."""
        if self.shards is not None and new:
            self.shards.avoided.add(stamp_of(new[0].id) or 0)

    def _run(self, adding: Adding[T], tx: Any) -> T:
        new, work, _ = adding
        try:
            store = self._store_of(new, tx)
            answer = store.run(work, self._repeat(adding)) if tx is None else store.run_in(tx, work, _named(new))
        except DatabaseUnavailable:
            self._avoid(new)
            raise
        self._tell(new, answer, tx)
        if self._lookout.is_due(tx):
            self._lookout.look(tx)
        return answer

    async def _arun(self, adding: Adding[T], tx: Any) -> T:
        new, work, _ = adding
        try:
            store = self.store if self.shards is None else await self._astore_of(new, tx)
            own = store.arun(work, self._repeat(adding)) if tx is None else store.arun_in(tx, work, _named(new))
            answer = await own
        except DatabaseUnavailable:
            self._avoid(new)
            raise
        self._tell(new, answer, tx)
        if self._lookout.is_due(tx):
            await self._lookout.alook(tx)
        return answer

    def _tell(self, new: Sequence[NewJob], answer: Any, tx: Any) -> None:
        """Say what was added, and wake the workers of this process."""
        if new and self.events.wants(JobsEnqueued):
            ids = [each.id for each in ((answer,) if isinstance(answer, Enqueued) else answer)]
            kinds, queues = [job.kind for job in new], [job.queue for job in new]
            self.events.emit(JobsEnqueued(ids, kinds, tx is not None or self.store.open_tx() is not None, queues))
        if tx is None:
            self.context.wake_workers()


def _named(new: Sequence[NewJob]) -> str:
    return new[0].kind if new else "nothing"


def all_bound(bound: object) -> list[Bound]:
    """Check that jobs are bound ones, and list them."""
    if isinstance(bound, Bound):
        raise InvalidPayload("enqueue_many", None, "give a list of jobs; for one there is enqueue")
    if not isinstance(bound, Iterable):
        raise InvalidPayload("enqueue_many", None, f"give a list of handler.bind(…), not {type(bound).__name__}")
    given = list(cast("Iterable[object]", bound))
    for one in given:
        if not isinstance(one, Bound):
            raise InvalidPayload("enqueue_many", None, f"give handler.bind(…), not {type(one).__name__}")
    return cast("list[Bound]", given)
