"""How tasks reach workers and results come back: what every transport does inside of our transactions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from holdfast.flow import Steps
from holdfast.remote.rows import Dispatch, Result, Task


class Told(NamedTuple):
    """A result that is there, as a transport tells of it: the step's id, and what it carries, if anything."""

    step_id: str
    payload: str | None = None


class Transport(Protocol):
    """Steps inside of a transaction of ours, in which the run's row is locked. None of them commits.

    A transport whose rows are in our database sends, takes and withdraws right there. One that sends messages leaves
    tasks to be sent after the commit (`look_ms` is 0) and finds results in the letters that its receiver wrote.
    """

    def look_ms(self) -> int:
        """Tell after how long a dispatch is looked after for the first time."""

    def send(self, tasks: Sequence[Task]) -> Steps[None]:
        """Have workers find these tasks, in place of what they may find of the same steps."""

    def take(self, told: Mapping[str, str | None]) -> Steps[dict[str, Result]]:
        """Take the results of these steps, with what letters say of them; neither task nor result is left of them."""

    def withdraw(self, steps: Sequence[str]) -> Steps[None]:
        """Take these steps back: those that nobody has begun are not begun."""

    def present(self, steps: Sequence[str]) -> Steps[set[str]]:
        """Tell of which steps a task or a result is there, as far as can be seen."""

    def arrived(self, limit: int) -> Steps[list[str]]:
        """Look for results, without locks; the first statements of a flow. Ids of steps, the oldest result first."""

    def claim(self, steps: Sequence[str]) -> Steps[None]:
        """Note that these results were seen, so that nobody looks at them again for a while."""

    def forget(self, steps: Sequence[str]) -> Steps[None]:
        """Delete results that nobody waits for."""


class Message(Protocol):
    """A result that came as a message; no step: it is none of an engine's."""

    @property
    def step_id(self) -> str | None: ...
    @property
    def body(self) -> str: ...


class Messenger(Protocol):
    """Sends tasks and receives results where both are messages. What its client raises is tried again."""

    name: str

    async def open(self) -> None: ...

    async def send(self, dispatches: Sequence[Dispatch]) -> list[tuple[Dispatch, str]]:
        """Send tasks; return those that will never be taken, and why."""
        ...

    async def receive(self) -> Sequence[Message]: ...

    async def delete(self, received: Sequence[Any]) -> None: ...

    async def close(self) -> None: ...


class Engine(Protocol):
    """Where remote steps are dispatched, as an application has declared it."""

    name: str
    partition: str | None
    transport: Transport
    # The longest pause between two looks for results, and how long both a task and its result may be missing before
    # the dispatch counts as lost; in seconds.
    poll: float
    lost_after: float
    # Makes what sends and receives messages; None where rows are enough.
    messenger: Callable[[], Messenger] | None

    async def aprepare(self) -> None:
        """Make what the transport needs that is not there yet; called before each use. Raises: StoreError."""
