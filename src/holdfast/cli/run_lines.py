"""What `holdfast runs` says of single runs: what a migration or a replay came to."""

from __future__ import annotations

from typing import Any

from holdfast.app import Holdfast
from holdfast.errors import ConfigError, Conflict, NonDeterminism, PayloadError, RunNotFound
from holdfast.values.failure import words
from holdfast.workflows import History, RunHandle, replay, served


def migrated(handle: RunHandle[Any], version: int, actor: str | None, dry_run: bool) -> dict[str, Any]:
    """Let a run go on with the code of another version, or see whether it would; `why` says why not."""
    try:
        if dry_run:
            history = handle.export()
            handle.checked(history, version)
        else:
            handle.migrate(version, actor=actor)
    except (Conflict, NonDeterminism, PayloadError, RunNotFound, ConfigError) as error:
        return {"run": handle.id, "to": version, "why": f"stays as it is: {error}"}
    return {"run": handle.id, "to": version, "why": None}


def replayed(app: Holdfast, file: str, version: int | None) -> dict[str, Any]:
    """Replay the history in a file; `why` says what the code does otherwise."""
    history = History.read(file)
    try:
        found = replay(served(app.handlers, history, version), history)
    except (NonDeterminism, PayloadError) as error:
        return {"file": file, "run": history.run, "why": words(error), "found": None}
    waits = f"{len(history.rows):,} rows fit; the code then waits for: {', '.join(found.waits_for) or 'a timer'}"
    ended = f"{len(history.rows):,} rows fit; the body is over" + (f": {found.error}" if found.error else "")
    return {"file": file, "run": history.run, "why": None, "found": ended if found.over else waits}
