"""What one statement carries: not too many rows, and not too much text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")

# The text of a statement: a packet of MySQL's has 16 MB by default, and quotes within quotes make four characters of
# one.
CHUNK_CHARACTERS = 2_000_000


def chunks(items: Sequence[T], rows: int, length: Callable[[T], int]) -> Iterator[Sequence[T]]:
    """Split items into what one statement carries: `rows` of them at most; `length` gives the characters of one."""
    if len(items) <= rows and sum(map(length, items)) <= CHUNK_CHARACTERS:
        if items:
            yield items
        return
    chunk: list[T] = []
    size = 0
    for item in items:
        characters = length(item)
        if chunk and (len(chunk) == rows or size + characters > CHUNK_CHARACTERS):
            yield chunk
            chunk, size = [], 0
        chunk.append(item)
        size += characters
    if chunk:
        yield chunk
