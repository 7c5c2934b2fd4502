"""Options that a call does not take: told in the words of the call, with the one that was meant."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Mapping
from difflib import get_close_matches
from typing import Any, ParamSpec, TypeVar, cast

from holdfast.errors import ConfigError

P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C", bound=type)


def only_options(call: str, given: Mapping[str, object], takes: Collection[str], advice: str = "") -> None:
    """Check that a call was given no option that it does not take; `advice` may name it as `{name}`.

    Raises: ConfigError, which names the call as people write it, and the option that was meant.
    """
    for name, value in given.items():
        if name in takes:
            continue
        near = get_close_matches(name, takes, n=1)
        hints = [f"did you mean {near[0]}?" if near else f"it takes {', '.join(takes)}"]
        if advice:
            hints.append(advice.replace("{name}", name))
        raise ConfigError(name, f"{call} takes no such option ({'; '.join(hints)})", value)


def spelt(fn: Callable[P, R]) -> Callable[P, R]:
    """Have a method of the application refuse options that it does not take, as `only_options` does.

    A signature with `**options` would do that as well, and type checkers would then find no misspelt option any more.
    """
    # What Python itself says of the call, as when something is missing, names the class that people know.
    fn.__qualname__ = f"Holdfast.{fn.__name__}"
    return _checked(fn, f"hf.{fn.__name__}()")


def spelt_fields(cls: C) -> C:
    """Have a class refuse fields that it does not have, as `only_options` does."""
    made = cast("Any", cls)
    made.__init__ = _checked(made.__init__, f"{cls.__name__}()")
    return cls


def _checked(fn: Callable[P, R], call: str) -> Callable[P, R]:
    takes = tuple(inspect.signature(fn).parameters)[1:]
    known = frozenset(takes)

    @functools.wraps(fn)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        if not known.issuperset(kwargs):
            only_options(call, cast("dict[str, Any]", kwargs), takes)
        return fn(*args, **kwargs)

    @functools.wraps(fn)
    async def achecked(*args: P.args, **kwargs: P.kwargs) -> Any:
        if not known.issuperset(kwargs):
            only_options(call, cast("dict[str, Any]", kwargs), takes)
        return await cast("Any", fn(*args, **kwargs))

    return cast("Callable[P, R]", achecked) if inspect.iscoroutinefunction(fn) else checked
