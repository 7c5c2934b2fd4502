"""The audit: who did what by hand, the latest first."""

from __future__ import annotations

from holdfast import admin
from holdfast.dashboard.http import Response
from holdfast.dashboard.rendering import render
from holdfast.dashboard.talk import Talk
from holdfast.dashboard.visit import Visit
from holdfast.values.spoken import moment_in

ROWS = 50


def page(visit: Visit) -> Talk[Response]:
    actor, before = visit.said.one("actor"), moment_in(visit.said.one("before"))
    lines, more = yield from visit.look(admin.audit_page(ROWS, before, actor or None))
    return render(visit, "audit.html", "Audit", lines=lines, more=more, actor=actor, before=before)
