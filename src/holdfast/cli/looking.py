"""Lists that look at a bounded number of rows: what they say where there may be more, and the option that goes on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import click

from holdfast.cli.parse import ROW_ID
from holdfast.cli.shared import Exit, Failure
from holdfast.flow import Flow
from holdfast.life.windows import WINDOW, Look
from holdfast.store import Store

T = TypeVar("T")

after_option = click.option("--after", type=ROW_ID, help="Go on after this id, the last of the page before.")
far_option = click.option(
    "--all", "far", is_flag=True, help=f"Look at all that are kept, not only at the first {WINDOW:,}."
)


def looked(
    store: Store, look: Callable[[int, str | None], Flow[Look[T]]], limit: int, after: str | None, far: bool
) -> tuple[list[T], str | None]:
    """Read up to `limit` rows; unless they are looked for `far`, the first horizon is the end, and its id is told.

    look: makes the work for what is left of the limit, and the id to go on after.
    """
    found: list[T] = []
    while len(found) < limit:
        seen = store.run(look(limit - len(found), after))
        found += seen.rows
        if seen.more is None or (seen.at_horizon and not far):
            return found, seen.more
        after = seen.more
    return found, None


def only_one(said: str, found: Sequence[str]) -> str:
    """Return the id that was meant by its beginning; what begins none is left as it was typed, and not found later.

    Raises: Failure where several begin so.
    """
    if len(found) > 1:
        raise Failure(f"several ids begin with {said}: {found[0]}, {found[1]}, …", Exit.USAGE, "type more of it")
    return found[0] if found else said


def tell_of_more(ids: Sequence[str], limit: int, stopped: str | None, what: str = "jobs") -> None:
    """Say how to go on where a list may not be whole."""
    if len(ids) == limit:
        click.echo(f"{limit} shown; there may be more: --limit, or --after {ids[-1]}", err=True)
    elif stopped is not None:
        click.echo(f"looked at {WINDOW:,} {what}; for the others: --all, or --after {stopped}", err=True)
