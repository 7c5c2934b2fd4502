"""How the migrations know of the read-only models: as they are today, so that `makemigrations` never asks for more."""

from __future__ import annotations

from typing import Any

from django.db.migrations.operations.base import Operation
from django.db.migrations.state import ModelState


class ReadOnlyModels(Operation):
    """Say that the models are there. It does nothing to a database, and needs no successor when a column comes."""

    reduces_to_sql = False
    reversible = True

    def state_forwards(self, app_label: str, state: Any) -> None:
        from holdfast.django.models import FinishedJob, Job, Worker

        for model in (Job, FinishedJob, Worker):
            state.add_model(ModelState.from_model(model))

    def database_forwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        """Nothing: the tables are Holdfast's."""

    def database_backwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        """Nothing."""

    def describe(self) -> str:
        return "Know of the read-only models"
