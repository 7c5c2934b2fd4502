"""The run as its body sees it: steps, transactions, timers, signals, children; all of it remembered."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from datetime import datetime
from typing import Any, TypeVar, cast, overload
from uuid import UUID

from holdfast.errors import ConfigError, NonDeterminism, PayloadTooLarge, TimedOut
from holdfast.handlers import Handler
from holdfast.runs import CHILD
from holdfast.values.options import text
from holdfast.values.payload import encode_value
from holdfast.values.retry import Duration, Retry, seconds
from holdfast.workflows.body import Body
from holdfast.workflows.operations import KEY_LENGTH, USUAL, Operation, described, digest_of, name_of, policy, type_of
from holdfast.workflows.remote_step import remote_step

T = TypeVar("T")

# A signal's name is part of what a parked run says it waits for, which is short.
SIGNAL_NAME_LENGTH = 60
ATTRIBUTE_LENGTH = 500


class ContinueAsNew:
    """What a body returns to end its run and have the next one begin afresh, with these arguments."""

    __slots__ = ("args", "kwargs")

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.args = args
        self.kwargs = kwargs


class Run:
    """A run, handed to its body. What its methods give comes from the journal when the body is run again.

    The key of an operation is taken when the method is called, so call it where its order is certain; what it returns
    is a future, to be awaited there or later, alone or in `asyncio.gather`.
    """

    __slots__ = ("_body", "_undos", "id", "job_id", "version", "workflow")

    def __init__(self, body: Body, id: str, job_id: str, workflow: str, version: int) -> None:
        self._body = body
        self._undos: list[tuple[Any, tuple[Any, ...], dict[str, Any], str | None, Retry | None, Duration | None]] = []
        self.id = id
        self.job_id = job_id
        self.workflow = workflow
        self.version = version

    def __repr__(self) -> str:
        return f"<Run {self.id} of {self.workflow}@{self.version}>"

    @overload
    def step(
        self,
        fn: Callable[..., Coroutine[Any, Any, T]],
        /,
        *args: Any,
        name: str | None = None,
        retry: Retry | None = None,
        timeout: Duration | None = None,
        **kwargs: Any,
    ) -> asyncio.Future[T]: ...
    @overload
    def step(
        self,
        fn: Callable[..., T],
        /,
        *args: Any,
        name: str | None = None,
        retry: Retry | None = None,
        timeout: Duration | None = None,
        **kwargs: Any,
    ) -> asyncio.Future[T]: ...
    def step(
        self,
        fn: Any,
        /,
        *args: Any,
        name: str | None = None,
        retry: Retry | None = None,
        timeout: Duration | None = None,
        **kwargs: Any,
    ) -> Any:
        """Call a function, `def` or `async def`, outside of the body, and remember what it gave.

        It is called at least once, and never again once its result is stored: have it tell the outside world by a key
        (`f"{run.id}/charge"`), so that a call after a crash does no harm. What it raises is tried again as `retry`
        says; after the last attempt, and for `Fatal`, the body gets StepFailed. name: its key in the journal, by
        default the function's own name. timeout: the longest one attempt may take.
        """
        return self._call("step", fn, args, kwargs, name, retry, timeout)

    def transaction(
        self,
        fn: Callable[..., Any],
        /,
        *args: Any,
        name: str | None = None,
        retry: Retry | None = None,
        timeout: Duration | None = None,
        **kwargs: Any,
    ) -> asyncio.Future[Any]:
        """Call `fn(tx, …)` inside a transaction, and commit its effect together with the record: exactly once.

        tx is the worker's own connection to the application's database, as `job.transaction()` gives it.
        """
        return self._call("tx", fn, args, kwargs, name, retry, timeout)

    def _call(
        self,
        kind: Any,
        fn: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        name: str | None,
        retry: Retry | None,
        timeout: Duration | None,
        prefix: str = "",
    ) -> asyncio.Future[Any]:
        future = self._body.future()
        found, read_as, facts = described(fn, name)
        how, limit = (USUAL, None) if retry is None and timeout is None else policy(retry, timeout)
        op = Operation(kind, self._body.key_for(prefix + found), future)
        op.fn, op.args, op.kwargs, op.facts = fn, args, kwargs, facts
        op.retry, op.timeout, op.type, op.digest = how, limit, read_as, digest_of(args, kwargs)
        return self._body.announce(op)

    def undo(
        self,
        fn: Callable[..., Any],
        /,
        *args: Any,
        name: str | None = None,
        retry: Retry | None = None,
        timeout: Duration | None = None,
        **kwargs: Any,
    ) -> None:
        """Say what undoes what was done so far: called as a step, last first, when the body fails or is cancelled."""
        name_of(fn, name)
        policy(retry, timeout)
        self._undos.append((fn, args, kwargs, name, retry, timeout))

    async def _undo_all(self) -> list[BaseException]:
        """Undo what there is to undo; return what failed, which keeps nothing else from being undone."""
        failed: list[BaseException] = []
        while self._undos:
            fn, args, kwargs, name, retry, timeout = self._undos.pop()
            try:
                await self._call("undo", fn, args, kwargs, name, retry, timeout, "undo:")
            except Exception as error:
                failed.append(error)
        return failed

    def sleep(self, delay: Duration) -> asyncio.Future[None]:
        """Wait, for a moment or for weeks; meanwhile the run is a row and nothing else."""
        return self._wake_at(self._body.time() + seconds(delay, "delay"))

    def sleep_until(self, moment: datetime) -> asyncio.Future[None]:
        """Wait until a moment, which has a time zone."""
        given = cast("object", moment)
        if not isinstance(given, datetime) or given.tzinfo is None:
            raise ConfigError("moment", "must be a datetime with a time zone", moment)
        return self._wake_at(given.timestamp())

    def _wake_at(self, when: float) -> asyncio.Future[None]:
        future = self._body.future()
        self._body.loop.call_at(when, _ring, future)
        return future

    @overload
    def signal(self, name: str) -> asyncio.Future[Any]: ...
    @overload
    def signal(self, name: str, *, type: type[T]) -> asyncio.Future[T]: ...
    @overload
    def signal(self, name: str, *, type: Any) -> asyncio.Future[Any]: ...
    def signal(self, name: str, *, type: Any = Any) -> Any:
        """Wait for a signal (`hf.signal(run_id, name, payload)`) and give its payload; each signal is given once.

        type: a class, or any type that msgspec reads. Put `asyncio.timeout(…)` around it for a deadline.
        """
        future = self._body.future()
        name = signal_name(name)
        key = self._body.key_for(f"signal:{name}")
        return self._body.announce(Operation("signal", key, future, name=name, type=type))

    def child(
        self, workflow: Handler[..., T], /, *args: Any, name: str | None = None, **kwargs: Any
    ) -> asyncio.Future[T]:
        """Start a run of another workflow and wait for its result; its id is this run's, with the child's key behind.

        A child that is dead or cancelled raises ChildFailed. When this run fails or is cancelled, so are its children.
        """
        future = self._body.future()
        if workflow.executor != "run":
            raise ConfigError("child", "takes a workflow; call any other function with run.step(…)", workflow)
        bound = workflow.bind(*args, **kwargs)
        key = self._body.key_for(name_of(workflow, name))
        if len(self.id) + len(key) >= KEY_LENGTH:
            rule = f"this run's id and the child's key ({key}) make its id, which has at most {KEY_LENGTH} characters"
            raise ConfigError("child", rule, self.id)
        return self._body.announce(
            Operation(
                "child",
                key,
                future,
                name=CHILD,
                fn=workflow,
                args=(bound,),
                type=type_of(workflow),
                digest=digest_of(bound.payload),
            )
        )

    @overload
    def remote(
        self,
        step: str,
        input: Any = None,
        /,
        *,
        retry: Retry | None = None,
        timeout: Duration | None = None,
        partition: str | None = None,
        name: str | None = None,
        engine: str | None = None,
    ) -> asyncio.Future[Any]: ...
    @overload
    def remote(
        self,
        step: str,
        input: Any = None,
        /,
        *,
        type: type[T],
        retry: Retry | None = None,
        timeout: Duration | None = None,
        partition: str | None = None,
        name: str | None = None,
        engine: str | None = None,
    ) -> asyncio.Future[T]: ...
    def remote(
        self,
        step: str,
        input: Any = None,
        /,
        *,
        type: Any = Any,
        retry: Retry | None = None,
        timeout: Duration | None = None,
        partition: str | None = None,
        name: str | None = None,
        engine: str | None = None,
    ) -> Any:
        """Have a worker elsewhere do a step, in whatever language, and remember its output: see `hf.remote_engine`.

        step: which handler, by the name that its worker knows. input: what that gets, as JSON. While the worker is at
        it, this run is a row and nothing else. It is done at least once; a failed attempt is tried again as `retry`
        says. timeout: the longest one attempt may take, from its dispatch on, the wait for a worker included. type:
        what the output is read as. partition: of the workers, if not the engine's. name: the key in the journal, by
        default the step's. engine: where an application has several.
        """
        return self._body.announce(remote_step(self._body, step, input, type, retry, timeout, partition, name, engine))

    def set(self, name: str, value: Any) -> None:
        """Say something of this run to those outside: `hf.run(id).attributes()`, `holdfast runs list --attribute`."""
        name = text(name, "name", 100)
        if "#" in name:
            raise ConfigError("name", "must not have # in it", name)
        written = encode_value(value, f"attribute {name}")
        if len(written) > ATTRIBUTE_LENGTH:
            raise PayloadTooLarge(f"attribute {name}", len(written), ATTRIBUTE_LENGTH)
        key = self._body.key_for(f"set:{name}")
        self._body.announce(Operation("set", key, self._body.future(), args=(written,)))

    def patched(self, name: str) -> bool:
        """Tell whether this run is to take a way that was added to the code: `if run.patched("add-audit"): …`.

        False for a run that was past this point before the change; True, for ever, for every other.
        """
        return self._body.patched(text(name, "name", 100))

    def now(self) -> datetime:
        """Return the time of the last thing that was recorded, by the database's clock."""
        self._body.future().cancel()
        return self._body.now()

    def uuid(self) -> UUID:
        """Return a UUID that every replay draws again. Not for secrets: it follows from the id of the run."""
        return self._body.uuid()

    def random(self) -> float:
        """Return a number from 0 to 1 that every replay draws again."""
        return self._body.draw().random()

    async def as_completed(self, awaitables: Iterable[Awaitable[T]]) -> AsyncIterator[asyncio.Future[T]]:
        """Give futures as they end, `async for done in run.as_completed([…])`; asyncio's begins in no certain order."""
        left: list[asyncio.Future[T]] = [asyncio.ensure_future(one) for one in awaitables]
        while left:
            await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
            for future in [one for one in left if one.done()]:
                left.remove(future)
                yield future

    def continue_as_new(self, *args: Any, **kwargs: Any) -> Any:
        """Return this from the body to begin afresh with other arguments, under the same id and with an empty journal.

        Signals that nobody has taken are handed on. `return run.continue_as_new(order_id)`.
        """
        return ContinueAsNew(args, kwargs)


