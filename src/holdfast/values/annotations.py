"""Annotations of functions, resolved where the function was written."""

from __future__ import annotations

import functools
import inspect
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from holdfast.errors import ConfigError


def resolved(fn: Any, field: str, annotation: Any, also: Mapping[str, Any] | None = None) -> Any:
    """Resolve one annotation of a function; names in `also` are known even where they are imported for types only.

    Raises: ConfigError, which calls it `field`.
    """

    def holder() -> None: ...

    holder.__annotations__ = {"it": annotation}
    try:
        return typing.get_type_hints(holder, {**(also or {}), **_scope(fn)}, include_extras=True)["it"]
    except Exception as error:
        rule = f"must have an annotation that can be resolved where the handler is defined ({error})"
        raise ConfigError(field, rule, annotation) from error


def function_of(fn: Any) -> types.FunctionType:
    """Find the plain function behind wrappers, partials, methods and callable objects."""
    while not isinstance(fn, types.FunctionType) or hasattr(fn, "__wrapped__"):
        if isinstance(fn, functools.partial):
            fn = fn.func
        else:
            fn = getattr(fn, "__wrapped__", None) or getattr(fn, "__func__", None) or type(fn).__call__
    return fn


def name_of(fn: Any) -> str:
    """Return what a function or callable object is called."""
    return str(getattr(fn, "__name__", type(fn).__name__))


def place_of(fn: Any) -> str:
    """Say which function it is and where it stands: `shop.jobs.send (/srv/shop/jobs.py:12)`."""
    plain = inspect.unwrap(fn.func if isinstance(fn, functools.partial) else fn)
    called = f"{getattr(plain, '__module__', '')}.{getattr(plain, '__qualname__', name_of(plain))}"
    code = getattr(plain, "__code__", None)
    return called if code is None else f"{called} ({code.co_filename}:{code.co_firstlineno})"


def _scope(fn: Any) -> dict[str, Any]:
    """Return the names that a function's text can see."""
    function = function_of(fn)
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=False)
    return {**function.__globals__, **dict(_filled(cells))}


def _filled(cells: Iterable[tuple[str, types.CellType]]) -> Iterator[tuple[str, Any]]:
    for name, cell in cells:
        try:
            yield name, cell.cell_contents
        except ValueError:  # a name of the enclosing function that has no value yet
            continue
