"""The relay: deliveries of one route as messages to its sink, and an end for each. Nothing is locked meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, cast

from holdfast.bulk import SHRINKS_BY
from holdfast.errors import TimedOut, Unusable
from holdfast.outbox.envelope import opened
from holdfast.outbox.publishing import OWN_HEADERS
from holdfast.sinks import Delivered, Failed, Message, Outcome, Refused, SinkDown
from holdfast.sinks.base import NO_HEADERS
from holdfast.values.failure import type_name, words
from holdfast.values.payload import decode_value
from holdfast.values.retry import delay_by, seconds
from holdfast.values.rows import Lease
from holdfast.worker.attempt_context import stepped
from holdfast.worker.bulk_executor import BulkExecutor
from holdfast.worker.handler_executor import loop_runs, within
from holdfast.worker.route_source import Delivery, RouteSource, bytes_of, size_of
from holdfast.worker.work import Ended, Work

# How often a delivery may be under way when its sink goes away before that counts as its fault.
FREE_LOSSES = 3
# Of how many deliveries that is remembered, the latest ones.
LOSSES_KEPT = 10_000


class Parcel(NamedTuple):
    """A delivery, and the message that it is."""

    work: Work
    message: Message


class RelayExecutor(BulkExecutor):
    """Delivers the messages of routes for one worker; works of one key that wait behind each other go together."""

    takes_stints = True
    operation = "send"

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._losses = Losses()

    def batch_of(self, first: Work) -> int:
        lease, most = first.lease, _delivery(first).route.batch
        if lease.lapses > first.handler.free_lapses:
            return 1
        # A call that raises fails all its messages. The smaller the next one, the fewer suffer from one of them.
        return max(1, most // int(SHRINKS_BY ** min(lease.attempt - 1, 9)))

    def goes_with(self, first: Work, other: Work) -> bool:
        if other.handler is not first.handler:
            return False
        one, two = first.lease, other.lease
        # Nearly all: none of them was tried before.
        if one.attempt == two.attempt == 1 and not one.lapses and not two.lapses:
            return True
        return self.batch_of(other) == self.batch_of(first)

    async def _together(self, works: Sequence[Work]) -> list[Ended]:
        self._fresh(*works).run(self._start, works)
        ends: list[Ended] = []
        parcels, unreadable, behind = _read(works)
        stopped: set[str] = set()
        for part in _parts(parcels, _delivery(works[0]).route.batch_bytes):
            sendable: list[Parcel] = []
            for one in part:
                if one.work.interrupt is not None:
                    # While another part was sent: the relay stops, or this delivery is another's or not wanted now.
                    ends += self._all_failed([one], asyncio.CancelledError(), stopped)
                elif one.message.key in stopped:
                    ends.append(self._outcomes.released(one.work))
                else:
                    sendable.append(one)
            if sendable:
                ends += await self._sent(sendable, stopped)
        for work, error in unreadable:
            # It will read no better the next time. Where one before it was not delivered, it was not its turn.
            is_next = work.lease.key not in stopped and work.interrupt is None
            ends.append(self._outcomes.dead(work, error) if is_next else self._outcomes.released(work))
        return [*ends, *map(self._outcomes.released, behind)]

    async def _sent(self, parcels: Sequence[Parcel], stopped: set[str]) -> list[Ended]:
        """Make one call of the sink. Keys behind which nothing may be sent any more are added to `stopped`."""
        first = parcels[0].work
        delivery = _delivery(first)
        breaker = cast("RouteSource", first.source).breaker_for(first.lease.kind)
        probes, ticket = breaker.is_open, breaker.enter()
        if ticket is None:
            return self._given_back(parcels, stopped)
        try:
            sending = within(delivery.timeout, delivery.route.sink.send([one.message for one in parcels]))
            outcomes = _checked(await stepped(self._fresh(*(one.work for one in parcels)), sending), len(parcels))
        except SinkDown as down:
            breaker.down(ticket, *_said_by(down))
            return self._given_back(parcels, stopped)
        except TimedOut:
            outcomes = [Failed(f"no answer within {delivery.timeout:g} seconds", unknown=True)] * len(parcels)
        except GeneratorExit:
            breaker.left(ticket)
            if not loop_runs():
                raise
            return self._given_back(parcels, stopped)
        except BaseException as error:
            breaker.left(ticket) if isinstance(error, asyncio.CancelledError) else breaker.up(ticket)
            return self._all_failed(parcels, error, stopped)
        lost = next((one for one in outcomes if isinstance(one, Failed) and one.lost), None)
        if lost is None and all(isinstance(one, Failed) and one.unknown for one in outcomes):
            # Nothing was confirmed and nothing refused: nobody may be there, as in an outage that cuts no connection.
            lost = cast("Failed", outcomes[0])
        if lost is None:
            breaker.up(ticket)
        else:
            breaker.down(ticket, words(lost.reason))
        return self._judged_each(parcels, outcomes, stopped, probes=probes and lost is not None)

    # What came of it

    def _judged_each(
        self, parcels: Sequence[Parcel], outcomes: Sequence[Outcome], stopped: set[str], *, probes: bool
    ) -> list[Ended]:
        if set(map(type, outcomes)) == {Delivered} and not any(one.work.interrupt for one in parcels):
            # Nearly always. What is the same for all of them is worked out once.
            receipts = [cast("Delivered", one).receipt for one in outcomes]
            return self._outcomes.all_done([one.work for one in parcels], receipts)
        ends: list[Ended] = []
        for (work, message), outcome in zip(parcels, outcomes, strict=True):
            if isinstance(outcome, Delivered) and work.interrupt is None:
                ends.append(self._outcomes.read(self._outcomes.done, work, outcome.receipt))
                continue
            if isinstance(outcome, Failed) and message.key in stopped and work.interrupt is None:
                # It was not its turn.
                ends.append(self._outcomes.released(work))
                continue
            if message.key is not None and not isinstance(outcome, Delivered):
                stopped.add(message.key)
            if isinstance(outcome, Failed) and work.interrupt is None and (outcome.lost or outcome.unknown):
                if probes:
                    ends.append(self._put_off(work, outcome))
                    continue
                if outcome.lost and self._losses.is_free(work.lease.id):
                    ends.append(self._outcomes.released(work))
                    continue
            ends.append(self._outcomes.read(self._end_of, work, outcome))
        return ends

    def _end_of(self, work: Work, outcome: Outcome) -> Ended:
        outcomes = self._outcomes
        if work.interrupt == "lost" or (work.interrupt and not isinstance(outcome, Delivered)):
            return outcomes.raised(work, asyncio.CancelledError())
        match outcome:
            case Delivered():
                return outcomes.done(work, outcome.receipt)
            case Failed():
                return outcomes.failed(work, outcome.reason, outcome.retry_after)
            case Refused():
                return outcomes.refused(work, outcome.reason, outcome.code)

    def _all_failed(self, parcels: Sequence[Parcel], error: BaseException, stopped: set[str]) -> list[Ended]:
        stopped.update(one.message.key for one in parcels if one.message.key is not None)
        judge = self._outcomes.raised_for_several if len(parcels) > 1 else self._outcomes.raised
        return [self._outcomes.read(judge, one.work, error) for one in parcels]

    def _given_back(self, parcels: Sequence[Parcel], stopped: set[str]) -> list[Ended]:
        """Release deliveries with their attempts: nothing of them was sent."""
        stopped.update(one.message.key for one in parcels if one.message.key is not None)
        return [self._outcomes.released(one.work) for one in parcels]

    def _put_off(self, work: Work, outcome: Failed) -> Ended:
        """Try a probe of which nothing was heard again later, with its attempts.

        Later, so that the next probe has other messages: one that breaks the connection must not be every probe.
        """
        delay, _ = delay_by(1, work.handler.options.retry)
        return self._outcomes.put_off(work, delay, words(outcome.reason))


class Losses:
    """How often each delivery was under way when its sink went away, as far as this relay remembers.

    An outage is not the fault of a message, and uses none of its attempts. But one that makes its receiver hang up
    would be sent for ever: after a few times it uses them.
    """

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}

    def is_free(self, delivery: str) -> bool:
        """Note that a delivery was under way; tell whether that is the outage's fault still."""
        count = self._counts.pop(delivery, 0) + 1
        self._counts[delivery] = count
        if len(self._counts) > LOSSES_KEPT:
            del self._counts[next(iter(self._counts))]
        return count <= FREE_LOSSES


