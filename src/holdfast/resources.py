"""Hooks that run when a worker starts, and what they give to handlers: HTTP clients, pools, session factories.

An application keeps its hooks in `Hooks`; each worker, and each `run_due` of a test, has `Resources` of its own.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import typing
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Callable,
    Generator,
    Iterable,
    Iterator,
    Mapping,
)
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    AsyncExitStack,
    asynccontextmanager,
    contextmanager,
)
from typing import Any

from holdfast.errors import ConfigError, HookFailed
from holdfast.telling import complain
from holdfast.values.annotations import function_of, name_of, resolved
from holdfast.values.failure import type_name, words
from holdfast.values.given import annotated, told
from holdfast.values.payload import Signature

_ITERATORS: tuple[Any, ...] = (AsyncIterator, AsyncIterable, AsyncGenerator, Iterator, Iterable, Generator)
_BLOCKS: tuple[Any, ...] = (AbstractAsyncContextManager, AbstractContextManager)
# What no hook may give: a handler's parameter of such a type is one of its payload.
_PLAIN = (Any, object, str, int, float, bool, bytes, list, dict, tuple, set)


class Hook:
    """A function that runs when a worker starts; what follows its `yield`, if it has one, runs when it stops."""

    def __init__(self, fn: Any) -> None:
        if not callable(fn) or isinstance(fn, type):
            raise ConfigError("on_start", "must be a function", fn)
        self.fn: Callable[..., Any] = fn
        self.name = name_of(fn)
        plain = function_of(fn)
        self.where = f"{self.name} ({plain.__code__.co_filename}:{plain.__code__.co_firstlineno})"
        parameters = inspect.signature(fn).parameters.values()
        self.asks = {each.name: annotated(fn, each) for each in parameters}
        self._yields = inspect.isasyncgenfunction(plain) or inspect.isgeneratorfunction(plain)
        # Whether a call of it gives a block by itself: a generator function is made one of.
        self._gives_block = self._yields and plain is not fn
        # Without an annotation nobody knows what it gives before it has run.
        self.says_what = inspect.signature(plain).return_annotation is not inspect.Signature.empty
        self.gives = self._read_gives(plain)

    def _read_gives(self, plain: Callable[..., Any]) -> Any:
        """Read what it gives: None where it says nothing, or that it gives nothing."""
        said = inspect.signature(plain).return_annotation
        if said is inspect.Signature.empty:
            return None
        hint = resolved(plain, f"what {self.name} returns", said)
        origin, inside = typing.get_origin(hint), typing.get_args(hint)
        if origin in _BLOCKS or (self._yields and origin in _ITERATORS):
            self._gives_block = self._gives_block or origin in _BLOCKS
            hint = inside[0]
        if hint in _PLAIN or typing.get_origin(hint) in _PLAIN:
            rule = f"gives {told(hint)}, which payloads hold; annotate it with a class of its own, or with None"
            raise ConfigError(f"on_start hook {self.name}", rule, said)
        return None if hint is type(None) else hint

    async def enter(self, stack: AsyncExitStack, values: Mapping[Any, Any]) -> Any:
        """Run it up to its `yield` and return what it gives; its end is left with `stack`."""
        asked = {name: values[hint] for name, hint in self.asks.items()}
        if self._gives_block:
            block = self.fn(**asked)
        elif inspect.isasyncgenfunction(self.fn):
            block = asynccontextmanager(self.fn)(**asked)
        elif self._yields:
            block = contextmanager(self.fn)(**asked)
        elif inspect.iscoroutinefunction(self.fn):
            return await self.fn(**asked)
        else:
            # On a thread, as handlers that are not async: it may open connections, or read a large file.
            return await asyncio.to_thread(_called, self.fn, asked)
        return await self._entered(block, stack)

    async def _entered(self, block: Any, stack: AsyncExitStack) -> Any:
        if _is_async(block):
            value = await block.__aenter__()
            stack.push_async_callback(self._end, block)
            return value
        # A thread cannot be cancelled: what it opens after the start was called off has to be ended, too. It is a
        # future and no task, which the end of an event loop would cancel.
        work = contextvars.copy_context().run
        opening = asyncio.get_running_loop().run_in_executor(None, work, block.__enter__)
        called_off: asyncio.CancelledError | None = None
        while not opening.done():
            try:
                await asyncio.wait([opening])
            except asyncio.CancelledError as error:
                called_off = error
        if opening.exception() is None:
            stack.push_async_callback(self._end, block)
        if called_off is not None:
            raise called_off
        return opening.result()

    async def _end(self, block: Any) -> None:
        """Run what follows the `yield`; what it raises is told, and keeps no other hook from its end."""
        try:
            if _is_async(block):
                await block.__aexit__(None, None, None)
            else:
                await asyncio.to_thread(block.__exit__, None, None, None)
        except Exception as error:
            complain("the on_start hook %s failed at its end", self.where, error=error)


def _called(fn: Callable[..., Any], asked: Mapping[str, Any]) -> Any:
    """Call a hook on a thread. A future takes no StopIteration: what waits for it would wait for ever."""
    try:
        return fn(**asked)
    except StopIteration as error:
        raise RuntimeError("the hook raised StopIteration") from error


def _is_async(block: object) -> bool:
    return hasattr(type(block), "__aenter__")


class Hooks:
    """The hooks of an application, in the order in which they were registered."""

    def __init__(self) -> None:
        self.all: list[Hook] = []
        # What tests give instead, by annotation: those hooks do not run.
        self.instead: dict[Any, Any] = {}

    def add(self, hook: Hook) -> None:
        """Add a hook. Raises: ConfigError for one that gives what another gives already."""
        self.refuse_double(hook)
        self.all.append(hook)

    def refuse_double(self, hook: Hook) -> None:
        """Raise ConfigError for a hook that gives what another gives already."""
        other = next((one for one in self.all if hook.gives is not None and one.gives == hook.gives), None)
        if other is not None:
            rule = (
                f"gives {told(hook.gives)}, and so does {other.where}; tell them apart by a NewType, or by "
                f'Annotated[{told(hook.gives)}, "a name"]'
            )
            raise ConfigError(f"on_start hook {hook.name}", rule, hook.where)

    def check(self, signatures: Iterable[tuple[str, Signature]]) -> None:
        """Raise ConfigError unless every hook and every handler can be given what it asks for, by one rule."""
        known = set(self.instead)
        for hook in self.all:
            for name, hint in hook.asks.items():
                if hint not in known:
                    rule = f"asks for {told(hint)}, which no hook that was registered before it gives"
                    rule = f"{rule}{self._unsaid(hint)}"
                    raise ConfigError(f"parameter {name} of on_start hook {hook.name}", rule, hook.where)
            known.add(hook.gives)
        for kind, signature in signatures:
            self._check_handler(kind, signature, known)

    def _check_handler(self, kind: str, signature: Signature, known: set[Any]) -> None:
        for name, hint in signature.given.items():
            if hint not in known:
                there = ", ".join(told(one.gives) for one in self.all if one.gives is not None) or "nothing"
                rule = (
                    f"asks for {told(hint)}, which no payload carries and no on_start hook gives (they give {there}"
                    f"{self._unsaid(hint)}); register one: @hf.on_start on a function that returns or yields it"
                )
                raise ConfigError(f"parameter {name} of {kind}", rule, told(hint))
        for name, hint in signature.hints.items():
            if hint in (one.gives for one in self.all if one.gives is not None):
                rule = f"may be the payload's, or what an on_start hook gives; write `{name}: … = GIVEN` for the second"
                raise ConfigError(f"parameter {name} of {kind}", rule, told(hint))

    def _unsaid(self, hint: Any) -> str:
        """Name the hooks that may give it, and do not say what they give."""
        silent = " and ".join(hook.where for hook in self.all if not hook.says_what)
        how = f"annotate it with `-> {told(hint)}`, or with `-> Iterator[…]` or `AsyncIterator[…]` of it if it yields"
        return f"; {silent} does not say what it gives: {how}" if silent else ""

    def resources(self) -> Resources:
        """Make what one worker runs the hooks with."""
        return Resources([one for one in self.all if one.gives is None or one.gives not in self.instead], self.instead)


class Resources:
    """What the hooks have given to one worker, from its start to its stop; `values` has it by annotation.

    All of them run in one task from the first line to the last, as blocks that belong to a task need it.
    """

    def __init__(self, hooks: list[Hook], instead: Mapping[Any, Any]) -> None:
        self.values: dict[Any, Any] = dict(instead)
        self._hooks = hooks
        self._task: asyncio.Task[None] | None = None
        self._leave = asyncio.Event()

    async def start(self) -> asyncio.Task[None] | None:
        """Run the hooks, each after the one before; return the task that they live in, if there are any.

        Raises: HookFailed, once those that had begun have ended.
        """
        if not self._hooks:
            return None
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._live(ready), name="holdfast-hooks")
        try:
            await asyncio.wait([ready, self._task], return_when=asyncio.FIRST_COMPLETED)
            if not ready.done():
                raise HookFailed(self._hooks[0].where, "it, or one after it, was cancelled from inside")
            ready.result()
        except BaseException:
            await self.stop(0)
            raise
        return self._task

    async def _live(self, ready: asyncio.Future[None]) -> None:
        try:
            async with AsyncExitStack() as stack:
                for hook in self._hooks:
                    await self._enter(hook, stack)
                if not ready.done():
                    ready.set_result(None)
                await self._leave.wait()
        except HookFailed as error:
            if not ready.done():
                ready.set_exception(error)

    async def _enter(self, hook: Hook, stack: AsyncExitStack) -> None:
        try:
            value = await hook.enter(stack, self.values)
        except Exception as error:
            raise HookFailed(hook.where, f"{type_name(error)}: {words(error)}") from error
        if hook.gives is not None:
            self.values[hook.gives] = value
        elif value is not None:
            rule = "it must say by its annotation what it gives, so that handlers can ask for it"
            raise HookFailed(hook.where, f"{rule}, or give nothing; it gave {type_name(value)}")

    async def stop(self, seconds: float) -> None:
        """Run what follows the `yield` of each hook, the last one first; what takes longer than this is cancelled."""
        if self._task is None or self._task.done():
            return
        self._leave.set()
        if seconds > 0:
            await asyncio.wait([self._task], timeout=seconds)
        if not self._task.done():
            self._task.cancel()
            await asyncio.wait([self._task], timeout=1.0)
