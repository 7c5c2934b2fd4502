"""Retry, cancel and change jobs: those that were chosen, or all that a search finds."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from holdfast import admin
from holdfast.admin.picking import LIVE
from holdfast.dashboard.actions.base import Input, Outcome, Pairs, Preview
from holdfast.dashboard.actions.which import SAMPLE, again, as_of, chosen, until
from holdfast.dashboard.pages.jobs import rows_of
from holdfast.dashboard.setting import Place
from holdfast.dashboard.talk import Talk, act, act_all, look
from holdfast.dashboard.visit import Visit
from holdfast.errors import ConfigError, DatabaseUnavailable, HoldfastError
from holdfast.life.listing import Wanted
from holdfast.values.changes import Change
from holdfast.values.retry import LONGEST
from holdfast.values.spoken import seconds_in
from holdfast.values.views import JobView
from holdfast.values.words import one_line, plural

# The most that one form cancels or changes; the oldest first, and then the next form.
MOST = 10_000


def preview_retry(visit: Visit) -> Talk[Preview]:
    place, wanted = _chosen_ids(visit)
    place.desk.require("retry")
    rows = yield from _sample(place, wanted)
    count = plural(len(wanted.ids), "job")
    words = "A job that waits becomes due now. One that runs or has ended stays."
    if visit.access.may("replay"):
        words = "A job that waits becomes due now; a dead or cancelled one is replayed. One that runs or is done stays."
    return Preview(f"Retry {count}?", f"Retry {count}", words, rows=rows, total=len(wanted.ids), fields=again(visit))


def retry(visit: Visit) -> Talk[Outcome]:
    place, wanted = _chosen_ids(visit)
    place.desk.require("retry")
    done, left = 0, list[str]()
    for one in wanted.ids:
        try:
            # Replaying what has ended is a permission of its own.
            if visit.access.may("replay") or place.name:
                yield from act(place.store, place.desk.retry(one, visit.actor))
            else:
                yield from act(place.store, admin.run_now(one, visit.actor))
            done += 1
        except DatabaseUnavailable:
            # For each of the others one would wait as long again.
            raise
        except HoldfastError as error:
            left.append(one_line(error, 300))
    return Outcome(f"{plural(done, 'job')} will run as soon as possible", left[:50], _links(visit, place, wanted))


def preview_cancel(visit: Visit) -> Talk[Preview]:
    place, wanted = yield from _meant(visit)
    place.desk.require("cancel")
    seen = yield from act_all(place.store, place.desk.cancel_all(wanted, visit.actor, MOST, True))
    total = len(seen.cancelled) + len(seen.requested)
    if not total:
        return Preview("No live job fits", words="What has ended already stays as it is.")
    rows = yield from _sample(place, replace(wanted, ids=(*seen.requested, *seen.cancelled)[:SAMPLE]))
    facts = [("end at once", f"{len(seen.cancelled):,}"), ("are asked to stop", f"{len(seen.requested):,}")]
    count = plural(total, "job") + ("" if total < MOST else f" (the oldest {MOST:,})")
    words = "Jobs that wait end as cancelled and never run. Workers of jobs that run are asked to stop them."
    fields: Pairs = [*again(visit), ("as_of", (yield from as_of(visit, place)))]
    return Preview(
        f"Cancel {count}?", f"Cancel {plural(total, 'job')}", words, facts, rows, total, fields=fields, danger=True
    )


def cancel(visit: Visit) -> Talk[Outcome]:
    place, wanted = yield from _meant(visit)
    place.desk.require("cancel")
    answer = yield from act_all(place.store, place.desk.cancel_all(wanted, visit.actor, MOST, False))
    said = f"{plural(len(answer.cancelled), 'job')} cancelled"
    if answer.requested:
        said += f", {len(answer.requested):,} asked to stop"
    left = [f"{job} was left alone: {why}" for job, why in answer.left.items()]
    return Outcome(said, left[:50], _links(visit, place, wanted))


def preview_change(visit: Visit) -> Talk[Preview]:
    place, wanted = yield from _meant(visit)
    place.desk.require("change")
    seen = yield from act_all(place.store, place.desk.change_all(wanted, Change(priority=0), visit.actor, MOST, True))
    if not seen.changed:
        return Preview("No job that waits fits", words="Only jobs that nobody holds can be changed.")
    rows = yield from _sample(place, replace(wanted, ids=tuple(seen.changed[:SAMPLE])))
    inputs = [
        Input("priority", "Priority", "number", hint="-100 to 100; higher runs first"),
        Input("delay", "Run no earlier than", hint="from now: 30, 5m, 1h30m; 0 for now"),
        Input("to_queue", "Move to queue"),
    ]
    count = plural(len(seen.changed), "job")
    words = "What you leave empty stays as it is."
    fields: Pairs = [*again(visit), ("as_of", (yield from as_of(visit, place)))]
    return Preview(
        f"Change {count}", f"Change {count}", words, rows=rows, total=len(seen.changed), fields=fields, inputs=inputs
    )


def change(visit: Visit) -> Talk[Outcome]:
    place, wanted = yield from _meant(visit)
    place.desk.require("change")
    new = _change(visit)
    answer = yield from act_all(place.store, place.desk.change_all(wanted, new, visit.actor, MOST, False))
    left = [f"{job} was left alone: {why}" for job, why in answer.left.items()]
    return Outcome(f"{plural(len(answer.changed), 'job')} changed", left[:50], _links(visit, place, wanted))


def _change(visit: Visit) -> Change:
    """Read what is to be changed. Raises: ConfigError."""
    priority, delay, queue = (visit.said.one(name) for name in ("priority", "delay", "to_queue"))
    if not (priority or delay or queue):
        raise ConfigError("priority", "say what to change: priority, time or queue", priority)
    after = seconds_in(delay) if delay else None
    if delay and after is None:
        raise ConfigError("delay", "must be seconds (30) or units (90s, 15m, 1h30m)", delay)
    if after is not None and after > LONGEST:
        raise ConfigError("delay", "must be at most 100 years", delay)
    try:
        number = int(priority) if priority else None
    except ValueError as error:
        raise ConfigError("priority", "must be a whole number from -100 to 100", priority) from error
    return Change(number, None if after is None else timedelta(seconds=after), queue or None)


def _chosen_ids(visit: Visit) -> tuple[Place, Wanted]:
    place, wanted = chosen(visit)
    if not wanted.ids:
        raise ConfigError("id", "choose the jobs; dead letters of a search are replayed on their page", "")
    return place, wanted


def _meant(visit: Visit) -> Talk[tuple[Place, Wanted]]:
    """Read which live jobs are meant: none that were enqueued after the preview."""
    place, wanted = chosen(visit)
    if not place.name:
        wanted = until(wanted, "created_before", (yield from as_of(visit, place)))
        if wanted.states and not set(wanted.states) & set(LIVE):
            raise ConfigError("q", f"must mean live jobs: {', '.join(LIVE)}", ",".join(wanted.states))
        wanted = replace(wanted, states=tuple(one for one in wanted.states if one in LIVE))
    return place, wanted


def _sample(place: Place, wanted: Wanted) -> Talk[list[JobView]]:
    some = Wanted(ids=wanted.ids[:SAMPLE]) if wanted.ids else wanted
    if place.name and wanted.ids:
        shown = []
        for one in wanted.ids[:SAMPLE]:
            shown.append((yield from look(place.store, place.desk.show(one))))
        return shown
    found = yield from rows_of(place, some, limit=SAMPLE)
    return found.rows


def _links(visit: Visit, place: Place, wanted: Wanted) -> Pairs:
    if len(wanted.ids) == 1:
        return [("The job", visit.link("job", id=wanted.ids[0], store=place.name))]
    return [("Jobs", visit.link("jobs", q=visit.said.one("q"), store=place.name))]
