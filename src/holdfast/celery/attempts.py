"""One call of a task's function: what it may ask about itself, and what its end means to Holdfast."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextvars import ContextVar, Token
from types import TracebackType
from typing import Any, Self

from holdfast.celery.exceptions import Ignore, MaxRetriesExceededError, Reject
from holdfast.celery.exceptions import Retry as RetryAsked
from holdfast.celery.options import TaskOptions
from holdfast.errors import ConfigError, HoldfastError
from holdfast.job import Job
from holdfast.values.failure import type_name, words
from holdfast.values.retry import Cancel, Duration, Retry, Snooze, seconds


class Request:
    """What a task may ask about the call that runs: `self.request`.

    `job` is the job as Holdfast gives it to handlers; None for a call that is not a job's.
    """

    def __init__(
        self,
        task: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
        *,
        job: Job | None = None,
        id: str | None = None,
        retries: int = 0,
        is_eager: bool = False,
    ) -> None:
        self.task_object = task
        self.task: str = task.name
        self.args = args
        self.kwargs = kwargs or {}
        self.job = job
        self.id = id if job is None else job.id
        # Attempts that died or took too long count, too.
        self.retries = retries if job is None else job.attempt - 1
        self.is_eager = is_eager
        self.called_directly = job is None and not is_eager

    def __repr__(self) -> str:
        return f"<Request {self.task} {self.id}>"

    @property
    def headers(self) -> dict[str, str]:
        """What travels with the job, except for what Holdfast has there itself."""
        given: Mapping[str, str] = {} if self.job is None else self.job.headers
        return {name: value for name, value in given.items() if not name.startswith("holdfast-")}

    @property
    def delivery_info(self) -> dict[str, Any]:
        return {} if self.job is None else {"routing_key": self.job.queue, "redelivered": self.job.attempt > 1}


running: ContextVar[Request | None] = ContextVar("holdfast_celery_request", default=None)


class Attempt:
    """A `with` block around one call; what leaves it is an outcome of Holdfast's, or what `outcome` gives."""

    def __init__(self, options: TaskOptions, request: Request) -> None:
        self.options = options
        self.request = request
        self.value: Any = None
        self._error: BaseException | None = None

    def __enter__(self) -> Self:
        self._token: Token[Request | None] = running.set(self.request)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        running.reset(self._token)
        match error:
            case None:
                return False
            case RetryAsked():
                self._retry(error)
            case Ignore():
                self.value = Cancel(str(error) or "ignored")
            case Reject(requeue=True):
                self.value = Snooze(0, str(error))
            case _:
                return False
        return True

    def _retry(self, asked: RetryAsked) -> None:
        """Have the job tried again: with the error that it was asked for, which is then told like any other."""
        policy, job = Retry.after(asked.delay, asked.reason), self.request.job
        if job is None or not isinstance(asked.error, Exception) or not policy.retries(asked.error):
            self.value = policy
        elif isinstance(asked.error, HoldfastError):
            # One of ours may mean something else to the worker, such as a lease that is lost.
            self.value = policy
        else:
            job.retry, self._error = policy, asked.error
            if self._error.__traceback__ is None:
                # Made for the retry, and raised nowhere: it comes from where that was asked for.
                self._error.__traceback__, self._error.__context__ = asked.__traceback__, asked.__context__

    def outcome(self) -> Any:
        """Return what the call gave. Raises: the error that a retry was asked for."""
        if self._error is not None:
            raise self._error
        return self.value


def retry(
    options: TaskOptions, request: Request, exc: BaseException | None, countdown: Duration | None, limit: int | None
) -> RetryAsked:
    """Make what `self.retry(…)` raises.

    Raises: `exc`, or MaxRetriesExceededError, when no retry is left; ConfigError for more retries than the job has.
    """
    delay = options.retry_seconds if countdown is None else seconds(countdown, "countdown")
    # Said inside an `except` it is about the error there, as in Celery.
    cause = exc or sys.exception()
    said = "" if cause is None else f"{type_name(cause)}: {words(cause)}"
    if request.called_directly:
        raise exc or RetryAsked(delay, "the task was called as a function, and can only be tried again as a job")
    most = options.max_retries if limit is None else limit
    if options.max_retries is not None and most is not None and most > options.max_retries:
        rule = f"a job has as many as its task says ({options.max_retries}); say max_retries= in the decorator"
        raise ConfigError("max_retries", rule, limit)
    if most is not None and request.retries >= most:
        raise exc or MaxRetriesExceededError(f"{request.task} has no retry left: it may have {most}")
    return RetryAsked(delay, said, cause)
