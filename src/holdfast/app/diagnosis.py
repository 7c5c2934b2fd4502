"""Why a job has not ended yet, for those whose time to wait for it is over."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from holdfast import admin
from holdfast.flow import Flow, Steps, ask, flow
from holdfast.placing import where_id_is
from holdfast.values.ids import next_id
from holdfast.values.reserved import UNROUTED, is_route, route_of
from holdfast.values.rows import when
from holdfast.values.views import JobView, WorkerInfo, iso
from holdfast.waits import STEPS_AHEAD

_DOCTOR = "`holdfast doctor --app module:attribute` looks for what is wrong."


class Diagnosis(NamedTuple):
    """A job that has not ended in time, the live workers that serve its queue, and when that was, by the database."""

    job: JobView
    workers: list[WorkerInfo]
    at: datetime

    def told(self, limit: float | None) -> str:
        """Say how the job is, and what to look at."""
        job = self.job
        head = f"Job {job.id} ({job.kind}, queue {job.queue}) has not ended {_within(limit)}:"
        return f"{head} {self._state()} {_DOCTOR}"

    def _state(self) -> str:
        job = self.job
        match job.state:
            case "leased" if job.lease_expires_at is not None and job.lease_expires_at < self.at:
                return (
                    f"its lease on {job.leased_by} has run out, and no worker has taken it back yet. {self._served()}"
                )
            case "leased":
                stop = " and is asked to stop" if job.cancel_requested else ""
                return f"it runs on {job.leased_by}{stop}, attempt {job.attempts} of {job.max_attempts}.{self._error()}"
            case "waiting":
                return f"it waits for {job.waits_for}."
            case _:
                return f"it is pending, due {iso(job.available_at)}.{self._error()} {self._served()}"

    def _error(self) -> str:
        last = self.job.last_error
        return "" if last is None else f" Its last attempt failed: {last['type']}: {str(last['message'])[:200]}."

    def _served(self) -> str:
        if self.job.queue == UNROUTED:
            return "No route takes this event: declare one, and `holdfast outbox republish --unrouted` sends it on."
        if not self.workers and is_route(self.job.queue):
            return f"No live relay serves the route {route_of(self.job.queue)}: start one (`holdfast relay APP`)."
        if not self.workers:
            return "No live worker serves its queue: start one (`holdfast worker APP`), or check its --queues."
        count = len(self.workers)
        return (
            f"{count} live {'worker serves' if count == 1 else 'workers serve'} its queue: it may have to wait there."
        )


@where_id_is
@flow
def diagnose(job_id: str) -> Steps[Diagnosis]:
    """Read a job, or the one that its chain has come to, and who could run it. Raises: JobNotFound."""
    # Late: what only enqueues need not load the worker.
    from holdfast.worker import registry

    job = yield from _furthest((yield from admin.get(job_id).start()))
    reading: Flow[list[WorkerInfo]] = registry.workers()
    workers = yield from reading.start()
    serving = [one for one in workers if one.status == "alive" and job.queue in one.info.get("queues", ())]
    [[now]] = yield from ask("clock")
    return Diagnosis(job, serving, when(now))


def _furthest(job: JobView) -> Steps[JobView]:
    """Go on to the last job of a chain that is known: a job that is continued is done, and has given nothing."""
    while job.state == "done":
        ahead = [job.id]
        for _ in range(STEPS_AHEAD):
            ahead.append(next_id(ahead[-1]))
        found = yield from admin.read(ahead[1:]).start()
        known = [one for one in ahead if one in found]
        if not known:
            break
        job = found[known[-1]]
    return job


def without_look(job_id: str, limit: float | None) -> str:
    """Say that a job has not ended in time, where it could not be looked at again."""
    return f"Job {job_id} has not ended {_within(limit)}. {_DOCTOR}"


def _within(limit: float | None) -> str:
    return "yet" if not limit else f"within {limit:g} seconds"
