"""Receiving: messages of other systems become jobs of ours, each once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar, Unpack, overload

from holdfast.app.controlling import Controls
from holdfast.app.reception import Reception
from holdfast.bound import Bound, plain_bound
from holdfast.handlers import Handler, vacant
from holdfast.inbox.signature import MessageSignature
from holdfast.job import Job
from holdfast.values.once import INBOX_WINDOW, message_key, message_scope
from holdfast.values.options import Commit, HandlerOptions, StoreKeywords, kind_name
from holdfast.values.retry import Duration, Retry, seconds
from holdfast.values.spelling import spelt

P = ParamSpec("P")
R = TypeVar("R")


class Receives(Controls):
    """The face by which an application takes messages in."""

    def __init__(self, url: str | None = None, **options: Unpack[StoreKeywords]) -> None:
        super().__init__(url, **options)
        self.receptions: list[Reception] = []

    @spelt
    def receive(
        self,
        broker: Any,
        *,
        key: str | None = "{key}",
        window: Duration = INBOX_WINDOW,
        kind: str | None = None,
        queue: str = "default",
        retry: Retry | None = None,
        lease: Duration = 30,
        timeout: Duration | None = None,
        concurrency: int | None = None,
        priority: int = 0,
        commit: Commit = "alone",
    ) -> MessageDecorator:
        """Register a function whose jobs are the messages of a broker: `@hf.receive(Kafka(…, topic="payments", …))`.

        It takes the event, as in `async def paid(job: Job, event: CloudEvent)`, or the event's data, as the parameter
        is annotated. Workers that serve its queue consume the messages: each is stored as a job and only then
        acknowledged, and one that is delivered again adds none for as long as `window` (a week by default).
        broker: of holdfast.sinks, or anything with a method `consumer()`. key: what its jobs are about, for order and
        limits, made of `{key}` (the message's own, as Kafka has it), `{subject}`, `{type}`, `{source}` and `{id}`; a
        message that lacks one of them has no key. The other options are those of `job`.
        """
        options = HandlerOptions(queue, retry or Retry(), lease, timeout, concurrency, priority, commit)
        return MessageDecorator(self, broker, kind, options, key, seconds(window, "window", at_least=0.001))

    def add_reception(
        self, fn: Callable[..., Any], broker: Any, kind: str, options: HandlerOptions, key: str | None, window: float
    ) -> Handler[..., Any]:
        """Register a handler of messages, for `MessageDecorator` itself."""
        vacant(self.handlers, kind, fn)
        signature = MessageSignature.of_message(fn, Job, self.options.payload_limit)
        handler: Handler[..., Any] = Handler(self, fn, kind, options, signature)
        after_others = self._after_others
        self.receptions.append(Reception(handler, signature, broker, key, window, self._hooked, after_others))
        self.handlers[kind] = handler
        return handler

    @spelt
    def receive_one(
        self,
        source: str,
        message_id: str,
        job: Bound,
        *,
        window: Duration = INBOX_WINDOW,
        tx: Any = None,
        notify: bool | None = None,
    ) -> bool:
        """Add the job of a message once: `hf.receive_one("stripe", event["id"], paid.bind(…), tx=session)`.

        source, message_id: what names the message; a repeat adds nothing, whatever its job is, for as long as `window`
        (a week by default). tx, notify: as in `Handler.using`. Answer the sender once this is committed: a message
        that it sends again, because it did not hear of that, is then known.
        Returns whether the message is new. Two calls at the same moment: the second waits until the first one's
        transaction ends. Nothing that a repeat does makes your transaction fail.
        """
        named, within = _named(job, source, message_id, window), self.within_reach(tx)
        return self._run(self._adding_one(named, notify, within), tx).created

    @spelt
    async def areceive_one(
        self,
        source: str,
        message_id: str,
        job: Bound,
        *,
        window: Duration = INBOX_WINDOW,
        tx: Any = None,
        notify: bool | None = None,
    ) -> bool:
        """The async twin of `receive_one`."""
        named, within = _named(job, source, message_id, window), await self.awithin_reach(tx)
        return (await self._arun(self._adding_one(named, notify, within), tx)).created


def _named(job: Bound, source: str, message_id: str, window: Duration) -> Bound:
    """Return a job that is added for a message, if that is new."""
    bound = plain_bound(job, "hf.receive_one")
    like = bound.like._replace(
        scope=message_scope(source),
        idempotency_key=message_key(message_id),
        window_ms=round(seconds(window, "window", at_least=0.001) * 1000),
    )
    return Bound(bound.payload, like)


class MessageDecorator:
    """What `@hf.receive(…)` returns: applied to a function, it registers it and keeps its types."""

    def __init__(
        self, app: Receives, broker: Any, kind: str | None, options: HandlerOptions, key: str | None, window: float
    ) -> None:
        self._app = app
        self._broker = broker
        self._kind = kind
        self._options = options
        self._key = key
        self._window = window

    @overload
    def __call__(self, fn: Callable[Concatenate[Job, P], R], /) -> Handler[P, R]: ...
    @overload
    def __call__(self, fn: Callable[P, R], /) -> Handler[P, R]: ...
    def __call__(self, fn: Callable[..., Any], /) -> Handler[..., Any]:
        kind = kind_name(self._kind or fn.__name__)
        return self._app.add_reception(fn, self._broker, kind, self._options, self._key, self._window)
