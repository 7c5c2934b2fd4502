"""One job and its story: attempts, errors, who holds it, what was done by hand, what comes before and after it."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from holdfast.admin import shard_of
from holdfast.dashboard.http import Response
from holdfast.dashboard.redaction import Redaction
from holdfast.dashboard.rendering import render
from holdfast.dashboard.talk import Talk, look
from holdfast.dashboard.visit import Visit
from holdfast.life.listing import Family
from holdfast.runs import RUN_HEADER
from holdfast.store import Shards
from holdfast.values.reserved import is_route, route_of
from holdfast.values.views import AuditLine, JobView, decoded

TRACE_HEADER = "traceparent"


@dataclass(frozen=True, slots=True)
class Moment:
    """Something that happened to a job."""

    at: datetime | None
    what: str
    words: str
    by: str = ""
    took: float | None = None
    detail: str = ""
    more: dict[str, Any] = field(default_factory=dict[str, Any])


def page(visit: Visit) -> Talk[Response]:
    place, dead = visit.place(), visit.said.one("dead") == "1"
    row = yield from look(place.store, place.desk.show(visit.said.one("id"), dead=dead))
    audit = yield from look(place.store, place.desk.audit(row.id, dead=dead))
    reading = place.desk.family(row)
    family = None if reading is None else (yield from look(place.store, reading))
    shard = None
    if not place.name and isinstance(place.store, Shards):
        shard = yield from look(place.store, shard_of(row.id))
    shows = visit.setting.redaction
    headers = row.headers if isinstance(row.headers, dict) else {}
    return render(
        visit,
        "job.html",
        f"{row.kind} {row.id[:8] if not place.name else row.id}",
        place=place,
        job=row,
        dead=dead,
        shard=shard,
        story=story(row, audit, shows),
        family=family if family is not None and _is_someone(family) else None,
        payload=shows.shown(decoded(row.payload), "payload"),
        result=shows.shown(row.result, "result"),
        progress=shows.shown(row.progress, "progress"),
        headers=shows.shown(row.headers, "headers"),
        trace=trace_of(headers),
        run=headers.get(RUN_HEADER),
        route=route_of(row.queue) if is_route(row.queue) else None,
        overdue=row.lease_expires_at is not None and row.lease_expires_at < visit.now,
    )


def _is_someone(family: Family) -> bool:
    return bool(family.before or family.after)


def trace_of(headers: dict[str, str]) -> str | None:
    """Return the trace id that a job was enqueued with."""
    parts = str(headers.get(TRACE_HEADER, "")).split("-")
    return parts[1] if len(parts) >= 4 and len(parts[1]) == 32 and parts[1].isalnum() else None


def story(job: JobView, audit: list[AuditLine], shows: Redaction) -> list[Moment]:
    """Tell what happened to a job, in the order of time."""
    told = [Moment(job.created_at, "enqueued", "was enqueued")]
    told += [_failed(place, error, shows) for place, error in enumerate(job.errors)]
    told += [_by_hand(line, shows) for line in audit]
    told += _last(job)
    return sorted(told, key=lambda one: one.at or datetime.max.replace(tzinfo=UTC))


def _failed(place: int, error: dict[str, Any], shows: Redaction) -> Moment:
    began, ended = _moment(error.get("started_at")), _moment(error.get("failed_at"))
    took = (ended - began).total_seconds() if began and ended else None
    trace = shows.shown(error.get("traceback"), "errors", place, "traceback")
    attempt = error.get("attempt")
    words = f"attempt {attempt} failed" if attempt else "ended"
    return Moment(
        ended,
        "failed",
        words,
        str(error.get("worker") or ""),
        took,
        shows.failure(error.get("type"), error.get("message"), "errors", place, "message"),
        {"trace": trace},
    )


def _by_hand(line: AuditLine, shows: Redaction) -> Moment:
    words = line.action.replace("_", " ")
    return Moment(line.at, "by-hand", f"{words} by hand", line.actor or "", None, "", shows.shown(line.detail, "audit"))


def _last(job: JobView) -> list[Moment]:
    if job.state == "leased":
        return [Moment(job.leased_at, "leased", f"attempt {job.attempts} began", job.leased_by or "")]
    if job.finished_at is not None:
        took = None
        if job.state == "done" and job.leased_at is not None:
            took = (job.finished_at - job.leased_at).total_seconds()
        words = {"done": f"attempt {job.attempts} succeeded", "dead": "became a dead letter"}
        said = words.get(job.state, f"was {job.state}")
        return [Moment(job.finished_at, job.state, said, job.leased_by or "" if job.state == "done" else "", took)]
    if job.state == "waiting":
        return [Moment(None, "waiting", f"waits for {job.waits_for}")]
    return [Moment(job.available_at, "due", "is due")]


def _moment(text: object) -> datetime | None:
    try:
        read = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return read if read.tzinfo else read.replace(tzinfo=UTC)
