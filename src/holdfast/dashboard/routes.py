"""Which page is meant by a path, and which action by a form."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from holdfast.dashboard import assets
from holdfast.dashboard.actions import DEEDS
from holdfast.dashboard.actions.base import Deed
from holdfast.dashboard.guard import guarded
from holdfast.dashboard.http import Response
from holdfast.dashboard.pages import audit, dead, job, jobs, outbox, overview, queues, runs, schedules, stores, workers
from holdfast.dashboard.rendering import error_page, render
from holdfast.dashboard.talk import Talk
from holdfast.dashboard.visit import Visit

PAGES: dict[str, Callable[[Visit], Talk[Response]]] = {
    "": overview.page,
    "jobs": jobs.page,
    "job": job.page,
    "dead": dead.page,
    "queues": queues.page,
    "lines": queues.lines_page,
    "schedules": schedules.page,
    "workers": workers.page,
    "outbox": outbox.page,
    "runs": runs.page,
    "run": runs.one_page,
    "stores": stores.page,
    "audit": audit.page,
}
# Forms are for people; a program has the API, and the command line.
_ASK, _DO = "ask/", "do/"


def answer(visit: Visit) -> Talk[Response]:
    """Answer a request of somebody who was let in."""
    path, method = visit.request.path.strip("/"), visit.request.method
    if path.startswith("static/") and method != "POST":
        return _file(visit, path)
    if path in PAGES and method != "POST":
        return PAGES[path](visit)
    if path.startswith(_ASK) and path[len(_ASK) :] in DEEDS and method != "POST":
        return _asked(visit, path[len(_ASK) :], DEEDS[path[len(_ASK) :]])
    if path.startswith(_DO) and path[len(_DO) :] in DEEDS:
        return _done(visit, path[len(_DO) :], DEEDS[path[len(_DO) :]])
    return _nothing(visit)


def _file(visit: Visit, path: str) -> Talk[Response]:
    yield from ()
    return assets.served(path) or guarded(Response.text(404, "There is no such file."))


def _asked(visit: Visit, name: str, deed: Deed) -> Talk[Response]:
    """Show what an action would touch. This changes nothing, so it may be a link."""
    if not visit.access.may(deed.permission):
        return _forbidden(visit, deed)
    preview = replace((yield from deed.preview(visit)), store=visit.said.one("store"))
    return render(visit, "ask.html", preview.title, name=name, preview=preview, back=_back(visit))


def _done(visit: Visit, name: str, deed: Deed) -> Talk[Response]:
    if visit.request.method != "POST":
        return guarded(Response.text(405, "An action is a form that is sent, never a link.", ("allow", "POST")))
    if not visit.access.may(deed.permission):
        return _forbidden(visit, deed)
    outcome = yield from deed.carry_out(visit)
    visit.setting.shared.forget()
    return render(visit, "done.html", outcome.said, name=name, outcome=outcome, back=_back(visit))


def _back(visit: Visit) -> str:
    """Return the page to go back to: always one of ours, whatever was said."""
    said = visit.said.one("back")
    return said if said in PAGES else ""


def _forbidden(visit: Visit, deed: Deed) -> Response:
    why = f"You may look, and not {deed.permission}. Who may act is said where the dashboard is started."
    return error_page(visit.setting, visit.request, 403, why)


def _nothing(visit: Visit) -> Talk[Response]:
    yield from ()
    return error_page(visit.setting, visit.request, 404, "There is no such page.")
