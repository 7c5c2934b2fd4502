"""A run as those outside see it: wait for it, look at it, send it something, stop it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from holdfast import runs
from holdfast.errors import PayloadTooLarge
from holdfast.flow import Flow
from holdfast.placing import Found, Placed
from holdfast.runs import Letter, Recorded, RunView
from holdfast.store import Store
from holdfast.values.ids import new_id
from holdfast.values.options import KEY_LENGTH, text
from holdfast.values.payload import encode_value
from holdfast.values.retry import DAY, Duration, seconds
from holdfast.workflows.cancelling import force, resume, stop
from holdfast.workflows.forking import fork, migrate
from holdfast.workflows.histories import History, export
from holdfast.workflows.run import signal_name
from holdfast.workflows.starting import NewRun

T = TypeVar("T")
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

    def forked(self, history: History, at: str, id: str | None, version: int | None) -> tuple[NewRun, Any]: ...

    def migrated(self, history: History, version: int) -> str: ...


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

    @property
    def named(self) -> str:
        """How the run is named to those who cancel it: by its job, where that is known."""
        return self._job_id or self.id

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
        return self._app.store.run(self._here(runs.show(self.id, self.workflow)))

    async def aget(self) -> RunView:
        """The async twin of `get`."""
        return await self._app.store.arun(self._here(runs.show(self.id, self.workflow)))

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
        return self._app.store.run(self._here(runs.timeline(self.id, self.workflow)))[1]

    async def ahistory(self) -> list[Recorded]:
        """The async twin of `history`."""
        return (await self._app.store.arun(self._here(runs.timeline(self.id, self.workflow))))[1]

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
        return self._send(self._letter(name, payload, idempotency_key, window), tx)

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
        return await self._asend(self._letter(name, payload, idempotency_key, window), tx)

    def cancel(self, *, force: bool = False, tx: Any = None) -> bool:
        """Ask the run to stop: its body gets CancelledError where it waits, and may clean up; its children, too.

        force: end it at once, whatever it does, and run no code of it. Returns whether there was something to stop.
        Raises: RunNotFound; RunFinished.
        """
        if force:
            return self._force(tx)
        store, which = self._app.store, (self.id, self.workflow)
        if tx is not None:
            store.run_in(tx, self._here(stop(*which, in_tx=True)), "a request to stop")
        else:
            ask = partial(stop, *which, in_tx=store.joins)
            store.run(self._here(ask()), lambda: ask(fresh=False))
            self._told(tx)
        return True

    async def acancel(self, *, force: bool = False, tx: Any = None) -> bool:
        """The async twin of `cancel`."""
        if force:
            return await self._aforce(tx)
        store, which = self._app.store, (self.id, self.workflow)
        if tx is not None:
            await store.arun_in(tx, self._here(stop(*which, in_tx=True)), "a request to stop")
        else:
            await store.arun(
                self._here(stop(*which, in_tx=store.joins)), lambda: stop(*which, in_tx=store.joins, fresh=False)
            )
            self._told(tx)
        return True

    def export(self) -> History:
        """Return the run with its arguments and its journal: `handle.export().to_json()` is for a file.

        Raises: RunNotFound.
        """
        return self._app.store.run(self._here(export(self.id, self.workflow)))

    async def aexport(self) -> History:
        """The async twin of `export`."""
        return await self._app.store.arun(self._here(export(self.id, self.workflow)))

    def resume(self, *, actor: str | None = None) -> None:
        """Let a dead run go on: the step whose failure ended it is made again, with all its attempts.

        actor: for the audit. Raises: RunNotFound; Conflict for a run that is not dead, or has undone what it did.
        """
        self._app.store.run(self._here(resume(self.id, actor, self.workflow)))
        self._told(None)

    async def aresume(self, *, actor: str | None = None) -> None:
        """The async twin of `resume`."""
        await self._app.store.arun(self._here(resume(self.id, actor, self.workflow)))
        self._told(None)

    def fork(
        self, at: str, *, id: str | None = None, version: int | None = None, actor: str | None = None
    ) -> RunHandle[Any]:
        """Start another run that begins with what this one has recorded before the key `at`, and does the rest anew.

        at: a key of the journal, such as "charge_card" or "signal:approved". id: of the new run, by default this one's
        with "~" and a number behind it. version: run it with the code of another version, which is replayed first.
        actor: for the audit. Children whose ends are recorded are not started again.
        Raises: RunNotFound; Conflict where nothing is recorded as `at`; NonDeterminism where the code does not fit.
        """
        history = self.export()
        new, workflow = self._app.forked(history, at, id, version)
        started = self._app.store.run(self._here(fork(new, history, at, actor)))
        self._told(None)
        return RunHandle(self._app, new.key, new.workflow, started.job_id, True, workflow.returns)

    async def afork(
        self, at: str, *, id: str | None = None, version: int | None = None, actor: str | None = None
    ) -> RunHandle[Any]:
        """The async twin of `fork`."""
        history = await self.aexport()
        new, workflow = self._app.forked(history, at, id, version)
        started = await self._app.store.arun(self._here(fork(new, history, at, actor)))
        self._told(None)
        return RunHandle(self._app, new.key, new.workflow, started.job_id, True, workflow.returns)

    def migrate(self, to: int, *, actor: str | None = None) -> None:
        """Let the run go on with the code of another version, which its history is replayed with first.

        actor: for the audit. Raises: RunNotFound; Conflict for a run that is over, or that a worker holds;
        NonDeterminism where that code does something else than was recorded: nothing has changed then.
        """
        history = self.export()
        kind = self._app.migrated(history, to)
        self._app.store.run(self._here(migrate(history, kind, actor)))
        self._told(None)

    def checked(self, history: History, version: int) -> None:
        """Make sure that a migration to this version would do. Raises: as `migrate`."""
        self._app.migrated(history, version)

    async def amigrate(self, to: int, *, actor: str | None = None) -> None:
        """The async twin of `migrate`."""
        history = await self.aexport()
        kind = self._app.migrated(history, to)
        await self._app.store.arun(self._here(migrate(history, kind, actor)))
        self._told(None)

    def _force(self, tx: Any) -> bool:
        work, store = self._here(force(self.id, self.workflow)), self._app.store
        ended = store.run(work) if tx is None else store.run_in(tx, work, "the end of a run")
        self._told(tx)
        return ended > 0

    async def _aforce(self, tx: Any) -> bool:
        work, store = self._here(force(self.id, self.workflow)), self._app.store
        ended = await (store.arun(work) if tx is None else store.arun_in(tx, work, "the end of a run"))
        self._told(tx)
        return ended > 0

    def _letter(self, name: str, payload: Any, idempotency_key: str | None, window: Duration) -> Letter:
        limit = self._app.store.options.payload_limit
        return letter(name, payload, idempotency_key, window, limit=limit)

    def _send(self, sent: Letter, tx: Any) -> bool:
        key, workflow, store = self.id, self.workflow, self._app.store
        if tx is not None:
            return store.run_in(tx, self._here(runs.send(key, sent, workflow, in_tx=True)), "a signal")
        send = partial(runs.send, key, sent, workflow, in_tx=store.joins)
        new = store.run(self._here(send()), lambda: send(fresh=False))
        self._told(tx)
        return new

    async def _asend(self, sent: Letter, tx: Any) -> bool:
        key, workflow, store = self.id, self.workflow, self._app.store
        if tx is not None:
            return await store.arun_in(tx, self._here(runs.send(key, sent, workflow, in_tx=True)), "a signal")
        send = partial(runs.send, key, sent, workflow, in_tx=store.joins)
        new = await store.arun(self._here(send()), lambda: send(fresh=False))
        self._told(tx)
        return new

    def _here(self, work: Flow[T]) -> Flow[T]:
        """Say where the work belongs: where the run is."""
        return Placed(work, Found(self._job_id or self.id))

    def _told(self, tx: Any) -> None:
        if tx is None:
            self._app.context.wake_workers()


def letter(
    name: str, payload: Any, idempotency_key: str | None = None, window: Duration = DAY, *, limit: int
) -> Letter:
    """Make a signal. Raises: ConfigError, InvalidPayload, PayloadTooLarge."""
    written = None if payload is None else encode_value(payload, f"payload of signal {name}")
    size = 0 if written is None else len(written.encode())
    if size > limit:
        raise PayloadTooLarge(f"signal {name}", size, limit)
    if idempotency_key is not None:
        text(idempotency_key, "idempotency_key", KEY_LENGTH)
    kept = round(seconds(window, "window", at_least=1.0) * 1000)
    return Letter(new_id(), signal_name(name), written, idempotency_key, kept)
