"""Publishing: events that leave with the caller's transaction, their types, and the routes by which they go."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Unpack

from holdfast import jobs
from holdfast.app.capturing import Capture, capture_of
from holdfast.app.controlling import Controls
from holdfast.app.enqueueing import Adding
from holdfast.bound import Bound, EnqueueHook, with_headers
from holdfast.errors import ConfigError
from holdfast.flow import notifying
from holdfast.jobs.enqueueing import Drawn, again
from holdfast.outbox import (
    ROUTE_RETRY,
    UNROUTED,
    Draft,
    EventType,
    Pattern,
    Published,
    Route,
    answer,
    debezium,
    draft_of,
    likes_of,
    publish,
    rows_of,
)
from holdfast.sinks import Sink
from holdfast.store.sharded import Within
from holdfast.values.ids import new_ids
from holdfast.values.options import StoreKeywords, WorkerKeywords, only_options, switch
from holdfast.values.payload import decode_value, encode_value
from holdfast.values.queues import OnDead, OnRetry, Ordered, QueueSettings, Rate
from holdfast.values.retry import Duration, Retry
from holdfast.values.rows import Enqueued, NewJob
from holdfast.values.spelling import spelt

if TYPE_CHECKING:
    from holdfast.worker import Served, Worker

C = TypeVar("C", bound=type)
# What an event becomes: deliveries by our routes, or a row that Debezium takes.
Layout = Literal["routes", "debezium"]
# What stands for data that was left out: None is data, too.
_LEFT_OUT: Any = object()


class Publishes(Controls):
    """The face by which an application publishes events, and says where they go."""

    def __init__(self, url: str | None = None, **options: Unpack[StoreKeywords]) -> None:
        super().__init__(url, **options)
        self._event_types: dict[type, EventType] = {}
        self._capture: Capture | None = None

    @spelt
    def event(
        self, type: str, *, version: int | None = None, source: str | None = None, dataschema: str | None = None
    ) -> Callable[[C], C]:
        """Say of a class that its instances are events of a type: `@hf.event("order.created", version=2)`.

        The class is a msgspec Struct, a dataclass or a Pydantic model; `hf.publish(OrderCreated(id=1))` publishes one.
        version: goes with the event as the extension `dataversion`. source: instead of the application's
        `event_source`. dataschema: the address of a schema that the data follows.
        """

        def register(cls: C) -> C:
            if cls in self._event_types:
                raise ConfigError("event", "each class is one type of event", cls)
            made = EventType.of(cls, type, version, source, dataschema)
            if any((made.type, made.version) == (one.type, one.version) for one in self._event_types.values()):
                rule = "each type and version has one class; give this one another version="
                raise ConfigError("event", rule, made.type)
            self._event_types[cls] = made
            return cls

        return register

    @spelt
    def route(
        self,
        pattern: str,
        *,
        to: Sink,
        name: str | None = None,
        ordered: Ordered = False,
        on_retry: OnRetry = "hold",
        on_dead: OnDead = "go_on",
        concurrency: int | None = None,
        rate: Rate | None = None,
        fair: bool = False,
        key_concurrency: int | None = None,
        key_rate: Rate | None = None,
        retention: Duration | Mapping[str, Duration] | None = None,
        retry: Retry = ROUTE_RETRY,
        timeout: Duration = 30.0,
        lease: Duration = 30.0,
        batch: int = 100,
        batch_bytes: int = 2**20,
        in_flight_bytes: int = 2**24,
    ) -> Route:
        """Deliver events to a sink: `hf.route("order.*", to=Kafka("localhost:9092", topic="orders"))`.

        pattern: over the segments of an event's type; `*` is one segment, `#` any number. Each route that fits makes a
        delivery of its own. name: what the route is called, by default made of the pattern; its deliveries are in the
        queue `route:NAME`. ordered to key_rate, retention: as in `hf.queue`; deliveries that are kept are the archive.
        retry: how often and how late a delivery that failed is tried again; an outage of the sink uses no attempt.
        timeout: of one call of the sink. lease: how long a relay may be silent before another takes over.
        batch, batch_bytes: the most that one call takes. in_flight_bytes: the most that one relay holds of the route.
        """
        fits = Pattern(pattern)
        route = Route(
            fits.name if name is None else name,
            fits,
            to,
            retry,
            timeout,
            lease,
            batch,
            batch_bytes,
            in_flight_bytes,
        )
        settings = QueueSettings(ordered, on_retry, on_dead, concurrency, rate, fair, key_concurrency, key_rate)
        self.context.routes.check_new(route)
        self._declare_queue(route.queue, retention, settings)
        self.context.routes.add(route)
        return route

    @spelt
    def debezium(self, *patterns: str, table: str = debezium.DEFAULT_TABLE, aggregate: str | None = None) -> Capture:
        """Have Debezium take events from a table: `hf.debezium("order.#")`, on PostgreSQL, MySQL and MariaDB.

        patterns: events whose type fits one of them are written there instead of going by routes; without any, only
        those that are published with `layout="debezium"`. aggregate: what the event router makes topics of, a text that
        may name {type}, {key}, {subject} and {source}; by default the type without its last segment. Returns what
        makes the table, sets a connector up, and hands events over to routes again.
        """
        if self._capture is not None:
            raise ConfigError("debezium", "one table for an application; name all patterns in one call", patterns)
        self._capture = capture_of(self.store, self.context.routes.taking, patterns, table, aggregate)
        return self._capture

    @property
    def capture(self) -> Capture | None:
        """What `hf.debezium` returned; None where it was not called."""
        return self._capture

    @spelt
    def publish(
        self,
        event: Any,
        data: Any = _LEFT_OUT,
        *,
        subject: str | None = None,
        key: str | None = None,
        idempotency_key: str | None = None,
        headers: Mapping[str, str] | None = None,
        tx: Any = None,
        notify: bool | None = None,
        layout: Layout | None = None,
    ) -> Published:
        """Publish an event: `hf.publish("order.created", {"id": 1}, tx=session)`, or an instance of a typed event.

        It is a CloudEvent that leaves if and only if the transaction of `tx` commits; without tx it commits by itself.
        data: what JSON can hold. subject: what the event is about. key: what order, limits and the broker's partition
        go by. idempotency_key: within a day, a second publish of this type with it finds the first. headers: texts
        that go along; `traceparent` and `tracestate` become attributes of the event. notify: as in `Handler.using`.
        layout: "debezium" for the table of `hf.debezium`, "routes" for our relays; by default as its patterns say.
        Raises: InvalidPayload, PayloadTooLarge, ConfigError.
        """
        adding, routes = self._adding_event(
            self.draft(event, data, subject=subject, key=key, idempotency_key=idempotency_key, headers=headers),
            notify,
            layout,
            self.within_reach(tx),
        )
        with self._naming(adding):
            return answer(self._run(adding, tx), routes)

    @spelt
    async def apublish(
        self,
        event: Any,
        data: Any = _LEFT_OUT,
        *,
        subject: str | None = None,
        key: str | None = None,
        idempotency_key: str | None = None,
        headers: Mapping[str, str] | None = None,
        tx: Any = None,
        notify: bool | None = None,
        layout: Layout | None = None,
    ) -> Published:
        """The async twin of `publish`."""
        adding, routes = self._adding_event(
            self.draft(event, data, subject=subject, key=key, idempotency_key=idempotency_key, headers=headers),
            notify,
            layout,
            await self.awithin_reach(tx),
        )
        with self._naming(adding):
            return answer(await self._arun(adding, tx), routes)

    def draft(
        self,
        event: Any,
        data: Any = _LEFT_OUT,
        *,
        subject: str | None = None,
        key: str | None = None,
        idempotency_key: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Draft:
        """Check an event and write its data, for `publish_many`; arguments as in `publish`."""
        said = self._event_types.get(event.__class__)
        if said is not None:
            if data is not _LEFT_OUT:
                rule = "is left out where the event itself is given, which has the data in it"
                raise ConfigError("data", rule, data)
            type, data = said.type, event
        elif isinstance(event, str):
            if data is _LEFT_OUT:
                raise ConfigError("data", 'is missing, as in hf.publish("order.created", {"id": 1}); None is data', "")
            type = event
        else:
            rule = "must be the type of an event, or an instance of a class that has @hf.event(…)"
            raise ConfigError("event", rule, event)
        return draft_of(type, data, said, subject=subject, key=key, idempotency_key=idempotency_key, headers=headers)

    @spelt
    def publish_many(
        self, events: Iterable[Any], *, tx: Any = None, notify: bool | None = None, layout: Layout | None = None
    ) -> list[Published]:
        """Publish many events at once, all or none: typed events, and what `hf.draft(…)` gives.

        layout: as in `publish`, for all of them.
        """
        adding, routes = self._adding_events(events, notify, layout, self.within_reach(tx))
        with self._naming(adding):
            return _shared_out(self._run(adding, tx), routes)

    @spelt
    async def apublish_many(
        self, events: Iterable[Any], *, tx: Any = None, notify: bool | None = None, layout: Layout | None = None
    ) -> list[Published]:
        """The async twin of `publish_many`."""
        adding, routes = self._adding_events(events, notify, layout, await self.awithin_reach(tx))
        with self._naming(adding):
            return _shared_out(await self._arun(adding, tx), routes)

    def _adding_event(
        self, draft: Draft, notify: bool | None, layout: Layout | None, within: Within | None
    ) -> tuple[Adding[Any], tuple[Route, ...]]:
        if layout is not None or self._capture is not None:
            adding, [routes] = self._adding_events([draft], notify, layout, within)
            return adding, routes
        routes = self.context.routes.taking(draft.type)
        rows = self._rows(draft, routes, self._ids(within, [draft], [routes])[0], self._enqueue_hooks)
        if len(rows) > 1 or notify is not None or self.context.commit_ordered:
            return self._adding_rows([rows], notify), routes
        # The shortest way for what is published most: a fifth of the time less.
        [row], drawn = rows, Drawn.now()
        return (rows, jobs.enqueue(row, fresh=True), lambda: again(jobs.enqueue, row, drawn)), routes

    def _adding_events(
        self, events: Iterable[Any], notify: bool | None, layout: Layout | None, within: Within | None
    ) -> tuple[Adding[list[Enqueued]], list[tuple[Route, ...]]]:
        drafts = [one if isinstance(one, Draft) else self.draft(one) for one in events]
        taking = self.context.routes.taking
        routes = [taking(draft.type) for draft in drafts]
        captures = [self._captures(draft.type, layout) for draft in drafts]
        if not any(captures):
            ids, hooks = self._ids(within, drafts, routes), self._hooks_of_events(map(_queue_of, routes))
            rows = [self._rows(*each, hooks) for each in zip(drafts, routes, ids, strict=True)]
            return self._adding_rows(rows, notify), routes
        if not all(captures):
            types = sorted({draft.type for draft in drafts})
            rule = "events that Debezium takes and events for routes are published apart, or with layout= for all"
            raise ConfigError("events", rule, types)
        return self._capturing(drafts), [()] * len(drafts)

    def _naming(self, adding: Adding[Any]) -> AbstractContextManager[None]:
        """Name the table of captured events where it is missing; those have no rows of jobs."""
        return nullcontext() if adding[0] or self._capture is None else self._capture.naming()

    def _captures(self, type: str, layout: Layout | None) -> bool:
        said: object = layout
        if said not in (None, "routes", "debezium"):
            raise ConfigError("layout", 'must be "debezium", "routes" or left out', said)
        if layout == "debezium" and self._capture is None:
            raise ConfigError("layout", "declare the table first: hf.debezium()", layout)
        if layout is not None or self._capture is None:
            return layout == "debezium"
        return self._capture.table.takes(type)

    def _capturing(self, drafts: Sequence[Draft]) -> Adding[list[Enqueued]]:
        """Write events for Debezium. A repeat whose first try was committed finds their ids."""
        assert self._capture is not None  # noqa: S101 - as `_captures` has found
        table, options = self._capture.table, self.options
        source, limit = options.event_source, options.payload_limit
        hooks = self._hooks_of_events([UNROUTED] * len(drafts))
        hooked = [self._hooked_event(draft, UNROUTED, hooks) for draft in drafts]
        events = [debezium.captured(draft, table, source, limit) for draft in hooked]
        return (), debezium.write(table, events), lambda: debezium.write(table, events)

    def _ids(
        self, within: Within | None, drafts: Sequence[Draft], routes: Sequence[tuple[Route, ...]]
    ) -> list[Sequence[str]]:
        """Draw the ids of the rows of events where there are shards, which they say, and for hooks, which see them."""
        if within is None:
            return [new_ids(len(ways) or 1) if self._enqueue_hooks else () for ways in routes]
        buckets = self.options.buckets
        likes = [likes_of(draft, ways, buckets) for draft, ways in zip(drafts, routes, strict=True)]
        drawn = iter(within.new_ids([like for each in likes for like in each]))
        return [[next(drawn) for _ in each] for each in likes]

    def _rows(
        self, draft: Draft, routes: tuple[Route, ...], ids: Sequence[str], hooks: Sequence[EnqueueHook]
    ) -> list[NewJob]:
        """Let the enqueue hooks add headers, and make the rows of an event."""
        options = self.options
        if hooks:
            draft = self._hooked_event(draft, _queue_of(routes), hooks, ids[0])
        return rows_of(draft, routes, options.event_source, options.payload_limit, options.buckets, ids)

    def _hooks_of_events(self, queues: Iterable[str]) -> Sequence[EnqueueHook]:
        return self._hooks_for([(queue, queue) for queue in queues]) if self._enqueue_hooks else ()

    def _hooked_event(self, draft: Draft, queue: str, hooks: Sequence[EnqueueHook], id: str = "") -> Draft:
        if not hooks:
            return draft
        headers = None if draft.headers is None else encode_value(draft.headers, "headers")
        like = Bound("", NewJob("", queue, queue, "", headers))
        hooked = with_headers(like, hooks, self.options.payload_limit, id).like.headers
        return draft._replace(headers=None if hooked is None else decode_value(hooked))

    def _adding_rows(self, events: list[list[NewJob]], notify: bool | None) -> Adding[list[Enqueued]]:
        drawn, rows = Drawn.now(), [row for rows in events for row in rows]
        work = notifying(publish(events, fresh=True), switch(notify, "notify"))
        if self.context.commit_ordered:
            work = self._after_others(work, rows)
        return rows, work, lambda: notifying(again(publish, events, drawn), notify)

    def relay(self, routes: Iterable[str] | None = None, **options: Unpack[WorkerKeywords]) -> Worker:
        """Make a worker that serves routes and no jobs: `async with hf.relay(): …`, or `await hf.relay().run()`.

        routes: the names of those to serve; all by default. The other options are those of `hf.worker`.
        """
        from holdfast.worker import Served, Worker

        takes = [name for name in WorkerKeywords.__annotations__ if name != "queues"]
        only_options("hf.relay()", options, ["routes", *takes])
        known = self.context.routes
        served = list(known) if routes is None else [known.named(name) for name in names(routes)]
        # Those of foreign tables have no names.
        home, *others = self._foreign_routes() if routes is None else [Served(self.store, [])]
        if not served and not home.sources and not others:
            raise ConfigError("relay", "needs routes: declare one with hf.route, or import what does", [])
        return Worker(self.context, {}, home.sources, others, routes=served, part="routes", **options)

    def _foreign_routes(self) -> list[Served]:
        """List the foreign tables whose events are sent on, those of the application's own database first."""
        return []


def names(given: Iterable[str]) -> list[str]:
    """Check that names were given as a list."""
    if isinstance(given, str):
        raise ConfigError("routes", "must be a list of names, not one text", given)
    return list(given)


def _queue_of(routes: Sequence[Route]) -> str:
    """Name the queue of an event's first row."""
    return routes[0].queue if routes else UNROUTED


def _shared_out(rows: Sequence[Enqueued], routes: Sequence[tuple[Route, ...]]) -> list[Published]:
    """Share the answers for rows out among the events that they belong to."""
    answers: list[Published] = []
    place = 0
    for ways in routes:
        count = len(ways) or 1
        answers.append(answer(rows[place : place + count], ways))
        place += count
    return answers
