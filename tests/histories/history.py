"""A run's history: what its processes wrote down and what the tables hold at the end, put together for the checker."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, NamedTuple

from holdfast.values.views import AuditLine, JobView, decoded
from tests.histories.calls import Wanted
from tests.histories.choices import WITHOUT_EFFECT
from tests.histories.log import Event

# What a rule finds: the job or call, and what is wrong with it.
Found = Iterator[tuple[str, str]]
# Errors for which a job dies before its handler is called.
UNREADABLE = ("InvalidPayload", "UnknownKind", "PayloadTooLarge")

Fate = Literal["committed", "rolled back", "unknown"]


class Effect(NamedTuple):
    """What a handler wrote in the transaction that completed its job."""

    job_id: str
    fence: int
    attempt: int
    tag: str


@dataclass
class Call:
    """One enqueue as it was asked for and answered; `fate` says whether its jobs are to be there."""

    name: str
    jobs: list[Wanted]
    tx: bool
    inside: tuple[str, int] | None
    wall: float
    answers: list[tuple[str, bool]] | None = None
    said: set[str] = field(default_factory=set)
    fate: Fate = "unknown"


@dataclass(frozen=True)
class Start:
    """One call of a handler."""

    job: str
    tag: str
    fence: int
    attempt: int
    most: int
    act: str
    pid: int
    at: float
    wall: float


@dataclass
class History:
    """Everything the checker may look at. `drained` is None when jobs were left after the quiet time."""

    database: str = "none"
    seconds: float = 0.0
    drained: float | None = 0.0
    events: list[Event] = field(default_factory=list)
    rows: list[JobView] = field(default_factory=list)
    effects: list[Effect] = field(default_factory=list)
    orders: set[str] = field(default_factory=set)
    audit: list[AuditLine] = field(default_factory=list)

    def said(self, *what: str) -> Iterator[Event]:
        return (event for event in self.events if event["what"] in what)

    @cached_property
    def by_id(self) -> dict[str, JobView]:
        return {row.id: row for row in self.rows}

    @cached_property
    def calls(self) -> dict[str, Call]:
        calls: dict[str, Call] = {}
        for event in self.said("asked", "answered", "committed", "rolled back", "failed"):
            name = event["call"]
            if event["what"] == "asked":
                inside = event["inside"] and (event["inside"][0], event["inside"][1])
                calls[name] = Call(name, event["jobs"], event["tx"], inside, event["wall"])
                continue
            calls[name].said.add(event["what"])
            if event["what"] == "answered":
                calls[name].answers = [(job_id, created) for job_id, created in event["answers"]]
        for call in calls.values():
            call.fate = self._fate(call)
        return calls

    def _fate(self, call: Call) -> Fate:
        """Tell by what the same transaction wrote beside the jobs; a call with none is known by its answer alone."""
        if call.inside is not None:
            return "committed" if call.inside in self._effect_fences else "rolled back"
        if call.tx:
            return "committed" if call.name in self.orders else "rolled back"
        return "committed" if call.answers is not None else "unknown"

    @cached_property
    def _effect_fences(self) -> set[tuple[str, int]]:
        return {(effect.job_id, effect.fence) for effect in self.effects}

    @cached_property
    def effects_of(self) -> dict[str, list[Effect]]:
        return _grouped((effect.job_id, effect) for effect in self.effects)

    @cached_property
    def tags(self) -> dict[str, tuple[Call, Wanted]]:
        """By tag, the call and what it wanted."""
        return {wanted["tag"]: (call, wanted) for call in self.calls.values() for wanted in call.jobs}

    def wanted(self, tag: str) -> Wanted:
        found = self.tags.get(tag)
        return found[1] if found else {}

    @cached_property
    def answers(self) -> list[tuple[Call, Wanted, str, bool]]:
        """Every answer whose transaction committed: the call, what was wanted, the job's id, and whether it is new."""
        return [
            (call, wanted, job_id, created)
            for call in self.calls.values()
            if call.fate == "committed" and call.answers is not None
            for wanted, (job_id, created) in zip(call.jobs, call.answers, strict=True)
        ]

    @cached_property
    def starts(self) -> dict[str, list[Start]]:
        """By job, each call of a handler, in the order of time."""
        fields = Start.__dataclass_fields__
        return _grouped(
            (event["job"], Start(**{name: event[name] for name in fields})) for event in self.said("started")
        )

    @cached_property
    def ends(self) -> dict[tuple[str, int], str]:
        """By job and fence, how the handler ended; one whose process died has no end."""
        return {(event["job"], event["fence"]): event["how"] for event in self.said("ended")}

    @cached_property
    def losses(self) -> dict[tuple[int, str], float]:
        """By process and job, when a worker last learned that it had lost its lease."""
        return {(event["pid"], event["job"]): event["at"] for event in self.said("lease lost")}

    @cached_property
    def victims(self) -> set[int]:
        """Processes that were killed, stopped or asked to end."""
        return {event["victim"] for event in self.events if "victim" in event}

    @cached_property
    def stopping(self) -> set[int]:
        """Processes whose worker gave back what it had, because it was asked to end."""
        return {event["pid"] for event in self.said("worker stopping")}

    @cached_property
    def acts(self) -> dict[str, list[AuditLine]]:
        """By job, what people did to it, the earliest first."""
        lines = sorted(self.audit, key=lambda line: line.at)
        return _grouped((str(line.job_id), line) for line in lines)

    @cached_property
    def unstarted_by_worker(self) -> dict[str, list[JobView]]:
        """By the worker that had them last, the dead letters that were not started since enqueue or replay."""
        return _grouped(
            (str((row.last_error or {}).get("worker", "")), row) for row in self.rows if self._unstarted(row)
        )

    def _unstarted(self, row: JobView) -> bool:
        error = str((row.last_error or {}).get("type", ""))
        if row.state != "dead" or error.rpartition(".")[2] in UNREADABLE:
            return False
        replays = [line.at.timestamp() for line in self.acts.get(row.id, ()) if line.action == "replay"]
        since = max(replays, default=0.0)
        return not any(start.wall >= since for start in self.starts.get(row.id, ()))

    def discarded(self, job_id: str) -> bool:
        return any(line.action == "discard" for line in self.acts.get(job_id, ()))

    def has_effect(self, kind: str) -> bool:
        return kind not in WITHOUT_EFFECT

    def tags_of(self, job_id: str) -> set[str]:
        """List the tags that a job is known by: one, or none."""
        row = self.by_id.get(job_id)
        ran = {start.tag for start in self.starts.get(job_id, ())}
        return ran | ({tag_of(row)} if row else set())

    def about(self, job_id: str) -> list[Event]:
        """Everything that was written down about one job."""
        names = {self.tags[tag][0].name for tag in self.tags_of(job_id) if tag in self.tags}
        names |= {call.name for call in self.calls.values() if any(job_id == one for one, _ in call.answers or ())}
        return [
            event
            for event in self.events
            if event.get("job") == job_id or event.get("call") in names or job_id in event.get("ids", ())
        ]


def tag_of(row: JobView) -> str:
    payload: Any = decoded(row.payload)
    return str(payload["tag"]) if isinstance(payload, dict) and "tag" in payload else ""


def _grouped(pairs: Any) -> dict[str, list[Any]]:
    groups: dict[str, list[Any]] = defaultdict(list)
    for name, value in pairs:
        groups[name].append(value)
    return dict(groups)
