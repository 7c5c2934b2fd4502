"""A workflow's body as it is driven: run, told what was recorded, run on; and replayed from its journal.

No database, no worker: what is to be done outside, it lists (`fresh`); what came of that, it is told, one row of the
journal at a time, each followed by everything that the body does because of it. So the order of rows is the order in
which the body sees things, and a replay takes the same way.
"""

from __future__ import annotations

import asyncio
import contextvars
import random
import uuid
from collections.abc import Callable, Coroutine, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from holdfast.errors import ChildFailed, InvalidPayload, NoIO, NonDeterminism
from holdfast.runs import ChildEnd, Kind, Recorded
from holdfast.workflows.loop import BodyLoop
from holdfast.workflows.operations import AttemptFailed, Operation, decoded, failure

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SHOWN = 8
# Rows after which an operation is still under way.
UNFINISHED: frozenset[Kind] = frozenset({"attempt", "dispatch"})


class Body:
    """One body on its loop. `fresh` are operations that nobody has begun with; the one who drives it takes them.

    now: the time before the first row, by the database's clock in seconds since 1970; it is asked once, if at all.
    """

    def __init__(self, run_id: str, now: Callable[[], float]) -> None:
        self.run_id = run_id
        self._now = now
        # The time that the body is told: that of the last row. None: no row yet, and it has not asked.
        self._time: float | None = None
        # When it began, if the body has asked for the time before the first row: that must be recorded, too.
        self.began: float | None = None
        self.loop = BodyLoop(self.time)  # type: ignore[abstract]
        self.main: asyncio.Task[Any] | None = None
        self.fresh: list[Operation] = []
        self.operations: dict[str, Operation] = {}
        self.replaying = False
        # Keys of the journal's rows, while they are replayed.
        self._recorded: frozenset[str] = frozenset()
        self._counts: dict[str, int] = {}
        self._drawn = 0
        self.cancelled = False
        # Whether something was sent to workers elsewhere.
        self.dispatched = False

    # What the body is given

    def time(self) -> float:
        """Return the time as the body sees it, in seconds since 1970."""
        if self._time is None:
            self._time = self.began = self._now()
        return self._time

    def now(self) -> datetime:
        return _EPOCH + timedelta(microseconds=round(self.time() * 1_000_000))

    def draw(self) -> random.Random:
        """Return a source of chance that gives the same to every replay."""
        self._drawn += 1
        return random.Random(f"{self.run_id}:{self._drawn}")

    def uuid(self) -> uuid.UUID:
        return uuid.UUID(int=self.draw().getrandbits(128), version=4)

    def key_for(self, name: str) -> str:
        """Return the key of the next operation of this name."""
        count = self._counts[name] = self._counts.get(name, 0) + 1
        return name if count == 1 else f"{name}#{count}"

    def future(self) -> asyncio.Future[Any]:
        """Make a future of the body's loop. Raises: NonDeterminism, outside of the body."""
        if self.loop.closing:
            # The body is being left, perhaps by the garbage collector: it must find something that it waits for. One
            # that catches everything, and goes on, would otherwise go on for ever.
            return self.loop.create_future()
        if asyncio._get_running_loop() is not self.loop:
            raise NonDeterminism(
                "run.* is for the body of a workflow, on its own event loop: a step, or a thread, has no part in the "
                "order that a replay keeps. Let the step return what it found, and call run.* from the body."
            )
        return self.loop.create_future()

    def announce(self, op: Operation) -> asyncio.Future[Any]:
        """Take an operation that the body has called."""
        if not self.loop.closing:
            self.operations[op.key] = op
            self.fresh.append(op)
        return op.future

    def patched(self, name: str) -> bool:
        """Tell whether the body is to take the new way: its row is there, or everything recorded is behind it."""
        key = f"patch:{name}"
        if key in self.operations:
            return True
        if self.replaying and key not in self._recorded:
            return False
        self.announce(Operation("patch", key, self.future()))
        return True

    # What the one who drives it does

    def start(self, make: Callable[[], Coroutine[Any, Any, Any]], variables: contextvars.Context | None = None) -> None:
        """Begin the body and run it until it waits."""
        self.main = self.loop.create_task(make(), name="workflow", context=variables)
        self.loop.run_until_quiet()

    def replay(
        self,
        rows: Sequence[Recorded],
        make: Callable[[], Coroutine[Any, Any, Any]],
        variables: contextvars.Context | None = None,
    ) -> None:
        """Begin the body and tell it all that was recorded; what is then in `fresh` was never recorded.

        Raises: NonDeterminism, when it does something else than was recorded.
        """
        if rows and rows[0].kind == "fork":
            # What another run has recorded goes with what that run has drawn.
            self.run_id, rows = rows[0].ref or self.run_id, rows[1:]
        self._recorded = frozenset(row.key for row in rows)
        self.replaying = bool(rows)
        first = rows[0] if rows else None
        if first is not None and first.kind == "begin":
            self._time = _read_begin(first)
            rows = rows[1:]
        elif first is not None:
            # Its body has not asked for the time then; code that does so now is told the same each time.
            self._time = first.at / 1_000_000
        self.replaying = bool(rows)
        self.start(make, variables)
        for place, row in enumerate(rows, 1):
            self.replaying = place < len(rows)
            self.deliver(row)
        self.replaying = False
        done = {row.key for row in rows if row.kind not in UNFINISHED}
        self.fresh = [op for op in self.fresh if op.key not in done and not op.done]

    def deliver(self, row: Recorded) -> None:
        """Tell the body what was recorded, and run it until it waits again.

        Raises: NonDeterminism.
        """
        self._time = max(self._time or 0.0, row.at / 1_000_000)
        try:
            if row.kind == "timer":
                due = self.loop.ring(timer_number(row))
                self._time = max(self._time, due or 0.0)
            elif row.kind == "cancel":
                self.cancel()
            elif row.kind != "begin":
                self._resolve(row)
        except (ValueError, msgspec.MsgspecError) as error:
            raise NonDeterminism(f"row {row.seq} of the journal, {row.key}, cannot be read: {error}") from error
        self.loop.run_until_quiet()

    def _resolve(self, row: Recorded) -> None:
        op = self.operations.get(row.key)
        if op is None:
            raise NonDeterminism(f"recorded next: {row.key}; the code {self._waits_for()}")
        if row.digest is not None and op.digest is not None and op.digest != row.digest:
            raise NonDeterminism(
                f"{row.key} was recorded with other arguments than the code calls it with now: {op.args!r:.200}"
            )
        if op.kind != row.kind and row.kind not in UNFINISHED:
            raise NonDeterminism(f"{row.key} was recorded as {row.kind}; the code calls it as {op.kind}")
        if row.kind == "attempt":
            failed = msgspec.json.decode(row.value or "", type=AttemptFailed)
            op.attempt, op.due, op.sent = row.attempt, row.at / 1_000_000 + failed.delay, 0.0
        elif row.kind == "dispatch":
            op.step, op.sent, op.via = str(row.ref), row.at / 1_000_000, row.value
            self.dispatched = True
        else:
            op.sent = 0.0
        if row.kind not in UNFINISHED and not op.done:
            # Of a branch that was cancelled meanwhile nothing is told.
            _settle(op, row)

    def _waits_for(self) -> str:
        if self.over:
            _, error = self.outcome()
            if isinstance(error, NonDeterminism):
                # That is why: what it says is of more use.
                raise error
            return "has ended by then" if error is None else f"has ended by then, with {type(error).__name__}: {error}"
        waits = [key for key, op in self.operations.items() if not op.done]
        shown = ", ".join(waits[:_SHOWN]) + (f" and {len(waits) - _SHOWN} more" if len(waits) > _SHOWN else "")
        return f"waits for: {shown or 'nothing that is recorded'}"

    def cancel(self) -> None:
        """Ask the body to stop: CancelledError is raised where it waits."""
        self.cancelled = True
        if self.main is not None:
            self.main.cancel()

    @property
    def over(self) -> bool:
        return self.main is not None and self.main.done()

    def outcome(self) -> tuple[Any, BaseException | None]:
        """Return what the body gave, or what it raised."""
        main: Any = self.main
        if main.cancelled():
            return None, asyncio.CancelledError()
        error: BaseException | None = main.exception()
        if isinstance(error, RuntimeError) and "attached to a different loop" in str(error):
            error = NoIO("an await of something that belongs to another event loop")
        return (None, error) if error is not None else (main.result(), None)

    def waiting(self, *kinds: Kind) -> list[Operation]:
        """List the operations of these kinds that the body waits for."""
        return [op for op in self.operations.values() if op.kind in kinds and not op.done]

    def close(self) -> None:
        """Leave the body where it is."""
        self.loop.close()
        self.operations.clear()
        self.fresh.clear()


