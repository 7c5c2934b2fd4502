"""What a job comes after, and the tree of what comes after it, drawn for `holdfast jobs show`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import click

from holdfast.cli.render import clean
from holdfast.life.listing import Family, Relative


def print_family(family: Family) -> None:
    """Draw what a job comes after, and what comes after it; nothing for one that stands by itself."""
    parts = (("comes after", family.before, family.before_cut), ("then", family.after, family.after_cut))
    for title, relatives, cut in parts:
        if relatives:
            click.echo(f"\n{title}")
            for line in _tree(relatives):
                click.echo(line)
            if cut:
                click.echo("  … and more")


def _tree(relatives: Sequence[Relative], indent: str = "  ") -> Iterator[str]:
    for number, one in enumerate(relatives, 1):
        last = number == len(relatives)
        yield f"{indent}{'└' if last else '├'} {clean(one.kind or 'job')} {one.id}  {one.state}  ({one.relation})"
        yield from _tree(one.after, indent + ("   " if last else "│  "))
