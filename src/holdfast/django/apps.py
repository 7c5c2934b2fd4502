"""The Django application `holdfast.django`."""

from __future__ import annotations

from django.apps import AppConfig
from django.core.checks import register
from django.db.models.signals import post_migrate
from django.utils.module_loading import autodiscover_modules

from holdfast.django.checks import check_settings
from holdfast.django.flushing import on_migrated
from holdfast.django.schema import make_tables


class HoldfastConfig(AppConfig):
    """Jobs of a project: its tables by `migrate`, its handlers from the `jobs.py` of each application."""

    name = "holdfast.django"
    label = "holdfast"
    verbose_name = "Holdfast"

    def ready(self) -> None:
        register(check_settings)
        post_migrate.connect(make_tables, sender=self)
        post_migrate.connect(on_migrated, sender=self)
        # With wrong settings no `jobs.py` could be imported: the check says so in fewer words than its traceback.
        if not check_settings():
            autodiscover_modules("jobs")
