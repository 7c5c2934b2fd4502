"""The remote steps of a durable engine as people see them: tasks that wait or run. Failed steps are the engine's."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from holdfast.errors import Conflict
from holdfast.flow import Steps, flow
from holdfast.foreign.desk import EXAMINED_ROWS, ForeignDesk, page_of, page_size, stated, view
from holdfast.foreign.durable.flows import DurableTables, Task, is_json
from holdfast.life.desk import Capability
from holdfast.life.findings import Finding
from holdfast.life.listing import EVERYTHING, After, Count, Page, Wanted
from holdfast.values.views import JobView
from holdfast.values.words import plural

_ASKED = ("queue", "kind", "ids", "states", "created_after", "created_before", "key", "worker")
_NO_LETTERS = (
    "keeps no dead letters: a failed step is the engine's, with its run. Look at the run there; it decides on retries."
)


class DurableDesk(ForeignDesk):
    """The tasks and results of a durable engine."""

    tables: DurableTables
    refusals: Mapping[Capability, str] = {
        "cancel": "knows no cancel: the step belongs to a run. Cancel the run in its engine.",
        "change": "cannot be changed here: the engine says when and where a step runs. Change the run there.",
        "letters": _NO_LETTERS,
        "replay": _NO_LETTERS,
        "discard": _NO_LETTERS,
        "prune": "keeps nothing that is finished: a result is deleted when the engine reads it. Prune its runs there.",
    }

    def count_rows(self) -> Steps[list[Count]]:
        now = yield from self.tables.now()
        rows = yield from self.tables.ask("counts", stale=now - self.tables.lease_ms)
        counts = [
            Count(grp, int(free), int(put_off), int(held), int(stale), oldest_seconds=_seconds(now, oldest))
            for grp, free, put_off, held, stale, oldest in rows
        ]
        [[unread, oldest]] = yield from self.tables.ask("unread")
        if unread:
            counts.append(Count("(results)", unread=int(unread), oldest_seconds=_seconds(now, oldest)))
        return counts

    @flow
    def rows(
        self, wanted: Wanted = EVERYTHING, *, limit: int = 50, after: After = None, newest: bool = True
    ) -> Steps[Page]:
        given = self._params(wanted)
        page: dict[str, Any] = {"limit": page_size(wanted, limit)} | ({"newest": True} if newest else {})
        if isinstance(after, str):
            # Ids say nothing of age, so that of the row is needed too.
            after = yield from self._placed(after)
        if after is not None:
            page |= {"after_at": _ms(after.created_at), "older_than" if newest else "newer_than": after.id}
        rows = yield from self.tables.ask("rows", **given, **page)
        return page_of(wanted, limit, [task_view(self.tables, Task(*row)) for row in rows])

    def _params(self, wanted: Wanted) -> dict[str, Any]:
        said = self.asked(wanted, _ASKED)
        given: dict[str, Any] = {name: _ms(v) if isinstance(v, datetime) else v for name, v in said.items()}
        given.pop("worker", None)
        if "ids" in given:
            given["row_ids"] = list(given.pop("ids"))
        return stated(given)

    def _placed(self, row_id: str) -> Steps[JobView]:
        found = yield from self._one(row_id)
        if not found:
            raise Conflict(f"Task {row_id} is gone, so what comes after it cannot be told. Begin at the first page.")
        return found[0]

    def _one(self, row_id: str) -> Steps[list[JobView]]:
        rows = yield from self.tables.ask("rows", row_ids=[row_id], limit=1)
        return [task_view(self.tables, Task(*row)) for row in rows]

    @flow
    def show(self, row_id: str, *, dead: bool = False) -> Steps[JobView]:
        if dead:
            self.require("letters")
        return self.found(row_id, (yield from self._one(row_id)))

    @flow
    def retry(self, row_id: str, actor: str | None) -> Steps[Literal["due"]]:
        """Let a task be claimed that a worker put off.

        Commits: its own. Raises: JobNotFound; Conflict for a task that somebody holds. After a crash: safe to repeat.
        """
        task = self.waiting(row_id, (yield from self._one(row_id)))
        yield from self.tables.ask("due", id=row_id)
        yield from self.record("run_now", actor, [task])
        return "due"

    def flaws(self) -> Steps[list[Finding]]:
        tasks = [Task(*row) for row in (yield from self.tables.ask("rows", limit=EXAMINED_ROWS))]
        results: Any = yield from self.tables.ask("results", limit=EXAMINED_ROWS)
        no_input = [task.step_id for task in tasks if not is_json(task.input)]
        no_output = [step_id for step_id, *texts in results if not all(map(is_json, texts)) or not _is_error(texts[1])]
        found = []
        if no_input:
            seen = f"{plural(len(no_input), 'task')} whose input is not JSON, such as {no_input[0]}"
            do = "fix the engine that dispatched them; a worker fails them for good"
            found.append(Finding("malformed", "warning", seen, do))
        if no_output:
            seen = f"{plural(len(no_output), 'result')} without valid JSON, such as {no_output[0]}"
            do = "an engine may stop there for ever: fix output and error in the row, and the worker that wrote it"
            found.append(Finding("malformed", "problem", seen, do))
        return found


def _is_error(text: str | None) -> bool:
    return text is None or isinstance(json.loads(text), dict)


def task_view(tables: DurableTables, task: Task) -> JobView:
    """Show a task that waits or runs."""
    claimed_at = None if task.claimed_at is None or task.claimed_by is None else _moment(task.claimed_at)
    return view(
        task.step_id,
        "pending" if claimed_at is None else "leased",
        queue=task.grp,
        kind=task.name,
        attempts=task.attempt,
        max_attempts=task.attempt,
        payload="null" if task.input is None else task.input,
        key=task.run_id,
        available_at=_moment(task.created_at),
        created_at=_moment(task.created_at),
        leased_at=claimed_at,
        lease_expires_at=None if claimed_at is None else claimed_at + timedelta(milliseconds=tables.lease_ms),
        leased_by=task.claimed_by,
    )


def _seconds(now: int, since: Any) -> float | None:
    return None if since is None else max(0, now - int(since)) / 1000


def _ms(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)


def _moment(ms: int) -> datetime:
    return datetime.fromtimestamp(int(ms) / 1000, UTC)
