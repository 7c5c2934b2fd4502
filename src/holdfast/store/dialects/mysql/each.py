"""A query that runs once for each item of a list (`-- bind: each keys`): MariaDB has no LATERAL to do so in one
statement.

The item is `:each`, and the rows of all of them are the answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from holdfast.flow import Row
from holdfast.store.calls import Call, Calls
from holdfast.store.catalogue import Compiled


def for_each(name: str, calls: Calls, parts: Sequence[Compiled]) -> Iterator[Call]:
    """Run the statement of a query for each item of the list of that name."""
    [part] = parts
    found: list[Row] = []
    for item in calls.params[name]:
        calls.params["each"] = item
        yield calls.call(part)
        found += calls.rows
    calls.rows = found
