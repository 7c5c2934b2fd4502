"""Control: pause queues and kinds, cancel and change jobs, drain workers, from the application itself."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any, TypeVar, Unpack

from holdfast import admin, jobs
from holdfast.app.results import Results
from holdfast.errors import ConfigError
from holdfast.flow import Flow, Series, arun_series, run_series
from holdfast.life.listing import Cancelled, Changed, Drained
from holdfast.values.changes import Change
from holdfast.values.options import switch
from holdfast.values.pauses import Pause, Scope
from holdfast.values.rows import Enqueued
from holdfast.values.spelling import spelt
from holdfast.workflows import RunHandle

T = TypeVar("T")
# Jobs by id: one or several.
Named = str | Enqueued | Iterable[str | Enqueued]
# Runs are meant, too, by their own ids.
Meant = Named | RunHandle[Any] | Iterable[str | Enqueued | RunHandle[Any]]


class Controls(Results):
    """The face by which an application does what people do by hand."""

    @spelt
    def pause(
        self,
        queue: str | None = None,
        *,
        kind: str | None = None,
        reason: str | None = None,
        actor: str | None = None,
        tx: Any = None,
    ) -> bool:
        """Have workers claim nothing of a queue, `hf.pause("mail")`, or no jobs of a kind, `hf.pause(kind="send")`.

        It is stored, counts for all workers within about a second and stays through restarts until `resume`. Enqueues
        go on, and handlers that run go on. reason, actor: for those who find it paused, and for the audit.
        tx: pause in your transaction. Returns whether it was not paused before.
        """
        scope, name = _meant("hf.pause", queue, kind)
        return self._control(admin.pause(scope, name, actor, reason), tx)

    @spelt
    async def apause(
        self,
        queue: str | None = None,
        *,
        kind: str | None = None,
        reason: str | None = None,
        actor: str | None = None,
        tx: Any = None,
    ) -> bool:
        """The async twin of `pause`."""
        scope, name = _meant("hf.apause", queue, kind)
        return await self._acontrol(admin.pause(scope, name, actor, reason), tx)

    @spelt
    def resume(
        self, queue: str | None = None, *, kind: str | None = None, actor: str | None = None, tx: Any = None
    ) -> bool:
        """Let workers claim from a queue, or jobs of a kind, again. Returns whether it was paused.

        A queue and a kind are paused by themselves: a job runs once neither its queue nor its kind is.
        """
        scope, name = _meant("hf.resume", queue, kind)
        return self._control(admin.resume(scope, name, actor), tx)

    @spelt
    async def aresume(
        self, queue: str | None = None, *, kind: str | None = None, actor: str | None = None, tx: Any = None
    ) -> bool:
        """The async twin of `resume`."""
        scope, name = _meant("hf.aresume", queue, kind)
        return await self._acontrol(admin.resume(scope, name, actor), tx)

    def pauses(self) -> list[Pause]:
        """List what is paused: queues first, each by name."""
        return self.store.run(jobs.pauses())

    async def apauses(self) -> list[Pause]:
        """The async twin of `pauses`."""
        return await self.store.arun(jobs.pauses())

    def cancel(
        self,
        job: Meant | None = None,
        /,
        *,
        force: bool = False,
        everything: bool = False,
        limit: int | None = None,
        dry_run: bool = False,
        actor: str | None = None,
        tx: Any = None,
        **which: Unpack[admin.JobFilter],
    ) -> Cancelled:
        """Cancel jobs and runs by id, `hf.cancel("order-1")`, or by filter, `hf.cancel(queue="mail", key="order:7")`.

        What is pending or waiting ends as cancelled; workers of leased jobs are asked to stop, which they hear at their
        next renewal. A durable run that has begun is asked to stop, whether it runs or waits: its body gets
        CancelledError where it waits, and may clean up; its children are asked, too. What has ended already is left
        alone, and told.
        job: an id, what an enqueue answered, the id or handle of a run, or several of these. force: end it at once,
        whatever it does, and the children of a run, too; no code of theirs runs, and a worker that holds one has lost
        its lease. which: `state`, `queue`, `kind`, `key`, `worker`,
        `error`, `created_after`, `created_before`; all that is given must hold. everything: every live job.
        limit: at most this many, the oldest first. dry_run: only tell which. actor: for the audit.
        tx: all of it in your transaction; without it, each chunk of 500 is a transaction of its own, and after an error
        those before are done.
        """
        work = _cancel("hf.cancel", job, force, everything, limit, dry_run, actor, which)
        done = self._all(work, tx, "cancel")
        self._told(done, tx)
        return done

    async def acancel(
        self,
        job: Meant | None = None,
        /,
        *,
        force: bool = False,
        everything: bool = False,
        limit: int | None = None,
        dry_run: bool = False,
        actor: str | None = None,
        tx: Any = None,
        **which: Unpack[admin.JobFilter],
    ) -> Cancelled:
        """The async twin of `cancel`."""
        work = _cancel("hf.acancel", job, force, everything, limit, dry_run, actor, which)
        done = await self._aall(work, tx, "cancel")
        self._told(done, tx)
        return done

    def change(
        self,
        job: Named | None = None,
        /,
        *,
        priority: int | None = None,
        run_after: datetime | timedelta | float | None = None,
        to_queue: str | None = None,
        everything: bool = False,
        limit: int | None = None,
        dry_run: bool = False,
        actor: str | None = None,
        tx: Any = None,
        **which: Unpack[admin.JobFilter],
    ) -> Changed:
        """Change priority, time or queue of jobs that wait: `hf.change(job_id, priority=10)`.

        run_after: seconds or a timedelta from now, or a datetime with a time zone; 0 makes it due. to_queue: move it.
        A leased job is left alone, and told; so is, where a time is given, a job that waits for others to end.
        In a queue with order or turns, a job with another time or queue joins the line of its key anew when it is due,
        in its place by age. The rest as in `cancel`.
        """
        meant, ids = admin.meant_by("hf.change", job, everything, which)
        change = Change(priority, run_after, to_queue)
        return self._all(admin.change_all(meant, ids, change, actor, limit, dry_run), tx, "change")

    async def achange(
        self,
        job: Named | None = None,
        /,
        *,
        priority: int | None = None,
        run_after: datetime | timedelta | float | None = None,
        to_queue: str | None = None,
        everything: bool = False,
        limit: int | None = None,
        dry_run: bool = False,
        actor: str | None = None,
        tx: Any = None,
        **which: Unpack[admin.JobFilter],
    ) -> Changed:
        """The async twin of `change`."""
        meant, ids = admin.meant_by("hf.achange", job, everything, which)
        change = Change(priority, run_after, to_queue)
        return await self._aall(admin.change_all(meant, ids, change, actor, limit, dry_run), tx, "change")

    @spelt
    def drain(
        self,
        worker: str | Iterable[str] | None = None,
        /,
        *,
        host: str | None = None,
        dry_run: bool = False,
        actor: str | None = None,
    ) -> Drained:
        """Ask workers to claim no more, finish what they run, and stop: one by its id, several, or all on a host.

        Each hears of it at its next beat, within ten seconds, gives back what it has not begun, and lets running
        handlers finish within its drain time. The registry says draining at once, and no beat takes that back.
        """
        from holdfast.worker.draining import drain

        return self._control(drain(worker, host, actor, dry_run), None)

    @spelt
    async def adrain(
        self,
        worker: str | Iterable[str] | None = None,
        /,
        *,
        host: str | None = None,
        dry_run: bool = False,
        actor: str | None = None,
    ) -> Drained:
        """The async twin of `drain`."""
        from holdfast.worker.draining import drain

        return await self._acontrol(drain(worker, host, actor, dry_run), None)

    def _told(self, done: Cancelled, tx: Any) -> None:
        if tx is None and done.requested:
            self.context.wake_workers()

    def _all(self, series: Series[T], tx: Any, what: str) -> T:
        return run_series(series, lambda work: self._control(work, tx, what))

    async def _aall(self, series: Series[T], tx: Any, what: str) -> T:
        return await arun_series(series, lambda work: self._acontrol(work, tx, what))

    def _control(self, work: Flow[T], tx: Any, what: str = "") -> T:
        return self.store.run(work) if tx is None else self.store.run_in(tx, work, what or work.name)

    async def _acontrol(self, work: Flow[T], tx: Any, what: str = "") -> T:
        return await (self.store.arun(work) if tx is None else self.store.arun_in(tx, work, what or work.name))


def _cancel(
    call: str,
    job: Meant | None,
    force: bool,
    everything: bool,
    limit: int | None,
    dry_run: bool,
    actor: str | None,
    which: admin.JobFilter,
) -> Series[Cancelled]:
    several = [job] if job is None or isinstance(job, str | Enqueued | RunHandle) else job
    named = None if job is None else [one.named if isinstance(one, RunHandle) else one for one in several]
    meant, ids = admin.meant_by(call, named, everything, which, runs=True)
    return admin.cancel_all(meant, ids, actor, limit, dry_run, force=switch(force, "force") or False)


def _meant(call: str, queue: str | None, kind: str | None) -> tuple[Scope, str]:
    """Read which of the two is meant. Raises: ConfigError unless it is just one."""
    if queue is not None and kind is None:
        return "queue", queue
    if kind is not None and queue is None:
        return "kind", kind
    rule = f'{call} takes a queue or a kind: {call}("mail"), {call}(kind="send_receipt")'
    raise ConfigError("queue", rule, queue)
