"""A task: a function with Celery's ways to call it, each of which makes a job of Holdfast's."""

from __future__ import annotations

import asyncio
import functools
import inspect
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, NoReturn, ParamSpec, Protocol, TypeVar, Unpack

from holdfast.app import Holdfast
from holdfast.bound import Bound, Continue
from holdfast.celery import attempts
from holdfast.celery.attempts import Attempt, Request, running
from holdfast.celery.canvas import CHAIN_HEADER, CHORD_HEADER, Chain, Signature, read, written
from holdfast.celery.exceptions import MaxRetriesExceededError
from holdfast.celery.options import CallKeywords, TaskOptions, call_options
from holdfast.celery.results import FAILURE, REVOKED, SUCCESS, AsyncResult, EagerResult
from holdfast.errors import ConfigError, Fatal, InvalidPayload, UnknownKind, WouldBlock
from holdfast.handlers import Handler
from holdfast.job import Job
from holdfast.values.ids import new_id
from holdfast.values.options import EnqueueOptions, StoreOptions
from holdfast.values.payload import Signature as Shape
from holdfast.values.retry import Cancel, Duration, Retry, Snooze
from holdfast.worker.handler_executor import loop_runs

P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)

# The parameter by which the worker hands the job over; no task's own is called like this.
JOB = "holdfast_job"
# A task that is tried again for ever must not hang a test.
MOST_EAGER_RETRIES = 100
_OUTCOMES = (Retry, Snooze, Cancel, Continue, Fatal)
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)

# What a task of Celery's has, and what there is instead.
_INSTEAD = {
    "delay_on_commit": "a job belongs to a transaction: task.using(tx=connection).delay(…)",
    "apply_async_on_commit": "a job belongs to a transaction: task.using(tx=connection).apply_async(…)",
    "replace": "return holdfast.Continue(other.handler.bind(…)): it is added in the commit that ends this job",
    "add_to_chord": "use hf.batch(then=…, seal=False) and hf.extend(…)",
    "map": "use group(task.s(one) for one in many), or @hf.bulk",
    "starmap": "use group(task.s(*one) for one in many), or @hf.bulk",
    "chunks": "use @hf.bulk, which takes many jobs at once",
    "AsyncResult": "use holdfast.celery.AsyncResult(id)",
    "backend": "results are kept with the job: use holdfast.celery.AsyncResult(id)",
    "subtask": "use task.s(…)",
    "send_event": "use hf.publish(…)",
}


class TaskHome(Protocol):
    """What a task belongs to: the application that was made, or the one that was installed."""

    @property
    def main(self) -> str | None: ...

    @property
    def holdfast(self) -> Holdfast: ...

    @property
    def always_eager(self) -> bool: ...

    @property
    def eager_propagates(self) -> bool: ...

    @property
    def tasks(self) -> Mapping[str, Task[..., Any]]: ...


