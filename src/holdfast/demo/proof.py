"""The proof: every promise of the demo, counted from the tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

from rich.table import Table

from holdfast import admin
from holdfast.demo.shop import FORGOTTEN_ORDERS, MAX_ATTEMPTS, Shop
from holdfast.life.expiry import LEASE_EXPIRED, NOT_COUNTED
from holdfast.store import Store
from holdfast.values.views import JobView

PAGE = 5_000


@dataclass(frozen=True, slots=True)
class Promise:
    """One promise, the figures that tell, and whether they bear it out."""

    name: str
    figures: str
    holds: bool


@dataclass(frozen=True, slots=True)
class Killed:
    """What the story did to the killed worker."""

    worker: str = ""
    held: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Books:
    """What the database holds when all is over, and what the shop remembers of its own doing."""

    placed: set[int]
    declined: set[int]
    orders: list[int]
    receipts: Counter[int]
    jobs: list[JobView]
    killed: Killed = field(default_factory=Killed)


def read_books(shop: Shop, killed: Killed) -> Books:
    with closing(shop.connect()) as connection:
        orders = shop.column(connection, "select id from shop_orders")
        receipts = shop.receipts(connection)
    return Books(set(shop.placed), set(shop.declined), orders, receipts, list(all_jobs(shop.holdfast.store)), killed)


def all_jobs(store: Store, filter: admin.Filter = admin.ALL) -> Iterator[JobView]:
    """Read every job, page by page, the oldest first."""
    last: str | None = None
    while page := store.run(admin.list_jobs(filter, PAGE, last, newest=False)):
        yield from page
        last = page[-1].id


def promises(books: Books) -> list[Promise]:
    """Hold what was promised against what is there."""
    return [
        _none_lost(books),
        _none_doubled(books),
        _declined_left_nothing(books),
        _all_done(books),
        _leases_came_back(books),
        _attempts_explained(books),
        _dead_letters_replayed(books),
    ]


def _none_lost(books: Books) -> Promise:
    missing = books.placed - set(books.receipts)
    figures = f"{len(books.orders):,} orders, {len(books.receipts):,} with a receipt, {len(missing):,} without"
    return Promise("No order lost", figures, not missing and books.placed == set(books.orders))


def _none_doubled(books: Books) -> Promise:
    doubled = [order for order, count in books.receipts.items() if count > 1]
    figures = f"{books.receipts.total():,} receipts for {len(books.receipts):,} orders, {len(doubled):,} doubled"
    return Promise("No receipt doubled", figures, not doubled)


def _declined_left_nothing(books: Books) -> Promise:
    left = books.declined & (_ordered(books.jobs) | set(books.orders) | set(books.receipts))
    figures = f"{len(books.declined):,} orders rolled back, {len(left):,} of them left a job"
    return Promise("Rolled back means no job", figures, not left)


def _ordered(jobs: list[JobView]) -> set[int]:
    return {int((job.key or ":0").partition(":")[2]) for job in jobs}


def _all_done(books: Books) -> Promise:
    states = Counter(job.state for job in books.jobs)
    rest = ", ".join(f"{states[state]:,} {state}" for state in ("pending", "leased", "dead"))
    one_each = len(books.jobs) == len(books.orders) and _ordered(books.jobs) == books.placed
    return Promise(
        "One job an order, all done", f"{states['done']:,} done, {rest}", one_each and set(states) == {"done"}
    )


def _leases_came_back(books: Books) -> Promise:
    back = {job.id for job in books.jobs for error in job.errors if _ended_lease_of(error, books.killed.worker)}
    held = books.killed.held
    figures = f"{len(held):,} held when it was killed, {len(back & held):,} taken back"
    return Promise("A killed worker's jobs come back", figures, bool(held) and held <= back)


def _ended_lease_of(error: dict[str, Any], worker: str) -> bool:
    return error.get("type") == LEASE_EXPIRED and error.get("worker") == worker


def _attempts_explained(books: Books) -> Promise:
    """Each attempt either finished its job or left an error on it; a replay starts the count again.

    An attempt that a killed worker took along is not counted, but left its error too.
    """
    odd = [job for job in books.jobs if job.attempts != 1 + _counted(job) - MAX_ATTEMPTS * job.replays]
    reasons = Counter(_reason(error, books.killed) for job in books.jobs for error in job.errors)
    told = ", ".join(f"{count:,} {reason}" for reason, count in sorted(reasons.items()))
    attempts = len(books.jobs) + reasons.total()
    return Promise("Every attempt explained", f"{attempts:,} = {len(books.jobs):,} done, {told}", not odd)


def _counted(job: JobView) -> int:
    return sum(error["message"] != NOT_COUNTED for error in job.errors)


def _reason(error: dict[str, Any], killed: Killed) -> str:
    if _ended_lease_of(error, killed.worker):
        return "killed"
    known = {
        "ConnectionError": "refused by the mail server",
        "LookupError": "without a VAT rate",
        LEASE_EXPIRED: "too slow for their lease",
    }
    return known.get(error["type"], f"by {error['type']}")


def _dead_letters_replayed(books: Books) -> Promise:
    replayed = sum(job.replays for job in books.jobs)
    dead = sum(job.state == "dead" for job in books.jobs)
    figures = f"{replayed} dead letters replayed, {dead} left"
    return Promise("A dead letter can be replayed", figures, replayed == FORGOTTEN_ORDERS and not dead)


def table(kept: list[Promise]) -> Table:
    drawn = Table(title="What the tables say", title_justify="left", title_style="bold")
    drawn.add_column("Promise", no_wrap=True)
    drawn.add_column("Counted")
    drawn.add_column("Holds")
    for promise in kept:
        drawn.add_row(promise.name, promise.figures, "[green]yes[/]" if promise.holds else "[bold red]NO[/]")
    return drawn
