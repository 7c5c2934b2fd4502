"""What every face of an application shares: its databases, its handlers, who listens."""

from __future__ import annotations

import os
from typing import Any, Unpack

from holdfast.context import Context
from holdfast.errors import ConfigError, redact
from holdfast.events import Event, log_events
from holdfast.handlers import Handler
from holdfast.store import Store, Stores
from holdfast.values.options import StoreKeywords, StoreOptions


class Base:
    """An application without its faces: what they all work on."""

    def __init__(self, url: str | None = None, **options: Unpack[StoreKeywords]) -> None:
        url = url or os.environ.get("HOLDFAST_URL")
        if not url:
            raise ConfigError("url", "give a database URL, or set HOLDFAST_URL", url)
        self.options = StoreOptions.of(**options)
        self.handlers: dict[str, Handler[..., Any]] = {}
        # Its databases: its own, and those of foreign tables that are elsewhere.
        self.stores = Stores(self._open(url))
        self.store = self.stores.home
        self.context = Context(self.stores)
        self.events = self.context.events
        self._start_hooks = self.context.hooks
        self.events.subscribe(Event, log_events)

    def _open(self, url: str) -> Store:
        return Store(url, self.options)

    @property
    def url(self) -> str:
        """Where the application's own jobs are."""
        return self.store.url

    def __repr__(self) -> str:
        return f"<Holdfast {redact(self.url)}>"
