"""Random operations against a model, on each database; `make machine EXAMPLES=500` is the long form."""

import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from holdfast.store import Store, migrate
from tests.machine.machine import Machine

EXAMPLES = int(os.environ.get("HOLDFAST_EXAMPLES") or 20)
STEPS = 40
# To explain a failure takes as long as to find it, and the shrunk steps say it all.
PHASES = (Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink)


@pytest.fixture(params=["sqlite", "pg_url", "mariadb_url"])
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    # What a commit waits for is not what this is about.
    if request.param == "sqlite":
        url = "sqlite:///:memory:"
    elif request.param == "pg_url":
        url = request.getfixturevalue(request.param) + "?options=-c%20synchronous_commit%3Doff"
    else:
        url = request.getfixturevalue(request.param)
        request.getfixturevalue("mariadb").execute("set global innodb_flush_log_at_trx_commit = 2")
    store = Store(url)
    store.run(migrate.apply(store.migrations))
    yield store
    store.close()


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_whatever_happens_jobs_keep_order_limits_and_chains(store: Store) -> None:
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        lambda: Machine(store),
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=STEPS,
            deadline=None,
            phases=PHASES,
            suppress_health_check=list(HealthCheck),
            print_blob=True,
            report_multiple_bugs=False,
        ),
    )
