"""Jobs that are ready to be enqueued, and the hooks that may add headers to them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from inspect import iscoroutinefunction
from types import MappingProxyType
from typing import NamedTuple

import msgspec

from holdfast.errors import ConfigError
from holdfast.values.ids import bucket
from holdfast.values.options import EnqueueOptions, HandlerOptions, header_map
from holdfast.values.payload import decode_value, encode_value
from holdfast.values.rows import NewJob


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
    return NewJob(
        id="",
        queue=said.queue or usual.queue,
        kind=kind,
        payload="",
        headers=encode_value(said.headers, "headers") if said.headers else None,
        priority=usual.priority if said.priority is None else said.priority,
        run_at=said.at,
        delay_ms=round((said.delay or 0) * 1000),
        max_attempts=said.max_attempts or usual.retry.max_attempts,
        lease_ms=None if said.lease is None else round(said.lease * 1000),
        key=said.key,
        bucket=None if said.key is None else bucket(said.key, buckets),
        unique=said.unique,
        idempotency_key=said.idempotency_key,
        window_ms=round(said.window * 1000),
    )


@dataclass(frozen=True, slots=True)
class Enqueueing:
    """What an enqueue hook sees of a job that is about to be enqueued; `headers` can only be read."""

    kind: str
    queue: str
    headers: Mapping[str, str]


EnqueueHook = Callable[[Enqueueing], Mapping[str, str] | None]


def check_hook(hook: object) -> None:
    """Refuse what cannot be an enqueue hook."""
    if not callable(hook) or iscoroutinefunction(hook):
        raise ConfigError("enqueue_hook", "must be a `def` function that takes what is being enqueued", hook)


def with_headers(bound: Bound, hooks: Iterable[EnqueueHook], limit: int) -> Bound:
    """Return a job with the headers that hooks add; `limit` is the most bytes that one hook may add.

    Raises: ConfigError when a hook returns something else than headers.
    """
    like = bound.like
    given: dict[str, str] = {} if like.headers is None else decode_value(like.headers)
    headers = given
    for hook in hooks:
        added = hook(Enqueueing(like.kind, like.queue, MappingProxyType(headers)))
        if added is not None:
            # A header that is there stays: what was said about one job counts more than what is said about all.
            headers = {**_checked(added, hook, limit), **headers}
    if len(headers) == len(given):
        return bound
    return Bound(bound.payload, like._replace(headers=msgspec.json.encode(headers).decode()))


def _checked(added: object, hook: object, limit: int) -> dict[str, str]:
    field = f"headers of enqueue hook {getattr(hook, '__qualname__', hook)}"
    headers = header_map(added, field)
    # Written only where it could be too long: JSON makes at most six bytes of a character.
    if sum(6 * (len(name) + len(value)) + 6 for name, value in headers.items()) > limit:
        size = len(msgspec.json.encode(headers))
        if size > limit:
            raise ConfigError(field, f"must take at most {limit} bytes (payload_limit)", f"{size} bytes")
    return headers
