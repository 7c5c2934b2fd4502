"""The report of a soak: figures, plots, and what was broken."""

import re
from collections import Counter
from pathlib import Path

from tests.soak.plot import Points, lines
from tests.soak.samples import MEASURED, PERCENTILES, percentiles
from tests.soak.verdict import Outcome

MB = 1_000_000
# Tables that are drawn by themselves; the others are put together.
LARGEST = 4
SLOWEST = 10
TOLD = 20
JOB = re.compile(r"[0-9a-f]{8}-[0-9a-f-]{27}")


def figures(outcome: Outcome) -> dict[str, str]:
    answered, unknown = outcome.said("answered"), outcome.said("unknown")
    took = [one.took for one in outcome.finished if one.row.kind in MEASURED and one.row.state == "done"]
    latency = percentiles(took)
    states = Counter(one.row.state for one in outcome.finished)
    again = sum(one.row.fence > 1 for one in outcome.finished)
    return {
        "began": f"{outcome.deeds.wall:%X} UTC",
        "enqueued and acknowledged": f"{len(answered):,}",
        "enqueues whose answer did not come": f"{len(unknown):,}",
        "ended": ", ".join(f"{count:,} {state}" for state, count in sorted(states.items())),
        "… after more than one claim": f"{again:,}",
        "handlers called": f"{len(outcome.history.attempts):,}",
        "effects in transactions": f"{len(outcome.effects):,}",
        "workers killed": f"{outcome.deeds.count('kill'):,}",
        "… ended by themselves": f"{outcome.deeds.count('ended by itself'):,}",
        "connections cut": f"{outcome.deeds.count('cut'):,}",
        "keys moved": "; ".join(deed.detail for deed in outcome.deeds.done if deed.what == "move"),
        "failovers": f"{outcome.deeds.count('failover')}",
        "from enqueue to completion": ", ".join(f"p{part} {value * 1000:,.0f} ms" for part, value in latency.items()),
    }


def write(outcome: Outcome, broken: list[str], folder: Path) -> Path:
    """Write the report and its plots into a folder, and return where it is."""
    folder.mkdir(parents=True, exist_ok=True)
    said = figures(outcome)
    text = [f"# Soak: {outcome.seconds:.0f} s at {outcome.rate:g} jobs a second", ""]
    text += ["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in said.items()), ""]
    text += (
        ["## Broken", "", *(f"- {line}" for line in broken), "", *stories(outcome, broken), ""]
        if broken
        else ["No promise was broken.", ""]
    )
    for name, (title, series) in plots(outcome).items():
        (folder / f"{name}.svg").write_text(lines(title, series, outcome.deeds.done, outcome.seconds))
        text += [f"![{title}]({name}.svg)", ""]
    text += [
        "## The slowest",
        "",
        "| s | job | shard | claims | ended |",
        "|---|---|---|---|---|",
        *slowest(outcome),
        "",
    ]
    text += ["## What was done", "", "| s | | |", "|---|---|---|"]
    text += [f"| {deed.at:.1f} | {deed.what} | {deed.detail} |" for deed in outcome.deeds.done]
    path = folder / "report.md"
    path.write_text("\n".join(text) + "\n")
    return path


def stories(outcome: Outcome, broken: list[str]) -> list[str]:
    """Tell, of the jobs that are named, when they were enqueued and each time that they ran."""
    named = list(dict.fromkeys(word for line in broken for word in JOB.findall(line)))[:TOLD]
    began = outcome.deeds.began
    found: list[str] = []
    for job in named:
        found.append(f"- {job}")
        for sent in outcome.history.sent:
            if job in sent.ids:
                found.append(
                    f"  - {sent.key}: enqueued {sent.began - began:.3f} to {(sent.committed or 0) - began:.3f}"
                )
        for one in outcome.history.attempts:
            if one.id == job:
                ended = "not" if one.ended is None else f"{one.ended - began:.3f} {one.error or ''}"
                about = f"process {one.process}, fence {one.fence}{', lost' if one.lost else ''}"
                found.append(f"  - began {one.began - began:.3f}, ended {ended}: {about}")
    return found


def slowest(outcome: Outcome) -> list[str]:
    found = sorted(outcome.finished, key=lambda one: one.took, reverse=True)[:SLOWEST]
    return [
        f"| {one.took:.1f} | {one.row.kind} {one.tag} {one.row.key or ''} "
        f"| {one.shard} | {one.row.fence} | {one.at:%X} |"
        for one in found
    ]


def plots(outcome: Outcome) -> dict[str, tuple[str, dict[str, Points]]]:
    samples = outcome.samples
    sized = [one for one in samples if one.sizes]
    largest = [name for name, _ in Counter(sized[-1].sizes if sized else {}).most_common(LARGEST)]
    tables: dict[str, Points] = {
        name.removeprefix("holdfast_"): [(one.at, one.sizes.get(name, 0) / MB) for one in sized] for name in largest
    }
    tables["others"] = [
        (one.at, sum(size for name, size in one.sizes.items() if name not in largest) / MB) for one in sized
    ]
    processes = dict.fromkeys(name for one in samples for name in one.memory)
    memory: dict[str, Points] = {
        name: [(one.at, one.memory[name] / MB) for one in samples if name in one.memory] for name in processes
    }
    latency: dict[str, Points] = {
        f"p{part}": [(one.at, one.latency[part]) for one in samples if part in one.latency] for part in PERCENTILES
    }
    rows: dict[str, Points] = {
        "live": [(one.at, one.live) for one in samples if one.live is not None],
        "finished and kept": [(one.at, one.finished) for one in samples if one.finished is not None],
    }
    backlog: dict[str, Points] = {"live": rows["live"]}
    return {
        "latency": ("From enqueue to completion, seconds", latency),
        "memory": ("Resident memory, MB", memory),
        "backlog": ("Live jobs", backlog),
        "rows": ("Rows of both shards", rows),
        "tables": ("Size of tables with their indexes, MB", tables),
    }
