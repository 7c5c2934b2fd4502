"""What a call answers with: a job to look at, to wait for and to revoke, by the names that Celery has for it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, cast

from holdfast.app import Holdfast
from holdfast.app.diagnosis import diagnose
from holdfast.celery.instead import refuse_on_result
from holdfast.errors import ConfigError, JobCancelled, JobDead, JobNotFound
from holdfast.values.retry import Duration
from holdfast.values.rows import OUTCOMES
from holdfast.values.views import JobView

PENDING, STARTED, RETRY, SUCCESS, FAILURE, REVOKED = (
    "PENDING",
    "STARTED",
    "RETRY",
    "SUCCESS",
    "FAILURE",
    "REVOKED",
)
READY = (SUCCESS, FAILURE, REVOKED)


class Home(Protocol):
    """What tasks and results belong to."""

    @property
    def holdfast(self) -> Holdfast: ...

    @property
    def always_eager(self) -> bool: ...


class Result(Protocol):
    """What can be waited for: a job, a call that has run already, or a group of these."""

    def get(self, timeout: Duration | None = None, propagate: bool = True) -> Any: ...

    def ready(self) -> bool: ...

    def successful(self) -> bool: ...

    def failed(self) -> bool: ...

    def revoke(self, terminate: bool = False) -> None: ...


class Refusing:
    """A word for what Celery's results have, and ours have not."""

    if not TYPE_CHECKING:
        # Type checkers are to find what is not there by themselves.
        def __getattr__(self, name):
            refuse_on_result(name, self)
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")


class AsyncResult(Refusing):
    """A job by its id. For a chain it is the first job's, and what is waited for is the end of the last."""

    # Where a job is looked for of which nothing else is said: in the application that was installed.
    installed: ClassVar[Home]

    def __init__(self, id: str, home: Home | None = None, parent: GroupResult | None = None) -> None:
        self.id = self.task_id = id
        self.parent = parent
        self._home = self.installed if home is None else home

    def __repr__(self) -> str:
        return f"<AsyncResult: {self.id}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AsyncResult) and other.id == self.id

    def __hash__(self) -> int:
        return hash(self.id)

    def get(self, timeout: Duration | None = None, propagate: bool = True) -> Any:
        """Wait until the job has ended, and return what it gave.

        Raises: JobDead, JobCancelled, unless `propagate` is False: then it returns them. JobNotFound; Python's
        TimeoutError, which says how the job is.
        """
        try:
            return self._home.holdfast.result(self.id, timeout)
        except (JobDead, JobCancelled) as error:
            if propagate:
                raise
            return error

    async def aget(self, timeout: Duration | None = None, propagate: bool = True) -> Any:
        """The async twin of `get`."""
        try:
            return await self._home.holdfast.aresult(self.id, timeout)
        except (JobDead, JobCancelled) as error:
            if propagate:
                raise
            return error

    wait = get

    @property
    def state(self) -> str:
        """PENDING, STARTED, RETRY, SUCCESS, FAILURE or REVOKED, or what `update_state` said of a job that runs."""
        return self._look()[0]

    @property
    def status(self) -> str:
        """The same as `state`."""
        return self.state

    @property
    def result(self) -> Any:
        """What the job gave, the error that it ended with, or what `update_state` said last; None before that."""
        return self._look()[1]

    @property
    def info(self) -> Any:
        """The same as `result`."""
        return self.result

    @property
    def traceback(self) -> str | None:
        """The traceback of the last failed attempt."""
        last = self.job.last_error
        return None if last is None else str(last["traceback"])

    @property
    def date_done(self) -> datetime | None:
        return self.job.finished_at

    @property
    def name(self) -> str:
        return self.job.kind

    @property
    def job(self) -> JobView:
        """The job itself. Raises: JobNotFound."""
        return self._home.holdfast.get(self.id)

    def ready(self) -> bool:
        return self.state in READY

    def successful(self) -> bool:
        return self.state == SUCCESS

    def failed(self) -> bool:
        return self.state == FAILURE

    def revoke(self, terminate: bool = False) -> None:
        """Cancel the job, or the one that its chain has come to: one that waits ends, one that runs is asked to stop.

        terminate: True gives the lease of a job that runs to nobody at once, whatever its code still does.
        """
        hf = self._home.holdfast
        # Of a chain it is the job that it has come to, which may end and be continued meanwhile.
        while (job := hf.store.run(diagnose(self.id)).job).state not in OUTCOMES:
            if not hf.cancel(job.id, force=terminate).left:
                break

    def _look(self) -> tuple[str, Any]:
        try:
            return SUCCESS, self._home.holdfast.result(self.id, 0)
        except JobDead as error:
            return FAILURE, error
        except JobCancelled as error:
            return REVOKED, error
        except JobNotFound:
            # As Celery says of a task that it knows nothing of.
            return PENDING, None
        except TimeoutError:
            return _live(self.job)


