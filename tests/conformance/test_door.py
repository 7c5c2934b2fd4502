"""The door out in a transaction of the application's own."""

import asyncio
from collections.abc import Iterator

import pytest

from holdfast import Holdfast, admin, events, jobs
from holdfast.job import Job
from holdfast.life import door
from holdfast.store import Store
from holdfast.testing import Look, new_job
from holdfast.testing.suite_door import BIT, UNKNOWN_BIT, note


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


@pytest.mark.parametrize("keep", [True, False], ids=["kept", "dropped"])
@pytest.mark.parametrize("colour", ["sync", "async"])
def test_a_follower_that_comes_while_the_handler_runs_keeps_the_effect(store: Store, colour: str, keep: bool) -> None:
    store.run(jobs.enqueue(new_job()))
    [lease] = store.run(jobs.claim("mail", limit=1))
    job = Job(lease, store, keep=keep)
    later = new_job()

    async def asynchronously() -> None:
        store.run(jobs.follow([lease.job_id], BIT))
        async with job.transaction() as tx:
            await store.arun_in(tx, jobs.enqueue(later))
        await store.aclose()

    if colour == "async":
        asyncio.run(asynchronously())
    else:
        store.run(jobs.follow([lease.job_id], BIT))
        with job.transaction() as tx:
            store.run_in(tx, jobs.enqueue(later))
    assert job.settled
    look = Look(store.run, store)
    assert [row.id for row in look.live()] == [later.id]
    assert len(look.over()) == keep
    assert [line.job_id for line in store.run(admin.audit())] == [lease.job_id]


def test_a_job_with_followers_that_nobody_here_knows_costs_itself(store: Store) -> None:
    new = [new_job() for _ in range(4)]
    store.run(jobs.enqueue_many(new))
    store.run(jobs.follow([new[1].id], UNKNOWN_BIT))
    said: list[events.Event] = []
    hf = Holdfast(store.url, prefix=store.options.prefix)
    hf.on(events.Event, said.append)
    hf.job(kind="noop", queue="mail")(lambda: None)

    async def scene() -> None:
        async with hf.worker(poll=0.05):
            for _ in range(400):
                if any(isinstance(one, events.SettleRefused) for one in said) and len(over(store)) == 3:
                    break
                await asyncio.sleep(0.05)
        await hf.aclose()

    asyncio.run(scene())
    assert over(store) == {new[0].id, new[2].id, new[3].id}
    assert [one.id for one in said if isinstance(one, events.SettleRefused)] == [new[1].id]
    assert not [one for one in said if isinstance(one, events.DatabaseLost | events.WorkerBroke)]


def over(store: Store) -> set[str]:
    return {row.id for row in Look(store.run, store).over()}


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
