"""The short form of `make kill`, and proof that its ledger would notice a broken promise."""

from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.life.expiry import LEASE_EXPIRED
from holdfast.values.views import JobView
from tests.faults.kill import kill
from tests.faults.ledger import Effect, Ledger

SECONDS = 8


@pytest.mark.slow
@pytest.mark.parametrize("database", ["sqlite_url", "pg_url", "mariadb_url", "mysql_url"])
def test_killing_workers_loses_nothing_and_doubles_nothing(database: str, request: pytest.FixtureRequest) -> None:
    ledger = kill(request.getfixturevalue(database), SECONDS)

    assert ledger.broken() == [], ledger.figures()
    assert len(ledger.enqueued) > 100


# Would it notice?

NOW = datetime(2026, 1, 1, tzinfo=UTC)
DEAD_WORKER = "worker1-77-abc"


def job(job_id: str, state: Any = "done", fence: int = 1, errors: list[dict[str, Any]] | None = None) -> JobView:
    nothing: dict[str, Any] = dict.fromkeys(JobView.__dataclass_fields__)
    said = {"id": job_id, "state": state, "fence": fence, "errors": errors or [], "created_at": NOW}
    return JobView(**(nothing | said))


def expired(attempt: int, worker: str) -> dict[str, Any]:
    return {"type": LEASE_EXPIRED, "message": "", "attempt": attempt, "worker": worker}


@pytest.fixture
def ledger() -> Ledger:
    """Two jobs: one booked; one posted twice, the first time by a worker that was killed."""
    member: Any = SimpleNamespace(is_worker=lambda worker: worker == DEAD_WORKER)
    jobs = {"a": job("a"), "b": job("b", fence=4, errors=[expired(1, DEAD_WORKER)])}
    booked = [Effect("a", 1, 1, "worker2-78-abc")]
    posted = [Effect("b", 1, 1, DEAD_WORKER), Effect("b", 2, 4, "worker2-78-abc")]
    return Ledger("none", 1, {"a", "b"}, {"c"}, jobs, booked, posted, [member], [member])


def test_a_repeat_by_a_killed_worker_is_explained(ledger: Ledger) -> None:
    assert ledger.repeats == [ledger.posted[0]]
    assert ledger.broken() == []


def test_a_repeat_without_an_expired_lease_is_not_explained(ledger: Ledger) -> None:
    ledger.jobs["b"] = replace(ledger.jobs["b"], errors=[])

    assert "a repeated plain effect has no killed attempt to explain it" in ledger.broken()


def test_a_repeat_by_a_worker_that_was_not_hurt_is_not_explained(ledger: Ledger) -> None:
    ledger.killed = [SimpleNamespace(is_worker=lambda _: False)]  # type: ignore[list-item]
    ledger.frozen = ledger.killed

    assert ledger.broken() == ["a repeated plain effect has no killed attempt to explain it"]


def test_an_effect_that_one_attempt_wrote_twice_is_not_explained(ledger: Ledger) -> None:
    ledger.posted.append(ledger.posted[1])

    assert ledger.broken() == ["a repeated plain effect has no killed attempt to explain it"]


def test_a_doubled_transactional_effect_is_noticed(ledger: Ledger) -> None:
    ledger.booked.append(ledger.booked[0])

    assert ledger.broken() == ["a transactional effect was doubled"]


def test_a_transactional_effect_under_an_old_fence_is_noticed(ledger: Ledger) -> None:
    ledger.jobs["a"] = job("a", fence=2)

    assert ledger.broken() == ["a transactional effect carries an old fence"]


def test_a_lost_job_is_noticed(ledger: Ledger) -> None:
    ledger.enqueued.add("d")

    assert ledger.broken() == ["a committed job was lost"]


def test_a_done_job_without_effect_is_noticed(ledger: Ledger) -> None:
    ledger.booked.clear()

    assert ledger.broken() == ["a committed job was lost"]


def test_a_job_of_a_rolled_back_transaction_is_noticed(ledger: Ledger) -> None:
    ledger.jobs["c"] = job("c")

    assert ledger.broken() == ["a rolled-back transaction left a job or an effect"]


@pytest.mark.parametrize("state", ["pending", "leased", "dead", "cancelled"])
def test_a_job_that_is_not_done_is_noticed(ledger: Ledger, state: str) -> None:
    ledger.jobs["a"] = job("a", state)

    assert ledger.broken() == ["a job did not end done"]
