"""The text of a traceback, as `traceback.format_exception` gives it, without making the same one over and over.

To read source lines and to find what to underline takes 40 to 100 µs for two frames, and in a storm of failures all
have the same frames. What stands around the messages is therefore kept for each place: the line in each frame, of the
exception and of those that it is shown with. Messages are asked for anew each time.

Only text is kept, and the code of the frames: no exception, no frame, no argument and no class. A place is kept if
putting the text together from it gave what `traceback` gave; what is unusual (groups, deep recursion, classes that
answer in ways of their own) is left to `traceback`, and costs what it always did.
"""

from __future__ import annotations

import linecache
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from functools import cache
from types import CodeType, TracebackType
from typing import Literal
from weakref import WeakKeyDictionary

# What is kept at most. One more place, and it starts over; a larger one is left to `traceback`.
MOST_PLACES, MOST_FRAMES, MOST_CHARACTERS = 256, 100, 20_000
# How long a source file is taken to be what it was: to ask the system took 3 to 6 µs for each file of each failure.
SOURCES_LIVE_SECONDS = 0.01

# How the lines of an exception itself come about: as in `_lines`, as `traceback` makes them, or in ways of its class.
_Kind = Literal["plain", "special", "odd"]
_kinds: WeakKeyDictionary[type, _Kind] = WeakKeyDictionary()
# What `traceback` writes of these depends on more than their text: a line of source, or names like the wrong one.
_SPECIAL = (SyntaxError, ImportError, NameError, AttributeError)
# What a class may define so that its exceptions do not answer as the interpreter's own do.
_ANSWERS = frozenset(
    f"__{name}__"
    for name in (
        *("bool", "cause", "class", "context", "dict", "getattr", "getattribute", "len"),
        *("notes", "suppress_context", "traceback"),
    )
)
_CAUSE, _CONTEXT = -1, -2


class Place:
    """What stands before the lines of each exception that is shown, in the order of the text."""

    __slots__ = ("_codes", "_looked", "_sources", "before")

    def __init__(self, before: Sequence[str], codes: Sequence[CodeType]) -> None:
        self.before = before
        # Kept so that no other code can have the id of one of these.
        self._codes = codes
        # What linecache has of each file: the same object for as long as it has not changed.
        self._sources = {code.co_filename: linecache.cache.get(code.co_filename) for code in codes}
        self._looked = time.monotonic()

    def can_be_watched(self) -> bool:
        """Tell whether a change of the source would be seen; where there is none, it must be one that never comes."""
        return all(
            (name.startswith("<") and name.endswith(">")) if known is None else len(known) > 1
            for name, known in self._sources.items()
        )

    def is_as_it_was(self) -> bool:
        """Tell whether the source is what it was, by what `traceback` goes by, too."""
        now = time.monotonic()
        if now - self._looked < SOURCES_LIVE_SECONDS:
            return True
        self._looked = now
        for name in self._sources:
            linecache.checkcache(name)
        return all(linecache.cache.get(name) is known for name, known in self._sources.items())


# By the code, the instruction and the line of each frame. None: `traceback` is to make it each time.
_places: dict[tuple[int, ...], Place | None] = {}


def formatted(error: BaseException) -> str:
    """Return what `"".join(traceback.format_exception(error))` does, and raise what it raises."""
    shown: list[BaseException] = []
    where = _where(error, shown)
    if where is None:
        return _by_traceback(error)
    place = _places.get(where)
    if place is not None and place.is_as_it_was():
        return _put_together(place.before, shown)
    text = _by_traceback(error)
    if place is not None or where not in _places:
        _keep(where, _seen(shown, text))
    return text


def _by_traceback(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))


# Where it happened


def _where(error: BaseException, shown: list[BaseException]) -> tuple[int, ...] | None:
    """Collect the exceptions that are shown, this one first, and return their place; None if more than that matters.

    As `traceback` does, it follows the cause, or else the context, and stops at what was shown before.
    """
    if "tracebacklimit" in vars(sys):
        return None
    where: list[int] = []
    while True:
        kind = _kind(type(error))
        if kind == "odd":
            return None
        shown.append(error)
        step = error.__traceback__
        while step is not None:
            if len(where) > 3 * MOST_FRAMES:
                return None
            where += id(step.tb_frame.f_code), step.tb_lasti, step.tb_lineno
            step = step.tb_next
        link, chained = _CAUSE, error.__cause__
        if chained is None or _is_one_of(shown, chained):
            link, chained = _CONTEXT, None if error.__suppress_context__ else error.__context__
        if chained is None or _is_one_of(shown, chained):
            return tuple(where)
        if kind == "special" or "__notes__" in error.__dict__:
            # Its lines are to be had only together with what it is chained to.
            return None
        where.append(link)
        error = chained


