"""APP, the application that a command works with: an argument, or --app, or HOLDFAST_APP."""

from __future__ import annotations

import os
import re
from typing import Any

import click

from holdfast.cli.shared import Exit, Failure, Settings, current

# What APP looks like.
APP_NAME = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
# Where a command keeps the application that is not the first of its arguments.
_NAMED_OTHERWISE = "holdfast.app"


class AppArgument(click.Argument):
    """APP. Nobody types it where a framework's own command line is around ours and says which it is."""

    def add_to_parser(self, parser: Any, ctx: click.Context) -> None:
        if _framework(ctx) is None and _NAMED_OTHERWISE not in ctx.meta:
            super().add_to_parser(parser, ctx)

    def handle_parse_result(self, ctx: click.Context, opts: Any, args: list[str]) -> tuple[Any, list[str]]:
        known = _framework(ctx)
        name = known.app if known is not None else ctx.meta.get(_NAMED_OTHERWISE)
        if name is None:
            return super().handle_parse_result(ctx, opts, args)
        ctx.params[str(self.name)] = name
        return name, args

    def get_usage_pieces(self, ctx: click.Context) -> list[str]:
        return super().get_usage_pieces(ctx) if _framework(ctx) is None else []


class AppCommand(click.Command):
    """A command with APP before other arguments: where --app or HOLDFAST_APP names it, these come first."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        read, _, _ = self.make_parser(ctx).parse_args(args=list(args))
        before, name = ctx.find_object(Settings), read.get("app")
        first = next((read.get(str(one.name)) for one in self.params if isinstance(one, AppArgument)), None)
        if not isinstance(name, str):
            name = None if before is None else before.app
        if name is None and not (isinstance(first, str) and APP_NAME.fullmatch(first)):
            name = os.environ.get("HOLDFAST_APP")
        # Said twice, it is an argument, too.
        if name and name != first:
            ctx.meta[_NAMED_OTHERWISE] = name
        return super().parse_args(ctx, args)


def _framework(ctx: click.Context) -> Settings | None:
    settings = ctx.find_object(Settings)
    return settings if settings is not None and settings.program else None


def app_named(command: str, app_name: str | None) -> str:
    """Return the application that APP, --app or HOLDFAST_APP names. Raises: Failure where none does."""
    name = app_name or current().app or os.environ.get("HOLDFAST_APP")
    if not name:
        hint = f"holdfast {command} shop:hf, or --app shop:hf, or set HOLDFAST_APP"
        raise Failure("which application? APP is missing", Exit.USAGE, hint)
    return name
