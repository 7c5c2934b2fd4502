"""Statements as PostgreSQL itself reads them: their parse trees, with the functions that operators and casts call.

The body of a function that is written in SQL's own way (`begin atomic`) is kept as a tree, which can be read as text.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

_TOKEN = re.compile(r'[{}()]|"(?:\\.|[^"\\])*"|(?:\\.|[^\s{}()\\])+')
# What holds the type of an expression, by the kind of its node.
_TYPES = (
    "vartype",
    "consttype",
    "paramtype",
    "funcresulttype",
    "opresulttype",
    "resulttype",
    "casetype",
    "coalescetype",
    "refrestype",
    "minmaxtype",
    "array_typeid",
    "aggtype",
)

IMMUTABLE, STABLE, VOLATILE = "i", "s", "v"


@dataclass(frozen=True, eq=False)
class Node:
    """A node of a parse tree: its kind, and its fields in their order."""

    kind: str
    fields: dict[str, list[Any]]

    def one(self, name: str) -> Any:
        """Return the first value of a field; None where it has none."""
        values = self.fields.get(name) or [None]
        return None if values[0] == "<>" else values[0]

    def number(self, name: str) -> int:
        return int(self.one(name) or 0)

    def children(self) -> Iterator["Node"]:
        yield from _nodes(list(self.fields.values()))

    def walk(self) -> Iterator["Node"]:
        """Yield this node and all below it."""
        yield self
        for child in self.children():
            yield from child.walk()


def _nodes(values: list[Any]) -> Iterator[Node]:
    for value in values:
        if isinstance(value, Node):
            yield value
        elif isinstance(value, list):
            yield from _nodes(value)


def read(text: str) -> list[Any]:
    """Read what PostgreSQL writes of a tree."""
    stack: list[list[Any]] = [[]]
    for token in _TOKEN.findall(text):
        if token in "{(":
            stack.append([])
        elif token == ")":
            closed = stack.pop()
            stack[-1].append(closed)
        elif token == "}":
            closed = stack.pop()
            stack[-1].append(_node(closed))
        else:
            stack[-1].append(token)
    [values] = stack
    return values


def _node(values: list[Any]) -> Node:
    kind, *rest = values
    fields: dict[str, list[Any]] = {}
    name = ""
    for value in rest:
        if isinstance(value, str) and value.startswith(":"):
            name = value[1:]
            fields[name] = []
        else:
            fields[name].append(value)
    # All columns of the table, and its whole row: PostgreSQL notes them with every ON CONFLICT.
    fields.pop("exclRelTlist", None)
    return Node(kind, fields)


class Reader:
    """Reads statements on a connection that can see their tables."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._volatility: dict[int, str] = dict(connection.execute("select oid::int8, provolatile::text from pg_proc"))
        rows = connection.execute("select oid::int8, typinput::oid::int8, typoutput::oid::int8 from pg_type")
        self._inputs_and_outputs = {oid: (reads, writes) for oid, reads, writes in rows}

    def query(self, sql: str) -> Node:
        """Return the tree of a statement whose parameters are `$1` and so on.

        Raises: psycopg.Error where PostgreSQL refuses it.
        """
        run = self._connection.execute
        with self._connection.transaction(force_rollback=True):
            run(f"prepare form as {sql}", prepare=False)
            [[types]] = run("select parameter_types::text[] from pg_prepared_statements where name = 'form'").fetchall()
            run("deallocate form")
            run(f"create function pg_temp.form({', '.join(types)}) returns void begin atomic {sql}; end", prepare=False)
            [[text]] = run("select prosqlbody::text from pg_proc where proname = 'form'").fetchall()
        found = list(_nodes(read(text)))
        assert [node.kind for node in found] == ["QUERY"], f"not one statement: {sql}"
        return found[0]

    def volatility(self, node: Node) -> str:
        """Return that of the functions which a node itself calls: the least reliable one counts."""
        called = [self._volatility.get(function, IMMUTABLE) for function in self._functions(node)]
        if node.kind == "SQLVALUEFUNCTION":
            called.append(STABLE)
        if node.kind == "NEXTVALUEEXPR":
            called.append(VOLATILE)
        return max(called, default=IMMUTABLE, key=(IMMUTABLE, STABLE, VOLATILE).index)

    def _functions(self, node: Node) -> Iterator[int]:
        for name in ("funcid", "opfuncid", "aggfnoid", "winfnoid"):
            if name in node.fields:
                yield node.number(name)
        if node.kind == "COERCEVIAIO":
            yield self._inputs_and_outputs[node.number("resulttype")][0]
            if (given := _type_of(node.one("arg"))) is not None:
                yield self._inputs_and_outputs[given][1]


def _type_of(node: Node | None) -> int | None:
    named = [node.number(name) for name in _TYPES if name in node.fields] if node is not None else []
    return named[0] if named else None
