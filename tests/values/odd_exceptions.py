"""Exceptions, usual and unusual: each maker raises a new one at the same place."""

import abc
import importlib
import types
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from holdfast import Fatal
from holdfast.values.tracebacks import MOST_FRAMES

Make = Callable[[], BaseException]


def caught(raising: Callable[..., Any], *args: Any) -> BaseException:
    try:
        raising(*args)
    except BaseException as error:
        return error
    raise AssertionError("nothing was raised")


def throw(error: BaseException) -> None:
    raise error


class Plain(Exception):
    class Inner(Exception):
        pass


class Unreadable(Exception):
    def __str__(self) -> str:
        raise KeyboardInterrupt


class Restless(Exception):
    """Never says the same twice."""

    said = 0

    def __str__(self) -> str:
        self.said += 1
        return f"for the {self.said}. time"


class Numbered(Exception):
    def __str__(self) -> str:
        return 17  # type: ignore[return-value]


class Loud(str):
    __slots__ = ()

    def __str__(self) -> str:
        return self.upper()

    def __format__(self, spec: str) -> str:
        return "formatted"


class Shouting(Exception):
    def __str__(self) -> str:
        return Loud("shouted")


class False_(Exception):  # noqa: N801
    def __bool__(self) -> bool:
        return False


class Empty(Exception):
    def __len__(self) -> int:
        return 0


class Noting(Exception):
    @property
    def __notes__(self) -> list[str]:
        return ["by a property"]


class Attributed(Exception):
    def __getattr__(self, name: str) -> list[str]:
        return [f"asked for {name}"]


class Causing(Exception):
    __cause__ = property(lambda self: KeyError("by a property"))  # type: ignore[assignment]


class Equal(Exception):
    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = Exception.__hash__


class Abstract(abc.ABC, Exception):
    pass


class Unhashable(type):
    __hash__ = None  # type: ignore[assignment]


class ByItsClass(Exception, metaclass=Unhashable):
    pass


class Homeless(Exception):
    pass


Homeless.__module__ = None  # type: ignore[assignment]


def attribute() -> None:
    datetime.now(UTC).isofromat()  # type: ignore[attr-defined]


def unknown_name() -> None:
    message = "close to the name below"
    print(mesage)  # type: ignore[name-defined] # noqa: F821
    print(message)


def unknown_import() -> None:
    from collections import OrderedDit  # type: ignore[attr-defined] # noqa: F401


def syntax() -> None:
    compile("a = (1,\nb = 2", "handler.py", "exec")


def by_hand(error: SyntaxError) -> SyntaxError:
    error.filename, error.lineno, error.offset, error.text = "there.py", 3, 4, "  é = ?\n"
    return error


def division(by: int = 0) -> float:
    return (1 + 2) / by


def caused(message: str = "cause") -> None:
    try:
        throw(KeyError(message))
    except KeyError as error:
        raise Plain(f"because of {message}") from error


def in_context() -> None:
    try:
        division()
    except ZeroDivisionError:
        throw(Plain.Inner("meanwhile"))


def suppressed() -> None:
    try:
        division()
    except ZeroDivisionError:
        raise Plain("alone") from None


def long_chain() -> None:
    try:
        try:
            caused()
        except Plain:
            throw(ValueError("second"))
    except ValueError as error:
        raise RuntimeError("third") from error


def attribute_in_context() -> None:
    try:
        attribute()
    except AttributeError:
        throw(Plain("around it"))


def special_around() -> None:
    try:
        division()
    except ZeroDivisionError:
        attribute()


def recursive(depth: int) -> None:
    if not depth:
        raise Plain("at the bottom")
    recursive(depth - 1)


def generated() -> None:
    exec(compile("def run():\n    raise ValueError('generated')\n\nrun()", "<generated>", "exec"), {})


def noted(error: BaseException, *notes: str) -> BaseException:
    for note in notes:
        error.add_note(note)
    return error


def odd_notes(error: BaseException, notes: object) -> BaseException:
    error.__notes__ = notes  # type: ignore[assignment]
    return error


def loop() -> BaseException:
    one, other = caught(throw, Plain("one")), caught(throw, Plain("other"))
    one.__cause__, other.__context__ = other, one
    return one


