"""`holdfast metrics`: what waits and who works, for Prometheus."""

from __future__ import annotations

import sys
import time
from collections import Counter
from pathlib import Path

import click

from holdfast import observe
from holdfast.cli.sharding import parts
from holdfast.cli.shared import connection_options, in_options, open_store
from holdfast.errors import StoreError
from holdfast.observe.exposition import of_fleet
from holdfast.store import Shards, Store
from holdfast.worker import registry
from holdfast.worker.registry import status_of

# A sample of the workers' that is older than this is not waited for: without workers there is no other.
FRESH_SECONDS = 30.0
FILES = Path(observe.__file__).parent / "files"
STATUSES = ("alive", "draining", "silent", "dead")


class Fleet:
    """The page of one database; it is read at most once in a while, however many ask."""

    # Scrapes that come closer together get the same page.
    KEPT_SECONDS = 2.0

    def __init__(self, store: Store) -> None:
        self._store = store
        self._page = ""
        self._read_at = float("-inf")

    def text(self) -> str:
        """Write the metrics. Raises: StoreError, when the database cannot be read."""
        if time.monotonic() - self._read_at > self.KEPT_SECONDS:
            self._page = page_of(self._store)
            self._read_at = time.monotonic()
        return self._page

    def silent(self) -> list[int]:
        return []

    def ready(self) -> bool:
        try:
            self.text()
        except StoreError:
            return False
        return True


def page_of(store: Store) -> str:
    """Read the newest sample of the queues, or take one where no worker has, and count the workers."""
    away = _noting(store)
    sample = store.run(observe.latest())
    if sample is None or sample.age > FRESH_SECONDS:
        sample = store.run(observe.sample())
    found = Counter(status_of(worker) for worker in store.run(registry.workers()))
    shards = {number: number not in away for number in range(len(parts(store)))} if isinstance(store, Shards) else {}
    return of_fleet(sample, {status: found[status] for status in STATUSES}, shards)


def _noting(store: Store) -> set[int]:
    """Note which shards do not answer from now on; what is told of the others is told without them."""
    away: set[int] = set()
    if isinstance(store, Shards):
        store.missing = lambda number, error: away.add(number)
    return away


@click.command(short_help="Tell Prometheus what waits and who works.")
@click.option("--http", metavar="[HOST:]PORT", help="Serve /metrics there, until Ctrl-C, instead of printing it.")
@click.option("--rules", is_flag=True, help="Print alert rules for Prometheus instead.")
@click.option("--grafana", is_flag=True, help="Print a dashboard for Grafana instead.")
@connection_options
def metrics(http: str | None, rules: bool, grafana: bool) -> None:
    """Print what waits in the queues and how many workers there are, as Prometheus reads it.

    One for each database is enough: it reads the sample that a worker takes for all, and takes one itself while no
    worker does. What workers count and time is at the port of each: `holdfast worker APP --http PORT`.

    \b
    Example:
      holdfast metrics --app shop:hf
      holdfast metrics --url postgresql://app@db/shop --http 9465
      holdfast metrics --rules > /etc/prometheus/holdfast.yml
    """
    if rules or grafana:
        sys.stdout.write((FILES / ("alerts.yml" if rules else "grafana.json")).read_text())
        return
    with open_store() as store:
        if http is None:
            sys.stdout.write(page_of(store))
        else:
            _serve(store, http)


def _serve(store: Store, http: str) -> None:
    from holdfast.worker import monitor_http
    from holdfast.worker.monitor import address

    with in_options():
        server = monitor_http.listen(address(http))
    click.echo(f"{monitor_http.PAGES} at {monitor_http.name_of(server)}", err=True)
    fleet = Fleet(store)
    while True:
        monitor_http.accept(server, fleet)
