"""What every face of an application shares: its databases, its handlers, who listens."""

from __future__ import annotations

import os
from typing import Any, Unpack

from holdfast.context import Context
from holdfast.errors import ConfigError, redact
from holdfast.events import Event, log_events
from holdfast.handlers import Handler
from holdfast.store import Shards, Store, Stores
from holdfast.store.opening import open_shards, said_of_shards
from holdfast.values.options import StoreKeywords, StoreOptions
from holdfast.values.reserved import is_route


class Base:
    """An application without its faces: what they all work on."""

    def __init__(self, url: str | None = None, **options: Unpack[StoreKeywords]) -> None:
        shards = said_of_shards(options.get("shards"), url)
        # A list of shards says where all of them are.
        url = url if isinstance(shards, list) else url or os.environ.get("HOLDFAST_URL")
        if not url and not isinstance(shards, list):
            raise ConfigError("url", "give a database URL, or set HOLDFAST_URL", url)
        self.options = StoreOptions.of(**options)
        self.handlers: dict[str, Handler[..., Any]] = {}
        # Its databases: its own, and those of foreign tables that are elsewhere.
        self.shards = None if shards is None else self._open_shards(url, shards)
        self.stores = Stores(self._open(url or "") if self.shards is None else self.shards.stores[0], self.shards)
        self.store = self.stores.whole
        self.context = Context(self.stores)
        self.events = self.context.events
        self._start_hooks = self.context.hooks
        self.events.subscribe(Event, log_events)

    def _open(self, url: str) -> Store:
        return Store(url, self.options)

    def _open_shards(self, url: str | None, said: int | list[str]) -> Shards:
        """Make the shards: schemas of the database at `url`, or a database for each URL of a list."""
        shards = open_shards(url, said, self.options)
        shards.in_one = self._is_in_one_shard
        return shards

    def _is_in_one_shard(self, queue: str) -> bool:
        """Tell whether all jobs of a queue belong to one shard: a limit that counts for all of them is kept there."""
        if is_route(queue):
            # An event may go by several routes, each with its own limits, in one transaction.
            return False
        said = self.context.queues.get(queue)
        return said is not None and said.settings.is_limited and not said.settings.is_split

    @property
    def url(self) -> str:
        """Where the application's own jobs are."""
        return self.store.url

    def __repr__(self) -> str:
        return f"<Holdfast {redact(self.url)}>"
