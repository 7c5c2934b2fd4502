"""What is wrong with shards, for the overview and for `holdfast doctor`; nothing here reads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta

from holdfast.life.findings import Finding
from holdfast.store.standing import ShardView
from holdfast.values.words import age, plural

# After this long, buckets that are on their way are probably held up.
LONG_ON_THEIR_WAY = timedelta(hours=1)


def how_they_stand(standing: Sequence[ShardView]) -> Iterator[Finding]:
    """Find shards that do not answer, that are not what they are named as, or that go by an old map."""
    trouble = [*_away(standing), *_left_out(standing), *_misnamed(standing), *_behind(standing)]
    yield from trouble
    moving = sum(one.moving_in or 0 for one in standing)
    if moving:
        since = max((one.age for one in standing if one.age is not None), default=timedelta())
        late = since > LONG_ON_THEIR_WAY
        seen = f"{plural(moving, 'bucket')} of keys went to another shard {age(since)} ago, and have not arrived"
        do = "see what keeps these jobs: `holdfast shards list`, `holdfast jobs list --state pending --oldest`"
        yield Finding("shards", "warning" if late else "ok", seen, do if late else "")
    if not any(one.reachable for one in standing):
        do = "see why: `holdfast shards list` says it of each; those that are new are made by `holdfast migrate apply`"
        yield Finding("shards", "problem", f"0 of {len(standing)} answer with tables of this version", do)
    elif not trouble and all(one.reachable for one in standing):
        yield Finding("shards", "ok", f"all {len(standing)} answer, and go by the same map")


def _left_out(standing: Sequence[ShardView]) -> Iterator[Finding]:
    known = next((one.map for one in standing if one.map is not None), None)
    if known is not None and (why := known.left_out(len(standing))):
        do = "name every shard in shards= (or HOLDFAST_SHARDS), in the same order everywhere"
        yield Finding("shards", "problem", why, do)


def _away(standing: Sequence[ShardView]) -> Iterator[Finding]:
    for one in standing if any(one.reachable for one in standing) else ():
        if one.away:
            do = "see why it does not answer; its jobs wait, those of the others go on"
            yield Finding("shards", "problem", f"shard {one.shard} ({one.where}) is not reached: {one.error}", do)


def _misnamed(standing: Sequence[ShardView]) -> Iterator[Finding]:
    for one in standing:
        if one.reachable and one.said is None:
            seen = f"shard {one.shard} ({one.where}) was never told that it is one"
            yield Finding("shards", "problem", seen, "run `holdfast migrate apply`")
        elif one.said is not None and one.said != one.shard:
            seen = f"what is named as shard {one.shard} ({one.where}) says that it is shard {one.said}"
            yield Finding("shards", "problem", seen, "name the shards in the order in which they were named first")


def _behind(standing: Sequence[ShardView]) -> Iterator[Finding]:
    newest = max((one.version or 0 for one in standing), default=0)
    for one in standing:
        if one.version is not None and one.version < newest:
            seen = f"shard {one.shard} goes by version {one.version} of the map, and another by {newest}"
            do = "a worker that serves both copies it within seconds, and so does the change if you say it again"
            yield Finding("shards", "warning", seen, do)
