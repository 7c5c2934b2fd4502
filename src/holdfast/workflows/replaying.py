"""Replay a recorded history against the code of today, and do nothing else: no step is made, nothing is written."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from holdfast.errors import ConfigError, NonDeterminism
from holdfast.handlers import Handler
from holdfast.values.failure import words
from holdfast.workflows.body import Body
from holdfast.workflows.histories import History
from holdfast.workflows.run import ContinueAsNew, Run, bodied
from holdfast.workflows.workflow import Workflow


class Replayed(NamedTuple):
    """What a replay came to: whether the body is over by it and what it gave, or what it asks for next."""

    over: bool
    result: Any
    error: str | None
    waits_for: list[str]


def served(
    handlers: Mapping[str, Handler[..., Any]], history: History, version: int | None = None
) -> Workflow[..., Any]:
    """Find the code that a history is of, or that of another version. Raises: ConfigError."""
    kind = history.kind if version is None else f"{history.workflow}@{version}"
    found = handlers.get(kind)
    if not isinstance(found, Workflow):
        known = ", ".join(sorted(name for name, one in handlers.items() if isinstance(one, Workflow))) or "none"
        rule = f"the application has no {kind}; its workflows: {known}"
        if version is None and any(name.startswith(f"{history.workflow}@") for name in handlers):
            rule = f"{rule}; version= (--version) says which one to check it against"
        raise ConfigError("workflow", rule, history.run)
    return found


def replay(workflow: Workflow[..., Any], history: History) -> Replayed:
    """Tell the body what was recorded, and see whether it does the same again.

    Raises: NonDeterminism, when it does something else, or ends another way than the run has; InvalidPayload, when it
    takes other arguments by now.
    """
    payload = msgspec.json.encode(history.arguments).decode()
    arguments = workflow.signature.decode(payload, workflow.kind)
    body = Body(history.job_id, history.created_at.timestamp)
    run = Run(body, history.run, history.job_id, workflow.workflow, workflow.number)
    limit = workflow.options.timeout
    deadline = None if limit is None else history.created_at.timestamp() + limit
    arguments[str(workflow.signature.injected)] = run
    try:
        body.replay(history.recorded, lambda: bodied(run, lambda: workflow.fn(**arguments), deadline, limit))
        return _found(body, history)
    finally:
        body.close()


def _found(body: Body, history: History) -> Replayed:
    if not body.over:
        waits = [op.key for op in body.operations.values() if not op.done]
        if history.status == "done":
            raise NonDeterminism(f"the run is done; the code goes on, and waits for: {', '.join(waits) or 'a timer'}")
        return Replayed(False, None, None, waits)
    value, error = body.outcome()
    if isinstance(error, NonDeterminism):
        raise error
    ended = "done" if error is None else "cancelled" if isinstance(error, asyncio.CancelledError) else "dead"
    if history.status == "done" and ended != "done":
        raise NonDeterminism(f"the run is done; the code raises {type(error).__name__}: {words(error)}") from error
    if isinstance(value, ContinueAsNew):
        value = {"continue_as_new": [list(value.args), value.kwargs]}
    return Replayed(True, value, None if error is None else f"{type(error).__name__}: {words(error)}", [])
