"""What the models promise in a project with a prefix, a schema and local times; run by `test_tasks_and_admin.py`."""

from django.core.management import call_command
from django.db import connection
from django.utils import timezone
from inner import promise

from holdfast import admin
from holdfast.django import hf
from holdfast.django.models import FinishedJob, Job


@hf.job(kind="noop")
def noop() -> None: ...


@promise
def models_read_the_tables_of_the_prefix_and_the_schema():
    job = noop.using(run_after=60).enqueue()
    assert Job.objects.get().pk == job.id
    assert not FinishedJob.objects.exists()
    assert hf.options.prefix in Job._meta.db_table
    assert hf.options.prefix != "holdfast"
    assert "holdfast_jobs" not in connection.introspection.table_names()


@promise
def makemigrations_finds_nothing_to_do():
    call_command("makemigrations", "--check", "--dry-run", verbosity=0)


@promise
def moments_are_local_where_the_project_has_no_time_zones():
    job = noop.using(run_after=60).enqueue()
    row, view = Job.objects.get(), hf.store.run(admin.show(job.id))
    assert row.created_at.tzinfo is None
    assert timezone.make_aware(row.created_at) == view.created_at
    assert Job.objects.filter(created_at=row.created_at, available_at__gt=row.created_at).exists()
