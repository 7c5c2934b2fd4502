"""Which job a log record is about: its id, kind, queue, attempt, worker and trace, on every record a handler writes.

A context variable says for which jobs code runs. What a handler starts, tasks and threads with its context, is known by
it, too, also after the handler has ended. For handlers that never wait the variable is not set, because that would cost
each job 0.1 µs: it says in which slot code runs, and the slot knows its job. A task that such a handler leaves behind
cannot be told from those of the next job, and its records name none.

In an application's own configuration: `"filters": {"job": {"()": "holdfast.logs.JobContext"}}`, and "filters": ["job"]
for a handler. Without one: `holdfast.logs.install()`.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Collection, Sequence
from contextvars import ContextVar
from typing import Any, NamedTuple

import msgspec

_TRACE_ID = re.compile(r"[0-9a-f]{32}")
FIELDS = ("job_id", "job_kind", "job_queue", "job_attempt", "worker", "trace_id")


class Spot(NamedTuple):
    """A slot of a worker, with all works that run in its slots; `leases` where this code has a spot of its own."""

    worker: str
    slot: Any
    running: Collection[Any]
    leases: Sequence[Any] = ()


spot: ContextVar[Spot | None] = ContextVar("holdfast_spot", default=None)
# Tells the trace of the code that runs, where tracing is on; the job's own headers otherwise.
trace_ids: list[Callable[[], str | None]] = []


def current() -> dict[str, Any]:
    """Tell which job this code runs for; nothing outside of handlers. A call for several jobs names only their kind."""
    here = spot.get()
    if here is None:
        return {}
    leases = here.leases or _in_slot(here)
    if not leases:
        return {}
    lease = leases[0]
    said: dict[str, Any] = {"job_kind": lease.kind, "job_queue": lease.queue, "worker": here.worker}
    if len(leases) == 1:
        said |= {"job_id": lease.job_id, "job_attempt": lease.attempt}
    trace_id = next(filter(None, (ask() for ask in trace_ids)), None) or _trace_in(lease.headers)
    return said | ({"trace_id": trace_id} if trace_id else {})


def _in_slot(here: Spot) -> Sequence[Any]:
    """Find the jobs that run in a slot now, for code of theirs."""
    if _is_left_behind(here.slot):
        return ()
    # Copied at once: threads change it.
    works = [work for work in [*here.running] if work.slot is here.slot]
    # A thread that takes job after job is ahead of the loop: of its slot's jobs the one that began last runs.
    last = max((work.started for work in works), default=0.0)
    return [work.lease for work in works if work.started == last]


def _is_left_behind(slot: Any) -> bool:
    """Tell whether this runs on the loop of a slot, but not in it; threads and loops of their own are elsewhere."""
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        return False
    return isinstance(slot, asyncio.Task) and slot.get_loop() is loop and asyncio.current_task() is not slot


def _trace_in(headers: str | None) -> str | None:
    """Read the trace id of a W3C trace context in the headers of a job."""
    if headers is None or "traceparent" not in headers:
        return None
    try:
        parts = msgspec.json.decode(headers)["traceparent"].split("-")
    except (msgspec.MsgspecError, KeyError, AttributeError, TypeError):
        return None
    # Headers may come from elsewhere, and a log line must not say whatever somebody has put there.
    return parts[1] if len(parts) >= 4 and _TRACE_ID.fullmatch(parts[1]) else None


def _mark(record: logging.LogRecord) -> logging.LogRecord:
    said = current()
    known = record.__dict__
    for name in FIELDS:
        # What the application says itself stays.
        known.setdefault(name, said.get(name, ""))
    return record


class JobContext(logging.Filter):
    """Lets every record pass, with `job_id`, `job_kind`, `job_queue`, `job_attempt`, `worker` and `trace_id`.

    They are empty where a record is about no job.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        _mark(record)
        return True


def install() -> None:
    """Give these fields to every record of this process, whatever handlers it has; once more does no harm."""
    make = logging.getLogRecordFactory()
    if getattr(make, "is_holdfast", False):
        return

    def factory(*args: Any, **kwargs: Any) -> logging.LogRecord:
        return _mark(make(*args, **kwargs))

    factory.is_holdfast = True  # type: ignore[attr-defined]
    logging.setLogRecordFactory(factory)
