"""The effect of a job: a small table of the application's own, in which each job counts one row up.

Ours and the raw loops write it alike. With another checkout, too, it is the file beside `child.py`: it imports nothing.
"""

from __future__ import annotations

# Enough rows that two jobs at work seldom want the same one: neighbours in the queue have neighbouring rows.
ROWS = 1_000

CREATE = "create table bench_effects (id integer not null primary key, n integer not null)"
FILL = "insert into bench_effects (id, n) values all_rows"
DROP = "drop table if exists bench_effects"
UPDATE = "update bench_effects set n = n + 1 where id = one_row"
COUNT = "select sum(n) from bench_effects"


class Effects:
    """The SQL of the table behind a prefix; plain enough for every database."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        rows = ", ".join(f"({row}, 0)" for row in range(ROWS))
        self.make = (self._written(CREATE), self._written(FILL).replace("all_rows", rows))
        self.drop = self._written(DROP)
        self.count = self._written(COUNT)

    def update(self, place: str) -> str:
        """Write the update of one row, with the driver's placeholder for its id."""
        return self._written(UPDATE).replace("one_row", place)

    @staticmethod
    def row(order: int) -> int:
        return order % ROWS

    def _written(self, sql: str) -> str:
        return sql.replace("bench_effects", f"{self._prefix}_effects")
