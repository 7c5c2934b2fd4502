"""Waiting for a job on the command line: `jobs wait`, `enqueue --wait`."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from holdfast.cli.shared import Exit, Failure

if TYPE_CHECKING:
    from holdfast.app import Holdfast

# Stands for no time-out where an option may be given without a value.
FOR_EVER = timedelta.max


def waited(app: Holdfast, job_id: str, timeout: timedelta | None) -> Any:
    """Wait for a job's result. Raises: what `hf.result` does; Failure when the time is over."""
    try:
        return app.result(job_id, None if timeout is FOR_EVER else timeout)
    except TimeoutError as error:
        raise Failure(str(error), Exit.TIMEOUT) from error
