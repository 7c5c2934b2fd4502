"""`make bench ARGS="--study forms"`: what the forms of statements that Citus takes cost a plain PostgreSQL.

The statements of now and their earlier forms run in turn, each in a database of its own on one server, on the same
rows. Beside the time of a statement stands what its backend had of the cores: that depends less on what else runs.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

from holdfast import jobs, lines, results
from holdfast.flow import Flow
from holdfast.runs import Entry, Recorded, checkpoint
from holdfast.store import Store, migrate
from holdfast.store.catalogue import Catalogue, Written, own_queries
from holdfast.testing.make import empty, failure, new_job
from holdfast.values.options import StoreOptions
from holdfast.values.queues import QueueSettings
from holdfast.values.rows import Finish, Lease, PutBack
from tests.servers import Postgres

# What a statement of now may cost at most: an earlier form reaches this part of its rate, or less.
TARGET = 0.98
BATCH = 100
# In how many parts each round is measured, in turn.
PARTS = 20

# Earlier forms: what stands in a statement now, and what stood there.
Change = tuple[str, str]
UTC_TIMES = (
    (
        "date_part('epoch', j.available_at at time zone interval '0') * 1000000",
        "date_part('epoch', j.available_at) * 1000000",
    ),
    (
        "date_part('epoch', j.created_at at time zone interval '0') * 1000000",
        "date_part('epoch', j.created_at) * 1000000",
    ),
)
OF_ONE = (
    "case when (select cardinality(fence) from held) = 1 then (select fence[1] from held)",
    "case (select cardinality(fence) from held) when 1 then (select fence[1] from held)",
)
EARLIER: Mapping[str, Sequence[Change]] = {
    "enqueue_many": [
        (f"case when cardinality(:{name}::{kind}[]) = 1 then", f"case cardinality(:{name}::{kind}[]) when 1 then")
        for name, kind in (
            ("queue", "text"),
            ("kind", "text"),
            ("priority", "smallint"),
            ("delay_ms", "bigint"),
            ("max_attempts", "integer"),
        )
    ],
    "keys_take": [
        (
            "holdfast_keys.expires_at at time zone interval '0'\n"
            "       <= excluded.expires_at at time zone interval '0' - :window_ms::bigint * interval '1 millisecond'",
            "holdfast_keys.expires_at <= :now",
        )
    ],
    "debounce_take": [
        (
            "case when d.changed_at at time zone interval '0'\n"
            "                < excluded.changed_at at time zone interval '0' - interval '1 minute'\n"
            "            then excluded.changed_at else d.changed_at end",
            "case when d.changed_at < :now - interval '1 minute' then :now else d.changed_at end",
        )
    ],
    "claim": UTC_TIMES,
    "line_lease": UTC_TIMES,
    "line_call": [("coalesce(u.delay_us, 0)", "u.delay_us")],
    "renew": [
        (
            "coalesce(((select lease_ms from held))[width_bucket(j.id, (select id from held))], 0)\n"
            "               * interval",
            "((select lease_ms from held))[width_bucket(j.id, (select id from held))] * interval",
        )
    ],
    "put_back": [
        (
            "           array(select :now + u.delay_ms * interval '1 millisecond'\n"
            "                   from unnest(:delay_ms::text::bigint[]) as u (delay_ms)) as available_at,\n",
            "",
        ),
        ("waits_for),\nback as (\n    update", "waits_for)\n    update"),
        (
            "((select available_at from held))[width_bucket(j.id, (select id from held))]",
            ":now + ((select delay_ms from held))[width_bucket(j.id, (select id from held))]\n"
            "               * interval '1 millisecond'",
        ),
        (
            "returning j.id, j.queue, j.state <> 'waiting'\n"
            "        and coalesce(((select delay_ms from held))[width_bucket(j.id, (select id from held))], 0) = 0"
            " as due)\n"
            "select id::text, case when :channel::text is not null and due then pg_notify(:channel, queue)::text end"
            " from back",
            "returning j.id::text, case when :channel::text is not null and j.state <> 'waiting'\n"
            "        and coalesce(((select delay_ms from held))[width_bucket(j.id, (select id from held))], 0) = 0\n"
            "        then pg_notify(:channel, j.queue)::text end",
        ),
    ],
    "finish": [
        OF_ONE,
        ("case when cardinality(:outcome::text[]) = 1 then", "case cardinality(:outcome::text[]) when 1 then"),
    ],
    "drop": [OF_ONE],
    "results_mark": [
        ("with marked as (\n", ""),
        (
            "returning j.id, j.queue, j.state, j.available_at)\nselect id::text,\n"
            "       case when :channel::text is not null and state = 'pending' and available_at <= :now\n"
            "            then pg_notify(:channel, queue)::text end\n  from marked",
            "returning j.id::text, case when :channel::text is not null and j.state = 'pending'\n"
            "        and j.available_at <= :now then pg_notify(:channel, j.queue)::text end",
        ),
    ],
    "checkpoint_one": [("extract(epoch from at at time zone interval '0')", "extract(epoch from at)")],
}


def earlier(written: Mapping[str, Written]) -> dict[str, Written]:
    """Put the earlier forms in the place of those of now. Raises: ValueError for a statement that reads otherwise."""
    changed = dict(written)
    for name, changes in EARLIER.items():
        [text] = written[name].statements
        for now, before in changes:
            if now not in text:
                raise ValueError(f"{name} has changed; its earlier form cannot be made: {now}")
            text = text.replace(now, before)
        changed[name] = written[name]._replace(statements=(text,))
    return changed


class Spent(NamedTuple):
    """Nanoseconds: of the backend on a core, and in all."""

    cpu: int
    wall: int


class Side:
    """A database with the statements of now, or with their earlier forms, and the one connection to it."""

    def __init__(self, url: str, written: Mapping[str, Written]) -> None:
        self.store = Store(url, StoreOptions(pool_size=1))
        self.store.dialect.queries = Catalogue(self.store.dialect, written)
        self.store.run(migrate.apply(self.store.migrations))
        with self.store.link() as link:
            self.backend = link.raw.info.backend_pid

    def clear(self) -> None:
        """Empty the tables, and leave no dead rows behind, which the one side might have more of than the other."""
        self.store.run(empty(self.store))
        with self.store.link() as link:
            link.raw.execute("vacuum analyze")

    def spent(self, flows: Sequence[Flow[Any]]) -> Spent:
        """Run flows and tell what they took in the backend, and in all."""
        used, began = self._used(), time.perf_counter_ns()
        for one in flows:
            self.store.run_once(one)
        return Spent(self._used() - used, time.perf_counter_ns() - began)

    def _used(self) -> int:
        return int(Path(f"/proc/{self.backend}/schedstat").read_text().split()[0])


# What is measured: each makes its rows and returns the flows to run.


def enqueues(store: Store) -> list[Flow[Any]]:
    return [jobs.enqueue(new_job(), fresh=True) for _ in range(5 * BATCH)]


def batches(store: Store) -> list[Flow[Any]]:
    """Batches whose jobs differ in everything."""
    return [
        jobs.enqueue_many([new_job(kind=f"kind{n % 3}", priority=n % 2) for n in range(5 * BATCH)], fresh=True)
        for _ in range(6)
    ]


def idempotent(store: Store) -> list[Flow[Any]]:
    return [jobs.enqueue(new_job(idempotency_key=f"key:{n}"), fresh=True) for n in range(3 * BATCH)]


def debounced(store: Store) -> list[Flow[Any]]:
    return [
        jobs.enqueue(
            new_job(debounce=f"key:{n % 20}", wait_ms=60_000, max_wait_ms=600_000, delay_ms=60_000), fresh=True
        )
        for n in range(3 * BATCH)
    ]


def filled(store: Store, count: int, **fields: Any) -> None:
    store.run(jobs.enqueue_many([new_job(**fields) for _ in range(count)], fresh=True))


def held(store: Store, count: int) -> list[list[Lease]]:
    filled(store, count)
    leases = store.run(jobs.claim("mail", limit=count))
    return [leases[at : at + BATCH] for at in range(0, count, BATCH)]


def claims(store: Store) -> list[Flow[Any]]:
    filled(store, 20 * BATCH)
    return [jobs.claim("mail", limit=BATCH) for _ in range(20)]


def single_claims(store: Store) -> list[Flow[Any]]:
    filled(store, 20 * BATCH)
    return [jobs.claim("mail", limit=1) for _ in range(2 * BATCH)]


def lined_claims(store: Store) -> list[Flow[Any]]:
    store.run(jobs.enqueue_many([new_job(key=f"key:{n % 300}", bucket=n % 300) for n in range(12 * BATCH)], fresh=True))
    return [lines.claim("mail", QueueSettings(ordered=True), limit=BATCH) for _ in range(6)]


def renewals(store: Store) -> list[Flow[Any]]:
    return [jobs.renew([(one, 30_000) for one in part]) for part in held(store, 10 * BATCH) * 2]


def retries(store: Store) -> list[Flow[Any]]:
    return [
        jobs.settle([PutBack(one.id, one.fence, 1000, 0, failure()) for one in part])
        for part in held(store, 10 * BATCH)
    ]


def ends(store: Store, keep: bool) -> list[Flow[Any]]:
    return [
        jobs.settle([Finish(one.id, one.fence, "done", keep=keep) for one in part]) for part in held(store, 20 * BATCH)
    ]


def marks(store: Store) -> list[Flow[Any]]:
    new = [new_job() for _ in range(3 * BATCH)]
    store.run(jobs.enqueue_many(new, fresh=True))
    return [results.mark([one.id], None) for one in new]


def checkpoints(store: Store) -> list[Flow[Any]]:
    [[lease, *_], *_] = held(store, BATCH)
    return [
        checkpoint([Entry(lease.job_id, lease.fence, Recorded(n, f"step:{n}", "step"))], "w") for n in range(3 * BATCH)
    ]


MEASURED: Mapping[str, Callable[[Store], list[Flow[Any]]]] = {
    # The same statement on both sides: it shows how much the figures can be trusted.
    "enqueue (the same in both)": enqueues,
    "enqueue, with an idempotency key": idempotent,
    "enqueue, debounced": debounced,
    "500 mixed jobs in a batch": batches,
    "claim of 100": claims,
    "claim of 1": single_claims,
    "claim of 100 from an ordered queue": lined_claims,
    "renewal of 100": renewals,
    "retry of 100": retries,
    "end of 100, kept": lambda store: ends(store, True),
    "end of 100, not kept": lambda store: ends(store, False),
    "mark of a result that somebody waits for": marks,
    "checkpoint of a run": checkpoints,
}


def study(rounds: int) -> Iterator[dict[str, Any]]:
    """Measure both forms of each in turn, and give a row for each."""
    with ExitStack() as stack:
        server = stack.enter_context(Postgres(settings={"autovacuum": "off"}))
        now = own_queries("postgres")
        sides = [Side(server.fresh_database(), forms) for forms in (earlier(now), now)]
        for side in sides:
            stack.callback(side.store.close)
        for name, made in MEASURED.items():
            # The first round warms both.
            _, *took = (in_turn(sides, made, turn) for turn in range(rounds + 1))
            yield row_of(name, took)


def in_turn(sides: Sequence[Side], made: Callable[[Store], list[Flow[Any]]], turn: int) -> tuple[Spent, Spent]:
    """Run the same on both sides, a few flows on the one and then on the other: what else runs slows both alike."""
    work: list[list[Flow[Any]]] = []
    for side in sides:
        side.clear()
        work.append(made(side.store))
    count = len(work[0])
    step = max(1, count // PARTS)
    spent = [Spent(0, 0), Spent(0, 0)]
    for part, at in enumerate(range(0, count, step)):
        for one in (0, 1) if (part + turn) % 2 else (1, 0):
            cpu, wall = sides[one].spent(work[one][at : at + step])
            spent[one] = Spent(spent[one].cpu + cpu, spent[one].wall + wall)
    before, now = (Spent(one.cpu // count, one.wall // count) for one in spent)
    return before, now


def row_of(name: str, took: Sequence[tuple[Spent, Spent]]) -> dict[str, Any]:
    """Put the rounds together: microseconds of one call, and what part of the earlier form's rate is left."""
    row: dict[str, Any] = {"what": name, "rounds": len(took)}
    for measure in ("cpu", "wall"):
        pairs = [(getattr(before, measure), getattr(now, measure)) for before, now in took]
        row |= {
            f"{measure}_us_before": round(statistics.median(before for before, _ in pairs) / 1000, 1),
            f"{measure}_us": round(statistics.median(now for _, now in pairs) / 1000, 1),
            f"{measure}_ratio": round(statistics.median(before / now for before, now in pairs), 3),
        }
    return row | {"target": TARGET}


def told(row: dict[str, Any]) -> str:
    return (
        f"{row['what']}: {row['cpu_ratio']:.3f} of the rate by the server's CPU ({row['cpu_us_before']} µs before, "
        f"{row['cpu_us']} now), {row['wall_ratio']:.3f} by the clock ({row['wall_us_before']}, {row['wall_us']})"
    )


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="make bench ARGS='--study forms …'", description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--json", action="store_true")
    said = parser.parse_args(arguments)
    ratios = []
    for row in study(said.rounds):
        ratios.append(row["cpu_ratio"])
        print(json.dumps(row) if said.json else told(row), flush=True)
    if not said.json:
        print(f"The mean of all by the server's CPU: {statistics.geometric_mean(ratios):.3f} (should be {TARGET:g})")
