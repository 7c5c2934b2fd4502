"""Batches: many jobs, and one that runs when all of them have ended."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from types import TracebackType
from typing import Any, Self

from holdfast import jobs
from holdfast.app.enqueueing import Adding, Enqueues, all_bound
from holdfast.bound import Bound, callback, child_of, member_of, plain_bound
from holdfast.errors import ConfigError, Conflict
from holdfast.flow import notifying
from holdfast.jobs.enqueueing import Drawn, again
from holdfast.placing import Found, Placed
from holdfast.store.sharded import Within
from holdfast.values.ids import new_id, new_ids, parse_id
from holdfast.values.options import MOST_PARENTS, switch
from holdfast.values.rows import AfterDead, Enqueued
from holdfast.values.shards import stamp_of
from holdfast.values.spelling import spelt


class Batches(Enqueues):
    """The face by which an application adds batches."""

    @spelt
    def batch(
        self,
        *,
        then: Bound,
        tx: Any = None,
        seal: bool = True,
        after_dead: AfterDead = "run",
        notify: bool | None = None,
    ) -> Batch:
        """Collect jobs and add them together when the block ends: `with hf.batch(then=report.bind()) as batch: …`.

        then: the job that runs once all members have ended; its id is the batch's. tx, notify: as in `Handler.using`.
        seal: False lets `extend` add members later, until `seal`; `then` waits for that. after_dead: "cancel" cancels
        `then` as soon as a member is dead or cancelled; with "run" it runs after all, and `job.parents()` tells.
        Everything is added in one transaction; an exception in the block adds nothing.
        """
        if after_dead not in ("run", "cancel"):
            raise ConfigError("after_dead", "must be 'run' or 'cancel'", after_dead)
        switch(notify, "notify")
        return Batch(self, plain_bound(then, "batch(then=…)"), tx, seal, after_dead, notify)

    @spelt
    def extend(
        self, batch: str, members: Iterable[Bound], *, tx: Any = None, notify: bool | None = None
    ) -> list[Enqueued]:
        """Add members to a batch that is not sealed, such as the one of a running member (`job.batch`).

        Raises: BatchNotFound; Conflict if the batch is sealed.
        """
        return self._run(self._growing(batch, members, notify, self.within_reach(tx)), tx)

    @spelt
    async def aextend(
        self, batch: str, members: Iterable[Bound], *, tx: Any = None, notify: bool | None = None
    ) -> list[Enqueued]:
        """The async twin of `extend`."""
        return await self._arun(self._growing(batch, members, notify, await self.awithin_reach(tx)), tx)

    @spelt
    def seal(self, batch: str, *, tx: Any = None) -> bool:
        """Say that no more members come to a batch; False if that was said before. Raises: BatchNotFound."""
        work = jobs.seal_batch(parse_id(batch))
        return self.store.run(work) if tx is None else self.store.run_in(tx, work, "the end of a batch")

    @spelt
    async def aseal(self, batch: str, *, tx: Any = None) -> bool:
        """The async twin of `seal`."""
        work = jobs.seal_batch(parse_id(batch))
        return await (self.store.arun(work) if tx is None else self.store.arun_in(tx, work, "the end of a batch"))

    def _growing(
        self, batch: str, members: Iterable[Bound], notify: bool | None, within: Within | None
    ) -> Adding[list[Enqueued]]:
        switch(notify, "notify")
        batch, given, drawn = parse_id(batch), all_bound(members), Drawn.now()
        ids = new_ids(len(given)) if within is None else within.new_ids([one.like for one in given], [batch])
        new = [member_of(one, batch, job_id) for one, job_id in zip(self._hooked(given, ids), ids, strict=True)]
        work = jobs.grow_batch(batch, new, fresh=True)
        if self.context.commit_ordered:
            work = self._after_others(work, new)
        grow, work = partial(jobs.grow_batch, batch), notifying(work, notify)
        if self.shards is not None:
            work = Placed(work, Found(batch))
        return new, work, lambda: notifying(again(grow, new, drawn), notify)

    def adding_batch(self, batch: Batch) -> Adding[list[Enqueued]]:
        """Make what adds a batch, for `Batch` itself."""
        [then], given = self._hooked([batch.then], [batch.id]), self._hooked(batch.jobs, batch.ids)
        drawn = Drawn.now()
        new = [member_of(one, batch.id, job_id) for one, job_id in zip(given, batch.ids, strict=True)]
        last = callback(then, batch.id)
        add = partial(jobs.add_batch, last, sealed=batch.seal, on_dead=batch.after_dead)
        work = add(new, fresh=True)
        if self.context.commit_ordered:
            work = self._after_others(work, [*new, last])
        work = notifying(work, batch.notify)
        if self.shards is not None:
            work = Placed(work, stamp_of(batch.id) or 0)
        return new, work, lambda: notifying(again(add, new, drawn), batch.notify)

    def add_batch(self, batch: Batch) -> None:
        """Add a batch, for `Batch` itself."""
        self._run(self.adding_batch(batch), batch.tx)

    async def aadd_batch(self, batch: Batch) -> None:
        """The async twin of `add_batch`."""
        await self._arun(self.adding_batch(batch), batch.tx)

    def add_joined(self, members: Iterable[Bound], then: Bound, tx: Any = None) -> list[Enqueued]:
        """Add jobs, and one that runs once all of them are done and can read their results, for `holdfast.celery`.

        The last of the answer is that job; it is cancelled if one of the others is dead or cancelled.
        """
        return self._run(self._joining(members, then, self.within_reach(tx)), tx)

    def _joining(self, members: Iterable[Bound], then: Bound, within: Within | None) -> Adding[list[Enqueued]]:
        given, last = all_bound(members), plain_bound(then, "a chord")
        if not 1 <= len(given) <= MOST_PARENTS:
            rule = f"must have 1 to {MOST_PARENTS:,} members; for more there is hf.batch"
            raise ConfigError("chord", rule, f"{len(given)} members")
        likes = [one.like for one in (*given, last)]
        *ids, last_id = new_ids(len(likes)) if within is None else within.new_ids(likes)
        given, [last] = self._hooked(given, ids), self._hooked([last], [last_id])
        new = [plain_bound(one, "a chord").new_job(job_id) for one, job_id in zip(given, ids, strict=True)]
        new.append(child_of(last, tuple(ids), last_id))
        drawn, work = Drawn.now(), jobs.enqueue_many(new, fresh=True)
        if self.context.commit_ordered:
            work = self._after_others(work, new)
        return new, work, lambda: again(jobs.enqueue_many, new, drawn)


class Batch:
    """Jobs that are added together, with one that runs after all of them: what `hf.batch(…)` gives.

    `id` is that of the job that runs after the others: `hf.get(batch.id)` shows it. The members are added when the
    block ends; `add` and `add_many` answer with the ids that they will have.
    """

    def __init__(
        self, app: Batches, then: Bound, tx: Any, seal: bool, after_dead: AfterDead, notify: bool | None
    ) -> None:
        self.id = new_id()
        self.then = then
        self.tx = tx
        self.seal = seal
        self.after_dead: AfterDead = after_dead
        self.notify = notify
        self.jobs: list[Bound] = []
        self.ids: list[str] = []
        self._app = app
        self._over = False
        # Where its jobs may go; None where there are no shards.
        self._within: Within | None = None

    def __repr__(self) -> str:
        return f"<Batch {self.id} of {len(self.ids)} jobs, then {self.then.kind}>"

    def __len__(self) -> int:
        return len(self.ids)

    def add(self, job: Bound) -> str:
        """Add a member: `batch.add(send.bind(1))`; returns its id."""
        [job_id] = self.add_many([job])
        return job_id

    def add_many(self, members: Iterable[Bound]) -> list[str]:
        """Add members; returns their ids."""
        if self._over:
            raise Conflict(
                f"Batch {self.id} is added already. To add members later, open it with seal=False "
                "and give them to hf.extend(batch.id, …)."
            )
        given = all_bound(members)
        within = self._within
        if within is not None and not self.ids and given and within.is_free(self.then.like):
            # It is where its first members belong, and its id is another one from now on.
            self.id = within.new_ids([one.like for one in given])[0]
        ids = new_ids(len(given)) if within is None else within.new_ids([one.like for one in given], [self.id])
        self.jobs += given
        self.ids += ids
        return ids

    def _begin(self, within: Within | None) -> None:
        self._within = within
        if within is not None:
            self.id = within.new_id(self.then.like)

    def __enter__(self) -> Self:
        self._begin(self._app.within_reach(self.tx))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()
        if error is None:
            self._app.add_batch(self)

    async def __aenter__(self) -> Self:
        self._begin(await self._app.awithin_reach(self.tx))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()
        if error is None:
            await self._app.aadd_batch(self)

    def _end(self) -> None:
        if self._over:
            raise Conflict(f"Batch {self.id} is added already: each `hf.batch(…)` is for one block.")
        self._over = True
