"""One run in a worker's hands: its body is told what was recorded, its operations are made, what came of them recorded.

The body runs in callbacks of the worker's loop, never inside a task (see `workflows/loop.py`). Each thing that it is to
be told gets a place in the journal before it is written, and is told in the order of places, after its commit.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any

import msgspec

from holdfast import runs
from holdfast.errors import Conflict, LeaseLost, NonDeterminism, PayloadError
from holdfast.events import StepsUnawaited
from holdfast.runs import CANCEL, Awaits, Entry, Kind, Recorded, Wanted
from holdfast.values.retry import delay_by
from holdfast.values.rows import Lease
from holdfast.worker.handler_threads import NoThread
from holdfast.worker.run_remote import LINGER_SECONDS
from holdfast.worker.run_transactions import PAUSE_SECONDS, Transactions
from holdfast.worker.run_verdicts import (
    Broken,
    Lost,
    Means,
    Over,
    Parked,
    Place,
    Stuck,
    Verdict,
    error_record,
    is_being_cancelled,
)
from holdfast.worker.step_turns import Doing
from holdfast.workflows import AttemptFailed, Body, NewRun, Operation, encoded, start_children, timer_number, waits_of

# A run whose next deadline is nearer than this keeps its lease and waits here.
STAY_SECONDS = 1.0


class RunDriver(Transactions):
    """Drives one run from its claim until it is over, waits, or is taken away; `verdict` is what it came to."""

    def __init__(self, means: Means, lease: Lease, body: Body, new_run: Callable[[Operation], NewRun]) -> None:
        super().__init__()
        self._means = means
        self._lease = lease
        self._run = lease.job_id
        self._body = body
        self._new_run = new_run
        self._loop = asyncio.get_running_loop()
        self.verdict: asyncio.Future[Verdict] = self._loop.create_future()
        # Threads take places, too: those of transactions.
        self._lock = threading.RLock()
        self._seq = 0
        self._places: deque[Place] = deque()
        self._by_seq: dict[int, Place] = {}
        # The places of what the body said without waiting for it.
        self._said: set[int] = set()
        # The places of rows that the database did not take.
        self._refused: set[int] = set()
        self._doing: dict[str, Doing] = {}
        self._spawned = 0
        # By key: operations that wait for something in the inbox, and those that wait for their next attempt.
        self._asked: dict[str, Operation] = {}
        self._later: list[Operation] = []
        self._taking = False
        self._take_again = False
        # Whether there is nothing in the inbox, as far as is known.
        self._looked = False
        self._rung: set[int] = set()
        self._alarm: asyncio.TimerHandle | None = None
        # Whether the body is told something as soon as the loop comes round.
        self._telling = False
        self._closed = False

    # From outside

    def begin(self, rows: Sequence[Recorded], make: Callable[[], Coroutine[Any, Any, Any]], variables: Any) -> None:
        """Replay what was recorded, and go on from there; in a callback of the worker's loop."""
        self._variables = variables
        self._seq = rows[-1].seq if rows else 0
        # One that is claimed for the first time can have got nothing that it waits for.
        self._looked = not rows and self._lease.fence <= 1
        try:
            self._rung = {timer_number(row) for row in rows if row.kind == "timer"}
            self._body.replay(rows, make, variables.copy())
            self._find_orphans()
            if self._body.began is not None and not self._seq:
                self._record("begin", "begin", value=msgspec.json.encode(self._body.began).decode())
            self._go_on()
        except BaseException as error:
            self._fail(error)

    def close(self) -> None:
        """Leave the run as it is: what is under way is cancelled, and nothing is told to the body any more."""
        if self._closed:
            return
        self._closed = True
        if self._alarm is not None:
            self._alarm.cancel()
        for task in self._doing.values():
            task.cancel()
        self._doing.clear()
        self._body.close()

    def look(self) -> None:
        """Look into the inbox: there may be something for the run, or it is asked to stop."""
        if not self._closed:
            self._take()

    def wants(self) -> set[str]:
        """Name what is to be looked for in the inbox."""
        return self._awaits().names()

    # Called by the writer of checkpoints

    def committed(self, row: Recorded) -> None:
        if not self._closed:
            self._by_seq[row.seq].row = row
            self._said.discard(row.seq)
            self._tell_soon()

    def lost_lease(self) -> None:
        self._end(Lost())

    def refused(self, row: Recorded, error: BaseException) -> None:
        """Have the database's refusal itself be the outcome: it would refuse the same again and again."""
        if self._closed:
            return
        if row.seq in self._refused:
            # It takes not even the error: a failed attempt of the run, whose errors are counted.
            self._fail(error)
            return
        self._refused.add(row.seq)
        op = self._body.operations.get(row.key)
        failed = row._replace(
            kind=row.kind if op is None else op.kind,
            ok=0,
            value=error_record(error, row.attempt, time.monotonic(), self._means.worker).to_json(),
        )
        self._means.writer.add(self, Entry(self._run, self._lease.fence, failed))

    # Telling the body

    def _tell_soon(self) -> None:
        if not self._telling:
            self._telling = True
            self._loop.call_soon(self._tell, context=self._variables)

    def _tell(self) -> None:
        """Tell the body what is committed, in the order of places; in a callback of the worker's loop."""
        self._telling = False
        try:
            while not self._closed and self._places and self._places[0].ready:
                place = self._places.popleft()
                self._by_seq.pop(place.seq, None)
                if place.row is not None:
                    self._deliver(place.row)
            if not self._closed:
                self._go_on()
        except BaseException as error:
            self._fail(error)

    def _deliver(self, row: Recorded) -> None:
        self._body.deliver(row)
        if self._body.fresh:
            self._begin_fresh()
        if row.kind == "attempt" and not self._body.operations[row.key].done:
            self._do(self._body.operations[row.key])

    def _fail(self, error: BaseException) -> None:
        self._end(Stuck(error) if isinstance(error, NonDeterminism) else Broken(error))

    def _end(self, verdict: Verdict) -> None:
        if not self.verdict.done():
            self.verdict.set_result(verdict)
        self.close()

    # Going on

    def _go_on(self) -> None:
        """Begin with what the body has asked for since; end, wait or park where nothing is under way."""
        if self._body.fresh:
            self._begin_fresh()
        # After each step, so it looks for cancelled branches only where something may be under way for them.
        if self._doing or self._asked or self._remotes:
            self._drop_cancelled()
        if self._body.over:
            self._wind_up()
            return
        self._set_alarm()
        if self._doing or self._places or self._taking:
            return
        deadline = self._deadline()
        if deadline is not None and deadline <= self._means.clock.now():
            return  # the alarm rings at once
        if not self._looked:
            self._take()
            return
        self._park(deadline)

    def _wind_up(self) -> None:
        """End once what the body said without waiting for it is done: rows, children it started, those told to stop."""
        for key in [key for key in self._doing if not key.startswith(("!stop", "!children"))]:
            self._doing.pop(key).cancel()
        if self._said or self._doing:
            return
        value, error = self._body.outcome()
        self._end(Stuck(error) if isinstance(error, NonDeterminism) else Over(value, error))

    def _begin_fresh(self) -> None:
        fresh, self._body.fresh = self._body.fresh, []
        if self._body.over:
            self._tell_of_unawaited(fresh)
        if len(fresh) == 1 and fresh[0].kind == "step" and not fresh[0].done:
            # One step after the other, as most bodies go.
            self._do(fresh[0])
            return
        children: list[Operation] = []
        for op in fresh:
            if op.done:
                continue
            if op.kind in ("step", "undo", "tx"):
                self._do(op)
            elif op.kind == "signal":
                self._asked[op.key] = op
                self._looked = False
            elif op.kind == "child":
                self._asked[op.key] = op
                children.append(op)
            elif op.kind != "remote":
                self._said.add(self._record(op.kind, op.key, value=op.args[0] if op.args else None))
        self._begin_remotes([op for op in fresh if op.kind == "remote" and not op.done])
        if children:
            self._spawned += 1
            self._spawn(f"!children:{self._spawned}", self._start_children, children)

    def _tell_of_unawaited(self, fresh: Sequence[Operation]) -> None:
        """Warn of steps that a body asked for last and did not wait for: an `await` is missing, and they are lost."""
        steps = [op.key for op in fresh if op.kind in ("step", "tx", "remote") and not op.done]
        if steps and self._body.outcome()[1] is None:
            lease = self._lease
            about = (self._means.worker, lease.job_id, lease.kind, lease.queue, lease.attempt)
            self._means.emit(StepsUnawaited(*about, ", ".join(steps)))

    def _drop_cancelled(self) -> None:
        """Stop what is done for branches of the body that were cancelled; late results are of no use."""
        # Only what is under way is looked at: a journal may be long.
        known = self._body.operations
        for key in [key for key in self._doing if key in known and known[key].future.cancelled()]:
            self._doing.pop(key).cancel()
        if self._asked:
            for key in [key for key, op in self._asked.items() if op.future.cancelled()]:
                self._stop_child(self._asked.pop(key))
        if self._remotes:
            self._drop_remotes()

    def _stop_child(self, op: Operation) -> None:
        if op.kind == "child":
            run = self._new_run(op)
            self._spawn(f"!stop:{op.key}", self._means.stop_run, run.key, run.workflow)

    # Places and records

    def _reserve(self, count: int = 1) -> list[Place]:
        with self._lock:
            places = [Place(self._seq + n) for n in range(1, count + 1)]
            self._seq += count
            self._places.extend(places)
            self._by_seq.update((place.seq, place) for place in places)
        return places

    def _record(
        self,
        kind: Kind,
        key: str,
        *,
        ok: int = 1,
        value: str | None = None,
        op: Operation | None = None,
        began: float | None = None,
    ) -> int:
        with self._lock:
            self._seq += 1
            place = self._by_seq[self._seq] = Place(self._seq)
            self._places.append(place)
        self._means.writer.add(self, self._entry(place, kind, key, ok, value, op, began))
        return place.seq

    # Steps

    def _spawn(self, key: str, work: Callable[..., Coroutine[Any, Any, None]], *given: Any) -> None:
        # Each in a copy of the run's own context: what a step sets is for itself, and never for another run.
        doing = self._doing[key] = Doing(partial(self._done_with, key, work, *given), self._variables.copy())
        self._means.calls.turns.add(doing)

    async def _done_with(self, key: str, work: Callable[..., Coroutine[Any, Any, None]], *given: Any) -> None:
        doing = self._doing.get(key)
        try:
            await work(*given)
        except LeaseLost:
            self._end(Lost())
        except asyncio.CancelledError:
            if doing is not None and not doing.dropped:
                # Nothing would ever come of it: the body would wait in vain.
                reason = f"{key} was cancelled, and not by its run: does it cancel the task that it is in?"
                self._end(Broken(RuntimeError(reason)))
            raise
        except Conflict as error:
            # A child of this key was started with other arguments.
            self._end(Stuck(error))
        except BaseException as error:
            self._end(Broken(error))
        finally:
            if doing is not None and self._doing.get(key) is doing:
                del self._doing[key]
            # Where the next place is being written, the body is told then.
            if not self._closed and (self._body.over or not self._places or self._places[0].ready):
                self._tell_soon()

    def _do(self, op: Operation) -> None:
        """Make the next attempt of an operation; one that has failed waits for its time."""
        if op.attempt and op.due > self._means.clock.now():
            self._later.append(op)
        elif op.kind == "remote":
            self._dispatch([op])
        else:
            self._spawn(op.key, self._transact if op.kind == "tx" else self._step, op)

    async def _step(self, op: Operation) -> None:
        began = time.monotonic()
        try:
            value = encoded(await self._means.calls.call(op), op, self._means.payload_limit)
        except asyncio.CancelledError as error:
            if self._closed or op.done or is_being_cancelled():
                raise
            self._failed(op, error, began)
        except NoThread:
            await asyncio.sleep(PAUSE_SECONDS)
            self._loop.call_soon(self._again, op, context=self._variables)
        except BaseException as error:
            self._failed(op, error, began)
        else:
            self._record(op.kind, op.key, value=value, op=op, began=began)

    def _failed(self, op: Operation, error: BaseException, began: float) -> None:
        """Record a failed attempt."""
        kind, value = self._failure(op, error, began)
        self._record(kind, op.key, ok=0, value=value, op=op, began=began)

    def _failure(self, op: Operation, error: BaseException, began: float) -> tuple[Kind, str]:
        """Say what is recorded of a failed attempt: the last one, or one after which the step is made again."""
        attempt = op.attempt + 1
        record = error_record(error, attempt, began, self._means.worker)
        # A result that cannot be stored is no better the next time.
        for_good = isinstance(error, PayloadError) or not op.retry.retries(error)
        if for_good or attempt >= op.retry.max_attempts:
            return op.kind, record.to_json()
        delay, _ = delay_by(attempt, op.retry)
        return "attempt", msgspec.json.encode(AttemptFailed(record, delay)).decode()

    def _again(self, op: Operation) -> None:
        if not self._closed and not op.done:
            self._do(op)

    # Timers and time

    def _set_alarm(self) -> None:
        """Have the next deadline noticed, if it is to be waited for here."""
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        deadline = self._deadline()
        if deadline is not None:
            wait = max(0.0, deadline - self._means.clock.now())
            soon, far = min(wait, 3600.0), wait > 3600.0
            self._alarm = self._loop.call_later(soon, self._ring, deadline, far, context=self._variables)

    def _deadline(self) -> float | None:
        timer = self._body.loop.next_timer()
        if timer is None and not self._later and not self._remotes:
            return None
        times = [op.due for op in self._later if not op.done] + self._remote_deadlines()
        if timer is not None and timer[1] not in self._rung:
            times.append(timer[0])
        return min(times, default=None)

    def _ring(self, deadline: float, early: bool) -> None:
        self._alarm = None
        if self._closed:
            return
        if not early:
            timer = self._body.loop.next_timer()
            if timer is not None and timer[0] <= deadline and timer[1] not in self._rung:
                self._rung.add(timer[1])
                self._record("timer", f"timer:{timer[1]}")
            due = [op for op in self._later if op.due <= deadline]
            self._later[:] = [op for op in self._later if op.due > deadline]
            for op in due:
                op.due = 0.0
                self._again(op)
            self._time_out(deadline)
        self._set_alarm()

    # The inbox

    def _awaits(self) -> Awaits:
        waiting = [op for op in self._asked.values() if not op.done]
        return Awaits(waits_of(waiting), any(op.kind == "child" for op in waiting), self._waits_for_remotes())

    def _take(self) -> None:
        if self._taking:
            self._take_again = True
            return
        self._taking = True
        self._looked = True
        self._spawn("!take", self._take_all)

    async def _take_all(self) -> None:
        """Take what there is in the inbox for the operations that wait, and a request to stop."""
        try:
            again = True
            while again and not self._closed:
                self._take_again = False
                await self._collect()
                wanted = self._wanted()
                if not wanted:
                    again = self._take_again
                    continue
                places = self._reserve(min(len(wanted), runs.TAKEN_AT_ONCE))
                held = self._run, self._lease.fence
                taking = runs.take(*held, wanted, places[0].seq, self._means.worker, self._is_unwanted)
                rows: list[Recorded] = await self._means.insist(taking)
                self._give_up(places[len(rows) :])
                for place, row in zip(places, rows, strict=False):
                    place.row = row
                if any(row.kind == "child" for row in rows):
                    self._linger_until = time.monotonic() + LINGER_SECONDS
                for row in rows:
                    self._asked.pop(row.key, None)
                again = self._take_again or len(rows) == len(places)
        finally:
            self._taking = False

    def _wanted(self) -> list[Wanted]:
        """Name what is to be taken next."""
        wanted = [Wanted(op.name, op.key, op.kind) for op in self._asked.values() if not op.done]
        if not self._body.cancelled:
            wanted.insert(0, Wanted(CANCEL, "cancel", "cancel"))
        return wanted

    def _is_unwanted(self, key: str) -> bool:
        """Tell whether the body will not take the end of the child with this key: its branch was cancelled.

        Asked once the end was read, on any thread. A key that the body has not called is that of a child of other code,
        or of an earlier life of the run: were it called later, the start of the child would find it over.
        """
        op = self._body.operations.get(key)
        # In this order: a body that is closed knows none of its operations.
        return not self._closed and (op is None or op.done)

    async def _start_children(self, children: Sequence[Operation]) -> None:
        """Start the runs of children; those that an earlier attempt has started are found."""
        new = [self._new_run(op) for op in children]
        await self._means.no_doubles(self._run, new)
        await self._means.insist(start_children(self._run, self._lease.fence, new))
        for op in [op for op in children if op.future.cancelled()]:
            # When its branch was cancelled there was nobody yet to be told.
            self._stop_child(op)
        if self._lease.fence > 1:
            # They may have been started before, and have ended.
            self._looked = False

    def _park(self, deadline: float | None) -> None:
        """Give the lease back, where nothing is left but to wait for longer than a moment."""
        awaits, now = self._awaits(), self._means.clock.now()
        if deadline is not None and deadline - now <= STAY_SECONDS:
            self._peek_soon(awaits.remotes)
            return
        if (awaits.children or awaits.remotes) and time.monotonic() < self._linger_until:
            self._loop.call_later(LINGER_SECONDS / 3, self.look, context=self._variables)
            return
        if deadline is None and awaits == Awaits():
            reason = "The body waits for nothing that could ever come: no step, timer, signal or child is under way."
            self._end(Stuck(NonDeterminism(reason)))
            return
        text = awaits.text()
        if text is None:
            # Too many names for its row: it looks by itself.
            text, deadline = "signals", min(now + STAY_SECONDS, deadline or now + STAY_SECONDS)
        self._end(Parked(text, deadline))
