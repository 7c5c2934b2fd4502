"""Schemas on a Citus cluster that was given by the URL of its coordinator; each lives on one node.

With `CITUS_PLAIN` the server may be a plain PostgreSQL, whose schemas live where it is: so that what runs here is known
to work before somebody has a cluster.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any, Self
from urllib.parse import quote

import psycopg
from psycopg import sql

from holdfast.errors import redact
from tests.servers import Unavailable

URL, PLAIN = "CITUS_URL", "CITUS_PLAIN"


class Cluster:
    """A coordinator that may create schemas."""

    def __init__(self, url: str, plain: bool = False) -> None:
        self.url = url
        self._names = (f"holdfast_citus_{os.getpid()}_{number}" for number in count(1))
        versions = self.rows("select extversion from pg_extension where extname = 'citus'")
        self.version: str | None = versions[0][0] if versions else None
        if self.version is None and not plain:
            raise RuntimeError(
                f"the database at {redact(url)} has no Citus: run `create extension citus` there and add its nodes, or "
                f"set {PLAIN}=1 to try these tests on a plain PostgreSQL"
            )

    @classmethod
    def given(cls) -> Self:
        """Return the cluster that the environment names.

        Raises: Unavailable where it names none.
        """
        if not (url := os.environ.get(URL)):
            raise Unavailable("Citus", f"{URL} names no coordinator; give one with make citus URL=postgresql://…")
        return cls(url, plain=bool(os.environ.get(PLAIN)))

    def rows(self, query: Any, *values: Any) -> list[Any]:
        with psycopg.connect(self.url, autocommit=True) as connection:
            cursor = connection.execute(query, values)
            return cursor.fetchall() if cursor.description else []

    @contextmanager
    def schema(self) -> Iterator[str]:
        """Make a schema whose tables will be on one node."""
        name = next(self._names)
        with psycopg.connect(self.url, autocommit=True) as connection:
            if self.version is not None:
                connection.execute("set citus.enable_schema_based_sharding to on")
            connection.execute(sql.SQL("create schema {}").format(sql.Identifier(name)))
        try:
            yield name
        finally:
            self.rows(sql.SQL("drop schema {} cascade").format(sql.Identifier(name)))

    def url_in(self, schema: str) -> str:
        """Return a URL on which names without a schema are those of this one, an application's tables included."""
        return f"{self.url}{'&' if '?' in self.url else '?'}options={quote(f'-c search_path={schema}')}"

    def node_of(self, schema: str) -> int:
        """Return the id of the node where the tables of a schema are."""
        found = self.rows(
            "select distinct n.nodeid from citus_shards s join pg_class c on c.oid = s.table_name"
            " join pg_dist_node n on n.nodename = s.nodename and n.nodeport = s.nodeport"
            " where c.relnamespace = %s::regnamespace",
            schema,
        )
        [[node]] = found
        return int(node)

    def move(self, schema: str) -> tuple[int, int]:
        """Move a schema to another node while it is used; return where it was and where it is."""
        before = self.node_of(schema)
        others = self.rows(
            "select nodeid from pg_dist_node where isactive and shouldhaveshards and noderole = 'primary'"
            " and nodeid <> %s order by nodeid",
            before,
        )
        if not others:
            raise Unavailable("a second Citus node", "the cluster has one node that holds tables: nothing can move")
        self._identify_rows(schema)
        self.rows("select citus_schema_move(%s::regnamespace, %s)", schema, others[0][0])
        return before, self.node_of(schema)

    def _identify_rows(self, schema: str) -> None:
        """Let rows of tables without a primary key be told apart by all they hold: Citus moves them by replication."""
        keyless = self.rows(
            "select c.relname from pg_class c where c.relnamespace = %s::regnamespace and c.relkind = 'r'"
            " and not exists (select 1 from pg_index i where i.indrelid = c.oid and i.indisprimary)",
            schema,
        )
        for [table] in keyless:
            name = sql.Identifier(schema, table)
            self.rows(sql.SQL("alter table {} replica identity full").format(name))
