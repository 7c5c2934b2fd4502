"""The application of a project: `from holdfast.django import hf`."""

from __future__ import annotations

from functools import cache
from typing import Unpack

from django.db import connections

from holdfast.app import Holdfast
from holdfast.django import settings
from holdfast.django.care import ConnectionCare
from holdfast.django.databases import url_of
from holdfast.django.store import DjangoStore
from holdfast.errors import ConfigError
from holdfast.store import Shards, Store
from holdfast.values.options import StoreKeywords

PROGRAM = "manage.py holdfast"


class DjangoHoldfast(Holdfast):
    """A Holdfast on an alias of `DATABASES`, and on Django's own connections to it."""

    def __init__(self, alias: str, **options: Unpack[StoreKeywords]) -> None:
        self.alias = alias
        super().__init__(url_of(connections[alias]), **options)
        self.context.care = ConnectionCare()
        self.context.program = PROGRAM

    def _open(self, url: str) -> Store:
        return DjangoStore(self.alias, self.options)

    def _open_shards(self, url: str | None, said: int | list[str]) -> Shards:
        rule = (
            "the application of a Django project has one store, on an alias of DATABASES; leave shards out here, and "
            "make a Holdfast(shards=…) of your own beside it"
        )
        raise ConfigError("shards", rule, said)


def make() -> DjangoHoldfast:
    """Make an application from the project's settings; nothing is opened. Raises: ConfigError."""
    return DjangoHoldfast(settings.alias(), **settings.options())


@cache
def application() -> DjangoHoldfast:
    """Return the project's own application, which is made once. Raises: ConfigError."""
    return make()
