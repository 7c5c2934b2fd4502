"""Jobs that are ready to be enqueued, and the hooks that may add headers to them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from inspect import iscoroutinefunction
from types import MappingProxyType
from typing import NamedTuple

import msgspec

from holdfast.errors import ConfigError, Conflict
from holdfast.jobs.source import JobsSource
from holdfast.life.source import Source
from holdfast.values.debounce import throttle_scope
from holdfast.values.expires import EXPIRES_HEADER
from holdfast.values.ids import bucket, next_id
from holdfast.values.options import EnqueueOptions, HandlerOptions, header_map
from holdfast.values.payload import decode_value, encode_value
from holdfast.values.rows import AFTER_HEADER, BATCH_HEADER, CHAIN_HEADER, CONTINUES_HEADER, Lease, NewJob


class Bound(NamedTuple):
    """A job that is ready to be enqueued: its checked payload, and the row that it becomes, except for the id."""

    payload: str
    like: NewJob

    @property
    def kind(self) -> str:
        return self.like.kind

    def new_job(self, job_id: str) -> NewJob:
        """Make the row; each call makes another job."""
        _, queue, kind, _, *rest = self.like
        # Without the frame of NewJob's own `__new__`.
        return tuple.__new__(NewJob, (job_id, queue, kind, self.payload, *rest))  # pyright: ignore[reportUnknownMemberType]


def likeness(kind: str, said: EnqueueOptions, usual: HandlerOptions, buckets: int) -> NewJob:
    """Make the row that all jobs share about which the same was said; id and payload are still to come."""
    headers = _headers(said)
    debounce, throttle = said.debounce, said.throttle
    return NewJob(
        id="",
        queue=said.queue or usual.queue,
        kind=kind,
        payload="",
        headers=encode_value(headers, "headers") if headers else None,
        priority=usual.priority if said.priority is None else said.priority,
        run_at=said.at,
        delay_ms=round((said.delay or 0) * 1000) if debounce is None else debounce.wait_ms,
        max_attempts=said.max_attempts or usual.retry.max_attempts,
        lease_ms=None if said.lease is None else round(said.lease * 1000),
        key=said.key,
        bucket=None if said.key is None else bucket(said.key, buckets),
        unique=said.unique,
        idempotency_key=said.idempotency_key if throttle is None else throttle.key,
        window_ms=round(said.window * 1000) if throttle is None else throttle.window_ms,
        after=said.parents,
        after_dead=said.after_dead or "run",
        scope=None if throttle is None else throttle_scope(kind),
        debounce=None if debounce is None else debounce.key,
        wait_ms=0 if debounce is None else debounce.wait_ms,
        max_wait_ms=0 if debounce is None else debounce.max_wait_ms,
    )


def _headers(said: EnqueueOptions) -> dict[str, str]:
    """Return the headers of a job; one that runs after others, or expires, says so: the worker must look."""
    headers = dict(said.headers or {})
    if said.after:
        headers[AFTER_HEADER] = str(len(said.parents))
    if said.expiry is not None:
        headers[EXPIRES_HEADER] = said.expiry
    return headers


class Continue:
    """Answer "done, and this comes next": a handler returns `Continue(invoice.bind(order_id=1))`.

    The job's completion and the next job are one commit. Together they are a chain, whose result is its last job's.
    The next job has the headers of this one, and those that were said of itself.
    """

    __slots__ = ("job",)

    def __init__(self, job: Bound) -> None:
        self.job = plain_bound(job, "Continue")

    def __repr__(self) -> str:
        return f"Continue({self.job.kind})"


def plain_bound(job: object, call: str) -> Bound:
    """Check a job that comes after others by itself.

    Raises: ConfigError for what is not a bound job, and for one that might be found instead of added, or that waits.
    """
    if not isinstance(job, Bound):
        raise ConfigError(call, "takes a bound job, as in handler.bind(…)", job)
    like = job.like
    said_of_it = {
        "unique": like.unique,
        "idempotency_key": like.idempotency_key,
        "debounce": like.debounce,
        "after": like.after,
    }
    for name, said in said_of_it.items():
        if said:
            raise ConfigError(name, f"cannot be said of a job in {call}: it is added once, and for sure", said)
    return job


def continuing(job: Bound, parent: str, headers: str | None) -> NewJob:
    """Make the row of a job that continues another, whose headers it has beside its own."""
    inherited: dict[str, str] = {} if headers is None else decode_value(headers)
    own: dict[str, str] = {} if job.like.headers is None else decode_value(job.like.headers)
    chain = {CONTINUES_HEADER: parent, CHAIN_HEADER: inherited.get(CHAIN_HEADER, parent)}
    passed_on = {name: value for name, value in inherited.items() if not name.startswith("holdfast-")}
    return job.new_job(next_id(parent))._replace(headers=_json(passed_on | own | chain))


def following(job: Bound, held: Lease, source: Source) -> NewJob:
    """Make the row of a job that continues a held one.

    Raises: Conflict for tables that know no chains; ConfigError for a job that belongs to another shard.
    """
    if not source.ours:
        raise Conflict(f"Jobs of {source.name} cannot be continued: their tables know no chains.")
    if isinstance(source, JobsSource) and source.check_next is not None:
        source.check_next(held, job.like)
    return continuing(job, held.job_id, held.headers)


def member_of(job: Bound, batch: str, job_id: str) -> NewJob:
    """Make the row of a member of a batch, which says so in its headers."""
    own: dict[str, str] = {} if job.like.headers is None else decode_value(job.like.headers)
    return job.new_job(job_id)._replace(headers=_json(own | {BATCH_HEADER: batch}))


def callback(job: Bound, batch: str) -> NewJob:
    """Make the row of the job that runs after the members of a batch; it has the batch's id."""
    own: dict[str, str] = {} if job.like.headers is None else decode_value(job.like.headers)
    return job.new_job(batch)._replace(headers=_json(own | {AFTER_HEADER: "batch"}))


