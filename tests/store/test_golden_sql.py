"""The hot statements, word for word as they run: a change of theirs is seen in a review, whatever file it came from.

After a change on purpose: `HOLDFAST_GOLDEN=write pytest tests/store/test_golden_sql.py`, and read the diff.
"""

import os
from pathlib import Path

import pytest

from holdfast.store.dialects import DIALECTS, dialect_named
from holdfast.values.options import StoreOptions

HOT = (
    ("enqueue", ()),
    ("enqueue", ("priority", "key", "bucket")),
    ("claim", ("queues",)),
    ("claim", ("lane_queues", "leases", "unsuspected")),
    ("renew", ()),
    ("put_back", ()),
    ("finish", ("whole",)),
    ("drop", ("whole",)),
    ("finish_one", ()),
    ("drop_one", ()),
)


@pytest.mark.parametrize("name", DIALECTS)
def test_the_hot_statements_are_as_they_were(name: str) -> None:
    dialect = dialect_named(name, StoreOptions())
    blocks = []
    for query, given in HOT:
        parts = dialect.queries[query].compiled(dict.fromkeys(given, 1), dialect.style)
        title = f"-- {query}" + (f" (given: {', '.join(given)})" if given else "")
        blocks.append("\n".join([title, *(f"{part.sql};" for part in parts)]))
    text = "\n\n".join(blocks) + "\n"
    file = Path(__file__).parent / "golden" / f"{name}.sql"
    if os.environ.get("HOLDFAST_GOLDEN") == "write":
        file.write_text(text, "utf-8")
    assert text == file.read_text("utf-8")
