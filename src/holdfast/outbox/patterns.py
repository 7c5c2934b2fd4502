"""Which events a route takes: patterns over the segments of a type, as AMQP topics have them."""

from __future__ import annotations

import re
from collections.abc import Sequence

from holdfast.errors import ConfigError
from holdfast.values.texts import text

TYPE_LENGTH = 200
# One segment, and any number of them, none included.
ONE, ANY = "*", "#"
_SEGMENT = re.compile(r"[^\s.*#\x00-\x1f\x7f]+")


def event_type(value: object) -> str:
    """Check the type of an event: segments with dots between them, as in "order.created"."""
    given = text(value, "type", TYPE_LENGTH)
    if not all(map(_SEGMENT.fullmatch, given.split("."))):
        rule = 'must be segments with dots between them, without spaces, "*" and "#", as in "order.created"'
        raise ConfigError("type", rule, value)
    return given


class Pattern:
    """A pattern over types: `*` stands for one segment, `#` for any number of them, none included."""

    def __init__(self, pattern: object) -> None:
        self.text = text(pattern, "pattern", TYPE_LENGTH)
        self._segments = tuple(self.text.split("."))
        if not all(segment in (ONE, ANY) or _SEGMENT.fullmatch(segment) for segment in self._segments):
            rule = (
                'must be segments with dots between them, each a text, "*" for one segment or "#" for any number, '
                'as in "order.*" or "invoice.#"'
            )
            raise ConfigError("pattern", rule, pattern)

    def __str__(self) -> str:
        return self.text

    @property
    def name(self) -> str:
        """The pattern as a name that needs no quotes in a shell: "order.*" → "order.any", "#" → "all"."""
        return ".".join({ONE: "any", ANY: "all"}.get(segment, segment) for segment in self._segments)

    def matches(self, type: str) -> bool:
        """Tell whether events of this type are meant."""
        return _fits(self._segments, tuple(type.split(".")))


def _fits(pattern: Sequence[str], segments: Sequence[str]) -> bool:
    """Go through the pattern with the set of places in the type that it may have reached."""
    reached: set[int] = {0}
    for wanted in pattern:
        if wanted == ANY:
            reached = set(range(min(reached), len(segments) + 1)) if reached else set()
        else:
            reached = {n + 1 for n in reached if n < len(segments) and wanted in (ONE, segments[n])}
    return len(segments) in reached
