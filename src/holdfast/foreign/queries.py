"""A contract's queries, ready to be asked by flows: SQL texts with the tables' configured names filled in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.errors import ForeignTablesMissing
from holdfast.flow import Rows, Statement, Steps


@dataclass(frozen=True, slots=True)
class Queries:
    """Named queries of one set of tables. `under` tells these tables from others in errors and logs.

    They travel as text with each statement: a store beside the application's own needs not be told of them.
    """

    under: str
    texts: Mapping[str, tuple[str, ...]]
    # The tables by their names, for those who look whether they are there.
    tables: tuple[str, ...] = ()

    def ask(self, name: str, **params: Any) -> Steps[Rows]:
        """Run a query's statements in their order and return the rows of its last select.

        A select that finds nothing ends the query: what comes after it is only for rows that were found and locked.
        """
        rows: Rows = ()
        for text in self.texts[name]:
            answer = yield Statement(f"{self.under}/{name}", params, text=text)
            if text.lstrip().lower().startswith("select"):
                rows = answer
                if not rows:
                    break
        return rows

    def created_by(self) -> list[str]:
        """Return the statements that make the tables."""
        makers = [texts for name, texts in self.texts.items() if name.startswith("create")]
        return [text for texts in makers for text in texts if text.lower().startswith("create")]

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