def _read(works: Sequence[Work]) -> tuple[list[Parcel], list[tuple[Work, BaseException]], list[Work]]:
    """Read deliveries: those to be sent, those that cannot be read, and those behind one of these with their key.

    Whether a key goes on behind a dead letter is for its line to say, so the last are not sent now.
    """
    parcels: list[Parcel] = []
    unreadable: list[tuple[Work, BaseException]] = []
    behind: list[Work] = []
    broken: set[str] = set()
    for work in works:
        key = work.lease.key
        if key in broken:
            behind.append(work)
            continue
        try:
            parcels.append(Parcel(work, message_of(work.lease)))
        except BaseException as error:
            unreadable.append((work, error))
            if key is not None:
                broken.add(key)
    return parcels, unreadable, behind


def message_of(lease: Lease) -> Message:
    """Read a delivery as the message that a sink gets. Raises: InvalidPayload, ConfigError."""
    own: Mapping[str, str] = NO_HEADERS
    if lease.headers is not None:
        headers: dict[str, str] = decode_value(lease.headers)
        own = {name: value for name, value in headers.items() if not name.startswith(OWN_HEADERS)}
    return Message(opened(lease.payload), lease.key, own, lease.attempt)


def _parts(parcels: Sequence[Parcel], most_bytes: int) -> Iterator[list[Parcel]]:
    """Part a batch so that each call takes no more bytes than it may, or one message."""
    if parcels and bytes_of([one.work.lease for one in parcels]) <= most_bytes:
        yield list(parcels)
        return
    part: list[Parcel] = []
    taken = 0
    for one in parcels:
        size = size_of(one.work.lease)
        if part and taken + size > most_bytes:
            yield part
            part, taken = [], 0
        part.append(one)
        taken += size
    if part:
        yield part


# Not `Delivered | Failed | Refused`, which would be made anew for each message.
_OUTCOMES = (Delivered, Failed, Refused)


def _checked(outcomes: Any, count: int) -> Sequence[Outcome]:
    """Check what a sink gave. Raises: Unusable."""
    if (
        isinstance(outcomes, list | tuple)
        and len(outcomes) == count
        and all(isinstance(one, _OUTCOMES) for one in outcomes)
    ):
        return cast("Sequence[Outcome]", outcomes)
    length = f" with {len(outcomes)} entries" if isinstance(outcomes, list | tuple) else ""
    raise Unusable(
        "What the sink returned",
        f"{type_name(outcomes)}{length}",
        f"return a list with Delivered, Failed or Refused for each of the {count} messages, in their order",
    )


def _said_by(down: SinkDown) -> tuple[str, float | None]:
    """Read why a sink is down, and the least pause that it asks for; one that cannot be read is left out."""
    try:
        return words(down.reason), None if down.retry_after is None else seconds(down.retry_after, "retry_after")
    except Exception:
        # An exception of the sink's own, with other fields than it should have: it is down all the same.
        return words(down), None


def _delivery(work: Work) -> Delivery:
    return cast("Delivery", work.handler)
