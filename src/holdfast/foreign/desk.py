"""What the desks of all foreign tables share: which tables are there, paging, findings, views and audit lines."""

from __future__ import annotations

import math
import uuid
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, ClassVar

from holdfast.admin import jobs as admin
from holdfast.admin.recording import is_present, record
from holdfast.errors import ConfigError, Conflict, JobNotFound
from holdfast.flow import Steps, ask, flow
from holdfast.foreign.tables import ForeignTables
from holdfast.life.desk import Desk
from holdfast.life.findings import Finding, of_letters
from holdfast.life.listing import EVERYTHING, After, Count, Page, Wanted
from holdfast.life.windows import WINDOW
from holdfast.values.rows import Outcome, State, when
from holdfast.values.views import AuditLine, DeadGroup, JobView

# A longer list is read in several pages.
LONGEST_PAGE_ROWS = 10_000
# Where many rows are looked at, because they are sifted or acted upon, they are read in pages of this size.
PAGE_ROWS = 500
# How many rows are read to see what they hold: the first that workers meet.
EXAMINED_ROWS = 1_000
# How many dead letters an examination groups: the newest.
EXAMINED_LETTERS = 10_000

_AUDITED = uuid.UUID("7b0c6a2e-51d4-5e0b-9a63-0d3f2c7c4f11")


class ForeignDesk(Desk):
    """Foreign tables as people see them: they list rows that wait and run, and dead letters where some are kept."""

    states: ClassVar[tuple[str, ...]] = ("pending", "leased")
    # What a listing may say of a row that is not there.
    gone: ClassVar[str] = "what is finished is deleted"

    def __init__(self, name: str, tables: ForeignTables) -> None:
        self.name = name
        self.tables = tables

    @flow
    def missing(self) -> Steps[list[str]]:
        """Name the tables that are not there."""
        return (yield from self.tables.queries.missing())

    # Looking

    @flow
    def counts(self) -> Steps[list[Count]]:
        """Count rows by queue. Raises: ForeignTablesMissing."""
        yield from self.tables.queries.check()
        return (yield from self.count_rows())

    @abstractmethod
    def count_rows(self) -> Steps[list[Count]]:
        """Count rows by queue, in tables that are there."""

    def asked(self, wanted: Wanted, known: Sequence[str]) -> dict[str, Any]:
        """Return what is asked of the rows that wait and run. Raises: ConfigError for what they cannot be asked."""
        if strange := [state for state in wanted.states if state not in self.states]:
            list_them = f"`holdfast dead list --store {self.name}` lists dead letters"
            instead = list_them if self.can("letters") else f"it {self.refusals['letters']}"
            raise ConfigError("states", f"{self.name} keeps only what waits and runs; {instead}", strange[0])
        return wanted.given_of(known, self.name)

    def found(self, row_id: str, rows: Sequence[JobView], gone: str | None = None) -> JobView:
        """Return the one row that was read. Raises: JobNotFound."""
        if not rows:
            raise JobNotFound(row_id, self.name, gone or self.gone)
        return rows[0]

    def waiting(self, row_id: str, rows: Sequence[JobView]) -> JobView:
        """Return the one row that was read. Raises: JobNotFound; Conflict for a row that somebody holds."""
        row = self.found(row_id, rows)
        if row.state == "leased":
            raise Conflict(f"Row {row_id} of {self.name} is held by a worker: it is free again when its lease ends.")
        return row

    # Audit

    @flow
    def is_audited(self) -> Steps[bool]:
        return (yield from is_present())

    @flow
    def audit(self, row_id: str, *, dead: bool = False, limit: int = 50) -> Steps[list[AuditLine]]:
        if not (yield from is_present()):
            return []
        return (yield from admin.audit(self.audit_id(row_id, dead), limit))

    def audit_id(self, row_id: str, dead: bool = False) -> str:
        """Return the UUID under which a row's audit lines stand: ids of foreign rows are of any form."""
        return str(uuid.uuid5(_AUDITED, f"{self.name}/{'dead/' if dead else ''}{row_id}"))

    def record(self, action: str, actor: str | None, rows: Iterable[JobView]) -> Steps[None]:
        """Write audit lines in the transaction of the action, where the database has our tables."""
        lines = [(self.audit_id(row.id, row.state == "dead"), _detail(self.name, row)) for row in rows]
        if lines and (yield from is_present()):
            yield from record(action, actor, lines)

    # Trouble

    @flow
    def examine(
        self,
        lag_seconds: float = 60.0,
        *,
        served: Collection[str] | None = None,
        only: str | None = None,
    ) -> Steps[list[Finding]]:
        """Look for what is wrong: tables, workers and engines that are missing, bad rows, dead letters.

        It looks at everything at once, and its queues are not those of our workers: the other arguments say nothing.
        """
        absent = yield from self.tables.queries.missing()
        if absent:
            do = f"`holdfast migrate apply --store {self.name}`, create_schema(), or the program that shares them"
            return [Finding("tables", "problem", f"there is no table {' and no '.join(absent)}", do)]
        differing = yield from self.difference()
        if differing is not None:
            return [Finding("tables", "problem", *differing)]
        counts = yield from self.count_rows()
        found = [finding for count in counts for finding in _of_queue(count, lag_seconds)]
        found += yield from self.flaws()
        if any(count.dead for count in counts):
            found += yield from self.dead_letters()
        rows = f"{sum(c.due for c in counts):,} due, {sum(c.leased for c in counts):,} leased"
        return found or [Finding("foreign", "ok", rows)]

    def difference(self) -> Steps[tuple[str, str] | None]:
        """Tell in what the tables differ from those we know, and what to do; None where they do not, or do not say."""
        yield from ()
        return None

    @abstractmethod
    def flaws(self) -> Steps[list[Finding]]:
        """Look for rows that no program can use."""

    def dead_letters(self) -> Steps[list[Finding]]:
        """Tell of dead letters, where the tables keep some."""
        yield from ()
        return []


