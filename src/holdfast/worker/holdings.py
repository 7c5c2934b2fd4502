"""What a worker holds: every job whose lease is its own, from the claim until its outcome is committed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from holdfast.life.source import Source
from holdfast.lines import StintLease
from holdfast.values.pauses import Paused
from holdfast.values.rows import Lease, PutBack
from holdfast.worker.outcomes import Outcomes
from holdfast.worker.settler import Settler
from holdfast.worker.slots import Slots
from holdfast.worker.work import Ended, Work

# A lease is renewed when this share of it has passed: one lost round of renewals, or two, costs no lease.
RENEWALS_PER_LEASE = 6
# A shorter lease than this was written by hand: it makes the rounds no quicker.
SHORTEST_LEASE_SECONDS = 0.5


class Holdings:
    """The jobs of one worker, from all its stores, and what becomes of one that is lost, cancelled or not needed.

    `settlers` write outcomes, each for the sources of its store; `wake` has the claims look again at once.
    """

    def __init__(
        self,
        slots: Slots,
        outcomes: Outcomes,
        settlers: Mapping[Source, Settler],
        wake: Callable[[], None],
        shortest_lease: float,
    ) -> None:
        self.held: dict[Any, Work] = {}
        # The shortest lease of any handler or job so far, in seconds: the rounds of renewals go by it.
        self.shortest_lease = shortest_lease
        self.lease_got_shorter = asyncio.Event()
        self._slots = slots
        self._outcomes = outcomes
        self._settlers = settlers
        self._wake = wake

    # Taking and letting go

    def take(self, works: list[Work], *, run: bool) -> None:
        """Take charge of what was claimed: run it, or give it back at once, or see that it is cancelled already."""
        ready, held = [], self.held
        if works:
            self.note_lease(min([work.lease.lease_ms for work in works]) / 1000)
        for work in works:
            if work.key in held:
                # The job came round again while an attempt of ours, reaped by others, is still at it.
                self.lose(held[work.key])
            held[work.key] = work
            stop = work.lease.cancel_requested
            # It may come with the reason, and is not to run then. Otherwise a run hears of it itself, and cleans up.
            if stop is not False and (isinstance(stop, str) or (stop and work.handler.executor != "run")):
                reason = stop if isinstance(stop, str) else "cancelled before it ran"
                self._settle(self._outcomes.cancelled(work, reason))
            else:
                ready.append(work)
        if run:
            self._slots.feed(ready)
        else:
            self.give_back(ready)

    def note_lease(self, lease_seconds: float) -> None:
        """Note a lease that was claimed; one shorter than all before makes the renewals quicker from now on."""
        shortest = max(lease_seconds, SHORTEST_LEASE_SECONDS)
        if shortest < self.shortest_lease:
            self.shortest_lease = shortest
            self.lease_got_shorter.set()

    def forget(self, batch: Iterable[Ended], at_once: bool = False) -> None:
        """Let go of jobs whose outcome is committed, or can never be; `at_once`: what follows may be due now."""
        held = self.held
        for ended in batch:
            work = ended.work
            lease = work.lease
            # Only if it is this lease's entry: the same job may have been claimed again meanwhile.
            if held.get(work.key) is work:
                del held[work.key]
            if lease.lapses:
                self._slots.line.ended(work)
            if work.stint is not None:
                work.stint.forget(work)
            if not at_once:
                # A queue with order or limits has room again.
                at_once = lease.__class__ is not Lease or work.handler.waits_for_room
                at_once = at_once or (ended.write.__class__ is PutBack and ended.write.delay_ms == 0)
        if at_once:
            # To be tried again at once: not every database tells its workers so.
            self._wake()

    # News of a lease

    def lose(self, work: Work) -> None:
        """React to a lost lease: stop its handler, or drop it from the buffer."""
        if work.slot is None:
            # Others run it now, and what is behind it must not come before it.
            self.give_back([one for one in self._slots.stints.rest(work) if self._slots.withdraw(one)])
        if self._slots.withdraw(work):
            self._settle(self._outcomes.lost(work))
        else:
            self._slots.interrupt(work, "lost")

    def cancel(self, work: Work) -> None:
        """React to a cancel request: stop its handler, or end it before it starts."""
        if work.slot is None and work.handler.executor == "run":
            # What it did before may have to be undone: it begins with that, as one that is claimed after the request.
            work.lease = work.lease._replace(cancel_requested=True)
        elif self._slots.withdraw(work):
            self._settle(self._outcomes.cancelled(work, "cancelled before it ran"))
        else:
            self._slots.interrupt(work, "cancelled")

    # Giving back

    def take_back(self, older_than: float = float("inf")) -> list[Work]:
        """Take jobs away from the slots that have not started: all, or those that could have before a moment."""
        return self._slots.take_back(older_than)

    def give_back(self, works: list[Work], later: float | None = None) -> int:
        """Return jobs that have not run to their queue: to their old places, or after `later` seconds."""
        for work in works:
            self._settle(self._outcomes.released(work, later))
        return len(works)

    def give_back_paused(self, source: Source) -> int:
        """Return what has not begun of the queues and kinds that a source knows to be paused.

        What is behind such a job in its stint goes back, too: it must not come before it.
        """
        back: list[Work] = []
        for work in self._slots.waiting():
            if work.source is source and source.paused.holds(work.lease.queue, work.lease.kind):
                stint = [*self._slots.stints.rest(work), work]
                back += [one for one in stint if self._slots.withdraw(one)]
        return self.give_back(back)

    def oldest_waiting(self, otherwise: float) -> float:
        """Return since when the job has waited that has waited longest for a slot."""
        return min((work.ready for work in self._slots.waiting()), default=otherwise)

    def _settle(self, ended: Ended) -> None:
        self._settlers[ended.work.source].add(ended)

    # Questions

    def known(self, source: Source) -> list[Lease]:
        """List what this worker knows it holds in the tables of a source; our own have several sources."""
        ours = source.ours
        return [work.lease for work in self.held.values() if work.source is source or (ours and work.source.ours)]

    def of(self, source: Source) -> list[Lease]:
        """List the leases that came by a source."""
        return [work.lease for work in self.held.values() if work.source is source]

    def due(self, source: Source, now: float) -> list[Work]:
        """List what is to be renewed now."""
        return [work for work in self.held.values() if work.source is source and _is_due(work, now)]

    def holds(self, work: Work) -> bool:
        return self.held.get(work.key) is work


def apart(works: Iterable[Work], paused: Paused) -> tuple[list[Work], list[Work]]:
    """Part what was claimed into what may begin and what is paused, with what is behind that in its stint."""
    ready: list[Work] = []
    back: list[Work] = []
    held_up: set[tuple[str, str | None]] = set()
    for work in works:
        lease = work.lease
        line = (lease.queue, lease.key)
        if paused.holds(lease.queue, lease.kind) or (isinstance(lease, StintLease) and line in held_up):
            held_up.add(line)
            back.append(work)
        else:
            ready.append(work)
    return ready, back


def _is_due(work: Work, now: float) -> bool:
    """Tell whether enough of a lease has passed; one whose job is being completed belongs to that transaction."""
    if work.job is not None and work.job.completing:
        return False
    return now - work.renewed >= work.lease.lease_ms / 1000 / RENEWALS_PER_LEASE
