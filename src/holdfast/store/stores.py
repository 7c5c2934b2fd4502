"""The stores of one application: its home, and the databases of foreign tables that are elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from holdfast.store.store import Store


class Stores:
    """The databases of one application, each of them once.

    The first is its home: there are its own jobs and the registry of its workers.
    """

    def __init__(self, home: Store) -> None:
        self.home = home
        self._by_place = {_place(home): home}

    def __iter__(self) -> Iterator[Store]:
        return iter(list(self._by_place.values()))

    def __len__(self) -> int:
        return len(self._by_place)

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

    async def aclose(self) -> None:
        """The async twin of `close`."""
        for store in self:
            await store.aclose()


def _place(store: Store) -> str:
    """Tell databases apart: by file, because one file has one line of writers in a process, else by the URL's text."""
    return store.url if store.file is None else str(store.file.resolve())
