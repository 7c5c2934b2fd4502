"""Messages of one key keep their order: what follows one that was not delivered is not sent.

A broker confirms each message by itself, so a second message of a key may arrive although the first did not. The next
one of a key therefore leaves only when the one before it is confirmed; messages of different keys go together.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias, cast

from holdfast.sinks.base import Delivered, Failed, Message, Outcome, SinkDown


@dataclass(frozen=True, slots=True)
class Down:
    """The receiver takes nothing now, and this message did not arrive: SinkDown, if it is so for the whole call."""

    reason: str
    retry_after: float | None = None


Answer: TypeAlias = Outcome | Down
SendWave: TypeAlias = Callable[[Sequence[Message]], Awaitable[Sequence[Answer]]]
SendOne: TypeAlias = Callable[[Message], Awaitable[Answer]]

BEHIND = Failed("not sent: a message of the same key before it was not delivered")


async def in_waves(messages: Sequence[Message], send: SendWave) -> list[Outcome]:
    """Send the first message of every key together, then the second ones of keys that go on, and so on.

    Raises: SinkDown when no message could be delivered because the receiver is down.
    """
    keys = [message.key for message in messages if message.key is not None]
    if messages and len(set(keys)) == len(keys):
        # Nearly always: one wave, and nothing to keep in order.
        return concluded(await send(messages), one_place=True)
    answers: list[Answer] = [BEHIND] * len(messages)
    stopped: set[str | None] = set()
    for wave in _waves(messages):
        now = [index for index in wave if messages[index].key not in stopped]
        if not now:
            break
        try:
            heard = await send([messages[index] for index in now])
        except SinkDown as down:
            heard = [Down(down.reason, down.retry_after)] * len(now)
        for index, answer in zip(now, heard, strict=True):
            answers[index] = answer
        stopped |= {messages[index].key for index in now if not isinstance(answers[index], Delivered)} - {None}
    return concluded(answers, one_place=True)


async def in_turn(messages: Sequence[Message], send: SendOne, concurrency: int) -> list[Outcome]:
    """Send one by one, that many at the same time, never two of one key; with 1 in the order in which they came.

    Raises: SinkDown as `in_waves` does.
    """
    answers: list[Answer] = [BEHIND] * len(messages)
    gate = asyncio.Semaphore(concurrency)

    async def walk(line: Sequence[int]) -> None:
        for index in line:
            async with gate:
                answers[index] = await _one(send, messages[index])
            if not isinstance(answers[index], Delivered):
                return

    if concurrency == 1:
        stopped: set[str] = set()
        for index, message in enumerate(messages):
            if message.key is None or message.key not in stopped:
                answers[index] = await _one(send, message)
            if message.key is not None and not isinstance(answers[index], Delivered):
                stopped.add(message.key)
    else:
        async with asyncio.TaskGroup() as group:
            for line in _lines(messages):
                group.create_task(walk(line))
    return concluded(answers)


async def _one(send: SendOne, message: Message) -> Answer:
    try:
        return await send(message)
    except SinkDown as down:
        return Down(down.reason, down.retry_after)


def concluded(answers: Sequence[Answer], *, one_place: bool = False) -> list[Outcome]:
    """Make outcomes of the answers to one call.

    one_place: whether all messages go to one receiver, so that it is away if it is away for one of them.
    Raises: SinkDown when that is the answer to everything that was sent.
    """
    down = next((answer for answer in answers if isinstance(answer, Down)), None)
    if down is None:
        return cast("list[Outcome]", list(answers))
    if all(isinstance(answer, Down) or answer is BEHIND for answer in answers):
        raise SinkDown(down.reason, down.retry_after) from None
    return [
        Failed(each.reason, each.retry_after, lost=one_place) if isinstance(each, Down) else each for each in answers
    ]


def _waves(messages: Sequence[Message]) -> list[list[int]]:
    waves: list[list[int]] = []
    for line in _lines(messages):
        for rank, index in enumerate(line):
            if rank == len(waves):
                waves.append([])
            waves[rank].append(index)
    return waves


def _lines(messages: Sequence[Message]) -> Iterator[list[int]]:
    """Group the messages by key; one without a key stands alone."""
    lines: dict[str | int, list[int]] = {}
    for index, message in enumerate(messages):
        lines.setdefault(index if message.key is None else message.key, []).append(index)
    yield from lines.values()
