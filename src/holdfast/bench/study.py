"""What the studies share: how much they do, what they find, and a way to the tables of a side."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Any

from holdfast.bench.run import Said
from holdfast.bench.side import Side, child
from holdfast.errors import ConfigError
from holdfast.store.dialects import dialect_for
from holdfast.values.options import StoreOptions

OURS = child("holdfast")

# Copies of rows with other ids, whatever columns the tables have; ids of the same time and in their order, because ours
# rise with it.
GROW_FINISHED = """
insert into holdfast_finished
select copy.* from (select * from holdfast_finished limit 1000) seed cross join generate_series(1, %s) number
 cross join lateral jsonb_populate_record(
     seed::holdfast_finished,
     jsonb_build_object(
        'id', overlay(md5(id::text || number) placing left(replace(id::text, '-', ''), 12) from 1 for 12)::uuid)) copy
 order by copy.id
"""


@dataclass(frozen=True, slots=True)
class Scale:
    """How much of everything a study does."""

    jobs: int = 1_000_000
    drain: int = 40_000
    rounds: int = 5
    finished: int = 2_000_000
    waiting: int = 1_000_000
    queues: int = 1_000
    rate: int = 4_000
    seconds: float = 300.0
    windows: int = 5
    ordered: int = 100_000
    suspended: int = 1_000_000
    steps: int = 10_000
    children: int = 10_000
    counted: int = 120_000

    @classmethod
    def quick(cls) -> Scale:
        return cls(
            jobs=4_000,
            drain=400,
            rounds=1,
            finished=2_000,
            waiting=2_000,
            queues=10,
            rate=200,
            seconds=2.0,
            windows=2,
            ordered=2_000,
            suspended=2_000,
            steps=200,
            children=100,
            counted=400,
        )


@dataclass(frozen=True, slots=True)
class Finding:
    """What a study found: a table, and one line that says what to read in it."""

    study: str
    columns: tuple[str, ...]
    lines: list[tuple[Any, ...]] = field(default_factory=list)
    summary: str = ""


Study = Callable[[str, Scale, Said], Coroutine[Any, Any, Finding]]


def vacuum(side: Side, table: str) -> None:
    with connection(side) as (raw, place):
        raw.execute(place(f"vacuum analyze {table}"))


def insist_on_postgres(url: str) -> None:
    if dialect_for(url, StoreOptions()).name != "postgres":
        raise ConfigError("url", "this study is for PostgreSQL", url)


@contextmanager
def connection(side: Side) -> Iterator[tuple[Any, Callable[[str], str]]]:
    """Give a connection of the study's own, and what puts the prefix into SQL."""
    dialect = dialect_for(side.url, StoreOptions(prefix=side.prefix))
    with closing(dialect.connect(side.url)) as raw:
        yield raw, dialect.place


def middle(values: Sequence[float | None]) -> Any:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def spread(ratios: Sequence[float], digits: int = 2) -> str:
    """Say between which two of them the middle half lies."""
    ranked, quarter = sorted(ratios), len(ratios) // 4
    return f"half of {len(ranked)} rounds {ranked[quarter]:.{digits}f} to {ranked[-1 - quarter]:.{digits}f}"
