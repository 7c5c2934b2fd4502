"""The queries of one set of foreign tables, ready to be asked by flows."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from holdfast.errors import ConfigError, ForeignTablesMissing
from holdfast.flow import Rows, Steps, Surface

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def name_of(value: object, field: str, longest: int) -> str:
    """Check a table name or prefix, which become part of SQL text."""
    if not isinstance(value, str) or not _NAME.fullmatch(value) or len(value) > longest:
        rule = f"must be 1 to {longest} letters, digits and _, not starting with a digit"
        raise ConfigError(field, rule, value)
    return value


@dataclass(frozen=True, slots=True)
class Queries:
    """Where the queries of foreign tables are, and what the tables are called."""

    surface: Surface
    # The tables by their names, for those who look whether they are there.
    tables: tuple[str, ...] = ()

    @property
    def under(self) -> str:
        """What tells these tables from others in errors and logs."""
        return self.surface.under

    def ask(self, name: str, **params: Any) -> Steps[Rows]:
        """Run a query and return its rows."""
        return self.surface.ask(name, **params)

    def missing(self) -> Steps[list[str]]:
        """Name the tables that are not there."""
        absent = []
        for table in self.tables:
            if not (yield from self.ask("present", table=table)):
                absent.append(table)
        return absent

    def check(self) -> Steps[None]:
        """Raise ForeignTablesMissing unless the tables are there."""
        if absent := (yield from self.missing()):
            raise ForeignTablesMissing(self.under, absent)
