"""The command line: `holdfast --help`.

One module per group of commands, imported when the command is asked for. A command reads its options, calls a flow or
the application, and prints; whatever it raises becomes one line on stderr and a documented exit code (`shared.Exit`).

Options, words for people and exit codes belong here. What a command does to rows is a flow, and belongs to a desk
(`admin`, `foreign`), so that a program can do the same without the command line.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

import click

from holdfast.cli.groups import Group
from holdfast.cli.shared import Settings, connection_options, failure_of, hidden
from holdfast.cli.usage import EXITS, epilog_in_framework, hint_for, in_framework

COMMANDS = (
    "demo",
    "init",
    "migrate",
    "worker",
    "relay",
    "enqueue",
    "jobs",
    "dead",
    "outbox",
    "routes",
    "debezium",
    "runs",
    "schedules",
    "workers",
    "worker-alive",
    "shards",
    "metrics",
    "queues",
    "lines",
    "prune",
    "doctor",
    "dashboard",
    "top",
    "sql",
    "bench",
    "completion",
)

EPILOG = (
    """\b
Start here:
  holdfast demo                      watch it work, on SQLite, in a minute
  holdfast init shop && cd shop      write a small application to begin with
  python shop.py                     make its tables and enqueue a first job
  holdfast worker shop:hf            run it, until Ctrl-C

HOLDFAST_URL names a database. """
    + EXITS
)


class Root(Group):
    """The top of the command line: finds commands by name and turns errors into lines and exit codes."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        name = cmd_name.replace("-", "_")
        command: click.Command = getattr(importlib.import_module(f"holdfast.cli.{name}"), name)
        settings = ctx.find_object(Settings)
        return in_framework(command) if settings is not None and settings.program else command

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        settings, epilog = ctx.find_object(Settings), self.epilog
        try:
            self.epilog = epilog_in_framework(settings) if settings is not None and settings.program else epilog
            super().format_epilog(ctx, formatter)
        finally:
            self.epilog = epilog

    def invoke(self, ctx: click.Context) -> Any:
        # Made here, so that every command below shares one.
        ctx.ensure_object(Settings)
        try:
            return super().invoke(ctx)
        except click.ClickException as error:
            # It quotes what was typed, and a URL may stand where none is expected.
            hint = hint_for(error) if isinstance(error, click.UsageError) else ""
            said = f"{error.message}\nhint: {hint}" if hint else error.message
            error.message = hidden(said)  # type: ignore[misc]  # click reads it from the instance
            raise
        except (click.exceptions.Exit, click.Abort):
            raise
        except (BrokenPipeError, KeyboardInterrupt):
            raise
        except Exception as error:
            raise failure_of(error) from error


def _print_version(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value:
        from holdfast import __version__

        click.echo(f"holdfast {__version__}")
        ctx.exit()


@click.group(cls=Root, epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_version, help="Show the version."
)
@connection_options
def main() -> None:
    """Durable work in the database you already run."""
    for stream in (sys.stdout, sys.stderr):
        # A terminal that cannot show a character gets an escape, not a traceback.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
