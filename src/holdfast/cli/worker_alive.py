"""`holdfast worker-alive`: what a probe runs. The work is done before this is loaded: see holdfast_probe.py."""

from __future__ import annotations

import sys

import click

from holdfast_probe import check


@click.command("worker-alive", short_help="Tell whether a worker is alive, for probes.")
@click.argument("file", type=click.Path())
@click.option("--within", type=float, default=60.0, show_default=True, help="Seconds since the file was touched.")
def worker_alive(file: str, within: float) -> None:
    """Exit with 0 if the worker that touches FILE did so lately, else with 1: for probes that run a command.

    The worker is started with --heartbeat-file FILE. The probe loads nothing of Holdfast and asks no database.

    \b
    Example:
      holdfast worker-alive /run/holdfast/beat
    """
    sys.exit(check(file, within))
