"""The short form of `make histories`: a few seconds of everything at once, and no promise broken."""

import random

import pytest

from tests.histories.checker import check
from tests.histories.report import figures, told
from tests.histories.run import Orders, run

SECONDS = 5


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("database", ["sqlite_url", "pg_url", "mariadb_url", "mysql_url"])
def test_no_promise_is_broken_while_processes_and_sessions_die(database: str, request: pytest.FixtureRequest) -> None:
    seed = str(random.randrange(10**6))
    # Shown when it fails: the same seed draws the same jobs and the same deeds, though not at the same moments.
    print(f"seed {seed}")

    history = run(Orders(request.getfixturevalue(database), SECONDS, seed))
    violations = check(history)

    assert not violations, "\n".join([*told(history, violations), f"seed {seed}", str(figures(history))])
    assert len(history.starts) > 20
    assert history.victims
