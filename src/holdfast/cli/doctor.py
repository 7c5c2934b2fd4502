"""`holdfast doctor`: the runbook as one command."""

from __future__ import annotations

import shutil
import sys
import textwrap
from datetime import timedelta

import click

from holdfast.cli.checks import CHECKS, Patient, examine
from holdfast.cli.parse import DURATION
from holdfast.cli.render import clean, plural, print_json
from holdfast.cli.shard_checks import examine_shards
from holdfast.cli.shared import Exit, connection_options, hidden, json_option
from holdfast.cli.stores import open_desk, store_option
from holdfast.life.findings import Finding
from holdfast.store import Shards

_COLOURS = {"ok": "green", "warning": "yellow", "problem": "red"}


@click.command()
@click.option("--lag", type=DURATION, default="60", show_default=True, help="How long a job may be due.")
@click.option("--long", type=DURATION, default="60", show_default=True, help="How long a transaction may be open.")
@click.option("--skip", type=click.Choice(tuple(CHECKS)), multiple=True, help="Leave out a check; may be repeated.")
@store_option
@connection_options
@json_option
def doctor(lag: timedelta, long: timedelta, skip: tuple[str, ...], as_json: bool) -> None:
    """Look for trouble, and say what to do about it. Exit code 7 when something needs action.

    It looks at the schema version, the age of due jobs, pauses, leases that nobody takes back, dead letters, kinds that
    no worker handles, live and silent workers, remote steps, schedules, queues and stopped lines, foreign tables,
    transactions that keep the database from cleaning up dead rows, dead rows, missing indexes, wake-ups and clocks, at
    each shard where there are some. It changes nothing. With --store it looks at those tables alone.

    \b
    Example:
      holdfast doctor --app shop:hf
      holdfast doctor --url postgresql://app@db/shop --lag 5m --skip dead-letters --json
      holdfast doctor --store pdo:jobs --url mysql://app@db/shop
    """
    with open_desk("database") as at:
        if isinstance(at.store, Shards) and at.is_whole:
            found = list(examine_shards(at.store, at, lag, long, skip))
        else:
            found = list(examine(Patient(at, lag, long), skip))
    if as_json:
        print_json(found)
    else:
        for finding in found:
            _print(finding)
    trouble = [finding for finding in found if finding.severity != "ok"]
    if not as_json:
        click.echo(f"\n{plural(len(trouble), 'finding')} to act on" if trouble else "\nall is well")
    if trouble:
        raise click.exceptions.Exit(Exit.PROBLEMS)


def _print(finding: Finding) -> None:
    severity = click.style(f"{finding.severity:7}", fg=_COLOURS[finding.severity], bold=finding.severity == "problem")
    seen, *more = [*_wrapped(hidden(clean(finding.seen))), *(_wrapped(clean(finding.do)) if finding.do else [])]
    click.echo(f"{severity}  {finding.check:12}  {seen}")
    for line in more:
        click.echo(f"{'':23}{line}")


def _wrapped(text: str) -> list[str]:
    """Break lines on a terminal only: grep wants the whole."""
    if not sys.stdout.isatty():
        return [text]
    width = max(shutil.get_terminal_size().columns - 23, 30)
    return textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False)
