"""Statements of one pattern: what was worked out for the first serves the others, and changes nothing in them."""

from datetime import UTC, datetime
from typing import Any

import pytest

from holdfast import Holdfast, jobs
from holdfast.flow import Flow, Statement
from holdfast.handlers import Handler
from holdfast.store.calls import only_call
from holdfast.store.catalogue import Style
from holdfast.store.dialects import Dialect

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


def calls(
    handler: Handler[..., Any], dialect: Dialect, style: Style, now: Any, **payload: Any
) -> list[tuple[Any, ...]]:
    """Return the driver call of a new job by its pattern, and without one."""
    bound = handler.bind(**payload)
    new = bound.new_job(f"id of {payload}")
    assert bound.pattern is not None
    statements = [first_of(jobs.enqueue(new, pattern=pattern)) for pattern in (bound.pattern, None)]
    found = [only_call(dialect, dialect.query(statement), statement, style, now) for statement in statements]
    return [(sql, args if isinstance(args, dict) else list(args), returns) for sql, args, returns in found]


def used(call: tuple[Any, ...]) -> tuple[Any, ...]:
    """Leave out named parameters that are NULL: a pattern does not carry what is left out of the statement."""
    sql, args, returns = call
    return (sql, {k: v for k, v in args.items() if v is not None} if isinstance(args, dict) else args, returns)


@pytest.mark.parametrize("now", [None, datetime(2026, 1, 1, tzinfo=UTC)], ids=["own-clock", "set-clock"])
def test_each_job_of_a_handler_is_bound_as_without_a_pattern(app: tuple[Holdfast, Style], now: Any) -> None:
    holdfast, style = app

    @holdfast.job(queue="mail", priority=7)
    async def send(to: str) -> None: ...

    for to in ("first", "second", "third"):
        by_pattern, plain = calls(send, holdfast.store.dialect, style, now, to=to)
        assert used(by_pattern) == used(plain)
        assert f"id of {{'to': '{to}'}}" in (
            by_pattern[1].values() if style in ("named", "pyformat") else by_pattern[1]
        )


def test_two_handlers_do_not_share_a_pattern(app: tuple[Holdfast, Style]) -> None:
    holdfast, style = app

    @holdfast.job(queue="mail")
    async def send(to: str) -> None: ...

    @holdfast.job(queue="bulk")
    async def post(to: str) -> None: ...

    for handler in (send, post, send):
        by_pattern, plain = calls(handler, holdfast.store.dialect, style, None, to="both")
        assert used(by_pattern) == used(plain)


def test_what_is_said_about_one_job_leaves_the_pattern(app: tuple[Holdfast, Style]) -> None:
    holdfast, _ = app

    @holdfast.job(queue="mail")
    async def send(to: str) -> None: ...

    assert send.using(queue="bulk").bind(to="other").pattern is None


def test_a_transaction_alone_says_nothing_about_the_job_so_it_keeps_the_pattern() -> None:
    app = Holdfast("sqlite:///:memory:")

    @app.job
    def send(order: int) -> None: ...

    assert send.using(tx=object()).bind(order=1) == send.bind(order=1)
    assert send.using(tx=object(), key="order:1").bind(order=1).pattern is None
