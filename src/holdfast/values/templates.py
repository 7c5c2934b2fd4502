"""Keys from arguments: `key="order:{order_id}"` says of every job of a handler what it is about."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from string import Formatter
from typing import Any

from holdfast.errors import ConfigError, InvalidPayload
from holdfast.values.ids import bucket, fnv
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
        # What stands before and behind the only name, where there is one and room for the longest number.
        self._around: tuple[str, str, str] | None = None
        if len(self.names) == 1 and len(template) + 18 <= KEY_LENGTH:
            texts, place = [part[0] for part in parts], [part[1] for part in parts].index(self.names[0]) + 1
            self._around = "".join(texts[:place]), self.names[0], "".join(texts[place:])
            self._begun = fnv(self._around[0])
        for _, name, spec, conversion in parts:
            if name is not None and (name not in parameters or spec or conversion):
                raise ConfigError("key", f"{_RULE}; this one has {', '.join(parameters) or 'none'}", template)

    def of(
        self,
        kind: str,
        named: Callable[[tuple[Any, ...], Mapping[str, Any]], Mapping[str, Any]],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        buckets: int,
    ) -> tuple[str, int]:
        """Return the key of a call, as `filled` does, and its bucket; `named` gives all of its arguments by name."""
        if self._around is not None:
            before, name, behind = self._around
            value = kwargs.get(name)
            # What most keys are made of, in a fifth of the time: a number cannot be what no key may have in it.
            if type(value) is int and 0 <= value < 10**18:
                rest = f"{value}{behind}"
                return before + rest, fnv(rest, self._begun) % buckets
        key = self.filled(kind, named(args, kwargs))
        return key, bucket(key, buckets)

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
