"""Shards on the command line: which ones the options name, and what is said of one that does not answer."""

from __future__ import annotations

from collections.abc import Callable

from holdfast.errors import DatabaseBusy, DatabaseUnavailable, SchemaMismatch, SchemaMissing, StoreError
from holdfast.store import Shards, Store, founding, migrate
from holdfast.store.opening import open_shards, said_of_shards
from holdfast.values.options import StoreOptions
from holdfast.values.urls import shown
from holdfast.values.words import one_line

AWAY = (DatabaseUnavailable, DatabaseBusy)


def said_of(words: str) -> int | list[str]:
    """Read --shards, as HOLDFAST_SHARDS is read."""
    parted = words.split()
    return int(parted[0]) if len(parted) == 1 and parted[0].isdigit() else parted


def opened(url: str, said: str | None, options: StoreOptions) -> Store:
    """Make the store, or the shards, that the options name. Raises: ConfigError."""
    shards = said_of_shards(None if said is None else said_of(said))
    return Store(url, options) if shards is None else open_shards(url, shards, options)


def parts(store: Store) -> list[tuple[str, Store]]:
    """Return the stores of which one is made, each with its name; one that is not made of others has none."""
    if not isinstance(store, Shards):
        return [("", store)]
    return [(f"shard {number}", one) for number, one in enumerate(store.stores)]


def where_of(store: Store) -> str:
    """Say where a shard is, without its password."""
    return f"{shown(store.url)}, schema {store.options.schema}" if store.options.schema else shown(store.url)


def checked(shards: Shards) -> dict[int, StoreError]:
    """Find the shards that do not answer, or that have other tables than this version.

    Raises: DatabaseUnavailable, DatabaseBusy where none answers; Conflict where they are not set up, or misnamed.
    """
    wrong: dict[int, StoreError] = {}
    for number, store in enumerate(shards.stores):
        try:
            store.run_once(migrate.check(store.schema_version))
        except (*AWAY, SchemaMissing, SchemaMismatch) as error:
            wrong[number] = error
    if len(wrong) == len(shards.stores) and all(isinstance(error, AWAY) for error in wrong.values()):
        raise wrong[0]
    if all(isinstance(error, AWAY) for error in wrong.values()):
        shards.go(shards.map())
    return wrong


def trouble_of(shards: Shards, tell: Callable[[str], None]) -> tuple[str, str] | None:
    """Say what is wrong with the tables of a shard, and what to do; tell of shards that do not answer, and of a list
    too short. Raises: as `checked`.
    """
    wrong = checked(shards)
    gone = shards.go(founding.lost(shards)) if wrong else {}
    for number, error in wrong.items():
        if isinstance(error, AWAY):
            shards.missing(number, error)
        elif number in gone:
            return founding.why_lost(shards, number, gone[number]), "restore it, or check its URL"
        else:
            return f"shard {number} ({where_of(shards.stores[number])}): {error}", ""
    if (known := shards.known) is not None and (short := known.left_out(len(shards.stores))):
        tell(f"note: {short}")
    return None


def tell_of(shards: Shards, tell: Callable[[str], None]) -> None:
    """Have it told of each shard that does not answer, once: what is in it is missing in what is printed."""
    told: set[int] = set()

    def note(number: int, error: Exception) -> None:
        if number not in told:
            told.add(number)
            where = where_of(shards.stores[number])
            tell(f"shard {number} ({where}) does not answer, and is left out: {one_line(error, 300)}")

    shards.missing = note
