"""Every write to our tables has a form that Citus takes: PostgreSQL reads it, and the rules are held against its tree.

Tables that other programs share live where those put them; nothing here is about them.
"""

import re
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path

import psycopg
import pytest

from holdfast.store import Store, migrate
from holdfast.store.catalogue import (
    Written,
    compile_statement,
    migration_files,
    own_queries,
    split_queries,
    split_statements,
)
from holdfast.values.options import StoreOptions
from tests.servers import Postgres
from tests.store import citus_rules
from tests.store.citus_rules import Rules
from tests.store.parse_trees import Reader

WRITES = re.compile(r"\binsert into\b|\bupdate holdfast_|\bdelete from\b")


def examples(name: str) -> list[Written]:
    return list(split_queries((Path(__file__).parent / "citus" / f"{name}.sql").read_text("utf-8")).values())


def writing() -> list[str]:
    written = own_queries("postgres")
    return [name for name in written if any(WRITES.search(part) for part in written[name].statements)]


@pytest.fixture(scope="module")
def store(postgres: Postgres) -> Iterator[Store]:
    url = postgres.start().fresh_database()
    # Without wake-ups: the forms that Citus takes are for those who have switched them off.
    store = Store(url, StoreOptions(notify=False))
    store.run(migrate.apply(store.migrations))
    yield store
    store.close()
    postgres.start().drop_database(url.rpartition("/")[2])


@pytest.fixture(scope="module")
def reader(store: Store) -> Iterator[Reader]:
    with psycopg.connect(store.url, autocommit=True) as connection:
        yield Reader(connection)


def forms(store: Store, name: str) -> Iterator[tuple[frozenset[str], str]]:
    """Yield the writes of a query: with no optional line, with each of them and with each two."""
    query = store.dialect.queries[name]
    for size in range(3):
        for given in map(frozenset, combinations(sorted(query.optional), size)):
            for part in query.chosen(given):
                if WRITES.search(part):
                    yield given, compile_statement(part, "dollar").sql


@pytest.mark.parametrize("name", writing())
def test_a_write_has_a_form_that_citus_takes(name: str, store: Store, reader: Reader) -> None:
    rules, seen, broken, refused = Rules(reader), set(), set(), []
    for given, sql in forms(store, name):
        try:
            tree = reader.query(sql)
        except psycopg.Error as error:
            # Some lines go with others only: those of `claim` that say where to begin.
            refused.append(f"{sorted(given)}: {error}")
            continue
        seen |= {"", *given}
        broken |= rules.broken(tree)
    assert broken == set()
    assert seen == {"", *store.dialect.queries[name].optional}, refused


def test_the_writes_are_all_there() -> None:
    assert {"enqueue", "claim", "renew", "put_back", "finish", "keys_take", "checkpoint", "round_take"} <= {*writing()}
    assert len(writing()) > 80


@pytest.mark.parametrize("example", examples("refused"), ids=lambda example: example.name)
def test_a_form_that_citus_refuses_is_seen(example: Written, reader: Reader) -> None:
    rule = getattr(citus_rules, example.head.rpartition(": ")[2])
    assert rule in Rules(reader).broken(reader.query(*example.statements))


@pytest.mark.parametrize("example", examples("taken"), ids=lambda example: example.name)
def test_a_form_that_citus_takes_is_let_through(example: Written, reader: Reader) -> None:
    assert Rules(reader).broken(reader.query(*example.statements)) == set()


def test_migrations_add_a_constraint_by_itself() -> None:
    changes = [part for _, _, text in migration_files("postgres") for part in split_statements(text)]
    constrained = [part for part in changes if part.startswith("alter table") and "add constraint" in part]
    assert constrained, "nothing to look at"
    together = re.compile(r"\b(?:add|drop|alter) (?:column|constraint)\b")
    assert [part for part in constrained if len(together.findall(part)) > 1] == []
