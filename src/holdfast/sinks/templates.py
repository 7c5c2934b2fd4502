"""Where a message goes, as a text with fields of the event in it: `topic="shop.{type}"`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from string import Formatter

from holdfast.errors import ConfigError
from holdfast.sinks.base import Message, Refused

FIELDS = ("type", "key", "subject", "source")


class Unsendable(Exception):
    """A message that need not be sent, since it would be refused; the text says why."""

    code = "unsendable"

    @property
    def refusal(self) -> Refused:
        return Refused(str(self), self.code)


class Unroutable(Unsendable):
    """A message has no place to go to."""

    code = "unroutable"


class TooLarge(Unsendable):
    """A message has more bytes than the receiver takes."""

    code = "too-large"

    def __init__(self, size: int, limit: int) -> None:
        super().__init__(f"it has {size} bytes, and {limit} is the limit")


@dataclass(frozen=True)
class Naming:
    """What a broker lets the name of a place hold.

    forbidden: what the template must not have; in the values of an event it becomes an underscore. limit: bytes.
    """

    forbidden: re.Pattern[str] | None = None
    limit: int | None = None


class Template:
    """The name of a topic, subject, routing key or stream, checked when the application is imported."""

    def __init__(self, setting: str, text: object, naming: Naming) -> None:
        """Raises: ConfigError for an unknown field, and for what the broker does not take."""
        self.setting = setting
        self.text = _template(setting, text)
        self._naming = naming
        self._parts = [(literal, name) for literal, name, _, _ in Formatter().parse(self.text)]
        self.fields = tuple(name for _, name in self._parts if name is not None)
        sample = "".join(literal + ("" if name is None else "x") for literal, name in self._parts)
        if naming.forbidden is not None and (found := naming.forbidden.search(sample)):
            raise ConfigError(setting, f"the broker does not take {found[0]!r} there", self.text)
        if naming.limit is not None and len(self.text.encode()) > naming.limit and not self.fields:
            raise ConfigError(setting, f"has {naming.limit} bytes at most", self.text)

    def __repr__(self) -> str:
        return repr(self.text)

    def of(self, message: Message) -> str:
        """Return the name for a message.

        Raises: Unroutable when the event lacks a field, or the name becomes too long.
        """
        if not self.fields:
            return self.text
        filled = "".join(
            literal + ("" if name is None else self._value(message, name)) for literal, name in self._parts
        )
        if self._naming.limit is not None and len(filled.encode()) > self._naming.limit:
            raise Unroutable(f"its {self.setting} would have more than {self._naming.limit} bytes")
        return filled

    def _value(self, message: Message, name: str) -> str:
        value = message.key if name == "key" else getattr(message.event, name)
        if not value:
            raise Unroutable(f"its {self.setting} is {self.text!r}, and the event has no {name}")
        return self._naming.forbidden.sub("_", value) if self._naming.forbidden is not None else str(value)


def _template(setting: str, text: object) -> str:
    rule = f"is a text that may name {', '.join('{' + name + '}' for name in FIELDS)} of the event"
    if not isinstance(text, str) or not text:
        raise ConfigError(setting, rule, text)
    try:
        parts = list(Formatter().parse(text))
    except ValueError as error:
        raise ConfigError(setting, f"{rule} ({error})", text) from error
    for _, name, spec, conversion in parts:
        if name is not None and (name not in FIELDS or spec or conversion):
            raise ConfigError(setting, rule, text)
    return text
