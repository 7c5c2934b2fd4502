"""How workers on MySQL and MariaDB notice new jobs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast.store.connections import Link
from holdfast.store.wakers import Watcher

# How often to look at the newest job; docs/decisions/0011-idle-cost.md has what that costs.
LOOK_EVERY_SECONDS = 0.06
# How long a look may take.
ANSWER_WITHIN_SECONDS = 5.0


class MysqlWatcher(Watcher):
    """Looks for the newest job: MySQL has nothing that tells.

    Ids rise with time, so a job that was just enqueued is the last by primary key. A retry or a replay keeps its id and
    waits for the worker's own poll.
    """

    def _looker(self, link: Link) -> Callable[[], Any]:
        newest = link.dialect.place("select max(id) from holdfast_jobs")
        link.raw.give_up_after(ANSWER_WITHIN_SECONDS)
        return lambda: link.raw.answer(newest)

    def _period(self) -> float:
        return LOOK_EVERY_SECONDS
