"""The last word of a short demo: what it promised, what was counted, and whether that held."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table


def told(console: Console, title: str, promises: Sequence[tuple[str, int, bool]]) -> int:
    """Print the promises with what was counted, and return the exit code."""
    table = Table(title=title)
    for name in ("promise", "count", "held"):
        table.add_column(name)
    for promise, count, holds in promises:
        table.add_row(promise, f"{count:,}", "yes" if holds else "NO")
    console.print()
    console.print(table)
    if not all(holds for _, _, holds in promises):
        console.print("[bold red]A promise was broken.[/]")
        return 1
    console.print("Every promise held.")
    return 0