def child_of(job: Bound, parents: tuple[str, ...], job_id: str) -> NewJob:
    """Make the row of a job that runs once these are done, and is cancelled if one of them is not."""
    own: dict[str, str] = {} if job.like.headers is None else decode_value(job.like.headers)
    headers = _json(own | {AFTER_HEADER: str(len(parents))})
    return job.new_job(job_id)._replace(headers=headers, after=parents, after_dead="cancel")


def _json(headers: Mapping[str, str]) -> str:
    return msgspec.json.encode(headers).decode()


@dataclass(frozen=True, slots=True)
class Enqueueing:
    """What an enqueue hook sees of a job that is about to be enqueued; `headers` can only be read."""

    kind: str
    queue: str
    headers: Mapping[str, str]
    # That it has once it is added, where no key finds another; empty where it is not drawn yet.
    id: str = ""


EnqueueHook = Callable[[Enqueueing], Mapping[str, str] | None]


def check_hook(hook: object) -> None:
    """Refuse what cannot be an enqueue hook."""
    if not callable(hook) or iscoroutinefunction(hook):
        raise ConfigError("enqueue_hook", "must be a `def` function that takes what is being enqueued", hook)


def with_headers(bound: Bound, hooks: Iterable[EnqueueHook], limit: int, job_id: str = "") -> Bound:
    """Return a job with the headers that hooks add; `limit` is the most bytes that one hook may add.

    job_id: the id that it will have, where that is known.

    Raises: ConfigError when a hook returns something else than headers.
    """
    like = bound.like
    given: dict[str, str] = {} if like.headers is None else decode_value(like.headers)
    headers = given
    for hook in hooks:
        added = hook(Enqueueing(like.kind, like.queue, MappingProxyType(headers), job_id))
        if added is not None:
            # A header that is there stays: what was said about one job counts more than what is said about all.
            headers = {**_checked(added, hook, limit), **headers}
    if len(headers) == len(given):
        return bound
    return Bound(bound.payload, like._replace(headers=_json(headers)))


def _checked(added: object, hook: object, limit: int) -> dict[str, str]:
    field = f"headers of enqueue hook {getattr(hook, '__qualname__', hook)}"
    headers = header_map(added, field)
    # Written only where it could be too long: JSON makes at most six bytes of a character.
    if sum(6 * (len(name) + len(value)) + 6 for name, value in headers.items()) > limit:
        size = len(msgspec.json.encode(headers))
        if size > limit:
            raise ConfigError(field, f"must take at most {limit} bytes (payload_limit)", f"{size} bytes")
    return headers
