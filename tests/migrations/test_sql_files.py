"""The SQL files: the same queries in the same order, each valid, and a diff that reads as explained differences."""

import re
from itertools import product
from pathlib import Path

import pytest

from holdfast.store import Store, migrate
from holdfast.store.catalogue import ROOMS, compile_statement, own_rooms, written_in
from holdfast.store.dialects.postgres import Postgres
from holdfast.values.options import StoreOptions
from tests.migrations.sqldiff import batch_columns, field_names, plain, queries

POSTGRES, SQLITE = queries("postgres"), queries("sqlite")
DDL = {"schema_create", "meta_create"}


FILES = sorted(ROOMS.glob("**/sql/*.sql"))


def test_the_files_of_a_room_hold_the_same_queries_and_fragments_in_the_same_order() -> None:
    ours = "admin chains jobs lines observe remote results runs schedules store worker"
    assert own_rooms() == ours.split()
    every = [list(queries(dialect)) for dialect in ("postgres", "mysql", "sqlite")]
    # What is one statement twice in one file only is a fragment of that file's own.
    shared = set.intersection(*map(set, every))
    for names in every:
        assert [name for name in names if name in shared] == [name for name in POSTGRES if name in shared]
    assert set().union(*every) - shared == {"added_job"}
    for room in own_rooms():
        assert list(written_in(room, "postgres")) == list(written_in(room, "mysql")) == list(written_in(room, "sqlite"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOMS)))
def test_no_line_is_too_long_to_be_read_beside_another(file: Path) -> None:
    assert [line for line in file.read_text("utf-8").splitlines() if len(line) > 120] == []


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOMS)))
def test_the_time_is_left_to_the_catalogue(file: Path) -> None:
    # The times of transactions are in the server's own zone.
    code = _code(file).replace("convert_tz(utc_timestamp(6),", "")
    told = ("statement_timestamp", "utc_timestamp", "coalesce(:now,", ":now::", "cast(:now", "now()")
    assert [word for word in told if word in code] == []


def _code(file: Path) -> str:
    return "\n".join(line for line in file.read_text("utf-8").splitlines() if not line.lstrip().startswith("--"))


@pytest.mark.parametrize("name", POSTGRES)
def test_a_query_is_the_same_in_both_files_or_says_why_not(name: str) -> None:
    comment, sqlite = SQLITE[name]
    postgres = POSTGRES[name][1]
    columns = batch_columns(name, postgres)
    same = plain(postgres, columns) == plain(sqlite, columns)
    assert same or "\n-- Differs: " in comment, f"{plain(postgres, columns)}\n{plain(sqlite, columns)}"


@pytest.mark.parametrize("name", POSTGRES)
def test_both_files_read_the_fields_of_a_batch_in_the_same_order(name: str) -> None:
    names = field_names(SQLITE[name][1])
    assert names in ([], batch_columns(name, POSTGRES[name][1]))
    assert names or name not in {"renew", "put_back", "finish"}


@pytest.mark.parametrize(
    "lost",
    [
        "and j.fence = ((select fence from held))[width_bucket(j.id, (select id from held))]",
        "((select lease_ms from held))[width_bucket(j.id, (select id from held))]",
    ],
)
def test_a_difference_in_meaning_is_never_taken_for_one_in_writing(lost: str) -> None:
    names = [name for name, (_, sql) in POSTGRES.items() if lost in sql and "Differs" not in SQLITE[name][0]]
    assert names
    for name in names:
        postgres, sqlite = POSTGRES[name][1], SQLITE[name][1]
        columns = batch_columns(name, postgres)
        assert plain(postgres.replace(lost, ""), columns) != plain(sqlite, columns)


@pytest.mark.parametrize("files", [POSTGRES, SQLITE], ids=["postgres", "sqlite"])
def test_every_query_says_what_it_is_for(files: dict[str, tuple[str, str]]) -> None:
    for name, (comment, sql) in files.items():
        assert re.match(rf"-- (fragment )?{name}: [a-z].*\.\n?", comment), name
        assert sql.rstrip().endswith(";") or "-- fragment " in comment, name


def variants(store: Store, name: str) -> list[frozenset[str]]:
    """Which optional lines to try: none, all, and each one alone; of blocks, which are alternatives, one at a time."""
    optional = store.dialect.queries[name].optional
    blocks = optional & {"queues", "lane_queues"}
    # A time is said in one of two ways.
    whole = optional - blocks - ({"run_at"} if name == "change_live" else frozenset())
    lines = [frozenset(), whole, *(frozenset({one}) for one in optional - blocks)]
    return [some | {block} for some in lines for block in blocks] or lines


def test_every_query_is_valid_on_the_migrated_postgres(pg_url: str) -> None:
    store = Store(pg_url)
    store.run(migrate.apply(store.migrations))
    with store.link() as link:
        for name in store.dialect.queries.written.keys() - DDL:
            for given, told in product(variants(store, name), [False, True]):
                for sql in store.dialect.queries[name].chosen(given, clock_is_told=told):
                    link.raw.execute(f"prepare checked as {compile_statement(sql, 'dollar').sql}")
                    link.raw.execute("deallocate checked")
    store.close()


def test_every_query_is_valid_on_the_migrated_sqlite(sqlite_url: str) -> None:
    store = Store(sqlite_url)
    store.run(migrate.apply(store.migrations))
    with store.link() as link:
        for name in store.dialect.queries.written:
            for given in variants(store, name):
                for sql in store.dialect.queries[name].chosen(given):
                    compiled = compile_statement(sql, "named")
                    link.raw.execute(f"explain {compiled.sql}", dict.fromkeys(compiled.names)).fetchall()
    store.close()


def test_every_list_that_goes_to_postgres_as_a_text_is_a_parameter() -> None:
    dialect = Postgres(StoreOptions())
    assert "leases" in dialect.queries["claim"].binding.as_text
    for name in dialect.queries.written:
        query = dialect.queries[name]
        parts = [compile_statement(part, "dollar") for part in query.chosen(query.optional)]
        assert query.binding.as_text <= {parameter for part in parts for parameter in part.names}, name
