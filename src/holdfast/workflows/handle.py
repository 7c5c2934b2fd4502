"""A run as those outside see it: wait for it, look at it, send it something, stop it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

from holdfast import runs
from holdfast.runs import Letter, Recorded, RunView
from holdfast.store import Store
from holdfast.values.ids import new_id
from holdfast.values.options import KEY_LENGTH, text
from holdfast.values.payload import encode_value
from holdfast.values.retry import DAY, Duration, seconds
from holdfast.workflows.cancelling import force
from holdfast.workflows.run import signal_name

R_co = TypeVar("R_co", covariant=True)


class Woken(Protocol):
    """What is told that something is due."""

    def wake_workers(self) -> None: ...


class Running(Protocol):
    """What a handle needs of its application."""

    store: Store

    @property
    def context(self) -> Woken: ...

    @property
    def result(self) -> Callable[..., Any]: ...

    @property
    def aresult(self) -> Callable[..., Any]: ...


class RunHandle(Generic[R_co]):
    """A run by its id; whether it is there is found out when something is asked of it.

    `created` is False for one that a start has found, and None where nobody asked.
    """

    __slots__ = ("_app", "_job_id", "_type", "created", "id", "workflow")

    def __init__(
        self,
        app: Running,
        id: str,
        workflow: str | None = None,
        job_id: str | None = None,
        created: bool | None = None,
        type: Any = None,
    ) -> None:
        self._app = app
        self.id = id
        self.workflow = workflow
        self._job_id = job_id
        self.created = created
        self._type = type

    def __repr__(self) -> str:
        return f"<RunHandle {self.id}{'' if self.workflow is None else f' of {self.workflow}'}>"

    def result(self, timeout: Duration | None = None) -> R_co:
        """Wait until the run is over, and return what its body returned.

        timeout: how long to wait; 0 looks once, None waits for ever. What waits here is not the run: to stop waiting
        leaves that alone.
        Raises: RunNotFound; JobDead, JobCancelled; TimeoutError, which says how the run is; WouldBlock.
        """
        job_id = self._job_id or self.get().job_id
        value: R_co = self._app.result(job_id, timeout, type=self._type)
        return value

    async def aresult(self, timeout: Duration | None = None) -> R_co:
        """The async twin of `result`."""
        job_id = self._job_id or (await self.aget()).job_id
        value: R_co = await self._app.aresult(job_id, timeout, type=self._type)
        return value

    def get(self) -> RunView:
        """Return the run as it is now. Raises: RunNotFound."""
        return self._app.store.run(runs.show(self.id, self.workflow))

    async def aget(self) -> RunView:
        """The async twin of `get`."""
        return await self._app.store.arun(runs.show(self.id, self.workflow))

    def status(self) -> str:
        """Tell how the run is: pending, running, waiting, stuck, done, dead or cancelled. Raises: RunNotFound."""
        return self.get().status

    async def astatus(self) -> str:
        """The async twin of `status`."""
        return (await self.aget()).status

    def attributes(self) -> dict[str, Any]:
        """Return what the run says of itself (`run.set`). Raises: RunNotFound."""
        return self.get().attributes

    async def aattributes(self) -> dict[str, Any]:
        """The async twin of `attributes`."""
        return (await self.aget()).attributes

    def history(self) -> list[Recorded]:
        """Return the journal of the run. Raises: RunNotFound."""
        return self._app.store.run(runs.timeline(self.id, self.workflow))[1]

    async def ahistory(self) -> list[Recorded]:
        """The async twin of `history`."""
        return (await self._app.store.arun(runs.timeline(self.id, self.workflow)))[1]

    def signal(
        self,
        name: str,
        payload: Any = None,
        *,
        tx: Any = None,
        idempotency_key: str | None = None,
        window: Duration = DAY,
    ) -> bool:
        """Send the run a signal, which it takes with `run.signal(name)`; see `hf.signal`."""
        return self._send(letter(name, payload, idempotency_key, window), tx)

    async def asignal(
        self,
        name: str,
        payload: Any = None,
        *,
        tx: Any = None,
        idempotency_key: str | None = None,
        window: Duration = DAY,
    ) -> bool:
        """The async twin of `signal`."""
        return await self._asend(letter(name, payload, idempotency_key, window), tx)

    def cancel(self, *, force: bool = False, tx: Any = None) -> bool:
        """Ask the run to stop: its body gets CancelledError where it waits, and may clean up; its children, too.

        force: end it at once, whatever it does, and run no code of it. Returns whether there was something to stop.
        Raises: RunNotFound; RunFinished.
        """
        if force:
            return self._force(tx)
        return self._send(stop_letter(), tx)

    async def acancel(self, *, force: bool = False, tx: Any = None) -> bool:
        """The async twin of `cancel`."""
        if force:
            return await self._aforce(tx)
        return await self._asend(stop_letter(), tx)

    def _force(self, tx: Any) -> bool:
        work, store = force(self.id, self.workflow), self._app.store
        ended = store.run(work) if tx is None else store.run_in(tx, work, "the end of a run")
        self._told(tx)
        return ended > 0

    async def _aforce(self, tx: Any) -> bool:
        work, store = force(self.id, self.workflow), self._app.store
        ended = await (store.arun(work) if tx is None else store.arun_in(tx, work, "the end of a run"))
        self._told(tx)
        return ended > 0

    def _send(self, sent: Letter, tx: Any) -> bool:
        key, workflow, store = self.id, self.workflow, self._app.store
        if tx is not None:
            return store.run_in(tx, runs.send(key, sent, workflow, in_tx=True), "a signal")
        new = store.run(runs.send(key, sent, workflow), lambda: runs.send(key, sent, workflow, fresh=False))
        self._told(tx)
        return new

    async def _asend(self, sent: Letter, tx: Any) -> bool:
        key, workflow, store = self.id, self.workflow, self._app.store
        if tx is not None:
            return await store.arun_in(tx, runs.send(key, sent, workflow, in_tx=True), "a signal")
        new = await store.arun(runs.send(key, sent, workflow), lambda: runs.send(key, sent, workflow, fresh=False))
        self._told(tx)
        return new

    def _told(self, tx: Any) -> None:
        if tx is None:
            self._app.context.wake_workers()


def letter(name: str, payload: Any, idempotency_key: str | None = None, window: Duration = DAY) -> Letter:
    """Make a signal. Raises: ConfigError, InvalidPayload."""
    written = None if payload is None else encode_value(payload, f"payload of signal {name}")
    if idempotency_key is not None:
        text(idempotency_key, "idempotency_key", KEY_LENGTH)
    kept = round(seconds(window, "window", at_least=1.0) * 1000)
    return Letter(new_id(), signal_name(name), written, idempotency_key, kept)


def stop_letter() -> Letter:
    """Make a request to stop."""
    return Letter(new_id(), runs.CANCEL)
