"""Parameters that the worker fills with what a hook of its start has given: HTTP clients, pools, session factories."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from msgspec import inspect as shapes

from holdfast.errors import ConfigError
from holdfast.values.annotations import name_of, resolved
from holdfast.values.models import is_model


class _Given:
    """The class of `GIVEN`."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "GIVEN"

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"{name}: this argument was not given. A worker gives it; a call of your own passes it.")


# The default of a parameter that a worker fills: type checkers see that callers may leave it out.
GIVEN: Any = _Given()


# Where classes come from that are mistakes in a handler: Python's own values, and ours, such as `Bulk` and `Run`.
_NOT_FROM = ("builtins", "collections", "holdfast", "typing")


def asks_for_resource(hint: Any, default: Any) -> bool:
    """Tell whether a parameter is the worker's to fill: it says so, or its class is one that no payload can carry."""
    if default is GIVEN:
        return True
    return default is inspect.Parameter.empty and is_service(hint)


def is_service(hint: Any) -> bool:
    """Tell whether an annotation is a class that JSON has no form for, such as that of a client or a pool."""
    bare = typing.get_args(hint)[0] if typing.get_origin(hint) is typing.Annotated else hint
    while isinstance(bare, typing.NewType):
        bare = bare.__supertype__
    cls = typing.get_origin(bare) or bare
    if not isinstance(cls, type) or cls.__module__.partition(".")[0] in _NOT_FROM or is_model(cls):
        return False
    try:
        return isinstance(shapes.type_info(bare), shapes.CustomType)
    except Exception:  # what msgspec cannot look at is refused where payloads are read
        return False


def given_defaults(fn: Callable[..., Any]) -> Mapping[str, Any]:
    """Return what a plain function asks for by `= GIVEN`, by parameter. Raises: ConfigError."""
    spread = (*(fn.__defaults__ or ()), *(fn.__kwdefaults__ or {}).values())
    if not any(default is GIVEN for default in spread):
        return {}
    asked = [each for each in inspect.signature(fn).parameters.values() if each.default is GIVEN]
    return {each.name: annotated(fn, each) for each in asked}


def annotated(fn: Callable[..., Any], parameter: inspect.Parameter) -> Any:
    """Resolve what a parameter asks for. Raises: ConfigError where nothing says it."""
    field = f"parameter {parameter.name} of {name_of(fn)}"
    if parameter.annotation is inspect.Parameter.empty:
        raise ConfigError(field, "must be annotated: what it is given is found by its annotation", str(parameter))
    return resolved(fn, field, parameter.annotation)


def told(hint: Any) -> str:
    """Name an annotation as one would write it."""
    if isinstance(hint, type) and not typing.get_args(hint):
        return f"{hint.__module__}.{hint.__qualname__}"
    return hint.__name__ if isinstance(hint, typing.NewType) else str(hint)
