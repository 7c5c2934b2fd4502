"""What `hf.receive` declares: a broker, and the handler whose jobs its messages become."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from string import Formatter
from typing import Any

from holdfast import jobs
from holdfast.bound import Bound
from holdfast.errors import ConfigError, PayloadError
from holdfast.flow import Flow, Steps
from holdfast.handlers import Handler
from holdfast.inbox import Consumer, Incoming, consumer_of
from holdfast.inbox.reading import CUT_BYTES, KEPT_BYTES, Read, Unreadable, identity_of, raw_of, read
from holdfast.inbox.signature import MessageSignature, kept
from holdfast.values.cloudevents import CloudEvent
from holdfast.values.ids import bucket, new_ids
from holdfast.values.once import bounded, received_key, received_scope
from holdfast.values.options import EnqueueOptions
from holdfast.values.payload import encode_value
from holdfast.values.rows import TRACE_HEADERS, Enqueued, NewJob
from holdfast.values.texts import KEY_LENGTH, storable

# What a key may be made of.
KEY_FIELDS = ("key", "subject", "type", "source", "id")
# The header that says which message a job was made of.
MESSAGE_HEADER = "holdfast-message"
# Attributes that a handler finds in its headers where it takes the data alone.
_ATTRIBUTES = ("id", "source", "type", "subject")

Bounds = list[Bound]
Unread = tuple[Incoming, str]


class Reception:
    """Messages of one broker, as jobs of one handler.

    hooked and after_others are the application's: enqueue hooks, and the order of commits where a queue has it.
    """

    def __init__(
        self,
        handler: Handler[..., Any],
        signature: MessageSignature,
        broker: Any,
        key: str | None,
        window: float,
        hooked: Callable[[Bounds], Bounds],
        after_others: Callable[[Flow[list[Enqueued]], Sequence[NewJob]], Flow[list[Enqueued]]],
    ) -> None:
        self.handler = handler
        self.broker = broker
        self._signature = signature
        self._key = None if key is None else _key_template(key)
        self._window_ms = round(window * 1000)
        self._hooked = hooked
        self._after_others = after_others
        self._like = handler.like(EnqueueOptions())
        # Asked once here: a broker that messages cannot come from is a mistake in the code.
        consumer_of(broker)

    @property
    def name(self) -> str:
        """What events call the broker: it says what is received, and no password."""
        return repr(self.broker)

    @property
    def kind(self) -> str:
        return self.handler.kind

    @property
    def queue(self) -> str:
        return self.handler.options.queue

    def consumer(self) -> Consumer:
        return consumer_of(self.broker)

    def storing(self, messages: Sequence[Incoming], *, cut: bool = False) -> tuple[Flow[list[Enqueued]], list[Unread]]:
        """Make what adds the jobs of messages, and list those that could not be read, with the reason.

        A job that cannot be read is added as it came, and becomes a dead letter when it is claimed. `cut` keeps the
        beginning of each message alone, for one that the database does not take.
        Commits: a transaction of its own; all or none. It may be repeated however its first try has ended: new ids are
        drawn, and the messages that are known by then add nothing.
        """
        bounds: Bounds = []
        unread: list[Unread] = []
        for message in messages:
            bound, reason = self._bound(message, CUT_BYTES if cut else KEPT_BYTES, cut)
            bounds.append(bound)
            if reason is not None:
                unread.append((message, reason))
        bounds = self._hooked(bounds)

        def adding() -> Any:
            new = [one.new_job(job_id) for one, job_id in zip(bounds, new_ids(len(bounds)), strict=True)]
            return self._noted(jobs.enqueue_many(new, fresh=True), messages[-1])

        return self._after_others(Flow("receive", adding), [one.like for one in bounds]), unread

    def _noted(self, adding: Flow[list[Enqueued]], last: Incoming) -> Steps[list[Enqueued]]:
        """Note how far a stream was received, where its broker does not."""
        if last.offset is None:
            return adding.start()
        return _then_note(adding, jobs.position_name(self.kind, last.source), last.offset)

    def position(self, stream: str) -> Flow[int | None]:
        """Read how far a stream has been received."""
        return jobs.position(jobs.position_name(self.kind, stream))

    def _bound(self, message: Incoming, most: int, as_it_came: bool) -> tuple[Bound, str | None]:
        """Make the job of a message, and say why it could not be read, if so."""
        found: Read | None = None
        reason = None
        try:
            found = read(message)
            if as_it_came:
                payload = kept(raw_of(message, "the database does not take it whole", most=0))
            elif self._signature.takes_event and isinstance(found.event.data, bytes):
                # JSON cannot hold it. Its size is looked at when it is read.
                payload = kept(raw_of(message, most=most))
            else:
                arguments = self._signature.argument(found.event)
                payload = self._signature.encode(self.kind, (), arguments, self._signature.limit)
        except (Unreadable, PayloadError) as error:
            reason = str(error)
            payload = kept(raw_of(message, reason, most=most))
        event = None if found is None else found.event
        identity = identity_of(message) if found is None else found.identity
        return Bound(payload, self._like_of(message, event, identity)), reason

    def _like_of(self, message: Incoming, event: CloudEvent | None, identity: tuple[str, str] | None) -> NewJob:
        key = self._key_of(message, event)
        like = self._like._replace(
            key=key,
            bucket=None if key is None else bucket(key, self.handler.app.options.buckets),
            headers=encode_value(self._headers(message, event), "headers"),
        )
        if identity is None:
            return like
        return like._replace(
            scope=received_scope(self.kind), idempotency_key=received_key(*identity), window_ms=self._window_ms
        )

    def _key_of(self, message: Incoming, event: CloudEvent | None) -> str | None:
        if self._key is None:
            return None
        values: dict[str, str | None] = {name: getattr(event, name, None) for name in KEY_FIELDS[1:]}
        values["key"] = message.key or (None if event is None else event.extensions.get("partitionkey"))
        named = [name for _, name, _, _ in Formatter().parse(self._key) if name is not None]
        if any(not values[name] for name in named):
            return None
        return bounded(self._key.format(**values).replace("\0", ""), KEY_LENGTH) or None

    def _headers(self, message: Incoming, event: CloudEvent | None) -> dict[str, str]:
        """Return the headers of a job: those of its message that are text, except what only Holdfast may say."""
        headers = {
            name: value
            for name, value in message.headers.items()
            if name and not name.lower().startswith(_OWN_HEADERS) and _is_storable(name, value)
        }
        if event is not None:
            attributes = event.attributes
            wanted = () if self._signature.takes_event else _ATTRIBUTES
            headers |= {f"ce-{name}": attributes[name] for name in wanted if name in attributes}
            headers |= {name: value for name, value in event.extensions.items() if name in TRACE_HEADERS}
        return headers | {MESSAGE_HEADER: message.position}


def _then_note(adding: Flow[list[Enqueued]], name: str, offset: int) -> Steps[list[Enqueued]]:
    # The position first: of two workers that store the same messages one waits for the other here, and not for keys in
    # an order of their own.
    yield from jobs.note_position(name, offset)
    return (yield from adding)


# Headers that the event itself has, or that say something of a job of ours: nobody outside may say that.
_OWN_HEADERS = ("ce-", "ce_", "cloudevents_", "cloudevents:", "content-type", "holdfast-")


def _is_storable(*texts: str) -> bool:
    try:
        for text in texts:
            storable(text, "headers")
    except ConfigError:
        return False
    return len(texts[0]) <= KEY_LENGTH


def _key_template(key: object) -> str:
    rule = f"is a text that may name {', '.join('{' + name + '}' for name in KEY_FIELDS)} of a message"
    if not isinstance(key, str) or not key:
        raise ConfigError("key", rule, key)
    try:
        parts = list(Formatter().parse(key))
    except ValueError as error:
        raise ConfigError("key", f"{rule} ({error})", key) from error
    for _, name, spec, conversion in parts:
        if name is not None and (name not in KEY_FIELDS or spec or conversion):
            raise ConfigError("key", rule, key)
    return key