def own_cause() -> BaseException:
    error = caught(throw, Plain("one"))
    error.__cause__ = error.__context__ = error
    return error


def cause_shown_before() -> BaseException:
    """The cause is in the chain already, so that `traceback` falls back on the context."""
    outer, middle, inner = Plain("outer"), Plain("middle"), Plain("inner")
    outer.__context__, middle.__cause__, middle.__context__ = middle, outer, inner
    middle.__suppress_context__ = False
    return outer


def group(*errors: BaseException) -> BaseException:
    return caught(throw, BaseExceptionGroup("several", [*errors, caught(division)]))


def with_lines(line: int) -> BaseException:
    """A traceback made by hand, which says another line than its frame does."""
    error = caught(division)
    step = error.__traceback__
    assert step is not None
    return Plain("by hand").with_traceback(types.TracebackType(None, step.tb_frame, step.tb_lasti, line))


def chained_to(error: BaseException, cause: BaseException) -> BaseException:
    error.__cause__ = cause
    return caught(throw, error)


MAKERS: dict[str, Make] = {
    "never raised": lambda: ValueError("not raised"),
    "no text": lambda: caught(throw, ValueError()),
    "lines": lambda: caught(throw, ValueError("one\ntwo\n")),
    "surrogates": lambda: caught(throw, ValueError("\ud800 \0 é 漢")),
    "key": lambda: caught(throw, KeyError("quoted")),
    "system": lambda: caught(throw, FileNotFoundError(2, "No such file", "a.txt")),
    "unicode": lambda: caught("é".encode, "ascii"),
    "stop": lambda: caught(throw, KeyboardInterrupt()),
    "fatal": lambda: caught(throw, Fatal("never", code="E1")),
    "inner class": lambda: caught(throw, Plain.Inner("x")),
    "underlined": lambda: caught(division),
    "attribute": lambda: caught(attribute),
    "name": lambda: caught(unknown_name),
    "import": lambda: caught(unknown_import),
    "missing module": lambda: caught(importlib.import_module, "holdfast.nowhere"),
    "syntax": lambda: caught(syntax),
    "syntax by hand": lambda: caught(throw, by_hand(SyntaxError("odd"))),
    "indentation": lambda: caught(throw, by_hand(IndentationError("odd"))),
    "cause": lambda: caught(caused),
    "context": lambda: caught(in_context),
    "suppressed": lambda: caught(suppressed),
    "chain": lambda: caught(long_chain),
    "special in context": lambda: caught(attribute_in_context),
    "special around": lambda: caught(special_around),
    "noted around": lambda: chained_to(noted(Plain("x"), "note"), Plain("cause")),
    "loop": loop,
    "own cause": own_cause,
    "cause shown before": cause_shown_before,
    "notes": lambda: caught(throw, noted(ValueError("x"), "one", "two\nlines")),
    "odd notes": lambda: caught(throw, odd_notes(ValueError("x"), 17)),
    "notes that fail": lambda: caught(throw, odd_notes(ValueError("x"), Unreadable())),
    "group": lambda: group(ValueError("a"), caught(caused)),
    "group of groups": lambda: group(group(ValueError("a")), caught(attribute)),
    "group as cause": lambda: chained_to(Plain("x"), group(ValueError("a"))),
    "unreadable": lambda: caught(throw, Unreadable("x")),
    "not a text": lambda: caught(throw, Numbered("x")),
    "another text": lambda: caught(throw, Shouting("x")),
    "false": lambda: chained_to(False_("x"), Plain("not shown")),
    "empty": lambda: chained_to(Empty("x"), Plain("not shown")),
    "notes by a property": lambda: caught(throw, Noting("x")),
    "notes by attribute": lambda: caught(throw, Attributed("x")),
    "cause by a property": lambda: caught(throw, Causing("x")),
    "equal to all": lambda: chained_to(Equal("x"), Equal("y")),
    "abstract": lambda: caught(throw, Abstract("x")),
    "without a hash": lambda: caught(throw, ByItsClass("x")),
    "recursion": lambda: caught(recursive, 20),
    "deep recursion": lambda: caught(recursive, MOST_FRAMES + 20),
    "generated": lambda: caught(generated),
    "line by hand": lambda: with_lines(3),
    "other line by hand": lambda: with_lines(4),
}
