"""Lines of a query that are there only when their parameter is given."""

import pytest

from holdfast.flow import Statement
from holdfast.store.catalogue import Compiled, Style, chosen, optional_names
from holdfast.store.dialects import Dialect, dialect_for
from holdfast.values.options import StoreOptions

SQL = """select id from t
 where true
   and a = :a  -- when a
   and b = :b  -- when b
 order by id"""


@pytest.fixture(params=["sqlite:///:memory:", "postgresql://localhost/x"])
def dialect(request: pytest.FixtureRequest) -> Dialect:
    return dialect_for(request.param, StoreOptions())


def compiled(dialect: Dialect, statement: Statement, style: Style) -> tuple[Compiled, ...]:
    return dialect.query(statement).compiled(statement.params, style)


def optional(dialect: Dialect) -> dict[str, frozenset[str]]:
    """Name the parameters that choose lines, of each query that has such lines."""
    return {name: found for name in dialect.queries.written if (found := dialect.queries[name].optional)}


def test_a_line_without_its_parameter_is_left_out() -> None:
    assert optional_names([SQL]) == {"a", "b"}
    assert chosen(SQL, frozenset()) == "select id from t\n where true\n order by id"
    assert chosen(SQL, frozenset({"b"})) == "select id from t\n where true\n   and b = :b\n order by id"
    assert chosen(SQL, frozenset({"a", "b"})) == SQL.replace("  -- when a", "").replace("  -- when b", "")


def test_each_choice_is_compiled_once_and_apart(dialect: Dialect) -> None:
    bare, by_queue = Statement("jobs_list", {"limit": 1}), Statement("jobs_list", {"limit": 1, "queue": "mail"})
    assert ":queue" not in compiled(dialect, bare, "named")[0].sql
    assert ":queue" in compiled(dialect, by_queue, "named")[0].sql
    assert compiled(dialect, bare, "named") is compiled(dialect, Statement("jobs_list", {"limit": 2}), "named")
    assert "queue" in compiled(dialect, by_queue, "dollar")[0].names
    assert "queue" not in compiled(dialect, bare, "dollar")[0].names


def test_a_parameter_outside_the_marked_lines_chooses_nothing(dialect: Dialect) -> None:
    strange = Statement("jobs_list", {"limit": 1, "strange": "; drop table holdfast_jobs"})
    assert compiled(dialect, strange, "named") is compiled(dialect, Statement("jobs_list", {"limit": 1}), "named")


BLOCKS = """\
select id from (
  -- when few:
  select 1 as id
  -- end
  -- when many:
  select 2 as id
  union select :many
  -- end
) t"""


def test_a_block_is_there_only_if_its_parameter_is_given() -> None:
    assert optional_names([BLOCKS]) == {"few", "many"}
    assert chosen(BLOCKS, frozenset({"few"})) == "select id from (\n  select 1 as id\n) t"
    assert chosen(BLOCKS, frozenset({"many"})) == "select id from (\n  select 2 as id\n  union select :many\n) t"


def test_a_block_may_be_the_end_of_a_query() -> None:
    last = "select id from t\n where true\n   -- when few:\n   and id < 9\n   -- end"
    assert chosen(last, frozenset()) == "select id from t\n where true\n"
    assert chosen(last, frozenset({"few"})) == "select id from t\n where true\n   and id < 9\n"


def test_only_queries_of_people_enqueues_claims_ends_reaps_and_ticks_have_optional_lines(dialect: Dialect) -> None:
    admin = {"jobs_list", "jobs_count", "dead_groups", "finished_pick", "audit_list", "schedules_list", "queue_lags"}
    # What a cancel or a change by filter looks up, locks and writes.
    admin |= {"live_look", "live_lock", "change_live"}
    # How far back a list of the newest jobs looks.
    admin |= {"jobs_horizon", "finished_horizon", "audit_horizon"}
    # Dead letters, and what ended last.
    admin |= {"letters_list", "letters_count", "finished_ids", "finished_latest"}
    # The newest rows of statistics, of one worker or of all.
    admin |= {"stats_latest"}
    # What settles a batch leaves jobs with followers alone until their turn; a wake may name what is over.
    ends = {"finish", "drop", "put_back", "wake"}
    # Only PostgreSQL sends a completion and the COMMIT in one message.
    ends |= {"finish_one", "drop_one"} if dialect.name == "postgres" else set()
    # What claims from queues with order or limits, and what is read of them by hand.
    lines = {"tickets", "line_heads", "line_lease", "lines_idle", "lines_list", "lines_next", "queue_settings"}
    # What is written for all children of a parent, or for those that a worker has claimed; and a list in pages.
    chains = {"waits_moved", "waits_end", "joins_orphans"}
    # Those who wait may mark the jobs of some queues only.
    waits = {"results_mark"}
    # What is read of runs by hand, and a journal from some row on.
    runs = {"journal_read", "runs_named", "runs_list", "runs_live", "runs_horizon"}
    # Remote steps by key, and those that people send again.
    runs |= {"dispatches_of", "dispatches_again"}
    assert (
        set(optional(dialect))
        == admin
        | {"enqueue", "enqueue_alike", "enqueue_keyed", "enqueue_many"}
        | {"debounce_take", "claim", "reap_pick", "schedule_tick"}
        | ends
        | lines
        | chains
        | waits
        | runs
    )


def test_both_dialects_choose_by_the_same_names() -> None:
    lite, pg = (
        optional(dialect_for(url, StoreOptions())) for url in ("sqlite:///:memory:", "postgresql://localhost/x")
    )
    # Only PostgreSQL begins claims at floors, locks rows, answers with the ids of unique jobs, has an index of groups,
    # has statements that fail where they find nothing, and cannot be told which index to take.
    more = {name: pg[name] - lite.get(name, frozenset()) for name in pg}
    assert {name: found for name, found in more.items() if found} == {
        "claim": {"queues", "lane_queues"},
        "drop_one": {"or_fail"},
        "enqueue_many": {"unique"},
        "finish_one": {"or_fail"},
        "finished_horizon": {"group"},
        "live_lock": {"skip_locked"},
        "reap_pick": {"lock"},
        "runs_horizon": {"by_id"},
        "runs_list": {"by_id"},
        "tickets": {"queues", "lane_queues"},
    }
    # Only SQLite answers for a batch by a statement of its own, if it is asked for the batch as a whole.
    assert all(lite[name] - {"named", "whole"} <= pg.get(name, set()) for name in lite)
