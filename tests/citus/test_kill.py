"""Workers killed and frozen on a schema of a Citus cluster: the ledger of the kill test must hold."""

import os

import pytest

from tests.citus.cluster import Cluster
from tests.faults.kill import kill

pytestmark = [pytest.mark.slow, pytest.mark.citus, pytest.mark.timeout(400)]


def test_killing_workers_on_a_schema_loses_nothing_and_doubles_nothing(cluster: Cluster) -> None:
    with cluster.schema() as name:
        ledger = kill(cluster.url_in(name), float(os.environ.get("SECONDS_OF_KILLING", "20")))

    assert ledger.broken() == [], ledger.figures()
    assert len(ledger.enqueued) > 100