class Task(Generic[P, R_co]):
    """A function that jobs run. Calling it calls the function; `delay` makes a job of the call."""

    def __init__(self, fn: Callable[..., Any], options: TaskOptions, home: TaskHome) -> None:
        functools.update_wrapper(self, fn)
        self.run = fn
        self.options = options
        # A program that is run has another name than a worker imports it by.
        module = home.main if fn.__module__ == "__main__" and home.main else fn.__module__
        self.name = options.name or f"{module}.{fn.__name__}"
        self.home = home
        self.max_retries = options.max_retries
        self.default_retry_delay = options.retry_seconds
        self._takes = _parameters(fn, options.bind)
        self.entry = self._entry()
        # What cannot be a payload is refused here, and not when there is an application.
        self.shape = Shape.of(self.entry, Job)

    def __repr__(self) -> str:
        return f"<@task: {self.name}>"

    def __getattr__(self, name: str) -> NoReturn:
        if name in _INSTEAD:
            raise ConfigError(name, f"tasks do not have it here: {_INSTEAD[name]}", self.__dict__.get("name"))
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        found: R_co = self.run(*self._own, *args, **kwargs)
        return found

    @property
    def _own(self) -> tuple[Any, ...]:
        return (self,) if self.options.bind else ()

    @property
    def handler(self) -> Handler[..., Any]:
        """The handler that it is registered as. Raises: ConfigError before there is an application."""
        return self.home.holdfast.handlers[self.name]

    # Calls

    def delay(self, *args: P.args, **kwargs: P.kwargs) -> AsyncResult | EagerResult:
        """Make a job of the call, in a transaction of its own; for one of yours: `task.using(tx=…).delay(…)`."""
        return self.apply_async(args, kwargs)

    async def adelay(self, *args: P.args, **kwargs: P.kwargs) -> AsyncResult:
        """The async twin of `delay`."""
        return await self.aapply_async(args, kwargs)

    def apply_async(
        self, args: Iterable[Any] | None = (), kwargs: Mapping[str, Any] | None = None, **options: Unpack[CallKeywords]
    ) -> AsyncResult | EagerResult:
        """Make a job of the call.

        countdown, eta (with a time zone): not before. expires: not after. queue, priority (-100 to 100, higher first),
        headers (text by name). link: a signature that is called with the result. tx: the transaction that the job
        belongs to. key, unique, idempotency_key: as in `Handler.using`.
        Raises: ConfigError for other options of Celery's, with what to do instead.
        """
        return Chain([self.s(*(args or ()), **(kwargs or {}))]).apply_async(**options)

    async def aapply_async(
        self, args: Iterable[Any] | None = (), kwargs: Mapping[str, Any] | None = None, **options: Unpack[CallKeywords]
    ) -> AsyncResult:
        """The async twin of `apply_async`; it always makes a job."""
        bound = Chain([self.s(*(args or ()), **(kwargs or {}))]).bound(options)
        return AsyncResult((await self.home.holdfast.aenqueue_bound(bound, options.get("tx"))).id, self.home)

    def using(self, **options: Unpack[CallKeywords]) -> UsingTask[P]:
        """Say something about the calls to come: `task.using(tx=session).delay(…)`; options of `apply_async`."""
        call_options("using()", options)
        return UsingTask(self, options)

    def s(self, *args: Any, **kwargs: Any) -> Signature:
        """Make a signature: a call that is still to be made, and may get the result of another first."""
        return Signature(self, args, kwargs)

    def si(self, *args: Any, **kwargs: Any) -> Signature:
        """Make a signature that takes no result of another."""
        return Signature(self, args, kwargs, immutable=True)

    def signature(
        self,
        args: Iterable[Any] | None = (),
        kwargs: Mapping[str, Any] | None = None,
        immutable: bool = False,
        **options: Unpack[CallKeywords],
    ) -> Signature:
        """Make a signature with options."""
        return Signature(self, args, kwargs, immutable=immutable).set(**options)

    # What a running task asks of itself

    @property
    def request(self) -> Request:
        """The call that runs: its `id`, `retries`, and the `job`."""
        found = running.get()
        return found if found is not None and found.task_object is self else Request(self)

    def retry(
        self,
        *,
        exc: BaseException | None = None,
        countdown: Duration | None = None,
        max_retries: int | None = None,
        throw: bool = True,
        **strange: Any,
    ) -> Exception:
        """Try the job again: `raise self.retry(countdown=60, exc=error)`. It raises by itself unless `throw` is False.

        Raises: `exc`, or MaxRetriesExceededError, when no retry is left.
        """
        for name, value in strange.items():
            rule = "a retry is the same job again, with its arguments and in its queue; countdown= says when"
            raise ConfigError(name, f"retry() cannot say it here: {rule}", value)
        asked = attempts.retry(self.options, self.request, exc, countdown, max_retries)
        if throw:
            raise asked
        return asked

    def update_state(self, state: str = "PROGRESS", meta: Any = None) -> None:
        """Store how far the job is, for `AsyncResult.state` and `info`."""
        if (job := self.request.job) is not None:
            job.progress({"state": state, "meta": meta})

    # What jobs and workers need of it

    def arguments(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return what was given by the names of the parameters. Raises: InvalidPayload."""
        try:
            return self._takes.bind(*args, **kwargs).arguments
        except TypeError as error:
            raise InvalidPayload(self.name, None, str(error)) from error

    def check(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Refuse arguments that the function does not take, whatever they hold."""
        self.arguments(args, kwargs)

    def bound(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], said: CallKeywords, headers: Mapping[str, str]
    ) -> Bound:
        """Check the arguments and make a job, with these headers beside those that were said."""
        named, handler = self.arguments(args, kwargs), self.handler
        options = call_options("apply_async()", said)
        if self.options.expires is not None:
            options.setdefault("expires", self.options.expires)
        if headers:
            options["headers"] = {**(said.get("headers") or {}), **headers}
        return handler.bound(handler.like(EnqueueOptions(**options)), (), named)

    def apply(self, args: Sequence[Any] | None = (), kwargs: Mapping[str, Any] | None = None) -> EagerResult:
        """Make the call here and now, with its retries; the arguments go through JSON as those of a job do."""
        named = self.arguments(args or (), kwargs or {})
        payload = self.shape.encode(self.name, (), named, StoreOptions().payload_limit)
        arguments = self.shape.decode(payload, self.name)
        made, job_id = EagerResult("", FAILURE, None), new_id()
        for retries in range(MOST_EAGER_RETRIES + 1):
            made = self._tried(arguments, job_id, retries)
            if made.state in (SUCCESS, FAILURE, REVOKED):
                break
        else:
            error = MaxRetriesExceededError(f"{self.name} was tried {MOST_EAGER_RETRIES + 1} times")
            made = EagerResult(job_id, FAILURE, error)
        if self.home.eager_propagates:
            made.get()
        return made

    def _tried(self, arguments: dict[str, Any], job_id: str, retries: int) -> EagerResult:
        most = self.options.max_retries
        try:
            value = self._perform(arguments, id=job_id, retries=retries, is_eager=True)
            if inspect.iscoroutine(value):
                value = _waited_for(value)
        except Exception as error:
            again = self.options.retry.retries(error) and (most is None or retries < most)
            return EagerResult(job_id, "RETRY" if again else FAILURE, error)
        if isinstance(value, Cancel):
            return EagerResult(job_id, REVOKED, Fatal(value.reason))
        return EagerResult(job_id, "RETRY" if isinstance(value, Retry | Snooze) else SUCCESS, value)

    def _perform(self, arguments: Mapping[str, Any], **about: Any) -> Any:
        """Call the function for a request; a coroutine is still to be waited for."""
        given = inspect.BoundArguments(self._takes, dict(arguments))
        attempt = Attempt(self.options, Request(self, given.args, given.kwargs, **about))
        if inspect.iscoroutinefunction(self.run):
            return self._awaited(attempt)
        with attempt:
            attempt.value = self.run(*self._own, *given.args, **given.kwargs)
        return attempt.outcome()

    async def _awaited(self, attempt: Attempt) -> Any:
        with attempt:
            attempt.value = await self.run(*self._own, *attempt.request.args, **attempt.request.kwargs)
        return attempt.outcome()

    def _entry(self) -> Callable[..., Any]:
        """Make what the worker calls: it takes all arguments by name, and the job."""
        entry: Callable[..., Any]
        if inspect.iscoroutinefunction(self.run):

            @functools.wraps(self.run)
            async def awaited(**arguments: Any) -> Any:
                job: Job = arguments.pop(JOB)
                if CHORD_HEADER in job.headers:
                    arguments = self._with_results(arguments, await job.aparents(), job)
                return self._followed(job, await self._perform(arguments, job=job))

            entry = awaited
        else:

            @functools.wraps(self.run)
            def called(**arguments: Any) -> Any:
                job: Job = arguments.pop(JOB)
                if CHORD_HEADER in job.headers:
                    arguments = self._with_results(arguments, job.parents(), job)
                return self._followed(job, self._perform(arguments, job=job))

            entry = called
        made: Any = entry
        made.__signature__ = _by_name(self._takes)
        made.task = self
        return entry

    def _with_results(self, arguments: dict[str, Any], parents: Any, job: Job) -> dict[str, Any]:
        """Put the results of a group where the callback expects them: first."""
        if parents is None or parents.done < parents.total:
            raise Fatal(f"{job!r} has no results of its group any more")
        results = [one.result for one in parents.each]
        [first, *_] = self._takes.parameters.values()
        given = arguments[first.name]
        whole = [results, *given[1:]] if first.kind is inspect.Parameter.VAR_POSITIONAL else results
        return {**arguments, first.name: whole}

    def _followed(self, job: Job, value: Any) -> Any:
        """Return what ends the job: with the next one of its chain, where there is one."""
        rest = None if isinstance(value, _OUTCOMES) else read(job.headers.get(CHAIN_HEADER))
        if not rest:
            return None if self.options.ignore_result and not isinstance(value, _OUTCOMES) else value
        link, *others = rest
        task = self.home.tasks.get(link.task)
        if task is None:
            raise Fatal(str(UnknownKind(link.task, self.home.tasks)))
        args = link.args if link.immutable else [value, *link.args]
        said: Any = link.options
        return Continue(task.bound(args, link.kwargs, said, written(others)))