class LettersDesk(ForeignDesk):
    """Foreign tables that keep dead letters: how they are listed, counted and grouped."""

    @abstractmethod
    def read_letters(self, wanted: Wanted, limit: int, after: After, newest: bool, end: After = None) -> Steps[Page]:
        """Read a page of the letters that fit, no further than to the one at `end`."""

    @abstractmethod
    def horizon(self, after: After, newest: bool, window: int) -> Steps[After]:
        """Name the letter that is the last of the next `window`, whatever is asked of them; None at the end."""

    @abstractmethod
    def count_unsifted(self, wanted: Wanted) -> Steps[int]:
        """Count the letters that the database finds by itself."""

    @flow
    def letters(
        self, wanted: Wanted = EVERYTHING, *, limit: int = 50, after: After = None, newest: bool = True
    ) -> Steps[Page]:
        """Read dead letters that fit, among the next `WINDOW` of them: no index finds those that do.

        Letters by their ids are found in any case.
        """
        end = yield from self._end(wanted, after, newest)
        found: list[JobView] = []
        while True:
            page = yield from self.read_letters(wanted, limit - len(found), after, newest, end)
            found += page.rows
            if page.more is None:
                return Page(found) if end is None else Page(found, end, at_horizon=True)
            if len(found) == limit:
                return Page(found, page.more)
            after = page.more

    def _end(self, wanted: Wanted, after: After, newest: bool) -> Steps[After]:
        """Name the letter at which a look must end; None where it may go to the end."""
        if wanted.ids or not wanted.given():
            return None
        return (yield from self.horizon(after, newest, WINDOW))

    @flow
    def count_letters(self, wanted: Wanted = EVERYTHING) -> Steps[int]:
        if not wanted.is_sifted:
            return (yield from self.count_unsifted(wanted))
        pages: list[int] = []
        yield from self.each_page(wanted, lambda letters: pages.append(len(letters)))
        return sum(pages)

    @flow
    def groups(self, wanted: Wanted = EVERYTHING, limit: int = 50) -> Steps[list[DeadGroup]]:
        found = Grouping()
        yield from self.each_page(wanted, found.add, newest=True)
        return found.largest(limit)

    def each_page(
        self, wanted: Wanted, take: Callable[[list[JobView]], object], most: float = math.inf, newest: bool = False
    ) -> Steps[None]:
        """Hand over the letters that fit, up to `most`, page by page, in looks at a bounded number of them."""
        after: After = None
        end = yield from self._end(wanted, after, newest)
        while most > 0:
            page = yield from self.read_letters(wanted, int(min(most, PAGE_ROWS)), after, newest, end)
            take(page.rows)
            most, after = most - len(page.rows), page.more
            if after is None and end is None:
                break
            if after is None:
                after = end
                end = yield from self._end(wanted, after, newest)

    def dead_letters(self) -> Steps[list[Finding]]:
        [[now]] = yield from ask("clock")
        found = Grouping()
        yield from self.each_page(EVERYTHING, found.add, EXAMINED_LETTERS, newest=True)
        return list(of_letters(found.largest(EXAMINED_LETTERS), when(now), f" --store {self.name}"))


