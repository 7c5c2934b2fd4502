"""The PHP queue tables as people see them: messages that wait or run, and dead letters with ids of their own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from holdfast.errors import ConfigError, Conflict, JobNotFound
from holdfast.flow import Flow, Steps, flow
from holdfast.foreign.desk import EXAMINED_ROWS, LettersDesk, page_of, page_size, stated, view
from holdfast.foreign.pdo import dead
from holdfast.foreign.pdo.dead import Failed, message_of
from holdfast.foreign.pdo.envelope import Malformed, read
from holdfast.foreign.pdo.flows import PdoTables, Stored, decoded
from holdfast.life.findings import Finding
from holdfast.life.listing import EVERYTHING, After, Count, Kept, Page, Replays, Wanted, id_of
from holdfast.life.windows import last_looked_at
from holdfast.values.failure import fingerprint
from holdfast.values.views import JobView
from holdfast.values.words import plural

LARGEST_ID = 2**63 - 1
# A row that was made this far in the future was written with another time zone, or another clock.
CLOCK_TOLERANCE = timedelta(minutes=2)

_ASKED_OF_ROWS = ("queue", "kind", "ids", "states", "created_after", "created_before")
_ASKED_OF_LETTERS = ("queue", "kind", "ids", "finished_after", "finished_before", "group", "error")


class PdoDesk(LettersDesk):
    """The tables of InitPHP Queue's PDO transport."""

    tables: PdoTables

    def __init__(self, name: str, tables: PdoTables) -> None:
        super().__init__(name, tables)
        self.refusals = {
            "cancel": "knows no cancel: the programs that share it would not hear of it. To be rid of a message that "
            f"waits (reserved_at is null), delete its row in {tables.queries.tables[0]}.",
            "change": "cannot be changed here: the programs that share it have rules of their own. Change the row of a "
            f"message that waits (reserved_at is null) in {tables.queries.tables[0]}.",
        }

    # Looking

    def count_rows(self) -> Steps[list[Count]]:
        tables = self.tables
        now = yield from tables.now()
        rows = yield from tables.ask("counts", at=tables.stamp(now), stale=tables.stale(now))
        letters = yield from self._letter_counts({})
        counts = {}
        for queue, due, scheduled, reserved, stale, oldest in rows:
            since = tables.moment(oldest)
            counts[decoded(queue)] = Count(
                decoded(queue),
                due=int(due),
                scheduled=int(scheduled),
                leased=int(reserved),
                stale=int(stale),
                dead=letters.pop(decoded(queue), 0),
                oldest_seconds=None if since is None else max(0.0, (now - since).total_seconds()),
            )
        counts |= {queue: Count(queue, dead=count) for queue, count in letters.items()}
        return [counts[queue] for queue in sorted(counts)]

    def _letter_counts(self, given: dict[str, Any]) -> Steps[dict[str, int]]:
        rows = yield from self.tables.ask("failed_counts", **given)
        return {decoded(queue): int(count) for queue, count in rows}

    @flow
    def rows(
        self, wanted: Wanted = EVERYTHING, *, limit: int = 50, after: After = None, newest: bool = True
    ) -> Steps[Page]:
        given = self._params(self.asked(wanted, _ASKED_OF_ROWS))
        given |= {"limit": page_size(wanted, limit)} | self._place(after, newest)
        return page_of(wanted, limit, (yield from self._rows(given)))

    def _rows(self, given: dict[str, Any]) -> Steps[list[JobView]]:
        now = yield from self.tables.now(alone=True)
        rows = yield from self.tables.ask("rows", **given)
        return [row_view(self.tables, Stored.of(row), now) for row in rows]

    def read_letters(self, wanted: Wanted, limit: int, after: After, newest: bool, end: After = None) -> Steps[Page]:
        given = self._asked_of_letters(wanted) | {"limit": page_size(wanted, limit)} | self._place(after, newest)
        if end is not None:
            given["from_id" if newest else "to_id"] = self._number(id_of(end))
        now = yield from self.tables.now(alone=True)
        rows = yield from self.tables.ask("failed", **given)
        return page_of(wanted, limit, [letter_view(self.tables, Failed.of(row), now) for row in rows])

    def horizon(self, after: After, newest: bool, window: int) -> Steps[After]:
        rows = yield from self.tables.ask("failed_horizon", skipped=window - 1, **self._place(after, newest))
        last = last_looked_at(rows)
        return None if last is None else str(last[0])

    def count_unsifted(self, wanted: Wanted) -> Steps[int]:
        return sum((yield from self._letter_counts(self._asked_of_letters(wanted))).values())

    @flow
    def show(self, row_id: str, *, dead: bool = False) -> Steps[JobView]:
        wanted = Wanted(ids=(row_id,))
        if dead:
            page = yield from self.read_letters(wanted, 1, None, False)
            return self.found(row_id, page.rows, "replayed and discarded ones are deleted")
        return self.found(row_id, (yield from self._rows(self._params(wanted.given()) | {"limit": 1})))

    def _asked_of_letters(self, wanted: Wanted) -> dict[str, Any]:
        given = self._params(wanted.given_of(_ASKED_OF_LETTERS, self.name))
        return {name: value for name, value in given.items() if name not in ("group", "error")}

    def _params(self, said: dict[str, Any]) -> dict[str, Any]:
        stamp = self.tables.stamp
        given = {name: stamp(value) if isinstance(value, datetime) else value for name, value in said.items()}
        if "ids" in given:
            given["row_ids"] = [self._number(row_id) for row_id in given.pop("ids")]
        return stated(given)

    def _place(self, after: After, newest: bool) -> dict[str, Any]:
        place: dict[str, Any] = {"newest": True} if newest else {}
        if after is not None:
            place["older_than" if newest else "newer_than"] = self._number(id_of(after))
        return place

    def _number(self, row_id: str) -> int:
        """Read an id that somebody typed. Raises: ConfigError."""
        if not row_id.isascii() or not row_id.isdigit() or int(row_id) > LARGEST_ID:
            raise ConfigError("id", f"rows of {self.name} have whole numbers for ids", row_id)
        return int(row_id)

    # Acting

    @flow
    def retry(self, row_id: str, actor: str | None) -> Steps[Literal["due"]]:
        """Let a message be claimed that waits for its time.

        Commits: its own. Raises: JobNotFound; Conflict for a row that somebody holds. After a crash: safe to repeat.
        """
        number = self._number(row_id)
        now = yield from self.tables.now()
        rows = yield from self.tables.ask("rows", row_ids=[number], limit=1)
        row = self.waiting(row_id, [row_view(self.tables, Stored.of(row), now) for row in rows])
        # Not in this second: a reservation of the last holder may carry its stamp.
        yield from self.tables.ask("due", id=number, at=self.tables.stamp(now + timedelta(seconds=1)))
        yield from self.record("run_now", actor, [row])
        return "due"

    @flow
    def replay(self, wanted: Wanted, limit: int, actor: str | None, dry_run: bool = False) -> Steps[Replays]:
        """Put dead letters back into their queues; one that was never a message stays, and stops no other.

        Commits: its own, all or none. After a crash: nothing happened, or those that went back are gone here.
        """
        if dry_run:
            return (yield from self._foreseen(wanted, limit))
        done, rows, back = Replays(), {}, []
        for letter in (yield from self._oldest(wanted, limit)):
            try:
                rows[letter.id] = str((yield from dead.replay(self.tables, int(letter.id))))
                back.append(letter)
            except JobNotFound:
                continue
            except Conflict as conflict:
                done.conflicts[letter.id] = done.reasons[letter.id] = conflict.message
        yield from self.record("replay", actor, back)
        return replace(done, ids=list(rows), rows=rows)

    def _foreseen(self, wanted: Wanted, limit: int) -> Steps[Replays]:
        """Tell what a replay would do. Only ids are kept: there may be more letters than fit into memory."""
        done = Replays(rows={})

        def foresee(letters: list[JobView]) -> None:
            for letter in letters:
                try:
                    message_of(letter.payload, int(letter.id))
                    done.ids.append(letter.id)
                except Conflict as conflict:
                    done.conflicts[letter.id] = done.reasons[letter.id] = conflict.message

        yield from self.each_page(wanted, foresee, limit)
        return done

    @flow
    def discard(self, wanted: Wanted, limit: int, actor: str | None, dry_run: bool = False) -> Steps[list[str]]:
        """Delete dead letters for good, and tell which were still there. Commits: its own, all or none."""
        if dry_run:
            ids: list[str] = []
            yield from self.each_page(wanted, lambda letters: ids.extend(letter.id for letter in letters), limit)
            return ids
        gone = []
        for letter in (yield from self._oldest(wanted, limit)):
            if (yield from self.tables.ask("failed_lock", id=int(letter.id))):
                yield from self.tables.ask("failed_delete", id=int(letter.id))
                gone.append(letter)
        yield from self.record("discard", actor, gone)
        return [letter.id for letter in gone]

    def _oldest(self, wanted: Wanted, limit: int) -> Steps[list[JobView]]:
        """Read the oldest letters that fit, in the transaction of what is done to them."""
        found: list[JobView] = []
        # The first statement of a flow says whether it needs a transaction.
        yield from self.tables.now()
        yield from self.each_page(wanted, found.extend, limit)
        return found

    @flow
    def kept(self) -> Steps[list[Kept]]:
        return [Kept("dead", queue) for queue in (yield from self._letter_counts({}))]

    @flow
    def count_older(self, part: Kept, older: timedelta) -> Steps[int]:
        now = yield from self.tables.now(alone=True)
        given = {"queue": part.queue, "finished_before": self.tables.stamp(now - older)}
        return sum((yield from self._letter_counts(given)).values())

    def prune(self, part: Kept, older: timedelta, *, limit: int = 1000) -> Flow[int]:
        return dead.prune(self.tables, older, queue=part.queue, limit=limit)

    # Trouble

    def flaws(self) -> Steps[list[Finding]]:
        now = yield from self.tables.now()
        rows = [Stored.of(row) for row in (yield from self.tables.ask("rows", limit=EXAMINED_ROWS))]
        return list(_flaws(self, rows, now))


