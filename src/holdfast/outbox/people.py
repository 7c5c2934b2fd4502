"""What people do to events by hand, as flows: read deliveries, publish events again, send dead letters another way.

Every action writes one audit line per event, in the transaction that does it. An event that is published again keeps
its id, so that receivers which have it already know it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, NamedTuple

import msgspec

from holdfast import admin, jobs
from holdfast.admin.recording import record
from holdfast.errors import ConfigError, Conflict, InvalidPayload
from holdfast.flow import Flow, Steps, flow
from holdfast.life import merging
from holdfast.outbox.routes import Route
from holdfast.placing import InTurn, placed_by, where_id_is
from holdfast.values.cloudevents import CloudEvent, from_structured
from holdfast.values.ids import bucket, new_ids
from holdfast.values.reserved import UNROUTED, is_route, route_of
from holdfast.values.rows import NewJob
from holdfast.values.shards import beside
from holdfast.values.views import JobView

# Rows of one publish are written by one statement, or by few.
TOGETHER = timedelta(seconds=1)
SIBLINGS_READ = 1000


@dataclass(frozen=True, slots=True)
class DeliveryView:
    """A delivery as people see it: its row, and the event in it; None where the row holds no event."""

    job: JobView
    event: CloudEvent | None

    @property
    def route(self) -> str:
        return route_of(self.job.queue)

    def to_dict(self) -> dict[str, Any]:
        event = self.event
        about = {
            "event": None if event is None else event.id,
            "type": None if event is None else event.type,
            "route": None if self.job.queue == UNROUTED else self.route,
        }
        return about | self.job.to_dict()


def delivery_of(job: JobView) -> DeliveryView:
    """Read a row as a delivery."""
    try:
        return DeliveryView(job, from_structured(job.payload))
    except (ConfigError, InvalidPayload):
        return DeliveryView(job, None)


@where_id_is
@flow
def siblings(row_id: str) -> Steps[list[DeliveryView]]:
    """Read a delivery, and the others of the same publish, by their age.

    Raises: JobNotFound; Conflict for a job that is not a delivery.
    """
    job = yield from admin.show(row_id).start()
    if not is_route(job.queue):
        raise Conflict(f"Job {row_id} is not a delivery of an event: see `holdfast jobs show {row_id}`.")
    one = delivery_of(job)
    near = admin.Filter(outbox=True, created_after=job.created_at - TOGETHER, created_before=job.created_at + TOGETHER)
    # Their ids were drawn together, so that they are near each other in a list by id.
    before = yield from admin.look(near, SIBLINGS_READ, job.id).start()
    behind = yield from admin.look(near, SIBLINGS_READ, job.id, newest=False).start()
    found = [*reversed(before.rows), *behind.rows]
    return [one, *(other for other in map(delivery_of, found) if _same(one, other))]


def _same(one: DeliveryView, other: DeliveryView) -> bool:
    return one.event is not None and other.event is not None and one.event.id == other.event.id


class Republished(NamedTuple):
    """What became of a chunk of rows: for each event its id, type and routes, and where the next chunk begins.

    last: None at the end. read: how many rows were in it.
    """

    events: list[dict[str, Any]]
    last: str | None
    read: int


@dataclass(frozen=True)
class _Plan:
    """The rows to add, and the lines to write."""

    buckets: int
    rows: list[NewJob] = field(default_factory=list[NewJob])
    lines: list[tuple[str | None, dict[str, Any]]] = field(default_factory=list[tuple[str | None, dict[str, Any]]])

    @property
    def events(self) -> list[dict[str, Any]]:
        return [{"id": job_id} | told for job_id, told in self.lines]

    def add(self, job: JobView, event: CloudEvent, routes: Sequence[Route]) -> None:
        """Have an event go by these routes; its key and headers stay."""
        headers = None if not job.headers else msgspec.json.encode(job.headers).decode()
        part = None if job.key is None else bucket(job.key, self.buckets)
        for row_id, route in zip(new_ids(len(routes)), routes, strict=True):
            attempts = route.retry.max_attempts
            like = NewJob(beside(job.id, row_id), route.queue, route.queue, job.payload, headers, max_attempts=attempts)
            self.rows.append(like._replace(key=job.key, bucket=part))
        names = [route.name for route in routes]
        self.lines.append((job.id, {"event": event.id, "type": event.type, "from": route_of(job.queue), "to": names}))

    def carry_out(self, action: str, actor: str | None) -> Steps[None]:
        if self.rows:
            yield from jobs.enqueue_many(self.rows)
            yield from record(action, actor, self.lines)


@flow
def republish(
    filter: admin.Filter,
    ways: Callable[[str], Sequence[Route]],
    limit: int,
    actor: str | None,
    *,
    buckets: int,
    after: str | None = None,
    dry_run: bool = False,
    seen: set[str] | None = None,
) -> Steps[Republished]:
    """Publish the events of up to `limit` deliveries again, the oldest first, each event once.

    It looks at a bounded number of jobs (`admin.look`), so a chunk may hold fewer and not be the last.
    `ways` says by which routes an event of a type goes. An event that no route takes is left where it is; one that
    waited for a route is taken from there. `after` is where the chunk before ended, `seen` the events that were in it.
    With `dry_run` nothing changes.
    Commits: its own, all or none. After a crash: nothing happened. When only the reply was lost, a repeat publishes
    them once more, with the same ids.
    """
    look = yield from admin.look(filter, limit, after, newest=False)
    plan, known = _Plan(buckets), set(seen or ())
    for one in map(delivery_of, look.rows):
        if one.event is None or one.event.id in known or not (routes := ways(one.event.type)):
            continue
        known.add(one.event.id)
        if one.job.queue == UNROUTED and one.job.state == "pending" and not dry_run:
            try:
                yield from admin.cancel(one.job.id, actor)
            except Conflict:
                # Somebody else has taken it at the same moment.
                continue
        plan.add(one.job, one.event, routes)
    if not dry_run:
        yield from plan.carry_out("republish", actor)
    return Republished(plan.events, look.more, len(look.rows))


def _redirecting(
    filter: admin.Filter, to: Route, limit: int, actor: str | None, *, buckets: int, dry_run: bool = False
) -> InTurn[list[str]]:
    def make(left: int) -> Flow[list[str]]:
        return redirect(filter, to, left, actor, buckets=buckets, dry_run=dry_run)

    return InTurn(make, limit, len, merging.joined, filter.ids)


@placed_by(_redirecting)
@flow
def redirect(
    filter: admin.Filter, to: Route, limit: int, actor: str | None, *, buckets: int, dry_run: bool = False
) -> Steps[list[str]]:
    """Send up to `limit` dead letters of the outbox by another route, the oldest first; the letters are gone then.

    Commits: its own, all or none. Of two at once exactly one gets each letter. After a crash: nothing happened. When
    only the reply was lost, a repeat takes the letters that come next.
    """
    found = yield from admin.list_jobs(filter, limit, newest=False)
    letters = {job.id: (job, event) for job in found if (event := delivery_of(job).event) is not None}
    if not letters or dry_run:
        return list(letters)
    taken = yield from admin.discard(admin.Filter(ids=tuple(letters), states=filter.states), limit, actor)
    plan = _Plan(buckets)
    for job_id in taken:
        plan.add(*letters[job_id], [to])
    yield from plan.carry_out("redirect", actor)
    return taken
