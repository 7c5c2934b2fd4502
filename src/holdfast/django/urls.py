"""The dashboard below a path of the project, for staff: `path("ops/holdfast/", include("holdfast.django.urls"))`.

Who may look and act is said by Django's permissions, the same as in the admin. For other rules, mount
`hf.dashboard(access=…)` in a view of your own, as the guide shows.
"""

from __future__ import annotations

from functools import cache
from typing import Any, cast

from django.contrib.auth.decorators import login_required
from django.http import HttpResponse
from django.urls import path
from django.views.decorators.csrf import csrf_exempt

from holdfast.dashboard import ACTIONS, Access, Dashboard, Request
from holdfast.dashboard.access import Actions

# What is asked for each action of the dashboard; all others ask for the last one.
PERMISSIONS = {
    # Its retry replays dead and cancelled jobs, too.
    "retry": ("holdfast.retry_job", "holdfast.replay_finishedjob"),
    "cancel": ("holdfast.cancel_job",),
    "replay": ("holdfast.replay_finishedjob",),
    "discard": ("holdfast.discard_finishedjob",),
}
OPERATE = ("holdfast.operate_job",)
_USER = "holdfast.user"


def staff(request: Request) -> Access | None:
    """Let in staff who may see jobs, to do what they have permissions for."""
    user = request.native[_USER]
    if not (user.is_active and user.is_staff and user.has_perm("holdfast.view_job")):
        return None
    may = [action for action in sorted(ACTIONS) if user.has_perms(PERMISSIONS.get(action, OPERATE))]
    return Access(user.get_username(), cast("Actions", may))


@cache
def _board() -> Dashboard:
    from holdfast.django import hf

    return hf.dashboard(access=staff)


# The dashboard checks by itself where a form comes from.
@csrf_exempt
@login_required
def dashboard(request: Any, path: str = "") -> Any:
    """Hand a request over to the dashboard."""
    environ = request.META | {_USER: request.user}
    environ |= {"PATH_INFO": f"/{path}", "SCRIPT_NAME": request.path.removesuffix(path).rstrip("/")}
    answer = _board().wsgi.answer(environ, request.body)
    return HttpResponse(answer.body, status=answer.status, headers=dict(answer.all_headers))


urlpatterns = [
    path("", dashboard, name="holdfast-dashboard"),
    path("<path:path>", dashboard),
]
