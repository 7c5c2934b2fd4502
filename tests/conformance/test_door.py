"""The door out in a transaction of the application's own."""

from collections.abc import Iterator

import pytest

from holdfast import admin, jobs
from holdfast.job import Job
from holdfast.life import door
from holdfast.store import Store
from holdfast.testing import Look, new_job
from holdfast.testing.suite_door import BIT, note


@pytest.fixture(autouse=True)
def noted() -> Iterator[None]:
    """Have each job with a follower noted when it leaves."""
    door.attach(BIT, note)
    yield
    door.detach(BIT)


@pytest.mark.parametrize("keep", [True, False], ids=["kept", "dropped"])
@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_what_follows_a_completion_is_part_of_the_callers_transaction(store: Store, end: str, keep: bool) -> None:
    store.run(jobs.enqueue(new_job()))
    [lease] = store.run(jobs.claim("mail", limit=1))
    store.run(jobs.follow([lease.job_id], BIT))
    with store.link() as link:
        link.tell(store.dialect.begin)
        Job(lease, store, keep=keep).complete(tx=link.raw)
        link.tell(end)
    look = Look(store.run, store)
    assert len(look.live()) == (end == "rollback")
    assert len(look.over()) == (end == "commit" and keep)
    assert [line.job_id for line in store.run(admin.audit())] == [lease.job_id] * (end == "commit")


def test_what_follows_commits_with_the_effect_of_a_handler(store: Store) -> None:
    store.run(jobs.enqueue(new_job()))
    [lease] = store.run(jobs.claim("mail", limit=1))
    store.run(jobs.follow([lease.job_id], BIT))
    with pytest.raises(RuntimeError), Job(lease, store, keep=True).transaction():
        raise RuntimeError
    assert store.run(admin.audit()) == []
    with Job(lease, store, keep=True).transaction():
        pass
    assert [(line.job_id, line.actor) for line in store.run(admin.audit())] == [(lease.job_id, "done")]
