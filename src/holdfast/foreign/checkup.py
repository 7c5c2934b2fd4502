"""What looks wrong with foreign tables, as flows for `doctor`. Nothing here writes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

from holdfast.flow import Steps, flow
from holdfast.foreign.durable.flows import DurableTables, Task, is_json
from holdfast.foreign.pdo.envelope import Malformed, read
from holdfast.foreign.pdo.flows import PdoTables, Stored
from holdfast.foreign.views import ForeignCount, Shown, overview

# How many rows are read to see what they hold: the first that workers meet.
LOOKED_AT = 1_000
# A row that was made so far in the future was written with another time zone, or another clock.
AHEAD = timedelta(minutes=2)


@dataclass(frozen=True, slots=True)
class ForeignFinding:
    """One thing that was looked at: how bad it is, what was seen, and what to do about it."""

    source: str
    check: str
    severity: Literal["ok", "warning", "problem"]
    seen: str
    do: str = ""


@flow
def examine(source: Shown, lag: float = 60.0) -> Steps[list[ForeignFinding]]:
    """Look for what is wrong with a source: tables, workers and engines that are missing, bad rows, dead letters."""
    absent = yield from source.tables.queries.missing()
    if absent:
        do = f"`holdfast migrate apply --store {source.name}`, create_schema(), or the program that shares them"
        return [ForeignFinding(source.name, "tables", "problem", f"there is no table {' and no '.join(absent)}", do)]
    counts = yield from overview(source)
    found = [finding for count in counts for finding in _of_queue(count, lag)]
    tables = source.tables
    if isinstance(tables, PdoTables):
        found += yield from _of_messages(source.name, tables)
    else:
        found += yield from _of_steps(source.name, tables)
    rows = f"{sum(c.ready for c in counts):,} ready, {sum(c.leased for c in counts):,} leased"
    return found or [ForeignFinding(source.name, "foreign", "ok", rows)]


def _of_queue(count: ForeignCount, lag: float) -> Iterator[ForeignFinding]:
    late = count.oldest_seconds is not None and count.oldest_seconds > lag
    since = f"the oldest for {timedelta(seconds=int(count.oldest_seconds or 0))}"
    if count.ready and late:
        do = "start a worker with handlers for it, or more of them"
        yield ForeignFinding(count.source, "lag", "warning", f"{count.queue}: {count.ready:,} ready, {since}", do)
    if count.unread and late:
        do = "start the engine that dispatched these steps, on this prefix"
        yield ForeignFinding(count.source, "results", "problem", f"{count.unread:,} results unread, {since}", do)
    if count.stale:
        seen = f"{count.queue}: {count.stale:,} held by workers that have been silent for longer than the lease"
        do = "a worker takes them over; if they stay, none serves this queue: start one"
        yield ForeignFinding(count.source, "stale", "warning", seen, do)
    if count.dead:
        do = f"`holdfast dead groups --store {count.source}`; once fixed, `holdfast dead replay` (or discard)"
        seen = f"{count.queue}: {count.dead:,} dead letters"
        yield ForeignFinding(count.source, "dead", "warning", seen, do)


def _of_messages(name: str, tables: PdoTables) -> Steps[list[ForeignFinding]]:
    now = yield from tables.now()
    rows = [Stored.of(row) for row in (yield from tables.ask("rows", limit=LOOKED_AT))]
    malformed = [(row.id, flaw) for row in rows if (flaw := _flaw(row.payload))]
    timeless = [row.id for row in rows if None in map(tables.moment, (row.available_at, row.created_at))]
    ahead = [row.id for row in rows if (at := tables.moment(row.created_at)) and at - now > AHEAD]
    found = []
    if malformed:
        row_id, flaw = malformed[0]
        seen = f"{_many(malformed, 'malformed message')} among the first {len(rows):,}, such as {row_id}: {flaw}"
        do = f"fix their producer; a worker makes dead letters of them. `holdfast jobs show {row_id} --store {name}`"
        found.append(ForeignFinding(name, "malformed", "warning", seen, do))
    if timeless:
        seen = f"{_many(timeless, 'row')} with a time that is none, such as {timeless[0]}: others may never take them"
        do = "write `YYYY-MM-DD HH:MM:SS`, as text, in available_at and created_at"
        found.append(ForeignFinding(name, "times", "problem", seen, do))
    if ahead:
        seen = f"{_many(ahead, 'row')} made in the future, such as {ahead[0]}"
        do = f"is `timezone` ({tables.timezone} here) that of the PHP processes? Are the clocks right?"
        found.append(ForeignFinding(name, "times", "warning", seen, do))
    return found


def _many(found: Sequence[object], what: str) -> str:
    return f"{len(found):,} {what}{'' if len(found) == 1 else 's'}"


def _flaw(payload: str) -> str:
    try:
        read(payload)
    except Malformed as flaw:
        return flaw.reason
    return ""


def _of_steps(name: str, tables: DurableTables) -> Steps[list[ForeignFinding]]:
    tasks = [Task(*row) for row in (yield from tables.ask("rows", limit=LOOKED_AT))]
    results: Any = yield from tables.ask("results", limit=LOOKED_AT)
    no_input = [task.step_id for task in tasks if not is_json(task.input)]
    no_output = [step_id for step_id, *texts in results if not all(map(is_json, texts)) or not _is_error(texts[1])]
    found = []
    if no_input:
        seen = f"{_many(no_input, 'task')} whose input is not JSON, such as {no_input[0]}"
        do = "fix the engine that dispatched them; a worker fails them for good"
        found.append(ForeignFinding(name, "malformed", "warning", seen, do))
    if no_output:
        seen = f"{_many(no_output, 'result')} without valid JSON, such as {no_output[0]}"
        do = "an engine may stop there for ever: fix output and error in the row, and the worker that wrote it"
        found.append(ForeignFinding(name, "malformed", "problem", seen, do))
    return found


def _is_error(text: str | None) -> bool:
    return text is None or isinstance(json.loads(text), dict)
