"""Looking at a job, and waiting for what it gives."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any, TypeVar, overload

from holdfast import admin
from holdfast.app.diagnosis import Diagnosis, diagnose, without_look
from holdfast.app.scheduling import Schedules
from holdfast.errors import ConfigError, JobNotFound, StoreError, WouldBlock
from holdfast.values.ids import parse_id
from holdfast.values.retry import Duration, seconds
from holdfast.values.rows import Enqueued
from holdfast.values.shards import stamp_of
from holdfast.values.spelling import spelt
from holdfast.values.views import JobView
from holdfast.waits import ShardWaits, TooLong, Waits, final, value_of

T = TypeVar("T")
# How long a look at why a job has not ended may take, on top of the time of the one who waited.
DIAGNOSIS_SECONDS = 3.0
# What the refusal of a connection without a transaction speaks of.
_IN_TX = "what is enqueued in it"


class Results(Schedules):
    """The face by which an application looks at jobs and waits for their results."""

    @spelt
    def get(self, job: str | Enqueued, *, tx: Any = None) -> JobView:
        """Return a job as it is now: its state, progress, result, errors and attempts.

        job: its id, or what its enqueue answered. tx: look in this transaction of yours, which sees what it enqueued.
        Raises: JobNotFound.
        """
        work = admin.get(_id_of(job))
        return self.store.run(work) if tx is None else self.store.run_in(tx, work, _IN_TX)

    @spelt
    async def aget(self, job: str | Enqueued, *, tx: Any = None) -> JobView:
        """The async twin of `get`."""
        work = admin.get(_id_of(job))
        return await (self.store.arun(work) if tx is None else self.store.arun_in(tx, work, _IN_TX))

    @overload
    def result(self, job: str | Enqueued, timeout: Duration | None = None) -> Any: ...
    @overload
    def result(self, job: str | Enqueued, timeout: Duration | None = None, *, type: type[T]) -> T: ...
    @overload
    def result(self, job: str | Enqueued, timeout: Duration | None = None, *, type: Any) -> Any: ...
    @spelt
    def result(self, job: str | Enqueued, timeout: Duration | None = None, *, type: Any = None) -> Any:
        """Wait until a job has ended, and return what its handler returned, as it was read back from JSON.

        job: its id, or what its enqueue answered. timeout: how long to wait; 0 looks once, None waits for ever.
        type: a class, or any type that msgspec reads, to make of it.
        Raises: JobDead, JobCancelled, JobNotFound; TimeoutError, which says how the job is; InvalidPayload for what
        does not fit `type`. WouldBlock on the thread of an event loop: there `await hf.aresult(…)`.
        """
        job_id, limit = _id_of(job), _limit(timeout)
        if limit != 0 and _loop_runs():
            raise WouldBlock("hf.result()", "await hf.aresult()")
        try:
            answer = self._waits_of(job_id).wait(job_id, limit)
        except TooLong as error:
            answer = self._late(job_id, limit, error)
        return value_of(answer, type)

    @overload
    async def aresult(self, job: str | Enqueued, timeout: Duration | None = None) -> Any: ...
    @overload
    async def aresult(self, job: str | Enqueued, timeout: Duration | None = None, *, type: type[T]) -> T: ...
    @overload
    async def aresult(self, job: str | Enqueued, timeout: Duration | None = None, *, type: Any) -> Any: ...
    @spelt
    async def aresult(self, job: str | Enqueued, timeout: Duration | None = None, *, type: Any = None) -> Any:
        """The async twin of `result`; cancelled, it leaves nothing behind."""
        job_id, limit = _id_of(job), _limit(timeout)
        try:
            answer = await (await self._awaits_of(job_id)).await_(job_id, limit)
        except TooLong as error:
            answer = await self._alate(job_id, limit, error)
        return value_of(answer, type)

    def _waits_of(self, job_id: str) -> Waits | ShardWaits:
        """Return where to wait for a job: in its shard, which an id from before there were shards does not say."""
        waits = self.context.waits
        if isinstance(waits, ShardWaits) and stamp_of(job_id) is None:
            # One that nothing is kept of is told by the first, as before.
            with suppress(JobNotFound):
                return waits.at(self.store.run(admin.shard_of(job_id)) or 0)
        return waits

    async def _awaits_of(self, job_id: str) -> Waits | ShardWaits:
        """The async twin of `_waits_of`."""
        waits = self.context.waits
        if isinstance(waits, ShardWaits) and stamp_of(job_id) is None:
            with suppress(JobNotFound):
                number: int | None = await self.store.arun(admin.shard_of(job_id))
                return waits.at(number or 0)
        return waits

    def _late(self, job_id: str, limit: float | None, error: TooLong) -> JobView:
        """Look once more, and say how the job is. Raises: TimeoutError; what the last look failed with."""
        if error.__cause__ is not None:
            raise error.__cause__
        try:
            found = self.store.run_once(diagnose(job_id))
        except (StoreError, JobNotFound):
            raise TimeoutError(without_look(job_id, limit)) from None
        return _too_late(found, limit)

    async def _alate(self, job_id: str, limit: float | None, error: TooLong) -> JobView:
        """The async twin of `_late`."""
        if error.__cause__ is not None:
            raise error.__cause__
        try:
            async with asyncio.timeout(DIAGNOSIS_SECONDS):
                found = await self.store.arun_once(diagnose(job_id))
        except (StoreError, JobNotFound, TimeoutError):
            raise TimeoutError(without_look(job_id, limit)) from None
        return _too_late(found, limit)


def _too_late(found: Diagnosis, limit: float | None) -> JobView:
    if final(found.job):
        return found.job
    raise TimeoutError(found.told(limit)) from None


def _id_of(job: object) -> str:
    """Read which job is meant. Raises: ConfigError for what names no job of ours."""
    given = job.id if isinstance(job, Enqueued) else job
    try:
        return parse_id(given.strip().lower() if isinstance(given, str) else given)
    except ConfigError as error:
        rule = (
            "must be the id of a job (such as 01997a3e-5b1c-7d20-8f4e-0a1b2c3d4e5f), or what its enqueue answered; "
            "rows of foreign tables have no result here, their desk shows them"
        )
        raise ConfigError("job", rule, job) from error


def _limit(timeout: Duration | None) -> float | None:
    return None if timeout is None else seconds(timeout, "timeout")


def _loop_runs() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
