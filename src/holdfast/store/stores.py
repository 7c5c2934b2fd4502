"""The stores of one application: its home or its shards, and the databases of foreign tables that are elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from holdfast.store.sharded import Shards
from holdfast.store.store import Store


class Stores:
    """The databases of one application, each of them once.

    The first is its home: there are its own jobs and the registry of its workers. With `shards`, the home is the first
    of them, each of them has jobs and a registry, and `whole` is all of them as one store.
    """

    def __init__(self, home: Store, shards: Shards | None = None) -> None:
        self.home = home
        self.whole: Store = shards or home
        # Those that have jobs of ours.
        self.ours = shards.stores if shards is not None else [home]
        self._by_place = {_place(home): home}

    def __iter__(self) -> Iterator[Store]:
        home, *others = self._by_place.values()
        return iter([home, *self.ours[1:], *others])

    def __len__(self) -> int:
        return len(self._by_place) + len(self.ours) - 1

    def __repr__(self) -> str:
        return f"<Stores {list(self)}>"

    def at(self, url: str | None = None) -> Store:
        """Return the store at a URL, by default the home.

        One that was not named before is made, and opens nothing before its first use. It has the options of the home,
        except those that are about one database alone: schema and listen_url.
        Raises: ConfigError for a URL that no dialect serves.
        """
        if url is None or url == self.home.url:
            return self.home
        made = Store(url, replace(self.home.options, schema=None, listen_url=None))
        return self._by_place.setdefault(_place(made), made)

    def close(self) -> None:
        """Close every connection to each of them; see `Store.close`."""
        for store in self:
            store.close()
        if self.whole is not self.home:
            self.whole.close()

    async def aclose(self) -> None:
        """The async twin of `close`."""
        for store in self:
            await store.aclose()
        if self.whole is not self.home:
            await self.whole.aclose()


def _place(store: Store) -> str:
    """Tell databases apart: by file, because one file has one line of writers in a process, else by the URL's text."""
    return store.url if store.file is None else str(store.file.resolve())
