"""A sink that is a queue of ours: an event becomes a job, in this database or in another."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Protocol, TypeAlias, Unpack, cast

from holdfast.errors import ConfigError, DatabaseUnavailable, HoldfastError, PayloadError, SchemaMismatch, SchemaMissing
from holdfast.sinks.base import Delivered, Failed, Message, Outcome, Refused, SinkDown
from holdfast.sinks.link import Secrets
from holdfast.sinks.order import BEHIND
from holdfast.values.cloudevents import CloudEvent
from holdfast.values.options import EnqueueKeywords
from holdfast.values.rows import TRACE_HEADERS

Arguments: TypeAlias = Literal["event", "data"] | Callable[[Message], Mapping[str, Any]]


class _App(Protocol):
    """What is needed of an application; a `Holdfast` has it."""

    def bind(
        self,
        kind: str,
        payload: Mapping[str, Any] | None = None,
        *,
        check: bool = True,
        **options: Unpack[EnqueueKeywords],
    ) -> Any: ...

    async def aby_shard(self, bound: Any) -> Sequence[Sequence[Any]]: ...

    async def aenqueue_many(self, bound: Any) -> Sequence[Any]: ...


class _Handler(Protocol):
    """What is needed of a handler; what `@hf.job` makes has it."""

    kind: str
    app: Any


class Jobs:
    """Enqueue a job for each event: `Jobs(handler)`, or `Jobs(hf, kind="mail.send")` for a handler of another program.

    arguments: what the job is given: "event" (the parameter `event`, which may be annotated `CloudEvent`), "data" (the
    members of the event's data, by name), or a function that makes a dict of the message. The job has the message's
    key and headers. The event's id is its idempotency key, so that a repeated message adds no second job within
    `window` seconds. queue: instead of the handler's.
    """

    def __init__(
        self,
        target: _Handler | _App,
        *,
        kind: str | None = None,
        arguments: Arguments = "event",
        queue: str | None = None,
        window: float = 86_400.0,
    ) -> None:
        handler_kind = getattr(target, "kind", None)
        app: Any = getattr(target, "app", target)
        self._app: _App = app
        if not hasattr(self._app, "aenqueue_many"):
            raise ConfigError("target", "must be a handler (what @hf.job makes) or a Holdfast", target)
        if (kind is None) == (handler_kind is None):
            raise ConfigError("kind", "is needed by Jobs(hf, kind=…), and a handler has its own", kind)
        self._check = handler_kind is not None
        self._kind: str = handler_kind or kind or ""
        if not callable(arguments) and arguments not in ("event", "data"):
            raise ConfigError("arguments", "must be event, data or a function of the message", arguments)
        self._arguments = arguments
        self._options: EnqueueKeywords = {"window": window} if queue is None else {"window": window, "queue": queue}
        # Now, not at the first event: a queue or window that cannot be is a mistake in the code.
        tried: EnqueueKeywords = {**self._options, "idempotency_key": "x"}
        self._app.bind("holdfast.sinks.jobs", {}, check=False, **tried)

    def __repr__(self) -> str:
        return f"Jobs(kind={self._kind!r})"

    async def send(self, messages: Sequence[Message]) -> Sequence[Outcome]:
        """Enqueue the jobs, all in one transaction of the target's database, or one in each of its shards.

        Commits: transactions of its own.
        Raises: SinkDown when the database cannot be reached or lacks the tables. A commit whose answer was lost may
        have happened; the repeated enqueue then finds the jobs by the events' ids.
        """
        bound = [self._bound(message) for message in messages]
        self._hold_back(messages, bound)
        ready = [one for one in bound if not isinstance(one, Failed | Refused)]
        told = await self._enqueued(ready) if ready else {}
        return [one if isinstance(one, Failed | Refused) else told[id(one)] for one in bound]

    async def _enqueued(self, ready: Sequence[Any]) -> dict[int, Outcome]:
        """Enqueue bound jobs, those of each shard together, and tell of each by its `id()` what came of it."""
        told: dict[int, Outcome] = {}
        away: HoldfastError | None = None
        try:
            parts = await self._app.aby_shard(ready)
        except (DatabaseUnavailable, SchemaMissing, SchemaMismatch) as error:
            raise SinkDown(Secrets().reason(error)) from error
        for part in parts:
            try:
                added = await self._app.aenqueue_many(part)
            except HoldfastError as error:
                if isinstance(error, DatabaseUnavailable | SchemaMissing | SchemaMismatch):
                    away = error
                told |= dict.fromkeys(map(id, part), Failed(Secrets().reason(error)))
            else:
                told |= {id(one): Delivered(new.id) for one, new in zip(part, added, strict=True)}
        if away is not None and not any(isinstance(one, Delivered) for one in told.values()):
            raise SinkDown(Secrets().reason(away)) from away
        return told

    async def close(self) -> None:
        """Nothing is open that is not the application's."""

    def _bound(self, message: Message) -> Any:
        """Make the job of a message, or say why there cannot be one."""
        try:
            options: EnqueueKeywords = {
                **self._options,
                "key": message.key,
                "idempotency_key": message.event.id,
                "headers": _headers(message),
            }
            return self._app.bind(self._kind, self._arguments_of(message), check=self._check, **options)
        except (PayloadError, ConfigError) as error:
            return Refused(Secrets().reason(error), type(error).__name__)
        except Exception as error:
            return Failed(Secrets().reason(error))

    def _arguments_of(self, message: Message) -> Mapping[str, Any]:
        if callable(self._arguments):
            return self._arguments(message)
        if self._arguments == "event":
            return {"event": plain(message.event)}
        data: object = message.event.data
        if not isinstance(data, Mapping):
            raise ConfigError("arguments", "are the members of the data, which must be an object", data)
        return cast("Mapping[str, Any]", data)

    def _hold_back(self, messages: Sequence[Message], bound: list[Any]) -> None:
        stopped: set[str] = set()
        for index, message in enumerate(messages):
            if message.key is not None and message.key in stopped:
                bound[index] = BEHIND
            elif message.key is not None and isinstance(bound[index], Failed | Refused):
                stopped.add(message.key)


def plain(event: CloudEvent) -> dict[str, Any]:
    """Return the fields of an event as JSON values; a parameter annotated `CloudEvent` gets an event of them again."""
    names = ("id", "source", "type", "data", "subject", "time", "datacontenttype", "dataschema")
    return {name: getattr(event, name) for name in names} | {"extensions": dict(event.extensions)}


def _headers(message: Message) -> dict[str, str] | None:
    trace = {name: message.event.extensions[name] for name in TRACE_HEADERS if name in message.event.extensions}
    given = {name: value for name, value in message.headers.items() if not name.startswith("holdfast-")}
    return trace | given or None