def _read_begin(row: Recorded) -> float:
    try:
        return msgspec.json.decode(row.value or "", type=float)
    except msgspec.MsgspecError as error:
        raise NonDeterminism(f"row {row.seq} of the journal, {row.key}, cannot be read: {error}") from error


def timer_number(row: Recorded) -> int:
    """Return which timer a row says has rung. Raises: NonDeterminism."""
    number = row.key.partition(":")[2]
    if not number.isdecimal():
        raise NonDeterminism(f"row {row.seq} of the journal, {row.key}, cannot be read: it names no timer")
    return int(number)


def _settle(op: Operation, row: Recorded) -> None:
    if not row.ok:
        op.future.set_exception(failure(row.key, row.value))
        return
    if row.kind == "child":
        end = msgspec.json.decode(row.value or "", type=ChildEnd)
        if end.outcome != "done":
            op.future.set_exception(ChildFailed(row.key, end.outcome))
            return
        value = None if end.result == b"null" else bytes(end.result).decode()
    else:
        value = row.value
    try:
        op.future.set_result(None if row.kind in ("set", "patch") else decoded(value, op))
    except InvalidPayload as error:
        if row.kind in ("signal", "child"):
            op.future.set_exception(error)
            return
        raise NonDeterminism(
            f"what was recorded of {row.key} cannot be read as the code has it now: {error}"
        ) from error


def waits_of(ops: Iterable[Operation]) -> frozenset[str]:
    """Name the signals that operations wait for."""
    return frozenset(op.name for op in ops if op.kind == "signal")
