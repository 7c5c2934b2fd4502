"""The catalogue: how SQL files are read, compiled once, and what is filled in."""

from pathlib import Path

import pytest

from holdfast.errors import ConfigError
from holdfast.flow import Statement, Surface
from holdfast.store import catalogue
from holdfast.store.catalogue import (
    Catalogue,
    Query,
    names_made,
    own_queries,
    split_queries,
    with_now,
    written_in,
)
from holdfast.store.dialects import Dialect, dialect_for
from holdfast.values.options import StoreOptions

URLS = {"sqlite": "sqlite:///:memory:", "postgres": "postgresql://localhost/x", "mysql": "mysql://localhost/x"}
FILE = """\
-- What stands at the head belongs to no query.

-- fragment by_owner: whose rows they are.
   and owner = :owner  -- when owner
   -- when words:
   and text in (
       :words)
   -- end

-- find: read rows.
-- Differs: not at all.
-- bind: lists words, names
-- bind: hops
select id
  from t
 where true
     -- insert by_owner
 order by id;

-- add: write a row; and read it.
insert into t (at) values (:now);
select 'at :now', ':now::x';
"""


@pytest.fixture(params=URLS)
def dialect(request: pytest.FixtureRequest) -> Dialect:
    return dialect_for(URLS[request.param], StoreOptions())


def test_a_file_is_read_into_queries_with_their_comments_rules_and_fragments() -> None:
    queries = split_queries(FILE)
    assert list(queries) == ["find", "add"]
    find, add = queries.values()
    assert find.head.splitlines()[:2] == ["-- find: read rows.", "-- Differs: not at all."]
    assert find.rules == {"lists": ("words", "names"), "hops": ()}
    assert add.rules == {}
    assert len(add.statements) == 2


def test_a_fragment_keeps_its_marks_and_takes_the_place_of_its_line(dialect: Dialect) -> None:
    [part] = split_queries(FILE)["find"].statements
    query = Query(dialect, "find", [part])
    assert query.optional == {"owner", "words"}
    assert query.chosen(frozenset()) == ["select id\n  from t\n where true\n order by id"]
    assert query.chosen(frozenset({"words"})) == [
        "select id\n  from t\n where true\n     and text in (\n         :words)\n order by id"
    ]


def test_a_name_that_stands_twice_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="each name once in a SQL file"):
        split_queries("-- find: one.\nselect 1;\n-- find: two.\nselect 2;\n")
    monkeypatch.setattr(catalogue, "own_rooms", lambda: ["jobs", "jobs"])
    with pytest.raises(ConfigError, match="each name in one room"):
        own_queries.__wrapped__("sqlite")


def test_the_time_is_filled_in_except_inside_of_texts() -> None:
    assert with_now("select :now + 1, ':now', :nowhere, x::now", "t()") == "select t() + 1, ':now', :nowhere, x::now"


def test_the_database_tells_the_time_unless_a_test_does(dialect: Dialect) -> None:
    own, told = (dialect.queries["clock"].compiled({}, "named", clock_is_told=told) for told in (False, True))
    assert {"sqlite": ":now", "postgres": "statement_timestamp()", "mysql": "utc_timestamp(6)"}[dialect.name] in own[
        0
    ].sql
    assert ":now" in told[0].sql
    assert own[0].names == (("now",) if dialect.name == "sqlite" else ())
    assert told[0].names == ("now",)


def test_a_query_is_made_at_its_first_use_and_kept(dialect: Dialect) -> None:
    fresh = Catalogue(dialect, own_queries(dialect.name))
    assert len(fresh) == 0
    assert fresh["claim"] is fresh["claim"]
    assert list(fresh) == ["claim"]
    with pytest.raises(KeyError):
        fresh["no_such_query"]


SURFACES = {"mysql": "foreign/pdo", "sqlite": "foreign/pdo", "postgres": "foreign/durable"}


def surface(dialect: Dialect, table: str) -> Surface:
    places = ("foreign_jobs", "foreign_failed", "foreign_tasks", "foreign_results", "foreign_lock")
    return Surface(SURFACES[dialect.name], f"test:{table}", tuple((place, f"{table}_{place}") for place in places))


def test_the_queries_of_a_surface_are_compiled_once_for_its_tables(dialect: Dialect) -> None:
    one, other = surface(dialect, "One"), surface(dialect, "other")
    asked = [dialect.query(Statement("lock", {"id": 1}, surface=which)) for which in (one, other, one)]
    assert asked[0] is asked[2]
    assert asked[0] is not asked[1]
    assert asked[0].compiled({"id": 1}, "format") is asked[2].compiled({"id": 2}, "format")
    [part] = asked[0].parts
    assert f"{dialect.quote}One_foreign_" in part
    # The same name on our own tables is another query, or none.
    assert "lock" not in dialect.queries.written


def test_a_name_inside_of_a_text_is_not_quoted() -> None:
    dialect = dialect_for(URLS["postgres"], StoreOptions())
    [lock, _] = dialect.catalogue(surface(dialect, "X"))["create_tasks"].parts
    assert "'X_foreign_lock'" in lock


def test_a_table_named_like_one_of_ours_stays_as_it_is() -> None:
    dialect = dialect_for(URLS["sqlite"], StoreOptions(prefix="mine"))
    named = Surface("foreign/pdo", "pdo:holdfast_jobs", (("foreign_jobs", "holdfast_jobs"), ("foreign_failed", "f")))
    [part] = dialect.catalogue(named)["ack"].parts
    assert part == 'delete from "holdfast_jobs" where id = :id'


def test_a_room_without_a_file_for_the_database_names_those_that_have_one() -> None:
    with pytest.raises(ConfigError, match="mysql and sqlite only"):
        written_in("foreign/pdo", "postgres")


def test_tables_and_indexes_are_those_that_the_migrations_leave() -> None:
    made = names_made(
        [
            "-- create table holdfast_comment (id int);\n"
            "create table if not exists holdfast_a (\n  id int,\n  unique index holdfast_a_one_idx (id)\n);\n"
            "create table holdfast_b (id int);\ncreate unique index if not exists holdfast_b_idx on holdfast_b (id);",
            "set @step = 'alter table holdfast_a add column x int, add index holdfast_a_two_idx (x)';\n"
            "drop index holdfast_a_one_idx;\ndrop table if exists holdfast_b;",
            "create table holdfast_b_anew (id int);\nalter table holdfast_b_anew rename to holdfast_b;",
        ]
    )
    assert made == (("a", "b"), ("a_two_idx",), ())


def test_the_rules_of_binding_stand_in_the_files_and_nowhere_else() -> None:
    folder = Path(catalogue.__file__).parent
    names = set(own_queries("sqlite")) - {"clock", "begin", "drop", "live", "settled", "replay", "prune", "wake"}
    code = "".join(file.read_text("utf-8") for file in [*folder.glob("dialects/**/*.py"), folder / "calls.py"])
    assert {name for name in names if f'"{name}"' in code} == {"schema_create"}


def test_one_statement_whose_count_is_its_answer_is_not_run_as_one_that_gives_rows(dialect: Dialect) -> None:
    text = "update holdfast_jobs set fence = 1"
    assert Query(dialect, "plain", [text]).single
    assert not Query(dialect, "counted", [text], {"counted": ()}).single
