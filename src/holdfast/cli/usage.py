"""What helps somebody who types: hints for words that no command takes, and help that fits a framework."""

from __future__ import annotations

import copy
import re

import click

from holdfast.cli.app_argument import APP_NAME
from holdfast.cli.shared import Settings, current, did_you_mean, typed

EXITS = """Exit codes: 0 ok, 1 unexpected error, 2 wrong usage, 3 no or other tables,
4 database not reached, 5 not found, 6 conflict, 7 doctor found problems, 8 job dead, 9 job cancelled,
10 waited too long."""


def epilog_in_framework(settings: Settings) -> str:
    """Write what one begins with in the framework, below the list of commands."""
    steps = {
        settings.migrate or f"{settings.program} migrate apply": "make the tables",
        f"{settings.program} worker": "run the jobs, until Ctrl-C",
        f"{settings.program} jobs list": "see what waits, runs and failed",
        f"{settings.program} doctor": "look for trouble",
    }
    lines = [f"  {typed:34} {what}" for typed, what in steps.items()]
    return "\n".join(["\b", "Start here:", *lines, "", f"The project's settings name the database. {EXITS}"])


def hint_for(error: click.UsageError) -> str:
    """Say what was probably meant by a command line that cannot be read; empty where nobody knows."""
    said, ctx = error.format_message(), error.ctx
    if ctx is None:
        return ""
    if found := re.search(r"No such command '([^']+)'", said):
        group = ctx.command
        known = group.list_commands(ctx) if isinstance(group, click.Group) and "Did you mean" not in said else []
        return did_you_mean(found[1], known)
    found = re.search(r"unexpected extra arguments? \((\S+)\)", said)
    takes_app = any(param.name == "app" for param in ctx.command.params)
    if found is None or not takes_app or not APP_NAME.fullmatch(found[1]):
        return ""
    return "leave it out: the application is known here" if current().program else f"say --app {found[1]}"


def in_framework(command: click.Command) -> click.Command:
    """Return a command whose help, and that of the commands below it, is what can be typed in the framework."""
    # The command itself stays as it is: it belongs to the whole process.
    fitting = copy.copy(command)
    if fitting.help:
        fitting.help = _fitting(fitting.help)
    if isinstance(fitting, click.Group):
        fitting.commands = {name: in_framework(below) for name, below in fitting.commands.items()}
    return fitting


def _fitting(text: str) -> str:
    told, mark, examples = text.partition("Example:")
    told = re.sub(r"\s*APP is module:attribute, as in shop:hf\.", "", typed(told))
    told = re.sub(r"(^|\.\s+|\n\n\s*)APP\b", r"\1The application", told)
    told = re.sub(r"\bAPP\b", "the application", told)
    examples = re.sub(r"(?: --app| --url)? (?:shop:hf\b|(?:sqlite|postgresql|mysql)://\S+)", "", examples)
    return told + mark + re.sub(r"(?<![\w/.-])holdfast (?=[a-z])", f"{current().program} ", examples)
