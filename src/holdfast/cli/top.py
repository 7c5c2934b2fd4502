"""`holdfast top`: the overview in a terminal, for those without a browser."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Self

import click

from holdfast.cli.app_argument import AppArgument
from holdfast.cli.dashboard import application_of
from holdfast.cli.parse import DURATION
from holdfast.cli.render import age, clean, one_line, plural
from holdfast.cli.shared import connection_options, hidden, require_tables, typed
from holdfast.dashboard.reading import NEWEST, Overview, history, overview
from holdfast.dashboard.setting import Setting
from holdfast.dashboard.talk import run
from holdfast.errors import DatabaseBusy, DatabaseUnavailable
from holdfast.observe import History, shown
from holdfast.values.words import span
from holdfast.worker.registry import status_of, up

if TYPE_CHECKING:
    from rich.console import Group, RenderableType

QUEUES, GROUPS, WORKERS, FINDINGS = 12, 6, 12, 8
SPARKS = "▁▂▃▄▅▆▇█"


@click.command(short_help="Watch queues, dead letters and workers in a terminal.")
@click.argument("named", cls=AppArgument, metavar="[APP]", required=False)
@click.option("--every", type=DURATION, default="2", show_default=True, help="How often to look.")
@click.option("--once", is_flag=True, help="Print it once, as in a pipe.")
@click.option("--json", "as_json", is_flag=True, help="Print it once, as one JSON object.")
@connection_options
def top(named: str | None, every: timedelta, once: bool, as_json: bool) -> None:
    """Watch how far queues are behind, what is dead, who works and what is wrong, until q or Ctrl-C.

    In a pipe it prints once. An outage is told, and looked through.

    \b
    Example:
      holdfast top shop:hf
      holdfast top --url postgresql://app@db/shop --json | jq .oldest_seconds
    """
    with application_of(named) as holdfast:
        require_tables(holdfast.store)
        setting = Setting(holdfast.context, lambda: holdfast.foreign.sources)
        if as_json:
            click.echo(json.dumps(run(overview(setting)).to_dict(), default=str))
        elif once or not sys.stdout.isatty():
            for line in lines_of(run(overview(setting)), run(history(setting, NEWEST))):
                click.echo(line)
        else:
            _watch(setting, max(every.total_seconds(), 0.5))


def _watch(setting: Setting, every: float) -> None:
    from rich.live import Live
    from rich.text import Text

    with suppress(KeyboardInterrupt), Keys() as keys, Live(screen=True, auto_refresh=False) as live:
        while True:
            try:
                live.update(screen_of(run(overview(setting)), run(history(setting, NEWEST))), refresh=True)
            except (DatabaseUnavailable, DatabaseBusy) as error:
                live.update(Text(f"the database is not reached: {hidden(one_line(error))}", "bold red"), refresh=True)
            if keys.wait(every) in ("q", "Q"):
                return


class Keys:
    """What is typed at a terminal while something else is shown there: letter by letter, and without an echo.

    Where there is no such terminal (a pipe, Windows) nothing is ever typed.
    """

    def __init__(self) -> None:
        self._input, self._before = -1, list[Any]()

    def __enter__(self) -> Self:
        with suppress(ImportError, OSError, ValueError):
            import termios
            import tty

            self._input = sys.stdin.fileno()
            before = termios.tcgetattr(self._input)
            tty.setcbreak(self._input)
            self._before = before
        return self

    def __exit__(self, *_: object) -> None:
        if self._before:
            import termios

            termios.tcsetattr(self._input, termios.TCSADRAIN, self._before)

    def wait(self, seconds: float) -> str:
        """Wait for a letter, so long at most; an empty text where none came."""
        if not self._before:
            time.sleep(seconds)
            return ""
        import select

        if not select.select([self._input], [], [], seconds)[0]:
            return ""
        typed = os.read(self._input, 1).decode(errors="replace")
        if not typed:
            # The terminal is gone: nobody looks.
            raise KeyboardInterrupt
        return typed


def headline(seen: Overview) -> str:
    """Say in one line how things are."""
    oldest = "nothing is due" if seen.oldest_seconds is None else f"oldest due {span(seen.oldest_seconds)}"
    due = f"{seen.due:,}{'+' if seen.due_capped else ''} due"
    rate = "" if seen.rate is None else f", {seen.rate:,.1f} done a second"
    dead = f"{seen.dead:,}{'+' if seen.dead_capped else ''} dead"
    alive = plural(len(seen.alive()), "worker")
    return f"{oldest}, {due}, {seen.leased:,} running{rate}, {dead}, {alive} alive"


def lines_of(seen: Overview, told: History) -> list[str]:
    """Write the overview as plain lines."""
    lines = [headline(seen), ""]
    for title, columns, rows in _tables(seen, told):
        lines += _plain(title, columns, rows)
    for one in seen.trouble[:FINDINGS]:
        lines.append(f"{one.severity}  {one.check}: {hidden(clean(one.seen))}")
        lines += [f"         {clean(typed(one.do))}"] if one.do else []
    return lines if seen.trouble else [*lines, "nothing needs somebody"]


Rows = list[tuple[str, ...]]


def _tables(seen: Overview, told: History) -> list[tuple[str, tuple[str, ...], Rows]]:
    queues: Rows = [
        (
            clean(one.queue),
            shown(one.due),
            span(one.oldest_seconds),
            shown(one.leased),
            shown(one.dead),
            sparkline(
                [
                    (point.depths or {})[one.queue].due if one.queue in (point.depths or {}) else 0
                    for point in told.points
                ]
            ),
            "paused" if one.paused else "",
        )
        for one in seen.queues[:QUEUES]
    ]
    groups: Rows = [
        (f"{group.count:,}", clean(group.kind), one_line(f"{group.error_type}: {group.error_message}", 90))
        for group in seen.groups[:GROUPS]
    ]
    live = [one for one in seen.workers if one.status != "dead"]
    workers: Rows = [
        (clean(one.id), status_of(one), f"{age(one.silent_for)} ago", age(up(one))) for one in live[:WORKERS]
    ]
    return [
        ("queues", ("queue", "due", "oldest", "running", "dead", "due, 2 m", ""), queues),
        ("dead letters", ("count", "kind", "error"), groups),
        ("workers", ("worker", "status", "last beat", "up"), workers),
    ]


def sparkline(values: Sequence[float]) -> str:
    """Draw values as a row of bars."""
    most = max(values, default=0)
    if most <= 0:
        return ""
    return "".join(SPARKS[min(len(SPARKS) - 1, int(value / most * (len(SPARKS) - 1) + 0.5))] for value in values)


def _plain(title: str, columns: tuple[str, ...], rows: Rows) -> list[str]:
    if not rows:
        return [f"no {title}", ""]
    cells = [tuple(column.upper() for column in columns), *rows]
    widths = [max(len(row[place]) for row in cells) for place in range(len(columns))]
    return [
        *("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells),
        "",
    ]


def screen_of(seen: Overview, told: History) -> Group:
    """Draw the overview for a terminal."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    late = (seen.oldest_seconds or 0) > 60 or not seen.alive()
    parts: list[RenderableType] = [Text(headline(seen), "bold red" if late else "bold green"), Text()]
    for title, columns, rows in _tables(seen, told):
        table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, expand=False)
        for column in columns:
            table.add_column(column, header_style="dim", overflow="ellipsis", no_wrap=True)
        for row in rows:
            table.add_row(*(_styled(cell) for cell in row))
        parts += [table if rows else Text(f"no {title}", "dim"), Text()]
    for one in seen.trouble[:FINDINGS]:
        style = "red" if one.severity == "problem" else "yellow"
        parts.append(Text.assemble((f"{one.severity:8}", style), f"{one.check}: {hidden(clean(one.seen))}"))
    at = seen.at.astimezone().strftime("%H:%M:%S")
    return Group(*parts, Text(f"\n{at}  q ends it", "dim"))


def _styled(cell: str) -> RenderableType:
    from rich.text import Text

    styles = {"alive": "green", "silent": "red", "draining": "yellow", "paused": "yellow"}
    return Text(cell, styles.get(cell, ""))
