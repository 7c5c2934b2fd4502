"""Stints: jobs of one key that were claimed together run one after the other, each when the one before has ended well.

The first is in the buffer, the others hang behind it (`Work.next`). What ends in another way than well (a failure, a
lost lease, a cancel, a stop) breaks the stint: the rest goes back to its line at once, with its attempts, and what runs
next is for the line to say. The outcome of one is handed to the settler before the next begins, so that both are
written in their order; a crash between leaves both unsettled, and they run again in their order. One that completes
itself, in a transaction of its own, writes the ends of those before it with its own, as far as they are not written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from holdfast.lines import StintLease
from holdfast.worker.work import Ended, Stint, Work


class Stints:
    """The works that wait behind another; `on_broken` gives the rest of a stint back."""

    def __init__(self) -> None:
        # By work that waits: the one before it.
        self.behind: dict[Work, Work] = {}
        self.on_broken: Callable[[list[Work]], object] = list

    def __len__(self) -> int:
        return len(self.behind)

    def __contains__(self, work: Work) -> bool:
        return work in self.behind

    def link(self, works: Iterable[Work]) -> list[Work]:
        """Hang works of one claim behind those before them of their key; return those that may begin."""
        heads: list[Work] = []
        last: dict[object, Work] = {}
        for work in works:
            lease = work.lease
            if not isinstance(lease, StintLease):
                heads.append(work)
                continue
            line = (work.source, lease.queue, lease.key)
            before = last.get(line)
            if before is None:
                heads.append(work)
            else:
                before.next = work
                self.behind[work] = before
                work.stint = before.stint = before.stint or Stint()
            last[line] = work
        return heads

    def waiting(self) -> list[Work]:
        """List what waits behind another, the last of a stint first: each can be taken away without moving the next."""
        return list(reversed(self.behind))

    def after(self, ended: Ended) -> Work | None:
        """Say what runs next, now that a work has ended; where the stint is broken, the rest of it is given back."""
        following = self.let_go(ended.work)
        if following is None:
            return None
        if ended.well:
            if ended.write is not None and following.stint is not None:
                following.stint.unwritten.append(ended)
            return following
        rest = [following]
        while (work := self.let_go(rest[-1])) is not None:
            rest.append(work)
        self.on_broken(rest)
        return None

    def let_go(self, work: Work) -> Work | None:
        """Take the next one off a work, and return it."""
        following, work.next = work.next, None
        if following is not None:
            del self.behind[following]
        return following

    def remove(self, work: Work) -> None:
        """Take a work out of its stint, from behind another; what was behind it moves up."""
        before = self.behind.pop(work)
        before.next, work.next = work.next, None
        if before.next is not None:
            self.behind[before.next] = before

    def rest(self, work: Work) -> list[Work]:
        """List what waits behind a work, in its order."""
        found: list[Work] = []
        while work.next is not None:
            work = work.next
            found.append(work)
        return found
