"""`flush` as Django's tests call it: Holdfast's tables are emptied, too, in a test database alone.

Django tells of a flush by the signal `post_migrate`, but not where `serialized_rollback` or `available_apps` of a test
inhibits it, nor on an alias that holds no tables of models.
"""

from __future__ import annotations

from typing import Any

from django.core.management.commands import flush

from holdfast.django.flushing import empty_test_tables


class Command(flush.Command):
    """Django's own, and what it leaves of ours."""

    def handle(self, **options: Any) -> None:
        super().handle(**options)
        empty_test_tables(options["database"])
