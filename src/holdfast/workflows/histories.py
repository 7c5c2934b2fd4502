"""Histories of runs: what there is to replay one against the code of today, as data that can be kept in a file."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

import msgspec

from holdfast import admin, runs
from holdfast.errors import ConfigError
from holdfast.flow import Steps, flow
from holdfast.placing import where_id_is
from holdfast.runs import Recorded
from holdfast.values.views import decoded


class Row(msgspec.Struct, frozen=True, omit_defaults=True):
    """A row of a journal, as a file has it: the fields of `Recorded`."""

    seq: int
    key: str
    kind: runs.Kind
    ok: int = 1
    value: str | None = None
    digest: int | None = None
    attempt: int = 1
    worker: str | None = None
    took_ms: int | None = None
    ref: str | None = None
    at: int = 0


class History(msgspec.Struct, frozen=True):
    """A run with its arguments and its journal; `to_json` writes what `holdfast runs replay` and `replay` read."""

    run: str
    job_id: str
    workflow: str
    kind: str
    status: str
    arguments: Any
    created_at: datetime
    rows: list[Row]
    format: Literal["holdfast-run-1"] = "holdfast-run-1"

    @property
    def recorded(self) -> list[Recorded]:
        return [Recorded(*msgspec.structs.astuple(row)) for row in self.rows]

    @property
    def version(self) -> int:
        return int(self.kind.rpartition("@")[2])

    def to_json(self) -> str:
        return msgspec.json.format(msgspec.json.encode(self), indent=1).decode()

    @classmethod
    def read(cls, given: History | Mapping[str, Any] | str | bytes | Path) -> History:
        """Read a history: a file by its path, its text, or what JSON makes of it. Raises: ConfigError."""
        if isinstance(given, History):
            return given
        try:
            if isinstance(given, Mapping):
                return msgspec.convert(given, cls)
            if isinstance(given, Path) or (isinstance(given, str) and not given.lstrip().startswith("{")):
                given = Path(given).read_bytes()
            return msgspec.json.decode(given, type=cls)
        except (msgspec.MsgspecError, OSError, UnicodeError) as error:
            rule = f"must be a file that `holdfast runs export` has written, or its text: {error}"
            raise ConfigError("history", rule, str(given)[:100]) from error


@where_id_is
@flow
def export(key: str, workflow: str | None = None) -> Steps[History]:
    """Read a run with its arguments and its journal. Raises: RunNotFound, JobNotFound."""
    view, rows = yield from runs.timeline(key, workflow)
    job = yield from admin.get(view.job_id).start()
    return History(
        run=view.id,
        job_id=view.job_id,
        workflow=view.workflow,
        kind=job.kind,
        status=view.status,
        arguments=decoded(job.payload),
        created_at=view.created_at,
        rows=[Row(*row) for row in rows],
    )
