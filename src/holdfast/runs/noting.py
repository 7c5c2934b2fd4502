"""Note runs and find them by their keys: the rows that say which job is the run of a workflow and a key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from holdfast.flow import Columns, Steps, ask, number_of, text_of


class Noted(NamedTuple):
    """A run as it is noted: the columns of `runs_add` in their order."""

    id: str
    workflow: str
    key: str
    digest: int | None = None
    parent_id: str | None = None
    parent_key: str | None = None

    @property
    def pair(self) -> tuple[str, str]:
        return self.workflow, self.key


class There(NamedTuple):
    """A run that has the key already."""

    job_id: str
    digest: int | None
    outcome: str | None
    parent_id: str | None


def note(new: Sequence[Noted]) -> Steps[set[str]]:
    """Note runs whose keys are free; return those that were noted, where the database can tell."""
    id_, workflow, key, digest, parent_id, parent_key = map(list, zip(*new, strict=True))
    batch: Columns = {
        "id": id_,
        "workflow": workflow,
        "run_key": key,
        "digest": digest,
        "parent_id": parent_id,
        "parent_key": parent_key,
    }
    return {text_of(row[0]) for row in (yield from ask("runs_add", batch=batch))}


def those_with(new: Sequence[Noted]) -> Steps[dict[tuple[str, str], There]]:
    """Find the runs that have the keys of these."""
    batch: Columns = {"workflow": [one.workflow for one in new], "run_key": [one.key for one in new]}
    found: dict[tuple[str, str], There] = {}
    for place, job_id, digest, outcome, parent_id in (yield from ask("runs_find", batch=batch)):
        ended = None if outcome is None else text_of(outcome)
        parent = None if parent_id is None else text_of(parent_id)
        one = new[number_of(place) - 1]
        found[one.pair] = There(text_of(job_id), None if digest is None else number_of(digest), ended, parent)
    return found


def named(keys: Sequence[str]) -> Steps[dict[str, list[tuple[str, str]]]]:
    """Find runs by their keys: for each key the job and the workflow of those that have it."""
    found: dict[str, list[tuple[str, str]]] = {}
    for key, job_id, workflow in (yield from ask("runs_keyed", keys=sorted(set(keys)))):
        found.setdefault(text_of(key), []).append((text_of(job_id), text_of(workflow)))
    return found


def unbegun(ids: Sequence[str]) -> Steps[set[str]]:
    """Tell which of these runs, that nobody has claimed yet, have nothing behind them that could need a clean-up."""
    return {text_of(row[0]) for row in (yield from ask("runs_unbegun", ids=sorted(ids)))} if ids else set()


def make_children(children: Sequence[tuple[str, str, str]]) -> Steps[None]:
    """Make runs that have no parent the children of one: each is the child's job, the parent's, and the child's key."""
    if children:
        id_, parent_id, parent_key = map(list, zip(*sorted(children), strict=True))
        batch: Columns = {"id": id_, "parent_id": parent_id, "parent_key": parent_key}
        yield from ask("runs_adopt", batch=batch)


def give_keys_away(ids: Sequence[str]) -> Steps[None]:
    """Let runs that are over go by other keys, so that new ones can have theirs."""
    yield from ask("runs_rename", ids=sorted(ids))


def family_of(first: Sequence[str]) -> Steps[set[str]]:
    """Return runs and all runs below them that are not over."""
    family, todo = set(first), sorted(first)
    while todo:
        rows = yield from ask("runs_children", ids=todo)
        todo = sorted({text_of(row[0]) for row in rows} - family)
        family |= set(todo)
    return family
