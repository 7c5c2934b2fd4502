"""Shards as an application names them: schemas of one database, or a list of databases."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import cast

from holdfast.errors import ConfigError
from holdfast.store.dialects import dialect_for
from holdfast.store.dialects.base import SCHEMES
from holdfast.store.sharded import Shards
from holdfast.store.store import Store
from holdfast.values.options import StoreOptions
from holdfast.values.shards import MOST_SHARDS, ShardMap

_SECOND_URL = re.compile(rf",({'|'.join(name for names in SCHEMES.values() for name in names)})(\+\w+)?://")


def said_of_shards(said: int | Sequence[str] | None, url: str | None = None) -> int | list[str] | None:
    """Read `shards`, or HOLDFAST_SHARDS where no URL is given: a number, or URLs with space between them.

    Raises: ConfigError.
    """
    given: object = said
    if given is None and url is None:
        words = os.environ.get("HOLDFAST_SHARDS", "").split()
        given = None if not words else int(words[0]) if len(words) == 1 and words[0].isdigit() else words
        if isinstance(given, list) and not all("://" in word for word in words):
            rule = "must be a number, or URLs separated by spaces"
            raise ConfigError("HOLDFAST_SHARDS", rule, " ".join(words))
    rule = "must be a number of schemas of the database (PostgreSQL), or a list of database URLs"
    if given is None or (isinstance(given, int) and not isinstance(given, bool)):
        if given is not None and not 1 <= given <= MOST_SHARDS:
            raise ConfigError("shards", f"must be 1 to {MOST_SHARDS:,}", given)
        return given
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise ConfigError("shards", rule, given)
    urls = list(cast("Sequence[object]", given))
    if not urls or not all(isinstance(url, str) and url for url in urls):
        raise ConfigError("shards", rule, given)
    if any(_SECOND_URL.search(str(url)) for url in urls):
        raise ConfigError("shards", "has commas between URLs: put spaces between them, or make a list", given)
    if len(set(urls)) < len(urls):
        raise ConfigError("shards", "names a database twice: each shard is a store of its own", len(urls))
    return cast("list[str]", urls)


def open_shards(url: str | None, said: int | list[str], options: StoreOptions) -> Shards:
    """Make the shards of an application; nothing is opened before the first use. Raises: ConfigError."""
    if isinstance(said, list):
        if url is not None and url != said[0]:
            rule = "names another database than the first of shards=; leave one of the two out"
            raise ConfigError("url", rule, url)
        stores = [
            Store(each, replace(options, listen_url=ear)) for each, ear in zip(said, _ears(said, options), strict=True)
        ]
        if any(store.in_memory for store in stores):
            raise ConfigError("shards", "cannot be in memory: name files, or leave shards= out", said)
    else:
        if url is None or not dialect_for(url, options).has_schemas:
            rule = "a number is for schemas of one PostgreSQL database; elsewhere name a list of URLs"
            raise ConfigError("shards", rule, said)
        name = options.schema or options.prefix
        stores = [Store(url, replace(options, schema=f"{name}_{number}")) for number in range(said)]
    if len(kinds := {store.dialect.name for store in stores}) > 1:
        rule = "must be databases of one kind: one application speaks to all of them in the same way"
        raise ConfigError("shards", rule, ", ".join(sorted(kinds)))
    ShardMap.first(len(stores), options.buckets)
    return Shards(stores, one_place=not isinstance(said, list))


def _ears(shards: Sequence[str], options: StoreOptions) -> Sequence[str | None]:
    """Give the address at which each shard is listened to: what one server notifies, no other hears."""
    if options.listen_url is None or shards[0].partition(":")[0].partition("+")[0] not in SCHEMES["postgres"]:
        return [options.listen_url] * len(shards)
    found = options.listen_url.split()
    if len(found) != len(shards):
        rule = f"must name an address for each of {len(shards)} shards, in their order and with spaces between them"
        raise ConfigError("listen_url", rule, len(found))
    return found
