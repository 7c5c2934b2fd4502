"""How results look: tables that fit a terminal, plain columns for a pipe, JSON for a program."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, is_dataclass
from datetime import date, datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal

import click

from holdfast.cli.shared import typed
from holdfast.values.words import age as age
from holdfast.values.words import clean as clean
from holdfast.values.words import one_line as one_line
from holdfast.values.words import plural as plural

if TYPE_CHECKING:
    from rich.console import Console

_STYLES = {
    "dead": "red",
    "problem": "bold red",
    "silent": "red",
    "cancelled": "magenta",
    "warning": "yellow",
    "draining": "yellow",
    "leased": "cyan",
    "done": "green",
    "alive": "green",
    "ok": "green",
}


# What a column needs to be of use, when it is cut short.
READABLE = 12
# As much of an id as says when it was made, to the millisecond.
SHORTEST_ID = 13


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table; one with `whole` is never cut short, a `spare` one is left out of a narrow terminal.

    The more spare a column is, the sooner it goes; of equal ones the one on the right goes first.
    One of `ids` is whole, and in a narrow terminal cut to what tells the ids apart: commands take that for the rest.
    """

    title: str
    whole: bool = False
    right: bool = False
    spare: int = 0
    ids: bool = False


def moment(at: datetime | None) -> str:
    """Write a time in the local zone, with its offset: options that take a time read it as it stands."""
    return "" if at is None else at.astimezone().isoformat(sep=" ", timespec="seconds")


def print_table(columns: Sequence[Column], rows: Iterable[Sequence[object]], empty: str = "nothing found") -> None:
    """Print rows: a table on a terminal, aligned columns of full length elsewhere."""
    cells = [[clean(cell) for cell in row] for row in rows]
    if not cells:
        click.echo(typed(empty), err=True)
    elif sys.stdout.isatty():
        from rich.console import Console

        write_table(Console(highlight=False), columns, cells)
    else:
        for line in plain_lines(columns, cells):
            click.echo(line)


def plain_lines(columns: Sequence[Column], cells: Sequence[Sequence[str]]) -> list[str]:
    """Align cells with two spaces between them, so that grep, cut and awk can read them."""
    rows = [[column.title.upper() for column in columns], *cells]
    widths = [max(len(row[i]) for row in rows) for i in range(len(columns))]
    return ["  ".join(_placed(row, widths, columns)).rstrip() for row in rows]


def _placed(row: Sequence[str], widths: Sequence[int], columns: Sequence[Column]) -> list[str]:
    sides = ((cell, width, column.right) for cell, width, column in zip(row, widths, columns, strict=True))
    return [cell.rjust(width) if right else cell.ljust(width) for cell, width, right in sides]


def write_table(console: Console, columns: Sequence[Column], cells: Sequence[Sequence[str]]) -> None:
    """Draw a table that fits the console; what is too long ends in an ellipsis, except in whole columns."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    if sum(_natural(columns, cells)) + 2 * (len(columns) - 1) > console.width:
        cells = _with_short_ids(columns, cells)
    columns, cells, left_out = _roomy(columns, cells, console.width)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), show_edge=False)
    for column, width in zip(columns, fitted(columns, cells, console.width), strict=True):
        side: Literal["left", "right"] = "right" if column.right else "left"
        table.add_column(
            column.title, no_wrap=True, overflow="ellipsis", justify=side, min_width=width, max_width=width
        )
    for row in cells:
        table.add_row(*(Text(cell, _STYLES.get(cell, "")) for cell in row))
    console.print(table, soft_wrap=False, crop=False)
    if left_out:
        names = ", ".join(left_out)
        console.print(f"not shown for want of room: {names}; a wider terminal or --json has them", style="dim")


def _roomy(
    columns: Sequence[Column], cells: Sequence[Sequence[str]], room: int
) -> tuple[list[Column], list[list[str]], list[str]]:
    """Leave out columns that hold nothing, and spare ones until the others can be read; name those, too."""
    kept = [i for i in range(len(columns)) if i == 0 or any(row[i] for row in cells)]
    spares = sorted((i for i in kept if columns[i].spare), key=lambda i: (columns[i].spare, i))
    left_out: list[int] = []
    while True:
        shown = [columns[i] for i in kept], [[row[i] for i in kept] for row in cells]
        if not spares or not _cramped(*shown, room):
            return *shown, [columns[i].title for i in sorted(left_out)]
        left_out.append(spares.pop())
        kept.remove(left_out[-1])


def _with_short_ids(columns: Sequence[Column], cells: Sequence[Sequence[str]]) -> list[list[str]]:
    short = {i: beginnings([row[i] for row in cells]) for i, column in enumerate(columns) if column.ids}
    return [[short[i][n] if i in short else cell for i, cell in enumerate(row)] for n, row in enumerate(cells)]


def beginnings(ids: Sequence[str]) -> list[str]:
    """Cut ids to the least that tells them apart, and no more than leaves the time in them."""
    length = next((n for n in range(SHORTEST_ID, 37) if len({id[:n] for id in ids}) == len(set(ids))), None)
    return [id[:length].rstrip("-") if len(id) == 36 else id for id in ids]


def _cramped(columns: Sequence[Column], cells: Sequence[Sequence[str]], room: int) -> bool:
    widths = fitted(columns, cells, room)
    if sum(widths) + 2 * (len(widths) - 1) > room:
        return True
    return any(width < min(READABLE, natural) for width, natural in zip(widths, _natural(columns, cells), strict=True))


def _natural(columns: Sequence[Column], cells: Sequence[Sequence[str]]) -> list[int]:
    return [max(len(text) for text in (column.title, *(row[i] for row in cells))) for i, column in enumerate(columns)]


def fitted(columns: Sequence[Column], cells: Sequence[Sequence[str]], room: int) -> list[int]:
    """Give each column its width: whole ones what they need, the others fair shares of the rest."""
    natural = _natural(columns, cells)
    loose = sorted((i for i, column in enumerate(columns) if not column.whole), key=lambda i: natural[i])
    left = room - 2 * (len(columns) - 1) - sum(width for i, width in enumerate(natural) if i not in loose)
    widths = list(natural)
    for taken, i in enumerate(loose):
        # The narrowest first: what it does not need is shared by those after it.
        widths[i] = max(min(natural[i], left // (len(loose) - taken)), 4)
        left -= widths[i]
    return widths


def error_line(type: object, message: object) -> str:
    """Write an error in one line; of our own types the name is enough."""
    return one_line(f"{str(type).removeprefix('holdfast.errors.')}: {message}")


def print_fields(pairs: Iterable[tuple[str, object]]) -> None:
    """Print names and values, one a line; unset ones are left out."""
    shown = [(name, clean(value)) for name, value in pairs if value not in (None, "")]
    width = max((len(name) for name, _ in shown), default=0)
    for name, value in shown:
        click.echo(f"{click.style(name.ljust(width), dim=True)}  {value}")


def print_notes(lines: Iterable[str]) -> None:
    """Print what stands beside the results: on stderr."""
    for line in lines:
        click.echo(clean(typed(line)), err=True)


def print_json(items: Iterable[Any]) -> None:
    """Print one JSON object per line."""
    for item in items:
        click.echo(json.dumps(plain(item)))


def plain(value: Any) -> Any:
    """Turn a value into what JSON holds: times as ISO 8601, spans as seconds."""
    if is_dataclass(value) and not isinstance(value, type):
        return plain(asdict(value))
    if isinstance(value, dict):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(each) for each in value]
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, date | datetime):
        return value.isoformat()
    return value if isinstance(value, str | int | float | bool | None) else str(value)
