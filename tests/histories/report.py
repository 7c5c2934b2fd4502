"""What came of a run, for people: what was done, what happened, what was checked, and each broken promise in full."""

from collections import Counter
from collections.abc import Iterator

from rich.table import Table

from holdfast.life.expiry import LEASE_EXPIRED
from tests.histories.checker import RULES, Violation
from tests.histories.history import History
from tests.histories.log import Event

# Deeds of the nemesis, as they are written down.
DEEDS = (
    "killed a worker",
    "killed a worker in a write",
    "killed a child",
    "killed a worker that would not stop",
    "killed an enqueuer or a person",
    "stopped",
    "asked a worker to stop",
    "cut a session",
    "lost replies",
    "reset the lines",
    "restarts the server",
)
# Of a broken rule this many are told in full; the others are counted.
IN_FULL = 3


def table(history: History, violations: list[Violation]) -> Table:
    drawn = Table(title=f"History: {history.database}", title_justify="left")
    drawn.add_column("counted")
    drawn.add_column("", justify="right")
    for name, value in figures(history).items():
        drawn.add_row(name, f"{value:,}" if isinstance(value, int) else str(value))
    broken = Counter(violation.rule for violation in violations)
    drawn.add_row("promises checked", str(len(RULES)))
    for rule, count in broken.items():
        drawn.add_row(f"[bold red]broken: {rule}[/]", f"{count:,}")
    return drawn


def figures(history: History) -> dict[str, object]:
    calls = history.calls.values()
    starts = [start for starts in history.starts.values() for start in starts]
    deeds = Counter(event["what"] for event in history.events)
    ends = Counter(history.ends.values())
    return {
        "seconds of trouble": f"{history.seconds:.0f}",
        "enqueue calls": len(calls),
        "… committed": sum(call.fate == "committed" for call in calls),
        "… rolled back": sum(call.fate == "rolled back" for call in calls),
        "… of unknown end": sum(call.fate == "unknown" for call in calls),
        "… in transactions of the application's own": sum(call.tx for call in calls),
        "… in transactions of handlers": sum(call.inside is not None for call in calls),
        "… failed": _counted(Counter(event["error"].partition(":")[0] for event in history.said("failed"))),
        "jobs in the tables": len(history.rows),
        "… ended": _counted(Counter(row.state for row in history.rows)),
        "handlers started": len(starts),
        "… left by": _counted(ends),
        "… cut off in the middle": len(starts) - len(history.ends),
        "leases that ran out": sum(e.get("type") == LEASE_EXPIRED for row in history.rows for e in row.errors),
        "errors of attempts": _counted(Counter(_short(e.get("type")) for row in history.rows for e in row.errors)),
        "effects": len(history.effects),
        "acts of people": _counted(Counter(line.action for line in history.audit)),
        **{deed: deeds[deed] for deed in DEEDS if deeds[deed]},
        "died although attempts had not been started": sum(map(bool, _cheated(history))),
        "died in the instant before their start": sum(len(rows) == 1 for rows in history.unstarted_by_worker.values()),
        "seconds to drain": "never" if history.drained is None else f"{history.drained:.1f}",
    }


def _cheated(history: History) -> Iterator[bool]:
    """Tell of each dead letter that died of ended leases whether it started less often than it had attempts."""
    for row in history.rows:
        if row.state == "dead" and (row.last_error or {}).get("type") == LEASE_EXPIRED:
            yield len(history.starts.get(row.id, ())) < row.max_attempts


def _short(name: object) -> str:
    return str(name).rpartition(".")[2]


def _counted(counts: Counter[str]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in counts.most_common()) or "none"


def told(history: History, violations: list[Violation]) -> Iterator[str]:
    """Tell each violation, the first of each rule with the whole history of its job."""
    seen: Counter[str] = Counter()
    for violation in violations:
        seen[violation.rule] += 1
        yield f"broken: {violation}"
        if seen[violation.rule] <= IN_FULL:
            yield from (f"    {line}" for line in story(history, violation.subject))


def story(history: History, job_id: str) -> Iterator[str]:
    """Tell everything that is known of one job."""
    events = history.about(job_id)
    began = events[0]["at"] if events else 0.0
    for event in events:
        who = f"{event['actor']}/{event['pid']}"
        yield f"{event['at'] - began:9.3f} {who} {event['what']}: {_rest(history, event, job_id)}"
    for row in history.rows:
        if row.id == job_id:
            yield f"row: {row}"
    yield from (f"effect: {effect}" for effect in history.effects_of.get(job_id, ()))
    yield from (f"act: {line}" for line in history.acts.get(job_id, ()))


def _rest(history: History, event: Event, job_id: str) -> str:
    """Show the fields that a line does not begin with, and of many jobs those that are meant."""
    shown = {name: value for name, value in event.items() if name not in ("at", "wall", "pid", "actor", "what")}
    if "jobs" in shown:
        answers = history.calls[event["call"]].answers or []
        meant = {place for place, (answered, _) in enumerate(answers) if answered == job_id}
        meant |= {place for place, wanted in enumerate(shown["jobs"]) if wanted["tag"] in history.tags_of(job_id)}
        shown["jobs"] = {place: shown["jobs"][place] for place in sorted(meant)}
    if "answers" in shown:
        shown["answers"] = {place: one for place, one in enumerate(shown["answers"]) if one[0] == job_id}
    return str(shown).replace(job_id, "IT")
