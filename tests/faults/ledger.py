"""The ledger of a kill test: what the tables hold at the end, beside what was done to the workers."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from holdfast.demo.crew import Member
from holdfast.life.expiry import LEASE_EXPIRED
from holdfast.testing.history import History
from holdfast.testing.rules import Violation
from holdfast.values.views import JobView
from tests.faults.stories import born


@dataclass(frozen=True)
class Effect:
    job_id: str
    attempt: int
    fence: int
    worker: str


@dataclass
class Ledger:
    """What the tables hold at the end, beside what was done to the workers."""

    database: str
    seconds: float
    enqueued: set[str]
    rolled_back: set[str]
    jobs: dict[str, JobView]
    booked: list[Effect]
    posted: list[Effect]
    killed: list[Member] = field(default_factory=list)
    frozen: list[Member] = field(default_factory=list)
    history: History = field(default_factory=History)
    violations: list[Violation] = field(default_factory=list)

    @property
    def states(self) -> Counter[str]:
        return Counter(job.state for job in self.jobs.values())

    @property
    def lost(self) -> set[str]:
        """Committed jobs that are gone, or whose effect is; also those that continue others, and those of ticks."""
        return (self.enqueued - self.jobs.keys()) | ((self.enqueued | self.born) - self._effects())

    @property
    def born(self) -> set[str]:
        return {job.id for job in self.jobs.values() if born(job)}

    def _effects(self) -> set[str]:
        return {effect.job_id for effect in (*self.booked, *self.posted)}

    @property
    def strangers(self) -> set[str]:
        """Jobs or effects of transactions that never committed."""
        return (self.jobs.keys() | self._effects()) - self.enqueued - self.born

    @property
    def doubled(self) -> list[str]:
        return [job_id for job_id, count in Counter(e.job_id for e in self.booked).items() if count > 1]

    @property
    def wrongly_fenced(self) -> list[Effect]:
        """Transactional effects whose fence is not the one that their job was completed with."""
        return [e for e in self.booked if e.job_id in self.jobs and e.fence != self.jobs[e.job_id].fence]

    @property
    def repeats(self) -> list[Effect]:
        """Plain effects of attempts that did not complete their job, and whatever one attempt wrote twice."""
        completing = Counter(e.job_id for e in self.posted if self._completed_by(e))
        twice = [e for e in self.posted if self._completed_by(e) and completing[e.job_id] > 1]
        return [e for e in self.posted if not self._completed_by(e)] + twice

    def _completed_by(self, effect: Effect) -> bool:
        job = self.jobs.get(effect.job_id)
        return job is not None and job.fence == effect.fence

    @property
    def unexplained(self) -> list[Effect]:
        return [effect for effect in self.repeats if not self._explained(effect)]

    def _explained(self, effect: Effect) -> bool:
        """A repeat is explained when its lease ran out, says the job, and its worker was killed or frozen, say we.

        A job that began behind another of its key, whose end was not written, is taken back without a record.
        """
        job = self.jobs.get(effect.job_id)
        ended = job is not None and any(
            error["type"] == LEASE_EXPIRED and (error["attempt"], error["worker"]) == (effect.attempt, effect.worker)
            for error in job.errors
        )
        in_line = job is not None and job.queue == "orders"
        return (ended or in_line) and self.was_hurt(effect.worker)

    def was_hurt(self, worker: str) -> bool:
        return any(member.is_worker(worker) for member in (*self.killed, *self.frozen))

    @property
    def reaped(self) -> list[dict[str, Any]]:
        return [error for job in self.jobs.values() for error in job.errors if error["type"] == LEASE_EXPIRED]

    @property
    def other_errors(self) -> Counter[str]:
        errors = (error for job in self.jobs.values() for error in job.errors)
        return Counter(f"{e['type']}: {e['message'][:80]}" for e in errors if e["type"] != LEASE_EXPIRED)

    def broken(self) -> list[str]:
        """Name the promises that were not kept."""
        wrong = {
            "a committed job was lost": self.lost,
            "a rolled-back transaction left a job or an effect": self.strangers | (self.rolled_back & self.jobs.keys()),
            "a job did not end done": self.states.keys() - {"done"},
            "a transactional effect was doubled": self.doubled,
            "a transactional effect carries an old fence": self.wrongly_fenced,
            "a repeated plain effect has no killed attempt to explain it": self.unexplained,
            "nobody was killed, frozen and reaped": not (self.killed and self.frozen and self.reaped),
        }
        return [name for name, found in wrong.items() if found] + sorted({one.rule for one in self.violations})

    def figures(self) -> dict[str, object]:
        innocent = [error for error in self.reaped if not self.was_hurt(error["worker"])]
        return {
            "seconds of killing": f"{self.seconds:.0f}",
            "jobs committed": len(self.enqueued),
            "… that continue others, or of ticks": len(self.born),
            "jobs rolled back": len(self.rolled_back),
            "workers killed": len(self.killed),
            "workers frozen": len(self.frozen),
            "leases reaped": len(self.reaped),
            "… of workers that were not hurt": len(innocent),
            "other failed attempts": self.other_errors.total(),
            "ended": ", ".join(f"{count} {state}" for state, count in sorted(self.states.items())),
            "jobs lost": len(self.lost),
            "effects in job.transaction()": len(self.booked),
            "… doubled": len(self.doubled),
            "… with an old fence": len(self.wrongly_fenced),
            "plain effects": len(self.posted),
            "… repeated": len(self.repeats),
            "… explained by a hurt worker": len(self.repeats) - len(self.unexplained),
            "… unexplained": len(self.unexplained),
            "calls of handlers in the history": len(self.history.attempts),
            "… in ordered queues": sum(one.queue == "orders" for one in self.history.attempts),
            "… in limited queues": sum(one.queue in ("stripe", "tenants", "meter") for one in self.history.attempts),
            "jobs with parents": sum(len(one.ids) for one in self.history.sent if one.after),
            "batches": len({one.batch for one in self.history.rows if one.batch}),
            "rules broken": len({one.rule for one in self.violations}),
        }
