"""The turn to write, where a database has one writer."""

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from holdfast.errors import DatabaseBusy
from holdfast.store.turns import Line, Turn

PATIENCE = 30.0


def waits_at(line: Line) -> bool:
    """Say whether another thread waits for the turn."""
    if line._first.acquire(blocking=False):
        line._first.release()
        return False
    return True


def test_who_gives_the_turn_back_and_wants_it_again_stands_behind_who_waits() -> None:
    line, order = Line(), []

    def other() -> None:
        with Turn(line, PATIENCE):
            order.append("who waited")

    for _ in range(20):
        order.clear()
        with Turn(line, PATIENCE):
            thread = threading.Thread(target=other)
            thread.start()
            while not waits_at(line):
                pass
        with Turn(line, PATIENCE):
            order.append("who came back")
        thread.join()
        assert order == ["who waited", "who came back"]


def test_a_turn_that_does_not_come_in_time_is_told_and_keeps_nobody_out() -> None:
    line = Line()
    with ThreadPoolExecutor(1) as thread:
        with Turn(line, PATIENCE), pytest.raises(DatabaseBusy, match=r"not over within 0\.01 s"):
            thread.submit(Turn(line, 0.01).__enter__).result()
        assert not waits_at(line)
        with Turn(line, 0.0):
            pass


class Interrupted:
    """A lock at which a signal comes, before or after it was taken."""

    def __init__(self, lock: Any, taken: bool) -> None:
        self._lock, self._taken = lock, taken

    def acquire(self, **options: Any) -> bool:
        if self._taken:
            self._lock.acquire(**options)
        raise KeyboardInterrupt

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lock, name)


@pytest.mark.parametrize("taken", [False, True])
@pytest.mark.parametrize("which", ["_first", "_turn"])
def test_a_signal_while_one_waits_leaves_the_turn_to_others(which: str, taken: bool) -> None:
    line = Line()
    lock = getattr(line, which)
    setattr(line, which, Interrupted(lock, taken))
    with pytest.raises(KeyboardInterrupt):
        Turn(line, PATIENCE).__enter__()
    setattr(line, which, lock)
    with ThreadPoolExecutor(1) as thread:
        assert thread.submit(line.acquire, 0.0).result()
