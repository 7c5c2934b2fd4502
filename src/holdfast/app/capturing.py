"""Captured events: those that Debezium takes from a table of the application, and what is done with that table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from holdfast.errors import ConfigError, ForeignTablesMissing, SchemaMissing
from holdfast.flow import Series, arun_series, in_chunks, in_turn, run_series
from holdfast.outbox import Route, debezium
from holdfast.outbox.debezium import DEFAULT_TABLE, EventTable
from holdfast.store import Store
from holdfast.values.retry import Duration, seconds

# Rows per transaction: large enough to be quick, small enough to hold no lock for long.
ROWS_PER_COMMIT = 1000


class Capture:
    """The table that Debezium reads: make it, set a connector up, hand events over to routes, delete old rows."""

    def __init__(self, store: Store, ways: Callable[[str], Sequence[Route]], table: EventTable) -> None:
        try:
            store.dialect.catalogue(table.surface)
        except ConfigError as error:
            rule = "Debezium takes events from PostgreSQL, MySQL and MariaDB; use routes (hf.route) on this database"
            raise ConfigError("debezium", rule, error.value) from None
        self.table = table
        self._store = store
        self._ways = ways

    def __repr__(self) -> str:
        return f"<Capture {self.table.table}>"

    @contextmanager
    def naming(self) -> Iterator[None]:
        """Name this table, and not Holdfast's own, where it is missing."""
        try:
            yield
        except SchemaMissing as error:
            cure = "Call create_schema() of what hf.debezium returned, or run `holdfast debezium create`."
            raise ForeignTablesMissing(self.table.surface.under, [self.table.table], cure) from error

    def create_schema(self) -> None:
        """Make the table if it is not there."""
        self._store.run(debezium.create(self.table))

    async def acreate_schema(self) -> None:
        """The async twin of `create_schema`."""
        await self._store.arun(debezium.create(self.table))

    @property
    def ddl(self) -> list[str]:
        """The statements that make the table, for those who run them by other means."""
        return self._store.dialect.catalogue(self.table.surface).creating()

    def connector(
        self, name: str = "holdfast", topic: str = "${routedByValue}", schema: str = "public"
    ) -> dict[str, str]:
        """Return the settings of a Debezium connector whose records are those of our own Kafka sink.

        name: of the connector, its replication slot and its publication. topic: where ${routedByValue} is the
        aggregate. schema: PostgreSQL's, in which the table is. What has to be filled in says so.
        """
        dialect = self._store.dialect.name
        return debezium.connector(self.table, self._store.url, dialect, name=name, topic=topic, schema=schema)

    def hand_over(
        self,
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        slot: str | None = None,
        publication: str | None = None,
        limit: int | None = None,
        dry_run: bool = False,
        actor: str | None = None,
    ) -> list[dict[str, Any]]:
        """Make deliveries by our routes of events in the table, with their ids, and delete them there.

        since, until: by when they were written. slot: on PostgreSQL, those that the connector has not confirmed; it
        must be stopped. publication: of the slot, by default of the same name. Each chunk commits by itself; what a
        crash leaves behind is taken by the next call. Returns what was handed over; an event that no route takes stays.
        """
        with self.naming():
            return run_series(
                self._handing_over(since, until, slot, publication, limit, dry_run, actor), self._store.run
            )

    async def ahand_over(
        self,
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        slot: str | None = None,
        publication: str | None = None,
        limit: int | None = None,
        dry_run: bool = False,
        actor: str | None = None,
    ) -> list[dict[str, Any]]:
        """The async twin of `hand_over`."""
        series = self._handing_over(since, until, slot, publication, limit, dry_run, actor)
        with self.naming():
            return await arun_series(series, self._store.arun)

    def _handing_over(
        self,
        since: datetime | None,
        until: datetime | None,
        slot: str | None,
        publication: str | None,
        limit: int | None,
        dry_run: bool,
        actor: str | None,
    ) -> Series[list[dict[str, Any]]]:
        if since is None and until is None and slot is None:
            rule = "say which events: since=, until=, or the connector's slot= (PostgreSQL)"
            raise ConfigError("hand_over", rule, None)
        ids: list[str] | None = None
        if slot is not None:
            ids = sorted((yield from in_turn(debezium.untaken(self.table, slot, publication or slot))))
        done: list[dict[str, Any]] = []
        after, left = None, limit
        while left is None or left > 0:
            rows = ROWS_PER_COMMIT if left is None else min(left, ROWS_PER_COMMIT)
            named = None if ids is None else ids[:rows]
            if named is not None:
                if not named:
                    break
                ids, after = (ids or [])[rows:], None
            chunk = debezium.hand_over(
                self.table,
                self._ways,
                rows,
                actor,
                buckets=self._store.options.buckets,
                ids=named,
                since=since,
                until=until,
                after=after,
                dry_run=dry_run,
            )
            answer = yield from in_turn(chunk)
            done += answer.events
            left = None if left is None else left - len(answer.events)
            after = answer.last
            if after is None and named is None:
                break
        return done

    def count(self, older: Duration = 0) -> int:
        """Count the events in the table, or those that were written longer ago."""
        return self._store.run(debezium.count(self.table, older_ms=_ms(older)))

    async def acount(self, older: Duration = 0) -> int:
        """The async twin of `count`."""
        return await self._store.arun(debezium.count(self.table, older_ms=_ms(older)))

    def prune(self, older: Duration) -> int:
        """Delete events that were written longer ago, whether they were taken or not, and return how many."""
        return run_series(self._pruning(older), self._store.run)

    async def aprune(self, older: Duration) -> int:
        """The async twin of `prune`."""
        return await arun_series(self._pruning(older), self._store.arun)

    def _pruning(self, older: Duration) -> Series[int]:
        return in_chunks(debezium.prune(self.table, _ms(older), limit=ROWS_PER_COMMIT), ROWS_PER_COMMIT)


def _ms(older: Duration) -> int:
    return round(seconds(older, "older") * 1000)


def capture_of(
    store: Store,
    ways: Callable[[str], Sequence[Route]],
    patterns: Sequence[str],
    table: str = DEFAULT_TABLE,
    aggregate: str | None = None,
) -> Capture:
    """Check settings and make what stands for the table. Raises: ConfigError, also on SQLite."""
    return Capture(store, ways, EventTable.of(patterns, table, aggregate))