def _is_one_of(shown: list[BaseException], error: BaseException) -> bool:
    # Not by `in`: an exception may have its own idea of what it equals.
    return any(one is error for one in shown)


def _kind(cls: type[BaseException]) -> _Kind:
    if type(cls) is not type:
        # Not even a dictionary may ask such a class: it may have its own idea of a hash.
        return "odd"
    kind = _kinds.get(cls)
    if kind is None:
        kind = _kinds[cls] = _judged(cls)
    return kind


def _judged(cls: type[BaseException]) -> _Kind:
    answers = any(not _ANSWERS.isdisjoint(vars(base)) for base in cls.__mro__ if base not in (BaseException, object))
    if answers or issubclass(cls, BaseExceptionGroup) or type(cls.__module__) is not str:
        return "odd"
    return "special" if issubclass(cls, _SPECIAL) else "plain"


# What is written of it


def _put_together(before: Sequence[str], shown: Sequence[BaseException]) -> str:
    if len(shown) == 1:
        return before[0] + _lines(shown[0])
    # `traceback` asks the last one first, and writes the first one first.
    lines = [_lines(error) for error in shown]
    return "".join([part for pair in zip(before, reversed(lines), strict=True) for part in pair])


def _lines(error: BaseException) -> str:
    """Return the lines of one exception: its class and message, or all that `traceback` has to say of a special one."""
    cls = type(error)
    if _kind(cls) == "plain" and "__notes__" not in error.__dict__:
        name, module = cls.__qualname__, cls.__module__
        if module not in ("builtins", "__main__"):
            name = f"{module}.{name}"
        try:
            message = str(error)
        except BaseException:
            # What `traceback` says then, whatever was raised.
            message = "<exception str() failed>"
        if type(message) is str:
            return f"{name}: {message}\n" if message else f"{name}\n"
    alone = traceback.TracebackException(cls, error, error.__traceback__, limit=0, compact=True)
    return "".join(alone.format_exception_only())


# What is kept of it


def _keep(where: tuple[int, ...], place: Place | None) -> None:
    if len(_places) >= MOST_PLACES:
        _places.clear()
    _places[where] = place


def _seen(shown: Sequence[BaseException], text: str) -> Place | None:
    """Return what is to be kept of a text; None if the next one cannot be put together from it."""
    before = list(_before(shown))
    if sum(map(len, before)) > MOST_CHARACTERS or _put_together(before, shown) != text:
        return None
    place = Place(before, [step.tb_frame.f_code for error in shown for step in _steps(error.__traceback__)])
    return place if place.can_be_watched() else None


def _before(shown: Sequence[BaseException]) -> Iterator[str]:
    """Make what stands before the lines of each exception, in the order of the text."""
    link = ""
    for error, later in zip(reversed(shown), [*reversed(shown[:-1]), None], strict=True):
        yield link + _stack(error.__traceback__)
        if later is not None:
            link = _links()[later.__cause__ is error]


def _steps(step: TracebackType | None) -> Iterator[TracebackType]:
    while step is not None:
        yield step
        step = step.tb_next


def _stack(first: TracebackType | None) -> str:
    """Have `traceback` write the frames, with an exception that has nothing to say in the place of the real one."""
    return "".join(traceback.format_exception(Exception, Exception(), first)).removesuffix("Exception\n")


@cache
def _links() -> tuple[str, str]:
    """Return what stands between two exceptions, of which the first is the other's context, or its cause."""
    one = _stack(None) + "Exception\n"
    by_context, by_cause = Exception(), Exception()
    by_context.__context__ = by_cause.__cause__ = Exception()
    context, cause = (_by_traceback(error).removeprefix(one).removesuffix(one) for error in (by_context, by_cause))
    return context, cause


def forget() -> None:
    """Forget every place, as tests do that count them."""
    _places.clear()
