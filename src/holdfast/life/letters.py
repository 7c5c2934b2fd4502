"""Replay and discard many dead letters, in chunks that are committed one by one."""

from __future__ import annotations

from holdfast.flow import Series, in_turn
from holdfast.life.desk import Desk
from holdfast.life.listing import Replays, Wanted

# Large enough to be quick, small enough to hold no lock for long.
LETTERS_PER_COMMIT = 1_000


def replay_all(desk: Desk, wanted: Wanted, count: int, actor: str | None, *, stay: int = 0) -> Series[Replays]:
    """Replay that many letters and no more: what dies again meanwhile is not replayed again.

    stay: how many of the oldest are known to stay where they are. They are not counted, and told again.
    """
    done = Replays()
    while (left := count - len(done.ids) - max(0, len(done.conflicts) - stay)) > 0:
        # Letters in conflict stay the oldest, so each round must reach past them.
        chunk = min(LETTERS_PER_COMMIT, left) + max(stay, len(done.conflicts))
        answer = yield from in_turn(desk.replay(wanted, chunk, actor, False))
        fresh = answer.conflicts.keys() - done.conflicts.keys()
        done = joined(done, answer)
        if not answer.ids and (not fresh or len(done.conflicts) <= stay):
            break
    return done


def joined(done: Replays, more: Replays) -> Replays:
    """Put together what two chunks came to."""
    ids = [*done.ids, *more.ids]
    # A letter that was in conflict may have gone back in a later round.
    stay = {name: why for name, why in (done.conflicts | more.conflicts).items() if name not in set(ids)}
    reasons = {name: (done.reasons | more.reasons)[name] for name in stay}
    return Replays(ids, stay, reasons, None if more.rows is None else (done.rows or {}) | more.rows)


def discard_all(desk: Desk, wanted: Wanted, count: int, actor: str | None) -> Series[list[str]]:
    """Delete that many letters and no more, the oldest first, and return their ids."""
    gone: list[str] = []
    while len(gone) < count:
        chunk = yield from in_turn(desk.discard(wanted, min(LETTERS_PER_COMMIT, count - len(gone)), actor, False))
        if not chunk:
            break
        gone += chunk
    return gone