def signal_name(name: str) -> str:
    """Check the name of a signal."""
    found = text(name, "signal", SIGNAL_NAME_LENGTH)
    if found.startswith("!") or "," in found or "#" in found:
        raise ConfigError("signal", "must not begin with ! nor have a comma or # in it", found)
    return found


def _ring(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


async def _called(call: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    try:
        return await call()
    except (SystemExit, KeyboardInterrupt) as error:
        # Else it would leave the loop, and end neither the run nor the process.
        raise RuntimeError(f"the body raised {type(error).__name__}: {error}") from error


async def bodied(
    run: Run, call: Callable[[], Coroutine[Any, Any, Any]], deadline: float | None, limit: float | None
) -> Any:
    """Run the body: with its deadline around it, and with what it has to undo behind it when it does not end well."""
    try:
        if deadline is None or limit is None:
            return await _called(call)
        scope = asyncio.timeout_at(deadline)
        try:
            async with scope:
                return await _called(call)
        except TimeoutError as error:
            if scope.expired():
                raise TimedOut(limit) from error
            raise
    except NonDeterminism:
        # Nothing was decided: the code is wrong, and the run goes on once it is not.
        raise
    except (Exception, asyncio.CancelledError) as error:
        for failed in await run._undo_all():  # pyright: ignore[reportPrivateUsage]
            error.add_note(f"And what was to be undone failed: {failed}")
        raise
