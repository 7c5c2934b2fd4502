"""Lines of a query that are there only when their parameter is given."""

import pytest

from holdfast.dialects import dialect_for
from holdfast.dialects.base import Dialect, chosen, optional_names
from holdfast.flow import Statement
from holdfast.options import StoreOptions

SQL = """select id from t
 where true
   and a = :a  -- when a
   and b = :b  -- when b
 order by id"""


@pytest.fixture(params=["sqlite:///:memory:", "postgresql://localhost/x"])
def dialect(request: pytest.FixtureRequest) -> Dialect:
    return dialect_for(request.param, StoreOptions())


def test_a_line_without_its_parameter_is_left_out() -> None:
    assert optional_names([SQL]) == {"a", "b"}
    assert chosen(SQL, frozenset()) == "select id from t\n where true\n order by id"
    assert chosen(SQL, frozenset({"b"})) == "select id from t\n where true\n   and b = :b  -- when b\n order by id"
    assert chosen(SQL, frozenset({"a", "b"})) == SQL


def test_each_choice_is_compiled_once_and_apart(dialect: Dialect) -> None:
    bare, by_queue = Statement("jobs_list", {"limit": 1}), Statement("jobs_list", {"limit": 1, "queue": "mail"})
    assert ":queue" not in dialect.compiled(bare, "named")[0].sql
    assert ":queue" in dialect.compiled(by_queue, "named")[0].sql
    assert dialect.compiled(bare, "named") is dialect.compiled(Statement("jobs_list", {"limit": 2}), "named")
    assert "queue" in dialect.compiled(by_queue, "dollar")[0].names
    assert "queue" not in dialect.compiled(bare, "dollar")[0].names


def test_a_parameter_outside_the_marked_lines_chooses_nothing(dialect: Dialect) -> None:
    strange = Statement("jobs_list", {"limit": 1, "strange": "; drop table holdfast_jobs"})
    assert dialect.compiled(strange, "named") is dialect.compiled(Statement("jobs_list", {"limit": 1}), "named")


def test_only_queries_of_the_admin_have_optional_lines(dialect: Dialect) -> None:
    assert set(dialect.optional) == {"jobs_list", "jobs_count", "dead_groups", "finished_pick", "audit_list"}


def test_both_dialects_choose_by_the_same_names() -> None:
    lite, pg = (dialect_for(url, StoreOptions()) for url in ("sqlite:///:memory:", "postgresql://localhost/x"))
    assert lite.optional == pg.optional
