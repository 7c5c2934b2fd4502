"""`dumpdata` without jobs, except where they are asked for by name.

Rows of Holdfast cannot be loaded again, and Django would look for its tables on every alias, whatever HOLDFAST says.
"""

from __future__ import annotations

from typing import Any

from django.core.management.commands import dumpdata

OURS = "holdfast"


class Command(dumpdata.Command):
    """Django's own, with one application fewer by default."""

    def handle(self, *app_labels: str, **options: Any) -> None:
        if not any(label.partition(".")[0] == OURS for label in app_labels):
            options["exclude"] = [*(options.get("exclude") or ()), OURS]
        super().handle(*app_labels, **options)