def _live(job: JobView) -> tuple[str, Any]:
    """Say how a job is that has not ended, in Celery's words."""
    if job.state == "leased":
        said: Any = job.progress
        if isinstance(said, dict) and "state" in said:
            told = cast("dict[str, Any]", said)
            return str(told["state"]), told.get("meta")
        return STARTED, cast("Any", said)
    return (RETRY if job.attempts else PENDING), None


class EagerResult(Refusing):
    """A call that has run already, in the process that made it."""

    parent = None

    def __init__(self, id: str, state: str, result: Any) -> None:
        self.id = self.task_id = id
        self.state = self.status = state
        self.result = self.info = result

    def __repr__(self) -> str:
        return f"<EagerResult: {self.id}>"

    def get(self, timeout: Duration | None = None, propagate: bool = True) -> Any:
        """Return what the task gave. Raises: the error that it ended with, unless `propagate` is False."""
        if propagate and self.state != SUCCESS:
            raise self.result
        return self.result

    async def aget(self, timeout: Duration | None = None, propagate: bool = True) -> Any:
        """The async twin of `get`."""
        return self.get(timeout, propagate)

    wait = get

    def ready(self) -> bool:
        return True

    def successful(self) -> bool:
        return self.state == SUCCESS

    def failed(self) -> bool:
        return self.state == FAILURE

    def revoke(self, terminate: bool = False) -> None:
        """Do nothing: it is over."""


class GroupResult(Refusing):
    """The results of a group, in the order of its members."""

    def __init__(self, results: Sequence[AsyncResult | EagerResult]) -> None:
        self.results = list(results)

    def __repr__(self) -> str:
        return f"<GroupResult: {self.results}>"

    def __len__(self) -> int:
        return len(self.results)

    def __iter__(self) -> Iterator[AsyncResult | EagerResult]:
        return iter(self.results)

    def __getitem__(self, place: int) -> AsyncResult | EagerResult:
        return self.results[place]

    def get(self, timeout: Duration | None = None, propagate: bool = True) -> list[Any]:
        """Wait for each in turn, each no longer than `timeout`, and return what they gave."""
        return [one.get(timeout, propagate) for one in self.results]

    join = get

    def ready(self) -> bool:
        return all(one.ready() for one in self.results)

    def successful(self) -> bool:
        return all(one.successful() for one in self.results)

    def failed(self) -> bool:
        return any(one.failed() for one in self.results)

    def completed_count(self) -> int:
        return sum(one.successful() for one in self.results)

    def revoke(self, terminate: bool = False) -> None:
        """Cancel every member that has not ended."""
        for one in self.results:
            one.revoke(terminate)


class NotInstalled(ConfigError):
    """No application was said to run the tasks."""

    def __init__(self, what: str) -> None:
        rule = (
            "no Holdfast application runs the tasks yet: call holdfast.celery.install(hf), or make the application "
            "with Celery(name, holdfast=hf), in a module that is imported before this call"
        )
        super().__init__("holdfast.celery", rule, what)
