"""Groups of commands, as `holdfast --help` and `holdfast jobs --help` list them."""

from __future__ import annotations

import click

# Longer than any first sentence.
_WHOLE = 1000


class Group(click.Group):
    """A group that lists its commands by whole sentences: click's own list cuts each where its line ends."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        named = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        rows = [(name, one.get_short_help_str(_WHOLE)) for name, one in named if one is not None and not one.hidden]
        with formatter.section("Commands"):
            formatter.write_dl(rows)
