"""What running work needs of its application, without the application."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from holdfast.events import Events
from holdfast.job import Job
from holdfast.store import Store, Stores
from holdfast.values.options import QueueOptions

Next = Callable[[Job], Awaitable[Any]]
Middleware = Callable[[Job, Next], Awaitable[Any]]
Around = Callable[[Job], AbstractContextManager[Any]]


@dataclass(eq=False, slots=True)
class Context:
    """The databases, who listens, what wraps attempts, and what was said of queues."""

    stores: Stores
    events: Events = field(default_factory=Events)
    middlewares: list[Middleware] = field(default_factory=list[Middleware])
    around_handlers: list[Around] = field(default_factory=list[Around])
    queues: dict[str, QueueOptions] = field(default_factory=dict[str, QueueOptions])
    # Workers of this process, to be woken by an enqueue of this process.
    wakers: set[Callable[[], None]] = field(default_factory=set[Callable[[], None]])

    @property
    def store(self) -> Store:
        """The application's home, where its own jobs are."""
        return self.stores.home

    def queue_options(self, name: str) -> QueueOptions:
        return self.queues.get(name) or QueueOptions(name)

    def wake_workers(self) -> None:
        """Let the workers of this process look for work at once."""
        for wake in list(self.wakers):
            wake()
