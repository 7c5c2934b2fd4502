"""Roles that may use the tables and create nothing: they can look, and apply what is not to be done."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from holdfast import jobs
from holdfast.cli import main
from holdfast.errors import QueryFailed
from holdfast.store import Store, migrate
from holdfast.testing import new_job
from holdfast.values.options import StoreOptions

SCHEMA = "work"


def at(url: str, role: str) -> str:
    """Write a URL of the servers that tests run on for another role, which has no password either."""
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{role}@{rest.partition('@')[2]}"


@pytest.fixture(params=["postgres", "postgres-schema", "mariadb", "mysql"])
def place(request: pytest.FixtureRequest) -> Iterator[tuple[str, StoreOptions]]:
    """A migrated database as a clerk sees it, who reads and writes rows and no more."""
    brand, _, schema = request.param.partition("-")
    server: Any = request.getfixturevalue(brand)
    url: str = request.getfixturevalue("pg_url" if brand == "postgres" else f"{brand}_url")
    options = StoreOptions(schema=SCHEMA if schema else None)
    owner = Store(url, options)
    owner.run(migrate.apply(owner.migrations))
    owner.close()
    name = url.rpartition("/")[2]
    clerk = f"clerk_{name}"
    rights = "select, insert, update, delete"
    if brand == "postgres":
        space = options.schema or "public"
        for command in (
            f"create role {clerk} login",
            f"revoke create on schema {space} from public",  # PostgreSQL 14 still gives it to everybody
            f"grant usage on schema {space} to {clerk}",
            f"grant {rights} on all tables in schema {space} to {clerk}",
        ):
            server.execute(command, name)
    else:
        server.execute(f"create user {clerk}@'%'")
        server.execute(f"grant {rights} on {name}.* to {clerk}@'%'")
    yield at(url, clerk), options
    server.execute(f"drop owned by {clerk}" if brand == "postgres" else f"drop user {clerk}@'%'", name)
    if brand == "postgres":
        server.execute(f"drop role {clerk}")


def test_a_clerk_applies_what_is_not_to_be_done(place: tuple[str, StoreOptions]) -> None:
    store = Store(*place)
    assert store.run(migrate.apply(store.migrations)) == []
    assert store.run(migrate.pending(store.migrations)) == []
    store.check()
    store.run(jobs.enqueue(new_job()))
    assert len(store.run(jobs.claim("mail", limit=1))) == 1
    store.close()


def test_a_clerk_is_refused_what_is_to_be_done(place: tuple[str, StoreOptions]) -> None:
    url, options = place
    store = Store(url, StoreOptions(schema=options.schema, prefix="other"))
    with pytest.raises(QueryFailed, match="denied"):
        store.run_once(migrate.apply(store.migrations))
    store.close()


def test_the_command_line_of_a_clerk(place: tuple[str, StoreOptions], tmp_path: Path) -> None:
    url, options = place
    where = ["--url", url, *(["--schema", options.schema] if options.schema else [])]
    for words in ("check", "plan", "apply"):
        result = CliRunner().invoke(main, ["migrate", words, *where], prog_name="holdfast")
        assert (result.exit_code, result.stderr) == (0, "")


def test_a_role_may_fill_a_schema_that_somebody_else_made(postgres: Any, pg_url: str) -> None:
    """To create a schema takes a privilege on the whole database, also where the schema is there."""
    name = pg_url.rpartition("/")[2]
    builder = f"builder_{name}"
    for command in (
        f"create role {builder} login",
        f"create schema {SCHEMA}",
        f"grant usage, create on schema {SCHEMA} to {builder}",
    ):
        postgres.execute(command, name)
    store = Store(at(pg_url, builder), StoreOptions(schema=SCHEMA))
    assert store.run(migrate.apply(store.migrations)) == store.migrations
    store.check()
    store.close()
    for command in (f"drop owned by {builder} cascade", f"drop role {builder}"):
        postgres.execute(command, name)


@pytest.mark.parametrize("brand", ["mariadb", "mysql"])
@pytest.mark.parametrize("prefix", ["holdfast", "x" * 40])
def test_a_database_with_the_longest_name_is_migrated(request: pytest.FixtureRequest, brand: str, prefix: str) -> None:
    """The lock among migrators has a name of its own, which is limited too."""
    server: Any = request.getfixturevalue(brand)
    url = server.start().create_database(f"{prefix[:1]}{'long_' * 12}end")
    assert len(url.rpartition("/")[2]) == 64
    store, other = (Store(url, StoreOptions(prefix=prefix)) for _ in range(2))
    assert store.run(migrate.apply(store.migrations)) == store.migrations
    assert other.run(migrate.apply(other.migrations)) == []
    store.check()
    for one in (store, other):
        one.close()
    server.drop_database(url.rpartition("/")[2])
