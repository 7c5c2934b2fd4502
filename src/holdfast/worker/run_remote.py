"""Remote steps of a run in a worker's hands: sent, waited for, taken, given up, each in one commit with the journal."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterable, Sequence
from functools import partial
from typing import Any

from holdfast import events, remote
from holdfast.errors import ConfigError, PayloadTooLarge
from holdfast.remote import Awaited, Dispatch, Engine, Result, Sending
from holdfast.runs import TAKEN_AT_ONCE, Kind, Recorded
from holdfast.values.rows import Lease
from holdfast.worker.run_verdicts import Means, Place, Stuck, Verdict, error_record
from holdfast.workflows import Body, Operation
from holdfast.workflows.remote_step import Times, Wanted, recorded, times_of

# How long a run with many children or remote steps stays for the next end, once some have come: each claim replays all.
LINGER_SECONDS = 0.3
MANY = 20
# How often a run that stays for a near deadline looks for results.
PEEK_SECONDS = 0.05


class RemoteSteps(ABC):
    """The part of a driver that has remote steps done; what it needs of the rest is named first."""

    _means: Means
    _lease: Lease
    _run: str
    _body: Body
    _closed: bool
    _looked: bool
    _spawned: int
    # The context of the run's own.
    _variables: Any

    def __init__(self) -> None:
        # By key: remote steps that were sent, or are being sent, and whose results are to be taken.
        self._remotes: dict[str, Operation] = {}
        # Up to when time-outs are over, by the alarm that rang.
        self._rung_until = 0.0
        # By key: those whose time is over and which are being given up.
        self._late: set[str] = set()
        self._linger_until = 0.0
        self._peek: asyncio.TimerHandle | None = None

    @abstractmethod
    def _spawn(self, key: str, work: Callable[..., Coroutine[Any, Any, None]], *given: Any) -> None: ...
    @abstractmethod
    def _reserve(self, count: int = 1) -> list[Place]: ...
    @abstractmethod
    def _record(self, kind: Kind, key: str, *, ok: int = 1, value: str | None = None, op: Any = None) -> int: ...
    @abstractmethod
    def _again(self, op: Operation) -> None: ...
    @abstractmethod
    def _end(self, verdict: Verdict) -> None: ...
    @abstractmethod
    def _take(self) -> None: ...
    @abstractmethod
    def look(self) -> None: ...

    def _give_up(self, places: Sequence[Place]) -> None:
        for place in places:
            place.given_up = True

    # Sending

    def _begin_remotes(self, ops: Sequence[Operation]) -> None:
        """Send what was never sent, and wait for the rest; what was sent for another run is sent for this one."""
        fresh: list[Operation] = []
        for op in ops:
            if op.step and not op.step.startswith(f"{self._run}:"):
                op.step, op.sent = "", 0.0
            if op.sent:
                self._remotes[op.key] = op
                self._looked = False
            elif op.attempt:
                self._again(op)
            else:
                fresh.append(op)
        if fresh:
            self._dispatch(fresh)

    def _dispatch(self, ops: Sequence[Operation]) -> None:
        self._spawned += 1
        self._remotes.update((op.key, op) for op in ops)
        self._spawn(f"!remote:{self._spawned}", self._send, ops)

    async def _send(self, ops: Sequence[Operation]) -> None:
        limit = self._means.payload_limit
        for op in [op for op in ops if len(_wanted(op).input) > limit]:
            error = PayloadTooLarge(f"the input of {op.name}", len(_wanted(op).input), limit)
            failed = error_record(error, op.attempt + 1, time.monotonic(), self._means.worker)
            self._remotes.pop(op.key, None)
            self._record("remote", op.key, ok=0, value=failed.to_json(), op=op)
        fit = [op for op in ops if len(_wanted(op).input) <= limit]
        for engine, group in self._by_engine(fit):
            places = self._reserve(len(group))
            sending = [self._sending(engine, op, place) for op, place in zip(group, places, strict=True)]
            work = remote.dispatch(self._run, self._lease.fence, sending, self._means.worker, engine.transport)
            rows: list[Recorded] = await self._means.remotely(engine, work)
            for place, row in zip(places, rows, strict=True):
                place.row = row
            self._means.dispatched(engine)

    def _sending(self, engine: Engine, op: Operation, place: Place) -> Sending:
        wanted, attempt = _wanted(op), op.attempt + 1
        op.step = op.step or remote.step_id(self._run, place.seq)
        seq = int(op.step.rpartition(":")[2])
        partition = engine.partition if wanted.partition is None else wanted.partition
        group = remote.group_of(op.name, partition)
        sent = Dispatch(self._run, seq, op.key, engine.name, op.name, group, wanted.input, attempt)
        row = Recorded(place.seq, op.key, "dispatch", 1, engine.name, op.digest, attempt, self._means.worker)
        return Sending(sent, row._replace(ref=op.step))

    def _by_engine(self, ops: Iterable[Operation]) -> list[tuple[Engine, list[Operation]]]:
        """Sort operations by where they are sent; a run whose engine is not declared here is stuck until it is."""
        groups: dict[str, list[Operation]] = defaultdict(list)
        known = self._means.engines
        for op in ops:
            name = self._engine_of(op)
            if name is None or name not in known:
                self._end(Stuck(_unknown(op, name, list(known))))
                return []
            groups[name].append(op)
        return [(known[name], group) for name, group in groups.items()]

    def _engine_of(self, op: Operation) -> str | None:
        """Name the engine of an operation: the one that it was sent by, the one that it asks for, or the only one."""
        named = op.via if op.sent else _wanted(op).engine
        known = self._means.engines
        return next(iter(known)) if named is None and len(known) == 1 else named

    # Results and time-outs

    def _remote_deadlines(self) -> list[float]:
        waiting = [op for op in self._remotes.values() if op.sent and op.key not in self._late]
        return [op.sent + op.timeout for op in waiting if op.timeout is not None]

    def _time_out(self, until: float) -> None:
        """Give up what was to be there by now; results that have come meanwhile are taken instead."""
        late = {op.key for op in self._remotes.values() if op.sent and _is_late(op, until)} - self._late
        if late:
            # Given up once: the alarm must not ring for them again and again while the database is slow, or away.
            self._late |= late
            self._rung_until = until
            self._take()

    def _peek_soon(self, wanted: bool) -> None:
        """Have a run that stays, because a deadline is near, look for results: nobody wakes one that is held."""
        if self._peek is not None:
            self._peek.cancel()
        self._peek = (
            asyncio.get_running_loop().call_later(PEEK_SECONDS, self.look, context=self._variables) if wanted else None
        )

    def _waits_for_remotes(self) -> bool:
        return any(not op.done for op in self._remotes.values())

    async def _collect(self) -> None:
        """Take the results that are there, and give up what has taken too long."""
        now = max(self._means.clock.now(), self._rung_until)
        sent = [op for op in self._remotes.values() if op.sent and not op.done]
        for engine, group in self._by_engine(sent):
            for start in range(0, len(group), TAKEN_AT_ONCE):
                if not self._closed:
                    await self._collect_some(engine, group[start : start + TAKEN_AT_ONCE], now)

    async def _collect_some(self, engine: Engine, ops: Sequence[Operation], now: float) -> None:
        awaited = [Awaited(op.step, op.key, _is_late(op, now)) for op in ops]
        places, times, by_key = self._reserve(len(ops)), dict[str, Times](), {op.key: op for op in ops}
        decide = partial(self._decide, by_key, times)
        work = remote.collect(
            self._run, self._lease.fence, awaited, places[0].seq, self._means.worker, engine.transport, decide
        )
        got: remote.Collected = await self._means.remotely(engine, work)
        self._give_up(places[len(got.rows) :])
        self._late.difference_update(by_key)
        for key in [*(row.key for row in got.rows), *got.unknown]:
            # Nothing is under way for it any more. Its branch may have been cancelled meanwhile, and it be gone.
            self._remotes.pop(key, None)
            by_key[key].sent = 0.0
        for place, row in zip(places, got.rows, strict=False):
            place.row = row
            self._tell_of(by_key[row.key], row, times.get(row.key, Times(None, None)))
        if got.rows and len(self._remotes) >= MANY:
            self._linger_until = time.monotonic() + LINGER_SECONDS
        for key in got.unknown:
            # The journal says that it was sent, and nobody knows of it: a run that was resumed, or restored.
            asyncio.get_running_loop().call_soon(self._again, by_key[key], context=self._variables)

    def _decide(
        self, ops: dict[str, Operation], times: dict[str, Times], one: Awaited, result: Result | None
    ) -> Recorded:
        op = ops[one.key]
        if result is not None:
            times[op.key] = times_of(result, op.sent)
        return recorded(op, result, self._means.worker, self._means.clock.now(), self._means.payload_limit)

    def _tell_of(self, op: Operation, row: Recorded, times: Times) -> None:
        outcome = "done" if row.ok else "retried" if row.kind == "attempt" else "failed"
        self._means.emit(
            events.RemoteStepEnded(self._means.worker, self._run, op.key, op.name, outcome, row.attempt, *times)
        )

    # What nobody waits for

    def _find_orphans(self) -> None:
        """After a replay: find what was sent for branches that were cancelled since."""
        for op in self._body.operations.values() if self._body.dispatched else ():
            if op.kind == "remote" and op.sent and op.done:
                self._remotes[op.key] = op

    def _drop_remotes(self) -> None:
        """Take back what was sent for branches that were cancelled, or for a body that has ended without it."""
        over = self._body.over
        gone = [op for op in self._remotes.values() if op.sent and (over or op.done)]
        for op in gone:
            del self._remotes[op.key]
        # Of an engine that is not declared here any more nobody here can take something back.
        for engine, group in self._by_engine([op for op in gone if self._engine_of(op) in self._means.engines]):
            self._spawned += 1
            work = remote.withdraw(self._run, self._lease.fence, [op.step for op in group], engine.transport)
            self._spawn(f"!stop:remote:{self._spawned}", self._means.remotely, engine, work)


def _wanted(op: Operation) -> Wanted:
    wanted: Wanted = op.args[0]
    return wanted


def _is_late(op: Operation, now: float) -> bool:
    return op.timeout is not None and op.sent + op.timeout <= now


def _unknown(op: Operation, name: str | None, known: list[str]) -> ConfigError:
    there = f"here are {', '.join(known)}" if known else "none is declared here"
    if name is None and len(known) > 1:
        rule = f"say which engine does it, run.remote(…, engine=…): {there}"
    else:
        rule = f"declare where remote steps are dispatched, hf.remote_engine(…), beside its workflow: {there}"
    return ConfigError(op.key, rule, name)
