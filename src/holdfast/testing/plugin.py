"""What pytest loads wherever Holdfast is installed: fixtures for an application's own tests.

run_due          run every due job here and now: `run_due(hf)`
arun_due         its async twin: `await arun_due(hf)`
assert_enqueued  `assert_enqueued(hf, send_receipt, order_id=9182)`; its async twin is `aassert_enqueued`
enqueued         the pending jobs: `enqueued(hf, send_receipt)`; its async twin is `aenqueued`
skip             let time pass and run what is due then: `skip(hf, days=1)`; its async twin is `askip`
isolate          `isolate(hf)`: no jobs now, none left for the next test
hf_clock         `clock = hf_clock(hf)`: the application's time, which only the test moves

Failures in the shipped conformance suite explain themselves, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

TOPICS = (
    "enqueue",
    "keys",
    "inbox",
    "debounce",
    "children",
    "journals",
    "remote",
    "repeat",
    "claim",
    "expiry",
    "settle",
    "order",
    "outbox",
    "limits",
    "lines",
    "changes",
    "park",
    "pauses",
    "control",
    "drain",
    "door",
    "results",
    "reap",
    "stats",
    "upkeep",
    "schedules",
    "declarations",
    "chains",
    "batches",
    "runs",
)

pytest.register_assert_rewrite("holdfast.testing.suite", *(f"holdfast.testing.suite_{topic}" for topic in TOPICS))
pytest.register_assert_rewrite("holdfast.testing.sink_suite")


def _helper(name: str) -> Callable[..., Any]:
    # Imported late: tests that do not ask for it pay nothing because Holdfast is installed.
    from holdfast.testing import inline

    helper: Callable[..., Any] = getattr(inline, name)
    return helper


@pytest.fixture
def run_due() -> Callable[..., Any]:
    """Run every due job, and those they enqueue, until none is due."""
    return _helper("run_due")


@pytest.fixture
def arun_due() -> Callable[..., Any]:
    """The async twin of `run_due`."""
    return _helper("arun_due")


@pytest.fixture
def enqueued() -> Callable[..., Any]:
    """List the pending jobs of a handler or kind."""
    return _helper("enqueued")


@pytest.fixture
def assert_enqueued() -> Callable[..., None]:
    """Assert that a job of this handler or kind is pending with these arguments."""
    return _helper("assert_enqueued")


@pytest.fixture
def aenqueued() -> Callable[..., Any]:
    """The async twin of `enqueued`."""
    return _helper("aenqueued")


@pytest.fixture
def aassert_enqueued() -> Callable[..., Any]:
    """The async twin of `assert_enqueued`."""
    return _helper("aassert_enqueued")


@pytest.fixture
def skip() -> Callable[..., Any]:
    """Let time pass for an application, and run what is due then."""
    return _helper("skip")


@pytest.fixture
def askip() -> Callable[..., Any]:
    """The async twin of `skip`."""
    return _helper("askip")


@pytest.fixture
def isolate() -> Iterator[Callable[..., Any]]:
    """Let a test begin with no jobs, and leave none; the clock of the application is set back, too."""
    from holdfast.testing.isolation import isolated

    with ExitStack() as until_its_end:

        def isolate(app: Any, *, own_database: bool = False) -> None:
            until_its_end.enter_context(isolated(app, own_database=own_database))

        yield isolate


@pytest.fixture
def hf_clock() -> Iterator[Callable[..., Any]]:
    """Give an application a clock that only the test moves, until its end."""
    from holdfast.testing.isolation import moved_clock

    with ExitStack() as until_its_end:

        def hf_clock(app: Any) -> Any:
            return until_its_end.enter_context(moved_clock(app))

        yield hf_clock
