"""`manage.py holdfast …`: every command of Holdfast's command line, for the project's own application."""

from __future__ import annotations

import contextlib
from argparse import REMAINDER, ArgumentParser
from typing import Any

import click
from django.core.management.base import BaseCommand, CommandError
from django.db import DEFAULT_DB_ALIAS, connections

from holdfast.cli import main
from holdfast.cli.shared import Settings
from holdfast.django.application import PROGRAM
from holdfast.django.settings import alias, migrate_command
from holdfast.errors import ConfigError

APP = "holdfast.django:hf"


class Command(BaseCommand):
    """Holdfast's command line inside the project: APP is its own, and its settings say which database."""

    help = "Run jobs (holdfast worker) and look at them (holdfast jobs); holdfast --help lists the commands."
    requires_system_checks = ()

    def run_from_argv(self, argv: list[str]) -> None:
        _close_connections()
        main(_without_djangos(argv[2:]), prog_name=PROGRAM, obj=_settings())

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("arguments", nargs=REMAINDER)

    def handle(self, *args: Any, arguments: list[str], **options: Any) -> None:
        """Run a command from code: `call_command("holdfast", "jobs", "list")`. Raises: CommandError."""
        with contextlib.redirect_stdout(self.stdout), contextlib.redirect_stderr(self.stderr):
            try:
                main([*arguments, *args], prog_name=PROGRAM, obj=_settings(), standalone_mode=False)
            except click.ClickException as error:
                raise CommandError(error.format_message(), returncode=error.exit_code) from error
            except SystemExit as end:
                if end.code:
                    raise CommandError(f"{PROGRAM} ended with {end.code}", returncode=int(end.code)) from end


def _close_connections() -> None:
    """Close what was opened on the way here: a process may fork, and its children must not share a connection."""
    connections.close_all()
    for connection in connections.all(initialized_only=True):
        if hasattr(connection, "close_pool"):
            connection.close_pool()


def _settings() -> Settings:
    try:
        where = alias()
    except ConfigError:
        # Told when the application is made; help needs none.
        where = DEFAULT_DB_ALIAS
    return Settings(app=APP, program=PROGRAM, migrate=migrate_command(where))


def _without_djangos(words: list[str]) -> list[str]:
    """Leave out what Django has read by itself: --settings and --pythonpath."""
    kept: list[str] = []
    rest = iter(words)
    for word in rest:
        name, is_whole, _ = word.partition("=")
        if name not in ("--settings", "--pythonpath"):
            kept.append(word)
        elif not is_whole:
            next(rest, None)
    return kept
