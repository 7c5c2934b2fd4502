"""What tasks raise, by the names that Celery has for it."""

from __future__ import annotations


class Retry(Exception):
    """Raised by `self.retry(…)`: the job is tried again after `delay` seconds, and this attempt counts."""

    def __init__(self, delay: float, reason: str = "", error: BaseException | None = None) -> None:
        super().__init__(f"try again in {delay:g} s" + (f": {reason}" if reason else ""))
        self.delay = delay
        self.reason = reason
        self.error = error


class MaxRetriesExceededError(Exception):
    """Raised by `self.retry()` without `exc=` when no retry is left; the job becomes a dead letter."""


class Ignore(Exception):
    """Raised by a task whose work is no longer wanted: the job ends as cancelled."""


class Reject(Exception):
    """Raised by a task that does not take its job: it becomes a dead letter, or runs again with `requeue=True`."""

    def __init__(self, reason: object = None, requeue: bool = False) -> None:
        super().__init__("rejected" if reason is None else str(reason))
        self.requeue = requeue
