"""One visit: the request, who asks, and what a page needs to ask and to answer."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TypeVar

from holdfast.dashboard.access import Access
from holdfast.dashboard.http import Fields, Request, link
from holdfast.dashboard.setting import Place, Setting
from holdfast.dashboard.talk import Talk, act, look
from holdfast.errors import ConfigError
from holdfast.flow import Flow

T = TypeVar("T")


class Visit:
    """What every page gets."""

    def __init__(self, setting: Setting, request: Request, access: Access) -> None:
        self.setting = setting
        self.request = request
        self.access = access
        self.now = datetime.now(UTC)

    @property
    def said(self) -> Fields:
        return self.request.said

    @property
    def actor(self) -> str:
        return self.access.actor or "dashboard"

    def place(self) -> Place:
        """Return the tables that the field `store` names. Raises: ConfigError."""
        name = self.said.one("store")
        places = self.setting.places
        if name not in places:
            raise ConfigError("store", "must be one of the application's foreign stores", name)
        return places[name]

    def look(self, work: Flow[T]) -> Talk[T]:
        return look(self.setting.store, work)

    def act(self, work: Flow[T]) -> Talk[T]:
        return act(self.setting.store, work)

    def link(self, path: str, **said: object) -> str:
        return link(self.request.base, path, **said)
