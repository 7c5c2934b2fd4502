"""What people may change of a job that nobody holds: its priority, its time, its queue."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from holdfast.errors import ConfigError
from holdfast.values.options import NAME_LENGTH, EnqueueOptions, text
from holdfast.values.reserved import unreserved
from holdfast.values.views import iso


@dataclass(frozen=True)
class Change:
    """What to change of jobs that nobody holds; None leaves it as it is.

    run_after: seconds or a timedelta from now by the database's clock, or a datetime with a time zone.
    """

    priority: int | None = None
    run_after: datetime | timedelta | float | None = None
    to_queue: str | None = None

    def __post_init__(self) -> None:
        """Raises: ConfigError for what no job can have, and where nothing is to be changed."""
        if self.to_queue is not None:
            text(self.to_queue, "to_queue", NAME_LENGTH)
            unreserved(self.to_queue, "to_queue")
        said = EnqueueOptions(priority=self.priority, run_after=self.run_after)
        object.__setattr__(self, "run_after", said.run_after)
        if not self.given():
            raise ConfigError("change", "say what to change: priority=, run_after= or to_queue=", None)

    def given(self) -> dict[str, Any]:
        """Return what is to be changed, by name, ready for JSON."""
        said = {name: value for name, value in vars(self).items() if value is not None}
        return {name: iso(value) if isinstance(value, datetime) else value for name, value in said.items()}

    @property
    def joins_anew(self) -> bool:
        """Whether a job leaves the line that it stands in: it goes elsewhere, or is due at another time."""
        return self.run_after is not None or self.to_queue is not None

    @property
    def delay_ms(self) -> int | None:
        return None if not isinstance(self.run_after, float) else round(self.run_after * 1000)

    @property
    def run_at(self) -> datetime | None:
        return self.run_after if isinstance(self.run_after, datetime) else None
