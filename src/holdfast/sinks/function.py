"""A sink that is a function of the application: for receivers without a module of their own here, and for tests."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeAlias

from holdfast.errors import ConfigError, Fatal
from holdfast.sinks.base import Delivered, Failed, Message, Outcome, Refused, SinkDown
from holdfast.sinks.link import Secrets
from holdfast.sinks.order import BEHIND, Answer, concluded, in_turn
from holdfast.sinks.settings import whole

_Said: TypeAlias = Outcome | None
OneMessage: TypeAlias = Callable[[Message], Awaitable[_Said] | _Said]
ManyMessages: TypeAlias = Callable[[Sequence[Message]], Awaitable[Sequence[Outcome] | None] | Sequence[Outcome] | None]


class Function:
    """Call a function, `def` or `async def`, for each message, or with `batch=True` for many at once.

    It returns None when all went well, or an outcome (of a batch: one for each message). What it raises is a failed
    attempt; `Fatal` makes a dead letter, and `SinkDown` lets the route rest without using an attempt. concurrency: how
    many calls may run at the same time; messages of one key never do. A `def` runs on a thread, which nobody can stop.
    """

    def __init__(self, function: OneMessage | ManyMessages, *, batch: bool = False, concurrency: int = 1) -> None:
        if not callable(function):
            raise ConfigError("function", "must be a function that takes a message", function)
        self._function: Callable[..., Any] = function
        self._is_async = inspect.iscoroutinefunction(function)
        self._batch = batch
        self._concurrency = whole("concurrency", concurrency, at_least=1)

    def __repr__(self) -> str:
        return f"Function({getattr(self._function, '__qualname__', type(self._function).__name__)})"

    async def send(self, messages: Sequence[Message]) -> Sequence[Outcome]:
        """Call the function. Raises: SinkDown when it did, and nothing was delivered."""
        if not self._batch:
            return await in_turn(messages, self._one, self._concurrency)
        return await self._many(messages)

    async def close(self) -> None:
        """Nothing is open."""

    async def _call(self, argument: object) -> Any:
        if self._is_async:
            return await self._function(argument)
        answer = await asyncio.to_thread(self._function, argument)
        return await answer if inspect.isawaitable(answer) else answer

    async def _one(self, message: Message) -> Answer:
        try:
            return _outcome(await self._call(message))
        except SinkDown:
            raise
        except (Exception, SystemExit) as error:
            # With several at the same time each is a task, and out of a task it would end the whole process.
            return _failure(error)

    async def _many(self, messages: Sequence[Message]) -> list[Outcome]:
        try:
            said = await self._call(list(messages))
        except SinkDown:
            raise
        except Exception as error:
            return [_failure(error)] * len(messages)
        if said is None:
            return [Delivered()] * len(messages)
        outcomes = [_outcome(one) for one in said]
        if len(outcomes) != len(messages):
            raise ConfigError("function", f"must return one outcome for each of {len(messages)} messages", said)
        return _in_order(messages, outcomes)


def _in_order(messages: Sequence[Message], outcomes: list[Outcome]) -> list[Outcome]:
    """Hold a message behind one of its key that was not delivered; the receiver may then see it twice."""
    stopped: set[str] = set()
    for index, message in enumerate(messages):
        if message.key is None:
            continue
        if message.key in stopped and isinstance(outcomes[index], Delivered):
            outcomes[index] = BEHIND
        elif not isinstance(outcomes[index], Delivered):
            stopped.add(message.key)
    return concluded(outcomes)


def _outcome(said: object) -> Outcome:
    if said is None:
        return Delivered()
    if isinstance(said, Delivered | Failed | Refused):
        return said
    raise ConfigError("function", "must return None or an outcome: Delivered, Failed or Refused", said)


def _failure(error: BaseException) -> Outcome:
    if isinstance(error, Fatal):
        return Refused(str(error), None if error.code is None else str(error.code))
    return Failed(Secrets().reason(error))
