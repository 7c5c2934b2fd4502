"""Keys from arguments: `key="order:{order_id}"` says of every job of a handler what it is about."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from string import Formatter
from typing import Any

from holdfast.errors import ConfigError, InvalidPayload
from holdfast.values.options import KEY_LENGTH, text

_RULE = 'names parameters of the handler in braces, as in key="order:{order_id}"'


class KeyTemplate:
    """A key with the names of parameters in it."""

    def __init__(self, template: str, parameters: Collection[str]) -> None:
        """Raises: ConfigError, when the handler has no such parameter, or more than plain names stand in the braces."""
        self.template = text(template, "key", KEY_LENGTH)
        try:
            parts = list(Formatter().parse(template))
        except ValueError as error:
            raise ConfigError("key", f"{_RULE} ({error})", template) from error
        self.names = [name for _, name, _, _ in parts if name is not None]
        for _, name, spec, conversion in parts:
            if name is not None and (name not in parameters or spec or conversion):
                raise ConfigError("key", f"{_RULE}; this one has {', '.join(parameters) or 'none'}", template)

    def filled(self, kind: str, arguments: Mapping[str, Any]) -> str:
        """Return the key of a job with these arguments.

        Raises: InvalidPayload for a value that makes no key; ConfigError for one that is too long.
        """
        for name in self.names:
            value = arguments.get(name)
            if value is None or (isinstance(value, float | Mapping | Collection) and not isinstance(value, str)):
                raise InvalidPayload(
                    kind, name, "the key of the job is made of it: give a text, a whole number or an id"
                )
        return text(self.template.format(**{name: arguments[name] for name in self.names}), "key", KEY_LENGTH)
