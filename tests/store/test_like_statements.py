"""Jobs that are alike: what was worked out for the first serves the others, and changes nothing in them."""

from datetime import UTC, datetime
from typing import Any

import pytest

from holdfast import Holdfast, jobs
from holdfast.flow import Flow, Statement, notifying
from holdfast.handlers import Bound
from holdfast.store import calls as calls_module
from holdfast.store.calls import Calls, kept_calls, only_call
from holdfast.store.catalogue import Style
from holdfast.store.dialects import Dialect
from holdfast.values.rows import Held

DIALECTS: list[tuple[str, Style]] = [
    ("sqlite:///:memory:", "qmark"),
    ("sqlite:///:memory:", "named"),
    ("postgresql://localhost/x", "dollar"),
    ("postgresql://localhost/x", "pyformat"),
    ("mysql://localhost/x", "format"),
]


@pytest.fixture(params=DIALECTS, ids=lambda param: f"{param[0].partition(':')[0]}-{param[1]}")
def app(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[Holdfast, Style]:
    url, style = request.param
    app = Holdfast(url)
    time = app.store.dialect.own_time()
    monkeypatch.setattr(app.store.dialect, "own_time", lambda: time)
    return app, style


def first_of(flow: Flow[Any]) -> Statement:
    return next(iter(flow))


def call(dialect: Dialect, statement: Statement, style: Style, now: Any = None) -> tuple[Any, ...]:
    """Return a driver call without the named parameters that it does not use."""
    query = dialect.query(statement)
    sql, args, returns = only_call(dialect, query, statement, style, now)
    if isinstance(args, dict):
        [part] = query.compiled(statement.params, style, now is not None)
        return sql, {name: args[name] for name in part.names}, returns
    return sql, list(args), returns


def both(dialect: Dialect, bound: Bound, style: Style, job_id: str, **notify: Any) -> list[tuple[Any, ...]]:
    """Return the driver call of a new job by what was kept for its like, and worked out anew."""
    statement = first_of(notifying(jobs.enqueue(bound.new_job(job_id)), notify.get("notify")))
    assert statement.like is not None
    return [call(dialect, one, style) for one in (statement, statement._replace(like=None))]


def test_each_job_has_its_own_values(app: tuple[Holdfast, Style]) -> None:
    holdfast, style = app

    @holdfast.job(queue="mail", priority=7)
    async def send(to: str) -> None: ...

    for said in ({}, {"key": "one"}, {"key": "two"}, {"headers": {"a": "1"}}, {"headers": {"a": "2"}, "key": "three"}):
        for to in ("first", "second"):
            kept, anew = both(holdfast.store.dialect, send.using(**said).bind(to=to), style, f"id of {to}")
            assert kept == anew
            assert f"id of {to}" in (kept[1].values() if isinstance(kept[1], dict) else kept[1])


def test_what_is_said_about_jobs_tells_them_apart(app: tuple[Holdfast, Style]) -> None:
    holdfast, style = app

    @holdfast.job(queue="mail")
    async def send(to: str) -> None: ...

    @holdfast.job(queue="bulk")
    async def post(to: str) -> None: ...

    for handler in (send, post, send):
        for said in ({}, {"queue": "other"}, {"priority": 3}, {"run_after": 5}, {"lease": 7}, {"max_attempts": 2}):
            kept, anew = both(holdfast.store.dialect, handler.using(**said).bind(to="x"), style, "id")
            assert kept == anew


def test_jobs_that_are_alike_share_a_call_however_they_are_enqueued(app: tuple[Holdfast, Style]) -> None:
    holdfast, style = app

    @holdfast.job(queue="mail")
    async def send(to: str) -> None: ...

    query = holdfast.store.dialect.queries["enqueue"]
    for bound in (send.bind(to="a"), send.using(tx=object()).bind(to="b"), holdfast.bind("send", {"to": "c"})):
        call(holdfast.store.dialect, first_of(jobs.enqueue(bound.new_job("id"))), style)
        assert len(query.kept) == 1


def test_who_is_told_at_commit_is_kept_apart(app: tuple[Holdfast, Style]) -> None:
    holdfast, style = app

    @holdfast.job(queue="mail")
    async def send(to: str) -> None: ...

    for notify in (None, False, True, None, False):
        kept, anew = both(holdfast.store.dialect, send.bind(to="x"), style, "id", notify=notify)
        assert kept == anew


def test_a_time_of_its_own_is_worked_out_for_each_job(app: tuple[Holdfast, Style]) -> None:
    holdfast, _ = app

    @holdfast.job(queue="mail")
    async def send(to: str) -> None: ...

    assert (
        first_of(jobs.enqueue(send.using(run_after=datetime(2030, 1, 1, tzinfo=UTC)).bind(to="x").new_job("id"))).like
        is None
    )


def test_only_so_much_is_kept(app: tuple[Holdfast, Style], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls_module, "MOST_KEPT", 3)
    holdfast, style = app

    @holdfast.job(queue="mail")
    async def send(to: str) -> None: ...

    for priority in range(10):
        kept, anew = both(holdfast.store.dialect, send.using(priority=priority).bind(to="x"), style, "id")
        assert kept == anew
        assert len(holdfast.store.dialect.queries["enqueue"].kept) <= 3


@pytest.mark.parametrize("keep", [True, False])
def test_a_completion_of_several_statements_is_sent_as_it_would_be_anew(
    app: tuple[Holdfast, Style], keep: bool
) -> None:
    holdfast, style = app
    dialect = holdfast.store.dialect
    for held in (Held("one", 1), Held("two", 2)):
        statement = first_of(jobs.complete(held, f'"{held.id}"', keep=keep))
        query = dialect.query(statement)
        kept = kept_calls(dialect, query, statement, style)
        if query.single or query.counted:
            # One call, or one whose count answers for it: not of this kind.
            continue
        anew = [sent(one.sql, one.args, one.returns) for one in Calls(dialect, statement, style, None)]
        assert [sent(one.sql, one.filled_in(dialect, statement.params), one.returns) for one in kept] == anew


def sent(sql: str, args: Any, returns: bool) -> tuple[Any, ...]:
    """Return a driver call, without named parameters that it does not use."""
    used = {name: arg for name, arg in args.items() if f":{name}" in sql} if isinstance(args, dict) else list(args)
    return sql, used, returns
