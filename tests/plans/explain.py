"""Running a flow's statement under EXPLAIN, and reading what the plan touched."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from psycopg import sql

from holdfast.flow import Flow, Statement
from holdfast.store import Store

PlanKind = Literal["force_custom_plan", "force_generic_plan"]


@dataclass(frozen=True)
class Plan:
    """A plan with what it really did."""

    root: dict[str, Any]

    def nodes(self) -> Iterator[dict[str, Any]]:
        todo = [self.root]
        while todo:
            node = todo.pop()
            yield node
            todo += node.get("Plans", [])

    @property
    def scans(self) -> set[tuple[str, str]]:
        """Which tables were read, and by which index or in which other way."""
        named = (
            (node.get("Relation Name", _table_of(node)), node.get("Index Name", node["Node Type"]))
            for node in self.nodes()
            if "Scan" in node["Node Type"] and node["Node Type"] != "Bitmap Heap Scan"
        )
        return {(table, way) for table, way in named if table.startswith("holdfast_")}

    @property
    def rows_visited(self) -> float:
        """How many rows all nodes gave or threw away, the pairs that a join compared included."""
        return sum(
            node["Actual Loops"]
            * sum(count for name, count in node.items() if name.startswith(("Actual Rows", "Rows Removed")))
            for node in self.nodes()
        )

    @property
    def buffers(self) -> int:
        return int(self.root["Shared Hit Blocks"] + self.root["Shared Read Blocks"])

    @property
    def affected(self) -> float:
        """How many rows the statement's own writes, or the plan itself, gave."""
        writes = [node["Actual Rows"] for node in self.nodes() if node["Node Type"] == "ModifyTable"]
        return float(max([self.root["Actual Rows"], *writes]))


def _table_of(node: dict[str, Any]) -> str:
    # A bitmap index scan names its index only.
    return "_".join(str(node.get("Index Name", "")).split("_")[:2])


def first_statement(work: Flow[Any]) -> Statement:
    return next(work.start())


def second_statement(work: Flow[Any]) -> Statement:
    """Return the statement that follows when the first one has found something."""
    steps = work.start()
    next(steps)
    return steps.send([()])


def explain(store: Store, connection: Any, statement: Statement, kind: PlanKind) -> Plan:
    """Run a statement as a prepared one under EXPLAIN ANALYZE, in a transaction that is rolled back."""
    query = store.dialect.query(statement)
    [compiled] = query.compiled(statement.params, "dollar", store.now is not None)
    values = [literal(value) for value in compiled.positional(store.dialect.bind(statement, query, store.now))]
    arguments = sql.SQL("({})").format(sql.SQL(", ").join(values)) if values else sql.SQL("")
    connection.execute(f"set plan_cache_mode = {kind}")
    connection.execute(f"prepare pinned as {compiled.sql}")
    try:
        # Once before it counts: the first reader of an index marks what earlier tests left dead in it.
        for _ in range(2):
            connection.execute("begin")
            call = sql.SQL("explain (analyze, buffers, format json) execute pinned") + arguments
            [[answer]] = connection.execute(call).fetchall()
            connection.execute("rollback")
    finally:
        connection.execute("rollback")
        connection.execute("deallocate pinned")
    return Plan(answer[0]["Plan"])


def literal(value: Any) -> sql.Composable:
    """Write a value so that the server reads it as the parameter's own type."""
    if value is None:
        return sql.SQL("null")
    if isinstance(value, list):
        return sql.Literal("{" + ",".join("null" if one is None else f'"{_quoted(one)}"' for one in value) + "}")
    return sql.Literal(str(value))


def _quoted(value: Any) -> str:
    return str(value).replace("\\", "\\\\").replace('"', '\\"')
