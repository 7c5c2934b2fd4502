"""What every set of foreign tables has, whatever its kind."""

from __future__ import annotations

from typing import Protocol

from holdfast.foreign.queries import Queries


class ForeignTables(Protocol):
    """One set of foreign tables: its queries, and the settings that its programs agree on."""

    @property
    def queries(self) -> Queries: ...
