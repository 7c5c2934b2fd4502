"""What was done to a job by hand, in lines: when, what, by whom, and what a change was about."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import click

from holdfast.cli.render import age, clean, moment
from holdfast.values.views import AuditLine

# By their names in the audit, which are those of the call.
_FIELDS = {"to_queue": "queue", "run_after": "due"}


def print_audit(lines: Sequence[AuditLine]) -> None:
    """Print audit lines under a heading; nothing where there are none."""
    if lines:
        click.echo("\ndone by hand")
    for line in lines:
        click.echo(f"  {moment(line.at)}  {line.action} by {clean(line.actor or 'somebody')}{_changes(line.detail)}")


def _changes(detail: dict[str, Any]) -> str:
    before, now = detail.get("before"), detail.get("now")
    if not isinstance(before, dict) or not isinstance(now, dict):
        return ""
    said = [f"{_FIELDS.get(name, name)} {_shown(name, before.get(name))} → {_shown(name, now[name])}" for name in now]
    return f": {', '.join(said)}" if said else ""


def _shown(name: str, value: Any) -> str:
    if name == "run_after" and isinstance(value, int | float):
        return f"{age(value)} later" if value else "at once"
    if name == "run_after" and isinstance(value, str):
        return moment(datetime.fromisoformat(value))
    return clean("none" if value is None else value)
