"""What happens most: enqueue, claim, settle. Drawn several at once, so that every run does enough of all three."""

from typing import Literal, NamedTuple

from hypothesis import strategies as st

KEYS = ("a", "b", None)
KINDS = ("noop", "other")
WORKERS = ("ada", "bob")
How = Literal["done", "retry", "dead", "cancelled", "snooze", "release", "continue"]

any_one = st.integers(0, 99)
delays = st.sampled_from([0, 0, 0, 2_000, 20_000])
workers = st.sampled_from(WORKERS)
keys = st.sampled_from(KEYS)
# What stands still is soon to go on, or nothing would happen any more.
mostly = st.sampled_from([True, True, False])


class Enqueue(NamedTuple):
    """Jobs of one queue and kind, one for each key."""

    queue: int
    keys: list[str | None]
    kind: str = "noop"
    delay: int = 0
    attempts: int = 5
    priority: int = 0


class Claim(NamedTuple):
    """A claim; `cancelled` is one of the jobs that it gives, which somebody cancels before the worker looks at it."""

    worker: str
    queue: int
    limit: int
    suspects: bool = True
    cancelled: int | None = None


class Settle(NamedTuple):
    """The end of one job of a worker; `together` with the others of its stint where those go back."""

    worker: str
    pick: int
    how: How = "done"
    delay: int = 0
    keep: bool = True
    queue: int = 0
    together: bool = True


Act = Enqueue | Claim | Settle

_enqueues = st.builds(
    Enqueue,
    any_one,
    st.lists(keys, min_size=1, max_size=4),
    st.sampled_from(["noop", "noop", "other"]),
    delays,
    st.sampled_from([5, 2, 1]),
    st.sampled_from([0, 0, 3]),
)
_claims = st.builds(Claim, workers, any_one, st.sampled_from([1, 2, 5]), mostly, st.none() | any_one)
_ends: list[How] = ["done", "done", "done", "retry", "dead", "cancelled", "snooze", "release", "continue", "continue"]
_settles = st.builds(Settle, workers, any_one, st.sampled_from(_ends), delays, st.booleans(), any_one, st.booleans())
acts = st.lists(st.one_of(_enqueues, _claims, _claims, _settles, _settles), min_size=6, max_size=16)
