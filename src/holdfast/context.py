"""What running work needs of its application, without the application."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Protocol

from holdfast.events import Events
from holdfast.job import Job
from holdfast.outbox import Routes
from holdfast.remote import Engine
from holdfast.resources import Hooks
from holdfast.schedules import Schedule
from holdfast.store import Store, Stores
from holdfast.tracing import Tracing
from holdfast.values.options import QueueOptions
from holdfast.waits import ShardWaits, Waits

Next = Callable[[Job], Awaitable[Any]]
Middleware = Callable[[Job, Next], Awaitable[Any]]
Around = Callable[[Job], AbstractContextManager[Any]]


class Care(Protocol):
    """What is done before and after each call of the application's functions, where they run.

    A block of both colours: `with` on the thread of a plain function, `async with` on the loop of an async one.
    """

    def __enter__(self) -> object: ...
    def __exit__(self, *ended: object) -> None: ...
    async def __aenter__(self) -> object: ...
    async def __aexit__(self, *ended: object) -> None: ...


@dataclass(eq=False, slots=True)
class Context:
    """The databases, who listens, what wraps attempts, what was said of queues, and what comes again and again."""

    stores: Stores
    events: Events = field(default_factory=Events)
    middlewares: list[Middleware] = field(default_factory=list[Middleware])
    around_handlers: list[Around] = field(default_factory=list[Around])
    # What runs when a worker starts, and gives handlers their resources.
    hooks: Hooks = field(default_factory=Hooks)
    # What a framework wants done around each call, such as a look after its connections.
    care: Care | None = None
    # How the command line is called there; None: by its own name, and with the application.
    program: str | None = None
    # What makes spans of attempts; None: nobody asked for them.
    tracing: Tracing | None = None
    queues: dict[str, QueueOptions] = field(default_factory=dict[str, QueueOptions])
    # What comes again and again, by name.
    schedules: dict[str, Schedule] = field(default_factory=dict[str, Schedule])
    # Declares what could not be declared before all modules were imported.
    late_schedules: list[Callable[[], None]] = field(default_factory=list[Callable[[], None]])
    # Where events go.
    routes: Routes = field(default_factory=Routes)
    # Where remote steps of runs are dispatched, by name.
    engines: dict[str, Engine] = field(default_factory=dict[str, Engine])
    # Those of this process who look for results, to be told of each dispatch.
    dispatch_hints: set[Callable[[str], None]] = field(default_factory=set[Callable[[str], None]])
    # Those of the queues whose jobs come in the order of commits.
    commit_ordered: set[str] = field(default_factory=set[str])
    # Workers of this process, to be woken by an enqueue of this process.
    wakers: set[Callable[[], None]] = field(default_factory=set[Callable[[], None]])
    # Those of this process who wait for jobs to end.
    waits: Waits | ShardWaits = field(init=False)

    def __post_init__(self) -> None:
        each = [Waits(store, self.events.emit, self.keeping_nothing, self.wake_workers) for store in self.stores.ours]
        self.waits = each[0] if len(each) == 1 else ShardWaits(each)

    @property
    def wraps_calls(self) -> bool:
        """Whether something is to be entered around each call of a handler or step."""
        return bool(self.around_handlers) or self.care is not None

    @property
    def store(self) -> Store:
        """Where the application's own jobs are: its home, or its shards as one."""
        return self.stores.whole

    def declared_schedules(self) -> dict[str, Schedule]:
        """Return the schedules for those who store them, with those that were put off until now."""
        for declare in self.late_schedules:
            declare()
        return self.schedules

    def queue_options(self, name: str) -> QueueOptions:
        return self.queues.get(name) or QueueOptions(name)

    def keeping_nothing(self) -> list[str]:
        """Name the queues that keep nothing of done jobs."""
        return [name for name, options in self.queues.items() if options.keep_done <= 0]

    def retention_digest(self) -> str:
        """Tell settings of retention apart: workers with the same ones may prune for each other."""
        said = sorted((one.name, one.keep_done, one.keep_dead, one.keep_cancelled) for one in self.queues.values())
        return blake2b(repr((said, self.audit_retention)).encode(), digest_size=8).hexdigest()

    @property
    def audit_retention(self) -> float:
        """For how many seconds audit lines are kept."""
        return self.store.options.audit_retention

    def wake_workers(self) -> None:
        """Let the workers of this process look for work at once."""
        for wake in list(self.wakers):
            wake()
