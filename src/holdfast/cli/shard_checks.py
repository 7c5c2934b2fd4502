"""What `doctor` looks at where there are shards: each of them by itself, and whether they fit together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta

from holdfast.cli.checks import CHECKS, Patient, examine
from holdfast.cli.render import one_line
from holdfast.cli.shard_queues import differences, stored_by_shard
from holdfast.cli.sharding import AWAY, parts
from holdfast.cli.shared import typed
from holdfast.cli.stores import Opened, part_of
from holdfast.dashboard.standing import how_they_stand
from holdfast.life import merging
from holdfast.life.findings import Finding, Severity
from holdfast.store import Shards
from holdfast.store.standing import ShardView, look
from holdfast.values.words import shards_named

# What is asked of one shard alone: schedules are in the first, and foreign tables are in none.
ONCE = ("schedules", "foreign")
# What is the same for all schemas of one database.
OF_THE_DATABASE = ("transactions", "listener", "encoding", "clocks")


def examine_shards(
    shards: Shards, at: Opened, lag: timedelta, long: timedelta, skip: tuple[str, ...] = ()
) -> Iterator[Finding]:
    """Examine each shard that answers. A finding that all shards share is told once; others name their shard."""
    standing = shards.go(look(shards))
    found: dict[int, list[Finding]] = {}
    served: set[int] = set()
    for number, (_, store) in enumerate(parts(shards)):
        without = (
            *skip,
            "shards",
            *(ONCE if number else ()),
            *(OF_THE_DATABASE if number and shards.one_place else ()),
        )
        if not standing[number].away:
            try:
                patient = Patient(part_of(at, store), lag, long)
                found[number] = list(examine(patient, without))
                served |= {number} if standing[number].reachable and patient.alive else set()
            except AWAY as error:
                standing[number] = replace(standing[number], error=one_line(error), away=True)
    if "shards" not in skip:
        for one in how_they_stand(standing):
            yield replace(one, seen=typed(one.seen), do=typed(one.do))
    for check in CHECKS:
        by_shard = {number: [one for one in told if one.check == check] for number, told in found.items()}
        asked = {number for number in by_shard if not (number and check in ONCE)}
        if shards.one_place and check in OF_THE_DATABASE:
            asked &= {min(asked, default=0)}
        told = {number: by_shard[number] for number in sorted(asked)}
        yield from _workers(told, served, standing) if check == "workers" else merging.findings_by_shard(told)
        if check == "queues" and check not in skip:
            yield from _queues(shards, standing)


def _workers(
    by_shard: Mapping[int, Sequence[Finding]], served: set[int], standing: Sequence[ShardView]
) -> Iterator[Finding]:
    """Tell of workers: that there are none once for all shards, and which shard none serves while others are served.

    The last finding of each shard is whether it has one.
    """
    yield from merging.findings_by_shard({number: told[:-1] for number, told in by_shard.items()})
    last = {number: told[-1] for number, told in by_shard.items() if told}
    if not served:
        yield from sorted(last.values(), key=lambda one: one.severity == "ok")[:1]
        return
    yield from merging.findings_by_shard({number: [one] for number, one in last.items() if number in served})
    others = shards_named(sorted(served)).partition(" ")[2]
    for number, one in last.items():
        if number not in served and not (standing[number].state == "draining" and not standing[number].live):
            severity: Severity = "warning" if one.severity == "ok" else one.severity
            work = "" if one.severity == "ok" else "there is work, and "
            seen = f"shard {number}: {work}no live worker serves it (others serve {others})"
            yield Finding("workers", severity, seen, typed(f"start one: `holdfast worker APP --serve-shards {number}`"))


def _queues(shards: Shards, standing: Sequence[ShardView]) -> Iterator[Finding]:
    """Find queues of which shards have stored different settings."""
    if any(one.error is not None and not one.away for one in standing):
        return
    do = typed(
        "store one for all: `holdfast queues set QUEUE …`, or `holdfast queues adopt APP` for what the code says"
    )
    for line in differences(stored_by_shard(shards)):
        yield Finding("queues", "warning", line, do)
