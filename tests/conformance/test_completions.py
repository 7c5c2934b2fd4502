"""Several jobs completed together, beside their effects."""

from collections.abc import Iterator

import pytest

from holdfast import admin, jobs
from holdfast.errors import LeasesLost
from holdfast.life import door
from holdfast.testing import Do, Look, new_job
from holdfast.testing.suite_door import BIT, note
from holdfast.values.rows import Completion, Lease


@pytest.fixture(autouse=True)
def noted() -> Iterator[None]:
    """Have each job with a follower noted when it leaves."""
    door.attach(BIT, note)
    yield
    door.detach(BIT)


def claimed(do: Do, count: int) -> list[Lease]:
    do(jobs.enqueue_many([new_job() for _ in range(count)]))
    return do(jobs.claim("mail", limit=count))


def test_some_are_kept_with_their_result_and_others_leave_nothing(do: Do, look: Look) -> None:
    leases = claimed(do, 4)
    do(jobs.complete_all([Completion(lease, f"{n}", keep=n % 2 == 0) for n, lease in enumerate(leases)]))
    assert look.live() == []
    assert {(row.id, row.outcome, row.result) for row in look.over()} == {
        (leases[0].job_id, "done", "0"),
        (leases[2].job_id, "done", "2"),
    }


@pytest.mark.parametrize("keep", [True, False], ids=["kept", "dropped"])
@pytest.mark.parametrize("lost", [[0], [3], [1, 2], [0, 1, 2, 3]], ids=str)
def test_one_without_its_lease_stops_all(do: Do, look: Look, lost: list[int], keep: bool) -> None:
    leases = claimed(do, 4)
    completions = [Completion(lease, None, keep) for lease in leases]
    for n in lost:
        completions[n] = completions[n]._replace(lease=leases[n]._replace(fence=leases[n].fence - 1))
    with pytest.raises(LeasesLost):
        do(jobs.complete_all(completions))
    assert {row.id for row in look.live()} == {lease.job_id for lease in leases}
    assert look.over() == []


def test_one_that_was_settled_before_stops_all(do: Do, look: Look) -> None:
    first, second = claimed(do, 2)
    do(jobs.complete(first))
    with pytest.raises(LeasesLost):
        do(jobs.complete_all([Completion(first), Completion(second)]))
    assert [row.id for row in look.live()] == [second.job_id]


@pytest.mark.parametrize("keep", [True, False], ids=["kept", "dropped"])
def test_what_follows_one_of_them_is_part_of_the_transaction(do: Do, look: Look, keep: bool) -> None:
    leases = claimed(do, 3)
    do(jobs.follow([leases[1].job_id], BIT))
    do(jobs.complete_all([Completion(lease, None, keep) for lease in leases]))
    assert look.live() == []
    assert len(look.over()) == 3 * keep
    assert [line.job_id for line in do(admin.audit())] == [leases[1].job_id]