def _flaws(desk: PdoDesk, rows: Sequence[Stored], now: datetime) -> Iterator[Finding]:
    moment = desk.tables.moment
    malformed = [(row.id, flaw) for row in rows if (flaw := _flaw(row.payload))]
    timeless = [row.id for row in rows if None in map(moment, (row.available_at, row.created_at))]
    ahead = [row.id for row in rows if (at := moment(row.created_at)) and at - now > CLOCK_TOLERANCE]
    if malformed:
        row_id, flaw = malformed[0]
        count = plural(len(malformed), "malformed message")
        seen = f"{count} among the first {len(rows):,}, such as {row_id}: {flaw}"
        show = f"`holdfast jobs show {row_id} --store {desk.name}`"
        yield Finding("malformed", "warning", seen, f"fix their producer; a worker makes dead letters of them. {show}")
    if timeless:
        count = plural(len(timeless), "row")
        seen = f"{count} with a time that cannot be read, such as {timeless[0]}: others may never take them"
        do = "write `YYYY-MM-DD HH:MM:SS`, as text, in available_at and created_at"
        yield Finding("times", "problem", seen, do)
    if ahead:
        seen = f"{plural(len(ahead), 'row')} made in the future, such as {ahead[0]}"
        do = f"is `timezone` ({desk.tables.timezone} here) that of the PHP processes? Are the clocks right?"
        yield Finding("times", "warning", seen, do)


