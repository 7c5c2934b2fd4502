"""How workers on SQLite notice commits of others."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

from holdfast.errors import DatabaseBusy
from holdfast.store.connections import Link
from holdfast.store.wakers import Emit, Opens, Wake, Watcher

# How often to look at the log; docs/decisions/0011-idle-cost.md has what that costs.
WATCH_EVERY_SECONDS = 0.03
# A log written within this time may belong to a commit that is not to be seen yet (its fsync takes long), or be written
# again without a later time; then only the change counter tells.
FRESH_SECONDS = 1.0
# A file that is away (a folder unmounted, a disk failing) is tried again this soon.
LONGEST_FILE_PAUSE_SECONDS = 1.0


class SqliteWatcher(Watcher):
    """Watches the file's change counter, which every commit of another connection moves, when the log was written."""

    def __init__(self, store: Opens, file: str, worker: str, wake: Wake, emit: Emit) -> None:
        super().__init__(store, worker, wake, emit)
        self._file = file

    def _looker(self, link: Link) -> Callable[[], Any]:
        log = f"{self._file}-wal"
        # Opening may wait for a lock; reading the counter never does.
        link.tell("pragma busy_timeout = 0")
        before: Any = None
        version: int | None = None

        def look() -> int | None:
            nonlocal before, version
            stamp = log_stamp(log)
            # Reading the counter takes as much CPU as all the rest of a look.
            if stamp is None or stamp != before:
                version = self._version(link)
                # A file too busy to be read is looked at again.
                before = stamp if version is not None else None
            return version

        return look

    def _version(self, link: Link) -> int | None:
        try:
            [version] = link.raw.execute("pragma data_version").fetchone()
        except Exception as error:
            if isinstance(link.dialect.translate(error), DatabaseBusy):
                return None
            raise
        return int(version)

    def _period(self) -> float:
        return WATCH_EVERY_SECONDS

    def _longest_pause(self) -> float:
        return LONGEST_FILE_PAUSE_SECONDS


def log_stamp(path: str) -> tuple[int, int, int] | None:
    """Tell one state of SQLite's write-ahead log from another; None when it cannot be told."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    if time.time() - found.st_mtime < FRESH_SECONDS:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