class UsingTask(Generic[P]):
    """A task with something said about the calls to come."""

    def __init__(self, task: Task[P, Any], options: CallKeywords) -> None:
        self._task = task
        self._options = options

    def delay(self, *args: P.args, **kwargs: P.kwargs) -> AsyncResult | EagerResult:
        """Make a job of the call."""
        return self._task.apply_async(args, kwargs, **self._options)

    async def adelay(self, *args: P.args, **kwargs: P.kwargs) -> AsyncResult:
        """The async twin of `delay`."""
        return await self._task.aapply_async(args, kwargs, **self._options)

    def apply_async(
        self, args: Iterable[Any] | None = (), kwargs: Mapping[str, Any] | None = None, **options: Unpack[CallKeywords]
    ) -> AsyncResult | EagerResult:
        """Make a job of the call, with further options."""
        said: CallKeywords = {**self._options, **options}
        return self._task.apply_async(args, kwargs, **said)

    def s(self, *args: Any, **kwargs: Any) -> Signature:
        """Make a signature."""
        return Signature(self._task, args, kwargs, self._options)


def _parameters(fn: Callable[..., Any], bind: bool) -> inspect.Signature:
    """Read what a task takes, without the `self` that `bind` gives it."""
    try:
        signature = inspect.signature(fn)
    except (TypeError, ValueError) as error:
        raise ConfigError("task", f"must be a function whose signature can be read ({error})", fn) from error
    parameters = list(signature.parameters.values())
    if not bind:
        return signature
    if not parameters or parameters[0].kind not in _POSITIONAL:
        raise ConfigError("bind", f"{fn.__name__} must take the task first: def {fn.__name__}(self, …)", bind)
    return signature.replace(parameters=parameters[1:])


