"""A contract's queries, ready to be asked by flows: SQL texts with the tables' configured names filled in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.flow import Rows, Statement, Steps


@dataclass(frozen=True, slots=True)
class Queries:
    """Named queries of one set of tables. `under` tells these tables from others in errors and logs.

    They travel as text with each statement: a store beside the application's own needs not be told of them.
    """

    under: str
    texts: Mapping[str, tuple[str, ...]]

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
