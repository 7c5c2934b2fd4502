"""Jobs, finished jobs and workers in Django's admin: to look at, and to act on by permission."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, ClassVar

from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.utils import unquote
from django.core.exceptions import PermissionDenied
from django.http import HttpResponseNotAllowed, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import path, reverse
from django.utils.html import format_html

from holdfast import admin as flows
from holdfast.dashboard.pages.job import story
from holdfast.dashboard.redaction import Redaction
from holdfast.django.deeds import CANCEL, DISCARD, REPLAY, RETRY, Deed
from holdfast.django.lists import BoundedPaginator, KindFilter, NewestRows, QueueFilter, StateFilter, id_range
from holdfast.django.models import FinishedJob, Job, Worker
from holdfast.errors import JobNotFound
from holdfast.values.views import JobView, decoded

# One form has at most a thousand fields in Django (DATA_UPLOAD_MAX_NUMBER_FIELDS).
MOST_AT_ONCE = 500
MOST_TOLD = 5


class ReadOnlyAdmin(admin.ModelAdmin):
    """Pages to look at: nothing is added, changed or deleted but by deeds."""

    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER
    paginator = BoundedPaginator
    sortable_by = ()
    list_per_page = 50
    list_max_show_all = 0
    ordering = ("-pk",)

    def has_add_permission(self, request: Any) -> bool:
        return False

    def has_change_permission(self, request: Any, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: Any, obj: Any = None) -> bool:
        return False


class JobsAdmin(ReadOnlyAdmin):
    """What live and finished jobs have in common. redaction: what of payloads, results, errors and headers is shown."""

    change_list_template = "admin/holdfast/jobs.html"
    change_form_template = "admin/holdfast/job.html"
    list_filter = (QueueFilter, KindFilter, StateFilter)
    # Not what is searched, which `get_search_results` says: only that there is a search.
    search_fields = ("id", "key")
    search_help_text = "An id, or eight digits or more of its beginning (a minute shares the first eight); else a key."
    redaction = Redaction()
    states: ClassVar[tuple[str, ...]] = ()
    deeds: ClassVar[tuple[Deed, ...]] = ()
    # The list that a job may be in instead, once it has ended or come back.
    elsewhere: ClassVar[Any] = None

    def get_changelist(self, request: Any, **kwargs: Any) -> Any:
        return NewestRows

    def get_queryset(self, request: Any) -> Any:
        return super().get_queryset(request).defer("headers", "progress")

    def get_search_results(self, request: Any, queryset: Any, search_term: str) -> tuple[Any, bool]:
        word = search_term.strip()
        if not word:
            return queryset, False
        if ids := id_range(word):
            return queryset.filter(pk__range=ids), False
        return queryset.filter(key=word), False

    @admin.display(description="job")
    def what(self, row: Any) -> str:
        """Name the kind of a job, or the task that it runs."""
        task = row.payload.get("task") if row.kind.startswith("django.task") and isinstance(row.payload, dict) else None
        return str(task or row.kind)

    @admin.display(description="attempts")
    def tries(self, row: Any) -> str:
        return f"{row.attempts} of {row.max_attempts}"

    @admin.display(description="last error")
    def last_error(self, row: Any) -> str:
        last = row.errors[-1] if isinstance(row.errors, list) and row.errors else None
        if not isinstance(last, dict):
            return ""
        said = f"{str(last.get('type', '')).rpartition('.')[2]}: {last.get('message', '')}"
        return str(self.redaction.shown(said.split("\n")[0][:120], "errors", "message"))

    # The page of one job

    def change_view(self, request: Any, object_id: str, form_url: str = "", extra_context: Any = None) -> Any:
        return super().change_view(request, object_id, form_url, {**(extra_context or {}), **self._told(object_id)})

    def _told(self, object_id: str) -> dict[str, Any]:
        from holdfast.django import hf

        try:
            job = hf.store.run(flows.show(unquote(object_id)))
        except JobNotFound:
            return {}
        lines = hf.store.run(flows.audit(job.id))
        return {"job": job, "story": story(job, lines, self.redaction), "data": list(self._data(job))}

    def _data(self, job: JobView) -> list[tuple[str, str]]:
        shown = {
            "payload": self.redaction.shown(decoded(job.payload), "payload"),
            "result": self.redaction.shown(job.result, "result"),
            "progress": self.redaction.shown(job.progress, "progress"),
            "headers": self.redaction.shown(job.headers, "headers"),
        }
        given = {name: value for name, value in shown.items() if value is not None}
        return [(name, json.dumps(value, indent=2, ensure_ascii=False)) for name, value in given.items()]

    def render_change_form(self, request: Any, context: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        job: JobView | None = context.get("job")
        may = [one for one in self.deeds if job and job.state in one.states and self.may(request, one)]
        context["buttons"] = [(one, self._address("act", job.id, one.name)) for one in may if job]
        return super().render_change_form(request, context, *args, **kwargs)

    def _get_obj_does_not_exist_redirect(self, request: Any, opts: Any, object_id: str) -> Any:
        """Lead to the other list where the job is there by now."""
        found = self.elsewhere._default_manager.filter(pk=object_id) if id_range(object_id) else ()
        for row in found:
            address = reverse(f"{self.admin_site.name}:{_route(self.elsewhere, 'change')}", args=[row.pk])
            return HttpResponseRedirect(address)
        return super()._get_obj_does_not_exist_redirect(request, opts, object_id)

    # What can be done

    def may(self, request: Any, deed: Deed) -> bool:
        """Tell whether somebody has the permission that a deed needs."""
        return bool(request.user.has_perm(f"holdfast.{deed.permission}"))

    def get_urls(self) -> list[Any]:
        view = self.admin_site.admin_view(self.act)
        return [path("<path:object_id>/act/<str:name>/", view, name=_route(self.model, "act")), *super().get_urls()]

    def act(self, request: Any, object_id: str, name: str) -> Any:
        """Do to one job what a button of its page asks for."""
        deed = next((one for one in self.deeds if one.name == name), None)
        if deed is None or not self.may(request, deed):
            raise PermissionDenied
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        if deed.asks and "yes" not in request.POST:
            return self._ask(request, deed, [object_id])
        self._do(request, deed, [object_id])
        return HttpResponseRedirect(self._address("change", object_id))

    def chosen(self, request: Any, deed: Deed, queryset: Any) -> Any:
        """Do something to the jobs that were chosen in the list."""
        ids = [str(pk) for pk in queryset.values_list("pk", flat=True)[: MOST_AT_ONCE + 1]]
        if len(ids) > MOST_AT_ONCE:
            said = f"The admin acts on {MOST_AT_ONCE} jobs at a time; the dashboard and the command line act on more."
            self.message_user(request, said, messages.ERROR)
            return None
        if deed.asks and "yes" not in request.POST:
            return self._ask(request, deed, ids)
        return self._do(request, deed, ids)

    def _ask(self, request: Any, deed: Deed, ids: Sequence[str]) -> TemplateResponse:
        context = {
            **self.admin_site.each_context(request),
            "title": f"{deed.label} {len(ids):,} {'job' if len(ids) == 1 else 'jobs'}?",
            "opts": self.opts,
            "deed": deed,
            "ids": ids,
            "checkbox": ACTION_CHECKBOX_NAME,
        }
        return TemplateResponse(request, "admin/holdfast/ask.html", context)

    def _do(self, request: Any, deed: Deed, ids: Sequence[str]) -> None:
        done = deed.act(ids, request.user.get_username())
        self.message_user(request, done.said, messages.WARNING if done.left else messages.SUCCESS)
        for said in done.left[:MOST_TOLD]:
            self.message_user(request, said, messages.WARNING)
        if len(done.left) > MOST_TOLD:
            self.message_user(request, f"… and {len(done.left) - MOST_TOLD:,} more.", messages.WARNING)

    def _address(self, page: str, *said: str) -> str:
        return str(reverse(f"{self.admin_site.name}:{_route(self.model, page)}", args=said))


def _action(deed: Deed) -> Any:
    """Make an action of the list, which Django offers and takes by `has_…_permission` alone."""

    def act(model_admin: JobsAdmin, request: Any, queryset: Any) -> Any:
        return model_admin.chosen(request, deed, queryset)

    act.__name__ = deed.name
    return admin.action(act, permissions=[deed.name], description=f"{deed.label}: those chosen")


def _route(model: Any, page: str) -> str:
    return f"{model._meta.app_label}_{model._meta.model_name}_{page}"


_WHAT = ("id", "kind", "queue", "key", "unique_key", "priority", "tries", "replays")
_WHEN = ("created_at", "available_at", "leased_at", "leased_by")


@admin.register(Job)
class JobAdmin(JobsAdmin):
    """Live jobs: run them now, cancel them."""

    list_display = ("id", "what", "queue", "state", "key", "tries", "available_at", "leased_by", "last_error")
    fields = readonly_fields = ("state", *_WHAT, "fence", "cancel_requested", "waits_for", *_WHEN, "lease_expires_at")
    states = ("pending", "waiting", "leased")
    deeds = (RETRY, CANCEL)
    actions = tuple(map(_action, deeds))
    elsewhere = FinishedJob

    def has_retry_permission(self, request: Any) -> bool:
        return self.may(request, RETRY)

    def has_cancel_permission(self, request: Any) -> bool:
        return self.may(request, CANCEL)


@admin.register(FinishedJob)
class FinishedJobAdmin(JobsAdmin):
    """Finished jobs: replay or discard those that are dead or cancelled."""

    list_display = ("id", "what", "queue", "outcome", "key", "tries", "finished_at", "last_error")
    fields = readonly_fields = ("outcome", *_WHAT, "fence", *_WHEN, "finished_at", "fingerprint")
    states = ("done", "dead", "cancelled")
    deeds = (REPLAY, DISCARD)
    actions = tuple(map(_action, deeds))
    elsewhere = Job

    def has_replay_permission(self, request: Any) -> bool:
        return self.may(request, REPLAY)

    def has_discard_permission(self, request: Any) -> bool:
        return self.may(request, DISCARD)

    def get_queryset(self, request: Any) -> Any:
        return super().get_queryset(request).defer("headers", "progress", "result")


@admin.register(Worker)
class WorkerAdmin(ReadOnlyAdmin):
    """Workers, those that are gone included."""

    list_display = ("id", "state", "queues", "started_at", "seen_at", "stopped_at")
    fields = readonly_fields = ("id", "state", "started_at", "seen_at", "stopped_at", "about")
    ordering = ("-seen_at",)

    @admin.display(description="status")
    def state(self, row: Any) -> str:
        """Tell one that stopped by itself from one that fell silent, as `holdfast workers` does."""
        return "stopped" if row.status == "dead" and row.stopped_at is not None else str(row.status)

    @admin.display
    def queues(self, row: Any) -> str:
        return ", ".join(row.info.get("queues", ()) if isinstance(row.info, dict) else ())

    @admin.display
    def about(self, row: Any) -> Any:
        return format_html("<pre>{}</pre>", json.dumps(row.info, indent=2))
