"""Control: pause and resume queues and kinds, from the application itself."""

from __future__ import annotations

from typing import Any, TypeVar

from holdfast import admin, jobs
from holdfast.app.results import Results
from holdfast.errors import ConfigError
from holdfast.flow import Flow
from holdfast.values.pauses import Pause, Scope

T = TypeVar("T")


class Controls(Results):
    """The face by which an application does what people do by hand."""

    def pause(
        self,
        queue: str | None = None,
        *,
        kind: str | None = None,
        reason: str | None = None,
        actor: str | None = None,
        tx: Any = None,
    ) -> bool:
        """Have workers claim nothing of a queue, `hf.pause("mail")`, or no jobs of a kind, `hf.pause(kind="send")`.

        It is stored, counts for all workers within about a second and stays through restarts until `resume`. Enqueues
        go on, and handlers that run go on. reason, actor: for those who find it paused, and for the audit.
        tx: pause in your transaction. Returns whether it was not paused before.
        """
        scope, name = _meant("hf.pause", queue, kind)
        return self._control(admin.pause(scope, name, actor, reason), tx)

    async def apause(
        self,
        queue: str | None = None,
        *,
        kind: str | None = None,
        reason: str | None = None,
        actor: str | None = None,
        tx: Any = None,
    ) -> bool:
        """The async twin of `pause`."""
        scope, name = _meant("hf.apause", queue, kind)
        return await self._acontrol(admin.pause(scope, name, actor, reason), tx)

    def resume(
        self, queue: str | None = None, *, kind: str | None = None, actor: str | None = None, tx: Any = None
    ) -> bool:
        """Let workers claim from a queue, or jobs of a kind, again. Returns whether it was paused.

        A queue and a kind are paused by themselves: a job runs once neither its queue nor its kind is.
        """
        scope, name = _meant("hf.resume", queue, kind)
        return self._control(admin.resume(scope, name, actor), tx)

    async def aresume(
        self, queue: str | None = None, *, kind: str | None = None, actor: str | None = None, tx: Any = None
    ) -> bool:
        """The async twin of `resume`."""
        scope, name = _meant("hf.aresume", queue, kind)
        return await self._acontrol(admin.resume(scope, name, actor), tx)

    def pauses(self) -> list[Pause]:
        """List what is paused: queues first, each by name."""
        return self.store.run(jobs.pauses())

    async def apauses(self) -> list[Pause]:
        """The async twin of `pauses`."""
        return await self.store.arun(jobs.pauses())

    def _control(self, work: Flow[T], tx: Any) -> T:
        return self.store.run(work) if tx is None else self.store.run_in(tx, work, work.name)

    async def _acontrol(self, work: Flow[T], tx: Any) -> T:
        return await (self.store.arun(work) if tx is None else self.store.arun_in(tx, work, work.name))


def _meant(call: str, queue: str | None, kind: str | None) -> tuple[Scope, str]:
    """Read which of the two is meant. Raises: ConfigError unless it is just one."""
    if queue is not None and kind is None:
        return "queue", queue
    if kind is not None and queue is None:
        return "kind", kind
    rule = f'{call} takes a queue or a kind: {call}("mail"), {call}(kind="send_receipt")'
    raise ConfigError("queue", rule, queue)