def _flaw(payload: str) -> str:
    try:
        read(payload)
    except Malformed as flaw:
        return flaw.reason
    return ""


def row_view(tables: PdoTables, row: Stored, now: datetime) -> JobView:
    """Show a message that waits or runs."""
    leased_at = None if row.reserved_at is None else tables.moment(row.reserved_at)
    return view(
        str(row.id),
        "pending" if row.reserved_at is None else "leased",
        queue=row.queue,
        kind=row.urn,
        attempts=row.attempts + (row.reserved_at is not None),
        max_attempts=tables.backoff.max_attempts,
        payload=row.payload,
        headers={"trace_id": row.trace_id} if row.trace_id else None,
        available_at=tables.moment(row.available_at) or now,
        created_at=tables.moment(row.created_at) or now,
        leased_at=leased_at,
        lease_expires_at=None if leased_at is None else leased_at + timedelta(seconds=tables.retry_after),
    )


def letter_view(tables: PdoTables, row: Failed, now: datetime) -> JobView:
    """Show a dead letter."""
    failed_at = tables.moment(row.failed_at) or now
    letter = _letter(row.payload)
    error: dict[str, Any] = {
        "attempt": row.attempts,
        "type": str(letter.get("exception") or row.reason),
        "message": str(letter.get("error") or ""),
        "reason": row.reason,
        "failed_at": failed_at.astimezone(UTC).isoformat(),
    }
    return view(
        str(row.id),
        "dead",
        queue=row.queue,
        kind=row.urn,
        attempts=row.attempts,
        max_attempts=tables.backoff.max_attempts,
        payload=row.payload,
        headers={"trace_id": row.trace_id} if row.trace_id else None,
        errors=[error],
        group=fingerprint(error["type"], error["message"]),
        available_at=tables.moment(row.created_at) or now,
        created_at=tables.moment(row.created_at) or now,
        finished_at=failed_at,
    )


def _letter(payload: str) -> Mapping[str, Any]:
    try:
        body = read(payload).body
    except Malformed as flaw:
        body = flaw.body or {}
    letter = body.get("dead_letter")
    return letter if isinstance(letter, dict) else {}
