"""What the functions of tests of runs note down, and how what is due came out."""

from typing import Any

from holdfast import Holdfast
from holdfast.testing.inline import run_due

calls: list[Any] = []


def note(what: Any) -> Any:
    calls.append(what)
    return what


async def anote(what: Any) -> Any:
    calls.append(what)
    return what


def outcomes(hf: Holdfast, **how: Any) -> list[str]:
    return [one.outcome for one in run_due(hf, raise_errors=False, **how)]
