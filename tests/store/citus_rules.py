"""What Citus refuses of statements that PostgreSQL takes, as far as it concerns a schema that lives on one node.

Citus looks at a write before it sends it to the node of its tables. What it finds there is in its documentation, in
what its planner says when it refuses, and in what was tried on Citus 14.0.1 (docs/scale.md). A statement that it cannot
send as a whole is cut at its CTEs, each of which is then a statement by itself.
"""

from collections.abc import Iterator

from tests.store.parse_trees import IMMUTABLE, STABLE, VOLATILE, Node, Reader

SELECT, UPDATE, INSERT, DELETE = 1, 2, 3, 4
SUBQUERY, ANY_OF = 1, 2
WHOLE_ROW, CTID = 0, -1

RETURNING = "non-IMMUTABLE functions are not allowed in the RETURNING clause"
CASE = "non-IMMUTABLE functions are not allowed in CASE or COALESCE statements"
COLUMN = "STABLE functions used in UPDATE queries cannot be called with column references"
VOLATILE_WRITE = "functions used in UPDATE queries on distributed tables must not be VOLATILE"
CONFLICT = "functions used in ON CONFLICT must be marked IMMUTABLE"
VALUES = "subqueries and CTEs are not supported within INSERT … VALUES"
SIMPLE_CASE = "CASE with an operand is written wrongly when its parts are worked out on the coordinator"
RECURSION = "recursive CTEs are only supported in statements that are sent as a whole"
ROWS_IN = "a list of rows in a subquery is written wrongly (subquery has too many columns)"
ROW = "whole-row references are written wrongly"
CUT = "ctid may not be asked for in a statement that is cut at its CTEs"


class Rules:
    """Holds the rules against parse trees."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    def broken(self, statement: Node) -> set[str]:
        """Name the rules that a statement breaks."""
        writes = list(_writes(statement))
        if not writes:
            return set()
        is_cut = any(write.number("commandType") == INSERT for write in writes if write is not statement)
        found = (
            {RECURSION} if is_cut and any(node.one("hasRecursive") == "true" for node in statement.walk()) else set()
        )
        for write in writes:
            found |= set(self._of_write(write, in_cte=write is not statement, is_cut=is_cut))
        return found

    def _of_write(self, write: Node, in_cte: bool, is_cut: bool) -> Iterator[str]:
        command = write.number("commandType")
        returned = write.fields["returningList"]
        # Of a CTE the tree is looked at as it was written, of others as the planner left it: without its subqueries.
        if any(self._is_mutable(node, deep=in_cte) for node in _of(returned)):
            yield RETURNING
        if command in (UPDATE, DELETE):
            yield from self._of_update(write, in_cte)
        if (conflict := write.one("onConflict")) is not None and self._is_mutable(conflict, deep=True):
            yield CONFLICT
        if command == INSERT and not _selects(write) and (write.one("hasSubLinks") == "true" or _ctes(write)):
            yield VALUES
        nodes = list(_own_nodes(write))
        if any(node.kind == "CASEEXPR" and node.one("arg") is not None for node in nodes):
            yield SIMPLE_CASE
        if any(node.kind == "SUBLINK" and _has_rows(node) for node in nodes):
            yield ROWS_IN
        columns = {node.number("varattno") for node in nodes if node.kind == "VAR"}
        if WHOLE_ROW in columns:
            yield ROW
        if is_cut and CTID in columns:
            yield CUT

    def _of_update(self, write: Node, in_cte: bool) -> Iterator[str]:
        if any(self._reader.volatility(node) == VOLATILE for node in write.walk()):
            yield VOLATILE_WRITE
        assigned = write.fields["targetList"] if write.number("commandType") == UPDATE else []
        said = [*write.fields["jointree"], *assigned]
        for node in _without_subqueries(list(_of(said))):
            if node.kind in ("CASEEXPR", "COALESCEEXPR") and self._is_mutable(node, deep=in_cte):
                yield CASE
            elif self._reader.volatility(node) == STABLE and _names_column(node):
                yield COLUMN
        for table in _of(write.fields["rtable"]):
            # One that is not kept apart by `offset` becomes a part of the statement, and so do its functions.
            if table.number("rtekind") == SUBQUERY and command_of(table) == SELECT and not _is_apart(table):
                yield from (COLUMN for node in table.walk() if self._reader.volatility(node) != IMMUTABLE)

    def _is_mutable(self, node: Node, deep: bool) -> bool:
        nodes = node.walk() if deep else _without_subqueries([node], into_cases=True)
        return any(self._reader.volatility(one) != IMMUTABLE for one in nodes)


def command_of(table: Node) -> int:
    subquery = table.one("subquery")
    return subquery.number("commandType") if subquery is not None else 0


def _of(values: list[object]) -> Iterator[Node]:
    for value in values:
        if isinstance(value, Node):
            yield value
        elif isinstance(value, list):
            yield from _of(value)


def _ctes(query: Node) -> list[Node]:
    return [cte.one("ctequery") for cte in _of(query.fields["cteList"])]


def _writes(statement: Node) -> Iterator[Node]:
    """Yield the writes of a statement: itself, and those in its CTEs, which are nowhere else."""
    for query in (statement, *_ctes(statement)):
        if query.number("commandType") in (UPDATE, INSERT, DELETE):
            yield query


def _own_nodes(write: Node) -> Iterator[Node]:
    """Yield the nodes of a write, without those of writes in its CTEs."""
    others = {id(query) for query in _ctes(write)}
    todo = [write]
    while todo:
        node = todo.pop()
        yield node
        todo += [child for child in node.children() if id(child) not in others]


def _selects(insert: Node) -> bool:
    return any(table.number("rtekind") == SUBQUERY for table in _of(insert.fields["rtable"]))


def _is_apart(table: Node) -> bool:
    subquery = table.one("subquery")
    return subquery.one("limitOffset") is not None or subquery.one("limitCount") is not None


def _has_rows(link: Node) -> bool:
    columns = [entry for entry in _of(link.one("subselect").fields["targetList"]) if entry.one("resjunk") == "false"]
    return link.number("subLinkType") == ANY_OF and len(columns) > 1


def _without_subqueries(nodes: list[Node], into_cases: bool = False) -> Iterator[Node]:
    """Yield nodes and what is below them, without what stands in a subquery; what is in a case only if asked for."""
    for node in nodes:
        yield node
        if node.kind != "QUERY" and (into_cases or node.kind not in ("CASEEXPR", "COALESCEEXPR")):
            below = [child for child in node.children() if child.kind != "QUERY"]
            yield from _without_subqueries(below, into_cases)


def _names_column(node: Node) -> bool:
    """Tell whether a function is given a column, as far as Citus sees: it does not look into cases."""
    return any(one.kind == "VAR" for one in _without_subqueries(list(node.children())))