def _of_queue(count: Count, lag_seconds: float) -> Iterator[Finding]:
    late = count.oldest_seconds is not None and count.oldest_seconds > lag_seconds
    since = f"the oldest for {timedelta(seconds=int(count.oldest_seconds or 0))}"
    if count.due and late:
        do = "start a worker with handlers for it, or more of them"
        yield Finding("lag", "warning", f"{count.queue}: {count.due:,} due, {since}", do)
    if count.unread and late:
        do = "start the engine that dispatched these steps, on this prefix"
        yield Finding("results", "problem", f"{count.unread:,} results unread, {since}", do)
    if count.stale:
        seen = f"{count.queue}: {count.stale:,} held by workers that have been silent for longer than the lease"
        do = "a worker takes them over; if they stay, none serves this queue: start one"
        yield Finding("stale", "warning", seen, do)


def page_size(wanted: Wanted, limit: int) -> int:
    """Tell how many rows to read for a page of up to `limit` that fit."""
    return min(max(limit, PAGE_ROWS) if wanted.is_sifted else limit, LONGEST_PAGE_ROWS)


def page_of(wanted: Wanted, limit: int, read: Sequence[JobView]) -> Page:
    """Make a page of what was read for it."""
    fitting = [row for row in read if wanted.fits(row)]
    if len(fitting) > limit:
        return Page(fitting[:limit], fitting[limit - 1])
    return Page(fitting, read[-1] if len(read) == page_size(wanted, limit) else None)


def stated(given: dict[str, Any]) -> dict[str, Any]:
    """Say a state as a line of the query; both of them are all rows."""
    states = set(given.pop("states", ()))
    return given | {state: True for state in states if len(states) == 1}


class Grouping:
    """Groups dead letters by kind and like errors, as they come, the newest first."""

    def __init__(self) -> None:
        self._found: dict[tuple[str | None, str], DeadGroup] = {}

    def add(self, letters: Iterable[JobView]) -> None:
        for letter in letters:
            name = (letter.group, letter.kind)
            at, error = letter.finished_at or letter.created_at, letter.last_error or {}
            words = str(error.get("type")), str(error.get("message"))
            first = DeadGroup(letter.group or "", letter.kind, 0, [], *words, at, at, letter.id)
            group = self._found.get(name, first)
            self._found[name] = replace(
                group,
                count=group.count + 1,
                queues=sorted({*group.queues, letter.queue}),
                first_at=min(group.first_at, at),
                last_at=max(group.last_at, at),
            )

    def largest(self, limit: int) -> list[DeadGroup]:
        """Return the groups, the largest first."""
        return sorted(self._found.values(), key=lambda group: (-group.count, group.kind, group.group))[:limit]


def _detail(store: str, row: JobView) -> dict[str, Any]:
    error = row.last_error
    said = None if error is None else {"type": error.get("type"), "message": error.get("message")}
    return {"store": store, "id": row.id, "queue": row.queue, "kind": row.kind, "was": row.state, "error": said}


_VIEW: dict[str, Any] = {
    "priority": 0,
    "fence": 0,
    "key": None,
    "unique": None,
    "headers": None,
    "progress": None,
    "result": None,
    "leased_at": None,
    "lease_expires_at": None,
    "leased_by": None,
    "finished_at": None,
    "group": None,
    "replays": 0,
    "cancel_requested": False,
}


def view(row_id: str, state: State | Outcome, **fields: Any) -> JobView:
    """Make the view of a row; what its tables do not keep is null, 0 or empty."""
    return JobView(**(_VIEW | {"errors": []} | fields | {"id": row_id, "state": state}))
