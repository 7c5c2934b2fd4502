"""Pinned plans of Airlock's outbox table: what a claim and the ends of a batch read, beside many processed messages.

As bad as statistics get: there are none, as in a table that was filled at once.
"""

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from holdfast import Holdfast
from holdfast.flow import Statement
from holdfast.foreign.airlock import flows
from holdfast.foreign.airlock.messages import Takes
from holdfast.store import Store
from tests.plans.explain import PlanKind, explain, first_statement
from tests.servers import Postgres

pytestmark = pytest.mark.slow

WAITING, BATCH = 5_000, 100
FILL = """insert into airlock_messages
              (id, aggregate_type, aggregate_id, event_type, partition_key, payload, payload_size, status, processed_at)
          select lpad(to_hex(n), 32, '0')::uuid, 'order', n::text, 'order.created', n::text, '{{"id": "x"}}', 11,
                 '{status}', case when '{status}' = 'PROCESSED' then now() end
            from generate_series({first}, {last}) n"""
IDS = [f"00000000-0000-0000-0000-{n:012x}" for n in range(1, BATCH + 1)]
NONE: list[Any] = [None] * BATCH
ASKED = {
    "pick": {"types": ["order.created"], "limit": BATCH},
    "take": {"ids": IDS, "holder": "holdfast/w", "lease_ms": 30_000},
    "held": {"ids": IDS},
    "renew": {"ids": IDS, "lease_ms": 30_000},
    "processed": {"ids": IDS, "reasons": NONE},
    "put_back": {"ids": IDS, "failures": [1] * BATCH, "delays": [5] * BATCH, "reasons": NONE},
    "bury": {"ids": IDS, "reasons": ["boom"] * BATCH},
}


@pytest.fixture(scope="module")
def app(postgres: Postgres) -> Iterator[Holdfast]:
    app = Holdfast(postgres.start().create_database("plans_airlock"))
    app.foreign.airlock().create_schema()
    for statement in (
        "alter table airlock_messages set (autovacuum_enabled = false)",
        FILL.format(status="PROCESSED", first=WAITING + 1, last=WAITING * 5),
        FILL.format(status="PENDING", first=1, last=WAITING),
    ):
        postgres.execute(statement, "plans_airlock")
    yield app
    app.close()
    postgres.drop_database("plans_airlock")


@pytest.fixture
def connection(app: Holdfast) -> Iterator[Any]:
    with psycopg.connect(app.store.url, autocommit=True) as connection:
        # What the query `walk` does for the transaction of a claim.
        connection.execute("set enable_sort = off")
        yield connection


@pytest.mark.parametrize("kind", ["force_custom_plan", "force_generic_plan"])
@pytest.mark.parametrize("name", ASKED)
def test_a_claim_and_the_ends_of_a_batch_read_as_much_as_the_batch_is(
    app: Holdfast, connection: Any, name: str, kind: PlanKind
) -> None:
    store: Store = app.store
    outbox = app.foreign.airlock()
    assert first_statement(flows.claim(outbox.tables, {"*": Takes()}, 1, "w")).name == "walk"
    surface = outbox.tables.queries.surface
    plan = explain(store, connection, Statement(name, ASKED[name], surface=surface), kind)
    ways = {node.get("Index Name") for node in plan.nodes() if "Index" in node["Node Type"]}
    assert ways == {"idx_airlock_due" if name == "pick" else "airlock_messages_pkey"}
    assert BATCH <= plan.rows_visited <= 20 * BATCH, plan.rows_visited
