"""Airlock's outbox table as people see it: messages that wait or run, and dead letters under the same ids."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Literal, NamedTuple

from holdfast.errors import Conflict
from holdfast.flow import Flow, Steps, flow
from holdfast.foreign.airlock import dead
from holdfast.foreign.airlock.flows import AirlockTables, difference
from holdfast.foreign.airlock.messages import error_in, flaw_in
from holdfast.foreign.desk import EXAMINED_ROWS, LettersDesk, page_of, page_size, stated, view
from holdfast.life.findings import Finding
from holdfast.life.listing import EVERYTHING, After, Count, Kept, Page, Replays, Wanted
from holdfast.life.windows import last_looked_at
from holdfast.values.failure import fingerprint
from holdfast.values.ids import parse_id
from holdfast.values.rows import Outcome, State, when
from holdfast.values.views import JobView
from holdfast.values.words import plural

_ASKED_OF_ROWS = ("queue", "kind", "key", "ids", "states", "created_after", "created_before", "worker")
_ASKED_OF_LETTERS = ("queue", "kind", "key", "ids", "finished_after", "finished_before", "group", "error")
_SIFTED = ("group", "error", "worker")
_OUTCOMES: dict[str, Outcome] = {"FAILED": "dead", "PROCESSED": "done"}


class Row(NamedTuple):
    """A message: the columns of the `rows` query in their order."""

    id: str
    aggregate_type: str | None
    aggregate_id: str | None
    event_type: str | None
    partition_key: str | None
    payload: str | None
    idempotency_key: str | None
    status: str
    retry_count: int
    next_retry_at: Any
    locked_by: str | None
    locked_until: Any
    error_reason: str | None
    created_at: Any
    last_attempt_at: Any
    processed_at: Any
    is_held: bool


class AirlockDesk(LettersDesk):
    """The outbox table of Airlock."""

    tables: AirlockTables
    gone = "what was processed is kept until it is pruned, and discarded letters are deleted"

    def __init__(self, name: str, tables: AirlockTables) -> None:
        super().__init__(name, tables)
        self.refusals = {
            "change": "cannot be changed here: Airlock's relay shares it. Change the row of a message that waits.",
            "cancel": "knows no cancel: Airlock's relay would not hear of it. To be rid of a message that waits, "
            f"set its status in {tables.table} to FAILED, and discard it.",
        }

    def audit_id(self, row_id: str, dead: bool = False) -> str:
        # A dead letter keeps its id, so that all that was done to a message is told together.
        return super().audit_id(row_id)

    # Looking

    def count_rows(self) -> Steps[list[Count]]:
        rows = yield from self.tables.ask("counts")
        return [
            Count(
                queue,
                due=int(due),
                scheduled=int(later),
                leased=int(leased),
                stale=int(stale),
                dead=int(letters),
                oldest_seconds=None if oldest is None else max(0.0, float(oldest)),
            )
            for queue, due, later, leased, stale, letters, oldest in rows
        ]

    @flow
    def rows(
        self, wanted: Wanted = EVERYTHING, *, limit: int = 50, after: After = None, newest: bool = True
    ) -> Steps[Page]:
        given = stated(self._params(self.asked(wanted, _ASKED_OF_ROWS))) | {"live": True}
        return (yield from self._page(wanted, given, limit, after, newest))

    def read_letters(self, wanted: Wanted, limit: int, after: After, newest: bool, end: After = None) -> Steps[Page]:
        given = self._of_letters(wanted) | {"failed": True}
        if end is not None:
            last = yield from self._placed(end)
            given |= {"end_at": last.created_at, "from_id" if newest else "to_id": last.id}
        return (yield from self._page(wanted, given, limit, after, newest))

    def horizon(self, after: After, newest: bool, window: int) -> Steps[After]:
        place = yield from self._place(after, newest)
        last = last_looked_at((yield from self.tables.ask("letters_horizon", skipped=window - 1, **place)))
        return None if last is None else (yield from self._placed(last[0]))

    def _page(self, wanted: Wanted, given: dict[str, Any], limit: int, after: After, newest: bool) -> Steps[Page]:
        given = given | {"limit": page_size(wanted, limit)} | (yield from self._place(after, newest))
        return page_of(wanted, limit, (yield from self._read(given)))

    def _place(self, after: After, newest: bool) -> Steps[dict[str, Any]]:
        place: dict[str, Any] = {"newest": True} if newest else {}
        if after is not None:
            row = yield from self._placed(after)
            place |= {"after_at": row.created_at, "older_than" if newest else "newer_than": row.id}
        return place

    def _read(self, given: dict[str, Any]) -> Steps[list[JobView]]:
        return [row_view(self.tables, Row(*row)) for row in (yield from self.tables.ask("rows", **given))]

    def _one(self, row_id: str) -> Steps[list[JobView]]:
        return (yield from self._read({"row_ids": [parse_id(row_id)], "limit": 1}))

    def _placed(self, row: str | JobView) -> Steps[JobView]:
        """Read a row that is named: ids say nothing of age, so that of the row is needed too."""
        if isinstance(row, JobView):
            return row
        found = yield from self._one(row)
        if not found:
            raise Conflict(f"Message {row} is gone, so what comes after it cannot be told. Begin at the first page.")
        return found[0]

    def count_unsifted(self, wanted: Wanted) -> Steps[int]:
        [[count]] = yield from self.tables.ask("letter_count", **self._of_letters(wanted))
        return int(count)

    @flow
    def show(self, row_id: str, *, dead: bool = False) -> Steps[JobView]:
        """Read one message, also one that was processed; with `dead` only if it is a dead letter."""
        found = [row for row in (yield from self._one(row_id)) if not dead or row.state == "dead"]
        return self.found(row_id, found, "it is not among the dead letters" if dead else None)

    def _of_letters(self, wanted: Wanted) -> dict[str, Any]:
        return self._params(wanted.given_of(_ASKED_OF_LETTERS, self.name))

    def _params(self, said: dict[str, Any]) -> dict[str, Any]:
        given = {name: value for name, value in said.items() if name not in _SIFTED}
        if "ids" in given:
            given["row_ids"] = [parse_id(row_id) for row_id in given.pop("ids")]
        return given

    # Acting

    @flow
    def retry(self, row_id: str, actor: str | None) -> Steps[Literal["due", "replayed"]]:
        """Let a message be claimed that waits for its time, or send a dead letter back.

        Commits: its own. Raises: JobNotFound; Conflict for a row that somebody holds, that is processed, or that no
        relay can use. After a crash: safe to repeat.
        """
        row = self.waiting(row_id, (yield from self._one(row_id)))
        if row.state == "dead":
            yield from dead.replay(self.tables, row_id)
            yield from self.record("replay", actor, [row])
            return "replayed"
        if not (yield from self.tables.ask("due", ids=[row_id])):
            raise Conflict(
                f"Message {row_id} of {self.name} does not wait: it is processed, or a relay has just taken it."
            )
        yield from self.record("run_now", actor, [row])
        return "due"

    @flow
    def replay(self, wanted: Wanted, limit: int, actor: str | None, dry_run: bool = False) -> Steps[Replays]:
        """Make dead letters due again; one that no relay can use stays, and stops no other.

        Commits: its own, all or none. After a crash: nothing happened, or those that went back are no letters any more.
        """
        if dry_run:
            return (yield from self._foreseen(wanted, limit))
        letters = yield from self._oldest(wanted, limit)
        back, stay = yield from dead.replay_all(self.tables, list(letters))
        gone = set(back)
        yield from self.record("replay", actor, [letter for row_id, letter in letters.items() if row_id in gone])
        return Replays([row_id for row_id in letters if row_id in gone], dict(stay), stay)

    def _foreseen(self, wanted: Wanted, limit: int) -> Steps[Replays]:
        """Tell what a replay would do."""
        done = Replays()

        def foresee(letters: list[JobView]) -> None:
            for letter in letters:
                if flaw := _flaw(letter):
                    done.conflicts[letter.id] = done.reasons[letter.id] = dead.refusal(letter.id, flaw)
                else:
                    done.ids.append(letter.id)

        yield from self.each_page(wanted, foresee, limit)
        return done

    def _oldest(self, wanted: Wanted, limit: int) -> Steps[dict[str, JobView]]:
        """Read the oldest letters that fit, without their payloads: there may be more than fit into memory."""
        found: dict[str, JobView] = {}

        def keep(letters: list[JobView]) -> None:
            found.update({letter.id: replace(letter, payload="") for letter in letters})

        yield from self.each_page(wanted, keep, limit)
        return found

    @flow
    def discard(self, wanted: Wanted, limit: int, actor: str | None, dry_run: bool = False) -> Steps[list[str]]:
        """Delete dead letters for good, and tell which were still there; idempotency keys stay taken.

        Commits: its own, all or none. After a crash: safe to repeat.
        """
        letters = yield from self._oldest(wanted, limit)
        if dry_run:
            return list(letters)
        gone = set((yield from dead.discard_all(self.tables, list(letters))))
        ids = [row_id for row_id in letters if row_id in gone]
        yield from self.record("discard", actor, [letters[row_id] for row_id in ids])
        return ids

    @flow
    def kept(self) -> Steps[list[Kept]]:
        return [Kept(_OUTCOMES[status], queue) for status, queue in (yield from self.tables.ask("kept"))]

    @flow
    def count_older(self, part: Kept, older: timedelta) -> Steps[int]:
        age_ms = round(older.total_seconds() * 1000)
        [[count]] = yield from self.tables.ask("older", queue=part.queue, age_ms=age_ms, **{part.outcome: True})
        return int(count)

    def prune(self, part: Kept, older: timedelta, *, limit: int = 1000) -> Flow[int]:
        what: dead.Finished = "dead" if part.outcome == "dead" else "done"
        return dead.prune(self.tables, older, what, queue=part.queue, limit=limit)

    # Trouble

    def difference(self) -> Steps[tuple[str, str] | None]:
        found = yield from difference(self.tables)
        return None if found is None else (found.seen, found.do)

    def flaws(self) -> Steps[list[Finding]]:
        [[malformed, one]] = yield from self.tables.ask("malformed", limit=EXAMINED_ROWS)
        [[strange, sample, timeless, other]] = yield from self.tables.ask("flaws")
        found = []
        if malformed:
            seen = (
                f"{plural(int(malformed), 'malformed message')}, such as {one}: no CloudEvent of the row's event_type"
            )
            do = "fix their producer; a worker with a handler for their type makes dead letters of them"
            found.append(Finding("malformed", "warning", seen, do))
        if strange:
            seen = f"{plural(int(strange), 'message')} with a status that no relay knows, such as {sample}"
            found.append(Finding("malformed", "problem", seen, "set it to PENDING, IN_FLIGHT, PROCESSED or FAILED"))
        if timeless:
            seen = f"{plural(int(timeless), 'message')} without next_retry_at, such as {other}: nobody will take them"
            found.append(Finding("times", "problem", seen, "set it to the time from which on they may be sent"))
        return found


def row_view(tables: AirlockTables, row: Row) -> JobView:
    """Show a message."""
    state: State | Outcome = _OUTCOMES.get(row.status) or ("leased" if row.is_held else "pending")
    ended_at = _moment(row.processed_at if state == "done" else row.last_attempt_at) or when(row.created_at)
    headers = {"aggregate_id": row.aggregate_id, "idempotency_key": row.idempotency_key}
    errors, group = _errors(row, ended_at)
    return view(
        row.id,
        state,
        queue=row.aggregate_type or "",
        kind=row.event_type or "",
        attempts=int(row.retry_count) + (state in ("leased", "done")),
        max_attempts=tables.retry.max_attempts,
        key=row.partition_key,
        payload="null" if row.payload is None else row.payload,
        headers={name: value for name, value in headers.items() if value is not None},
        errors=errors,
        group=group if state == "dead" else None,
        available_at=when(row.next_retry_at),
        created_at=when(row.created_at),
        leased_at=_moment(row.last_attempt_at) if state == "leased" else None,
        lease_expires_at=_moment(row.locked_until) if state == "leased" else None,
        leased_by=row.locked_by,
        finished_at=ended_at if state in ("dead", "done") else None,
    )


def _errors(row: Row, at: datetime) -> tuple[list[dict[str, Any]], str | None]:
    """Show the last error, the only one that is kept, and the group that it belongs to."""
    if row.error_reason is None and row.status != "FAILED":
        return [], None
    name, message = error_in(row.error_reason)
    error = {"attempt": int(row.retry_count), "type": name, "message": message, "failed_at": at.isoformat()}
    return [error], fingerprint(name, message)


def _flaw(letter: JobView) -> str | None:
    row = {"aggregate_type": letter.queue, "event_type": letter.kind, "partition_key": letter.key}
    row |= {"aggregate_id": (letter.headers or {}).get("aggregate_id"), "payload": letter.payload}
    return flaw_in({name: value or None for name, value in row.items()})


def _moment(stored: Any) -> datetime | None:
    return None if stored is None else when(stored)
