"""How long people and Prometheus wait for what they look at, beside very many finished rows and beside few."""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import urlencode

from holdfast import Holdfast, admin, observe
from holdfast.bench.run import Said, opened
from holdfast.bench.side import Side
from holdfast.bench.study import GROW_FINISHED, OURS, Finding, Scale, connection, insist_on_postgres, vacuum
from holdfast.dashboard import Access, Dashboard
from holdfast.flow import Flow
from holdfast.observe.exposition import of_fleet
from holdfast.worker import registry
from holdfast.worker.registry import status_of

SEEDS = 1_000
FEW, MANY = "few", "many"
# What a page, a metric or a command reads, by itself.
READS: dict[str, Callable[[], Flow[Any]]] = {
    "sample of the queues": observe.sample,
    "newest sample": observe.latest,
    "an hour of statistics": observe.history,
    "counts": admin.counts,
    "groups of dead letters": admin.dead_groups,
    "the newest 50 jobs": admin.newest,
}
# The pages of the dashboard, by their paths.
PAGES = {
    "page: overview": "/",
    "page: jobs": "/jobs",
    "page: jobs, nothing is found": "/jobs?" + urlencode({"q": "kind:nobody"}),
    "page: dead letters": "/dead",
    "page: queues": "/queues",
    "page: runs": "/runs",
    "page: outbox": "/outbox",
    "page: audit": "/audit",
}
METRICS = "text of `holdfast metrics`"

Asked = Callable[[Holdfast, Dashboard], Awaitable[Any]]


async def pages(url: str, scale: Scale, say: Said) -> Finding:
    """Read what a page shows beside very many finished rows, and beside few; interleaved rounds."""
    insist_on_postgres(url)
    asked = _asked()
    took: dict[tuple[str, str], list[float]] = {(name, which): [] for name in asked for which in (FEW, MANY)}
    async with opened(url, [OURS]) as [few], opened(url, [OURS]) as [many]:
        await _fill(few, many, scale, say)
        apps = {which: Holdfast(side.url, prefix=side.prefix) for which, side in ((FEW, few), (MANY, many))}
        boards = {which: app.dashboard(access=lambda _: Access()) for which, app in apps.items()}
        for number in range(max(3, scale.rounds) + 1):
            say(f"pages: round {number}" if number else "pages: once before it counts")
            for name, ask in asked.items():
                for which in (FEW, MANY) if number % 2 else (MANY, FEW):
                    # What a page keeps for a few seconds is no measure of what it reads.
                    boards[which].setting.shared.forget()
                    began = time.perf_counter()
                    await ask(apps[which], boards[which])
                    if number:
                        took[name, which].append((time.perf_counter() - began) * 1000)
        for app in apps.values():
            await app.aclose()
    return _found(took, list(asked), scale)


async def _fill(few: Side, many: Side, scale: Scale, say: Said) -> None:
    for side in (few, many):
        await side.do("enqueue_many", count=SEEDS, per_call=SEEDS)
        await side.do("drain", count=SEEDS, keep=True)
    say(f"pages: adding {scale.finished:,} finished rows, one in a thousand of them dead")
    with connection(many) as (raw, place):
        raw.execute(place(GROW_FINISHED), (scale.finished // SEEDS,))
        raw.execute(place("update holdfast_finished set outcome = 'dead' where hashtext(id::text) % 1000 = 0"))
    for side in (few, many):
        vacuum(side, "holdfast_finished")


def _asked() -> dict[str, Asked]:
    reads = {name: _reading(read) for name, read in READS.items()}
    return reads | {METRICS: _metrics} | {name: _visiting(path) for name, path in PAGES.items()}


def _reading(read: Callable[[], Flow[Any]]) -> Asked:
    return lambda app, _: app.store.arun(read())


async def _metrics(app: Holdfast, _: Dashboard) -> str:
    """Write what `holdfast metrics` does where no worker has left a sample: the most expensive way."""
    await app.store.arun(observe.latest())
    sample = await app.store.arun(observe.sample())
    found = Counter(status_of(worker) for worker in await app.store.arun(registry.workers()))
    return of_fleet(sample, found)


def _visiting(path: str) -> Asked:
    return lambda _, board: _visit(board, path)


async def _visit(board: Dashboard, path: str) -> None:
    """Ask for a page as a server would. Raises: RuntimeError for anything but a page."""
    path, _, query = path.partition("?")
    sent: list[MutableMapping[str, Any]] = []

    async def receive() -> MutableMapping[str, Any]:
        return {"type": "http.request", "body": b""}

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    headers = [(b"host", b"localhost")]
    scope = {"type": "http", "method": "GET", "path": path, "root_path": "", "query_string": query.encode()}
    await board.asgi(scope | {"headers": headers, "client": ("127.0.0.1", 1)}, receive, send)
    if sent[0]["status"] != 200:
        raise RuntimeError(f"{path}: the dashboard answered {sent[0]['status']}")


def _found(took: dict[tuple[str, str], list[float]], names: list[str], scale: Scale) -> Finding:
    lines: list[tuple[Any, ...]] = []
    for name in names:
        few, many = took[name, FEW], took[name, MANY]
        ratio = statistics.median(one / other for one, other in zip(many, few, strict=True))
        lines.append((name, statistics.median(few), statistics.median(many), max(many), ratio))
    slowest, grown_most = max(lines, key=lambda line: line[2]), max(lines, key=lambda line: line[4])
    summary = (
        f"the slowest with {scale.finished:,} finished rows is {slowest[0]}: {slowest[2]:.0f} ms; "
        f"what grows most is {grown_most[0]}: {grown_most[4]:.2f} times as long as beside {SEEDS:,}"
    )
    columns = ("read", f"ms beside {SEEDS:,} rows", "ms beside many", "slowest ms", "many by few")
    return Finding("pages", columns, lines, summary)
