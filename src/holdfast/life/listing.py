"""What people ask of a set of tables, and what they get: filters, pages, counts, and what an action came to."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from typing import Any, NamedTuple

from holdfast.errors import ConfigError
from holdfast.values.rows import Outcome
from holdfast.values.views import JobView, plain


@dataclass(frozen=True)
class Wanted:
    """Which rows are meant; what is left out is not asked, and all that is given must hold.

    `ids` are what the tables have for ids. `created_after` and `finished_after` include their moment, `…_before` do
    not. `group` is the fingerprint of dead letters, `worker` names who holds a row or held it last, `error` is a part
    of the last error as it is shown, "type: message", in any case of letters. `event` is the type of an event, of which
    deliveries are meant; `outbox` means all deliveries.
    """

    states: tuple[str, ...] = ()
    queue: str | None = None
    kind: str | None = None
    key: str | None = None
    group: str | None = None
    worker: str | None = None
    ids: tuple[str, ...] = ()
    created_after: datetime | None = None
    created_before: datetime | None = None
    finished_after: datetime | None = None
    finished_before: datetime | None = None
    error: str | None = None
    event: str | None = None
    outbox: bool | None = None

    def given(self) -> dict[str, Any]:
        """Return what is asked, by name."""
        said = {each.name: getattr(self, each.name) for each in fields(self)}
        return {name: value for name, value in said.items() if value not in (None, ())}

    def given_of(self, known: Collection[str], store: str) -> dict[str, Any]:
        """Return what is asked. Raises: ConfigError for what these tables cannot be asked, by name."""
        said = self.given()
        for name in said.keys() - set(known):
            raise ConfigError(name, f"{store} keeps no such thing here; leave it out", said[name])
        return said

    @property
    def is_sifted(self) -> bool:
        """Whether rows must be looked at after they are read, where their tables have no column for the question."""
        return not (self.group is None and self.worker is None and self.error is None)

    def fits(self, job: JobView) -> bool:
        """Ask of a row what its table cannot be asked."""
        error = job.last_error or {}
        words = f"{error.get('type')}: {error.get('message')}".lower()
        return (
            (self.group is None or job.group == self.group)
            and (self.worker is None or self.worker in (job.leased_by or ""))
            and (self.error is None or self.error.lower() in words)
        )


EVERYTHING = Wanted()
# Where a page begins: behind this row of the page before, or behind the row of this id.
After = str | JobView | None


def id_of(place: str | JobView) -> str:
    """Return the id of a row that is named, or there."""
    return place.id if isinstance(place, JobView) else place


@dataclass(frozen=True, slots=True)
class Page:
    """Rows that fit, and the row, or the id, behind which the next page begins; None at the end.

    A page may hold fewer rows than were asked for, even none, and still not be the last. at_horizon: it ended because
    enough rows were looked at, not because enough of them fit.
    """

    rows: list[JobView]
    more: After = None
    at_horizon: bool = False

    @property
    def cursor(self) -> str | None:
        """The id behind which the next page begins."""
        return None if self.more is None else id_of(self.more)


@dataclass(frozen=True, slots=True)
class Count:
    """How many rows a queue holds; `oldest_seconds` is how long the first due one has been due.

    due: may be claimed now. scheduled: later. waiting: until something wakes them. leased: held by a worker, of any
    language. stale: of the leased ones of foreign tables, those whose holder has been silent for longer than the lease
    (they are not in `leased`). unread: results that no engine has taken. What is finished is counted only where the
    tables keep it.
    """

    queue: str
    due: int = 0
    scheduled: int = 0
    leased: int = 0
    stale: int = 0
    done: int = 0
    dead: int = 0
    cancelled: int = 0
    unread: int = 0
    oldest_seconds: float | None = None
    waiting: int = 0

    def to_dict(self) -> dict[str, Any]:
        return plain(self)


class Kept(NamedTuple):
    """A part of what a store keeps of finished rows."""

    outcome: Outcome
    queue: str


@dataclass(frozen=True, slots=True)
class Replays:
    """Which dead letters went back to their queue, and which stay.

    conflicts: by id, what is in the way as data (the live job with the same unique key, or a reason). reasons: the
    same as a sentence. rows: the id under which each is live now, where that is another one; None where ids stay.
    """

    ids: list[str] = field(default_factory=list[str])
    conflicts: dict[str, str | None] = field(default_factory=dict[str, str | None])
    reasons: dict[str, str] = field(default_factory=dict[str, str])
    rows: dict[str, str] | None = None

    @property
    def size(self) -> int:
        """How many letters were looked at."""
        return len(self.ids) + len(self.conflicts)


@dataclass(frozen=True, slots=True)
class Cancelled:
    """What a cancel came to.

    cancelled: ended, and never to run. requested: run now, and their workers are asked to stop them, or durable runs
    that are asked to clean up and stop. A run that was named by its own id is called so. left: by id, jobs
    that were named and left alone, with why: how they had ended ("done", "dead", "cancelled"), "unknown" where there is
    no such job, "no match" where they are not what else was asked for.
    """

    cancelled: list[str] = field(default_factory=list[str])
    requested: list[str] = field(default_factory=list[str])
    left: dict[str, str] = field(default_factory=dict[str, str])

    @property
    def seen(self) -> set[str]:
        return {*self.cancelled, *self.requested, *self.left}

    def with_more(self, more: Cancelled) -> Cancelled:
        return Cancelled([*self.cancelled, *more.cancelled], [*self.requested, *more.requested], self.left | more.left)

    def called(self, names: Mapping[str, str]) -> Cancelled:
        """Call jobs by these names, where they have one."""
        return Cancelled(
            [names.get(job, job) for job in self.cancelled],
            [names.get(job, job) for job in self.requested],
            {names.get(job, job): why for job, why in self.left.items()},
        )

    def to_dict(self) -> dict[str, Any]:
        return plain(self)


@dataclass(frozen=True, slots=True)
class Changed:
    """What a change came to.

    changed: jobs that are now as was asked. left: by id, jobs that were found or named and left alone, with why:
    "leased", "waits for parents" (its time is not its own), "belongs to a route" (its queue is), or as in `Cancelled`.
    """

    changed: list[str] = field(default_factory=list[str])
    left: dict[str, str] = field(default_factory=dict[str, str])

    @property
    def seen(self) -> set[str]:
        return {*self.changed, *self.left}

    def with_more(self, more: Changed) -> Changed:
        return Changed([*self.changed, *more.changed], self.left | more.left)

    def to_dict(self) -> dict[str, Any]:
        return plain(self)


@dataclass(frozen=True, slots=True)
class Drained:
    """Which workers were asked to stop. left: by id, those that were named or found and are not to be asked, with why:
    "draining" already, "stopped", "dead", or "unknown" to the registry.
    """

    asked: list[str] = field(default_factory=list[str])
    left: dict[str, str] = field(default_factory=dict[str, str])

    def to_dict(self) -> dict[str, Any]:
        return plain(self)


@dataclass(frozen=True, slots=True)
class Relative:
    """A job that comes before or after another, with what comes after it in turn; `gone`: nothing of it is kept."""

    id: str
    relation: str
    kind: str | None
    state: str
    after: list[Relative] = field(default_factory=list["Relative"])

    def with_state(self, state: str) -> Relative:
        return replace(self, state=state)


@dataclass(frozen=True, slots=True)
class Family:
    """What a row comes after, and what comes after it; `…_cut` where there is more than was read."""

    before: list[Relative] = field(default_factory=list[Relative])
    after: list[Relative] = field(default_factory=list[Relative])
    before_cut: bool = False
    after_cut: bool = False
