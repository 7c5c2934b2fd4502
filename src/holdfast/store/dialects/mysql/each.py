"""A query for each item of a list (`-- bind: each keys`): MariaDB has no LATERAL to ask it in one statement.

Its first statement takes all of them, as `:many`, and answers for those of which there is little to read: `:few` rows
at most. Its last column says that an item is left to the second statement, which runs once for each of those, as
`:each`. The rows of all of them are the answer; items without any may have none, or one of NULLs behind their name.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from holdfast.flow import Row, text_of
from holdfast.store.calls import Call, Calls
from holdfast.store.catalogue import Compiled

# Up to this many items each gets its own statement at once.
NOT_WORTH_IT = 2
# Up to this many rows of an item cost less to read than a statement of their own.
FEW = 16


def for_each(name: str, calls: Calls, parts: Sequence[Compiled]) -> Iterator[Call]:
    """Ask for all items of the list of that name: together, and one by one where there is much to read."""
    together, one = parts
    items = calls.params[name]
    found: list[Row] = []
    if len(items) > NOT_WORTH_IT:
        calls.params["many"] = msgspec.json.encode(items).decode()
        calls.params["few"] = max(FEW, calls.params["limit"])
        yield calls.call(together)
        found = [row[:-1] for row in calls.rows if row[1] is not None]
        items = [text_of(row[0]) for row in calls.rows if row[-1]]
    for item in items:
        calls.params["each"] = item
        yield calls.call(one)
        found += calls.rows
    calls.rows = found
