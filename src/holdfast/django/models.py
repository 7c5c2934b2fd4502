"""Jobs and workers as models, to be read: nothing written here would have a fence or an audit line.

The tables are Holdfast's own and come by its migrations, so the models are unmanaged; `makemigrations` never finds
anything to do for them (`models_state.py`).
"""

from __future__ import annotations

from typing import Any, NoReturn

from django.db import NotSupportedError, models

from holdfast.django.fields import IdField, MomentField, StoredJsonField
from holdfast.django.settings import alias
from holdfast.django.tables import table

_REFUSED = (
    "The rows of Holdfast are only read by models: what writes to them needs a fence and an audit line. "
    "Use hf (enqueue, cancel, change), `manage.py holdfast`, or the actions of the admin."
)


def refuse(*args: Any, **kwargs: Any) -> NoReturn:
    """Refuse to write. Raises: NotSupportedError."""
    raise NotSupportedError(_REFUSED)


class ReadOnlyQuerySet(models.QuerySet):
    """Rows to be read."""

    create = get_or_create = update_or_create = bulk_create = bulk_update = refuse
    update = delete = _raw_delete = _update = _insert = select_for_update = refuse


_Manager: Any = models.Manager.from_queryset(ReadOnlyQuerySet)


class ReadOnlyManager(_Manager):
    """Reads from the database that the tables are in, whatever routers say."""

    def get_queryset(self) -> Any:
        return ReadOnlyQuerySet(self.model, using=self._db or alias())


class ReadOnlyModel(models.Model):
    """A row that can only be read."""

    objects = ReadOnlyManager()

    save = save_base = delete = asave = adelete = refuse

    class Meta:
        abstract = True
        managed = False
        base_manager_name = "objects"
        default_permissions = ("view",)


class JobColumns(ReadOnlyModel):
    """What live and finished jobs have in common."""

    id = IdField(primary_key=True)
    queue = models.CharField(max_length=100)
    kind = models.CharField(max_length=100)
    key = models.CharField(max_length=200, null=True)
    unique_key = models.CharField(max_length=200, null=True)
    priority = models.SmallIntegerField()
    attempts = models.IntegerField()
    max_attempts = models.IntegerField()
    replays = models.IntegerField()
    fence = models.BigIntegerField()
    created_at = MomentField("enqueued at")
    available_at = MomentField("due at")
    leased_at = MomentField(null=True)
    leased_by = models.CharField("worker", max_length=500, null=True)
    payload = StoredJsonField()
    headers = StoredJsonField(null=True)
    progress = StoredJsonField(null=True)
    errors = StoredJsonField(null=True)

    class Meta(ReadOnlyModel.Meta):
        abstract = True

    def __str__(self) -> str:
        return f"{self.kind} {self.id}"


class Job(JobColumns):
    """A live job: pending, leased or waiting."""

    state = models.CharField(max_length=10)
    lease_expires_at = MomentField(null=True)
    cancel_requested = models.BooleanField()
    waits_for = models.CharField(max_length=500, null=True)

    class Meta(JobColumns.Meta):
        db_table = table("jobs")
        verbose_name = "job"
        permissions = (
            ("retry_job", "Can run a job now"),
            ("cancel_job", "Can cancel a job"),
            ("operate_job", "Can pause queues, change jobs and limits, drain workers"),
        )


class FinishedJob(JobColumns):
    """A job that is done, dead or cancelled, until its retention is over."""

    outcome = models.CharField(max_length=10)
    finished_at = MomentField()
    result = StoredJsonField(null=True)
    fingerprint = models.CharField("group", max_length=64, null=True)

    class Meta(JobColumns.Meta):
        db_table = table("finished")
        verbose_name = "finished job"
        permissions = (
            ("replay_finishedjob", "Can replay a dead or cancelled job"),
            ("discard_finishedjob", "Can discard a dead or cancelled job"),
        )


class Worker(ReadOnlyModel):
    """A worker, as its last beat has left it."""

    id = models.CharField(max_length=500, primary_key=True)
    status = models.CharField(max_length=10)
    started_at = MomentField()
    seen_at = MomentField()
    stopped_at = MomentField(null=True)
    info = StoredJsonField()

    class Meta(ReadOnlyModel.Meta):
        db_table = table("workers")

    def __str__(self) -> str:
        return str(self.id)