def _by_name(takes: inspect.Signature) -> inspect.Signature:
    """Return the same parameters as a payload has them, each by its name: *args is a list, **kwargs a dict."""
    made: list[inspect.Parameter] = []
    for one in takes.parameters.values():
        if one.kind is inspect.Parameter.VAR_POSITIONAL:
            made.append(one.replace(kind=inspect.Parameter.KEYWORD_ONLY, default=(), annotation=_many(one, "list[{}]")))
        elif one.kind is inspect.Parameter.VAR_KEYWORD:
            hint = _many(one, "dict[str, {}]")
            made.append(one.replace(kind=inspect.Parameter.KEYWORD_ONLY, default={}, annotation=hint))
        elif one.kind is inspect.Parameter.POSITIONAL_ONLY:
            made.append(one.replace(kind=inspect.Parameter.POSITIONAL_OR_KEYWORD))
        else:
            made.append(one)
    made.append(inspect.Parameter(JOB, inspect.Parameter.KEYWORD_ONLY, annotation=Job))
    return inspect.Signature(made)


def _many(parameter: inspect.Parameter, form: str) -> Any:
    hint = parameter.annotation
    if isinstance(hint, str):
        return form.format(hint)
    one: Any = Any if hint is inspect.Parameter.empty else hint
    return types.GenericAlias(list, (one,)) if form.startswith("list") else types.GenericAlias(dict, (str, one))


def _waited_for(coroutine: Any) -> Any:
    if loop_runs():
        coroutine.close()
        raise WouldBlock("an eager call of an async task", "await of the task's function")
    return asyncio.run(coroutine)
