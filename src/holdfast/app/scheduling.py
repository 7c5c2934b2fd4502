"""Scheduling: jobs that come again and again, declared beside their handlers."""

from __future__ import annotations

from holdfast import schedules
from holdfast.app.queues import Queues
from holdfast.bound import Bound
from holdfast.errors import ConfigError
from holdfast.schedules import CatchUp, Schedule, Synced
from holdfast.values.retry import Duration
from holdfast.values.spelling import spelt


class Schedules(Queues):
    """The face by which an application says what comes again and again."""

    @spelt
    def schedule(
        self,
        name: str,
        job: Bound,
        *,
        cron: str | None = None,
        every: Duration | None = None,
        timezone: str | None = None,
        catch_up: CatchUp = "one",
    ) -> Schedule:
        """Add a job at every tick: `hf.schedule("nightly", report.bind(day="yesterday"), cron="0 2 * * *")`.

        name: what the schedule is called in the whole database. job: `handler.bind(…)` or `handler.using(…).bind(…)`;
        with `unique`, a tick adds nothing while its last job lives; a delay in `run_after` counts from the tick.
        cron: five fields, in `timezone` (UTC by default). every: an interval instead, counted in UTC from 1970.
        catch_up: what becomes of ticks that no worker was there for: "skip" leaves them out, "one" runs the latest,
        "all" runs each, up to the last 1,000.

        It is stored when a worker of this application starts, or by `sync_schedules`. Nothing is removed that is no
        longer declared: `holdfast schedules remove` does that.
        """
        made = Schedule.of(name, _bound(job).new_job(""), cron=cron, every=every, timezone=timezone, catch_up=catch_up)
        if name in self.context.schedules:
            raise ConfigError("schedule", "each name is declared once; give this one another", name)
        self.context.schedules[name] = made
        return made

    def sync_schedules(self) -> dict[str, Synced]:
        """Store the declared schedules now, as a deployment does, and tell of each: created, changed or same.

        What is declared here counts at once, whatever other versions of the application declare.
        """
        return self.store.run(schedules.sync(self.context.declared_schedules().values()))

    async def async_schedules(self) -> dict[str, Synced]:
        """The async twin of `sync_schedules`."""
        return await self.store.arun(schedules.sync(self.context.declared_schedules().values()))


def _bound(job: object) -> Bound:
    if not isinstance(job, Bound):
        raise ConfigError("job", "must be a bound job, as in handler.bind(…)", job)
    return job
