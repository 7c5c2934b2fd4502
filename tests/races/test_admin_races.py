"""Actions by hand against workers, the pruner and each other, stepped by hand on two connections.

On PostgreSQL: SQLite lets one writing transaction in at a time, so there is nothing to interleave.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from holdfast import admin, jobs
from holdfast.admin import Filter
from holdfast.errors import Conflict, JobNotFound
from holdfast.store import Store
from holdfast.store.dialects.postgres import Postgres
from holdfast.testing import failure, new_job
from holdfast.values.rows import Lease
from tests.races.stepping import PATIENCE, blocked, on_postgres, stepped


def enqueued(pg: Store, *args: str, **said: Any) -> str:
    return pg.run(jobs.enqueue(new_job(*args, **said))).id


def claimed(pg: Store) -> Lease:
    [lease] = pg.run(jobs.claim("mail", limit=1))
    return lease


def buried(pg: Store, **said: Any) -> str:
    job_id = enqueued(pg, **said)
    pg.run(jobs.kill(claimed(pg), failure(), "g"))
    return job_id


def state(pg: Store, job_id: str) -> str:
    return pg.run(admin.show(job_id)).state


def audited(pg: Store, job_id: str) -> list[str]:
    return [line.action for line in pg.run(admin.audit(job_id))]


# Two of the same


def test_of_two_replays_at_once_exactly_one_gets_the_job(pg: Store) -> None:
    dead = buried(pg)
    replay = admin.replay(Filter(), 10, "a")
    with stepped(pg, replay) as one, stepped(pg, replay) as two:
        one.step_through("finished_pick")
        second = blocked(two, two.commit)
        assert one.commit() == admin.Replayed([dead])
        assert second.result(PATIENCE) == admin.Replayed([])
    assert pg.run(admin.show(dead)).replays == 1
    assert audited(pg, dead) == ["replay"]


def test_the_second_of_two_replays_goes_on_behind_the_first(pg: Store) -> None:
    dead = [buried(pg) for _ in range(3)]
    replay = admin.replay(Filter(), 2, "a")
    with stepped(pg, replay) as one, stepped(pg, replay) as two:
        one.step_through("finished_pick")
        second = blocked(two, two.commit)
        assert one.commit().ids == dead[:2]
        assert second.result(PATIENCE).ids == dead[2:]


def test_a_replay_gets_the_job_when_the_one_before_it_rolls_back(pg: Store) -> None:
    dead = buried(pg)
    replay = admin.replay(Filter(), 10, "a")
    with stepped(pg, replay) as one, stepped(pg, replay) as two:
        one.rest()
        second = blocked(two, two.commit)
        one.rollback()
        assert second.result(PATIENCE).ids == [dead]
    assert audited(pg, dead) == ["replay"]


def test_the_second_of_two_retries_finds_the_job_due(pg: Store) -> None:
    dead = buried(pg)
    with stepped(pg, admin.retry(dead, "a")) as one, stepped(pg, admin.retry(dead, "b")) as two:
        one.step_through("finished_pick")
        two.step_through("run_now")
        second = blocked(two, two.commit)
        assert one.commit() == "replayed"
        assert second.result(PATIENCE) == "due"
    assert pg.run(admin.show(dead)).replays == 1


def test_of_two_cancels_at_once_one_is_told_of_the_other(pg: Store) -> None:
    job_id = enqueued(pg)
    with stepped(pg, admin.cancel(job_id, "a")) as one, stepped(pg, admin.cancel(job_id, "b")) as two:
        one.step()
        second = blocked(two, two.commit)
        assert one.commit() == "cancelled"
        with pytest.raises(Conflict, match="cancelled"):
            second.result(PATIENCE)
    assert audited(pg, job_id) == ["cancel"]


# A hand and a worker


def test_a_cancel_that_meets_a_claim_asks_the_worker_to_stop(pg: Store) -> None:
    job_id = enqueued(pg)
    with stepped(pg, jobs.claim("mail", limit=1)) as claim, stepped(pg, admin.cancel(job_id, "a")) as cancel:
        claim.step()
        answer = blocked(cancel, cancel.commit)
        [lease] = claim.commit()
        assert answer.result(PATIENCE) == "requested"
    assert pg.run(jobs.renew([(lease, 1_000)])).cancelled == {job_id}


def test_a_claim_that_meets_a_cancel_takes_nothing(pg: Store) -> None:
    job_id = enqueued(pg)
    with stepped(pg, admin.cancel(job_id, "a")) as cancel, stepped(pg, jobs.claim("mail", limit=1)) as claim:
        cancel.step()
        assert claim.commit() == []
        assert cancel.commit() == "cancelled"
    assert pg.run(jobs.claim("mail", limit=1)) == []


@on_postgres
def test_a_cancel_that_meets_the_end_of_the_job_is_a_conflict(pg: Store) -> None:
    job_id = enqueued(pg)
    with stepped(pg, jobs.complete(claimed(pg))) as end, stepped(pg, admin.cancel(job_id, "a")) as cancel:
        end.step()
        answer = blocked(cancel, cancel.commit)
        end.commit()
        with pytest.raises(Conflict, match="done"):
            answer.result(PATIENCE)
    assert state(pg, job_id) == "done"
    assert audited(pg, job_id) == []


@on_postgres
def test_a_job_that_comes_back_while_it_is_cancelled_comes_back_with_the_request(pg: Store) -> None:
    job_id = enqueued(pg)
    lease = claimed(pg)
    with stepped(pg, admin.cancel(job_id, "a")) as cancel, stepped(pg, jobs.release(lease)) as back:
        cancel.step_through("live_lock")
        answer = blocked(back, back.commit)
        assert cancel.commit() == "requested"
        answer.result(PATIENCE)
    assert state(pg, job_id) == "pending"
    assert claimed(pg).cancel_requested


def test_a_job_claimed_while_it_is_made_due_is_a_conflict(pg: Store) -> None:
    job_id = enqueued(pg)
    with stepped(pg, jobs.claim("mail", limit=1)) as claim, stepped(pg, admin.run_now(job_id, "a")) as now:
        claim.step()
        answer = blocked(now, now.commit)
        claim.commit()
        with pytest.raises(Conflict, match="leased"):
            answer.result(PATIENCE)
    assert audited(pg, job_id) == []


# Replay against prune, discard and enqueue


def test_the_pruner_leaves_a_letter_alone_that_is_being_replayed(pg: Store) -> None:
    dead = buried(pg)
    with stepped(pg, admin.replay(Filter(), 10, "a")) as replay:
        replay.step_through("finished_pick")
        assert pg.run(jobs.prune("dead", "mail", 0)) == 0
        assert replay.commit().ids == [dead]
    assert state(pg, dead) == "pending"


def test_a_replay_that_meets_the_pruner_takes_nothing(pg: Store) -> None:
    dead = buried(pg)
    with stepped(pg, jobs.prune("dead", "mail", 0)) as prune, stepped(pg, admin.replay(Filter(), 10, "a")) as replay:
        prune.step()
        answer = blocked(replay, replay.commit)
        assert prune.commit() == 1
        assert answer.result(PATIENCE).ids == []
    with pytest.raises(JobNotFound):
        state(pg, dead)


def test_a_discard_that_meets_a_replay_deletes_nothing(pg: Store) -> None:
    dead = buried(pg)
    with (
        stepped(pg, admin.replay(Filter(), 10, "a")) as replay,
        stepped(pg, admin.discard(Filter(), 10, "b")) as discard,
    ):
        replay.step_through("replay")
        answer = blocked(discard, discard.commit)
        replay.commit()
        assert answer.result(PATIENCE) == []
    assert state(pg, dead) == "pending"
    assert audited(pg, dead) == ["replay"]


def test_a_retry_that_meets_a_discard_finds_no_job(pg: Store) -> None:
    dead = buried(pg)
    with stepped(pg, admin.discard(Filter(), 10, "a")) as discard, stepped(pg, admin.retry(dead, "b")) as retry:
        discard.step_through("discard")
        retry.step_through("run_now")
        answer = blocked(retry, retry.commit)
        assert discard.commit() == [dead]
        with pytest.raises(JobNotFound):
            answer.result(PATIENCE)


def test_a_replay_that_meets_an_enqueue_of_its_unique_key_is_a_conflict(pg: Store) -> None:
    dead = buried(pg, unique="u")
    new = new_job(unique="u")
    with stepped(pg, jobs.enqueue(new)) as enqueue, stepped(pg, admin.replay(Filter(), 10, "a")) as replay:
        enqueue.step()
        replay.step_through("finished_pick")
        answer = blocked(replay, replay.commit)
        enqueue.commit()
        assert answer.result(PATIENCE) == admin.Replayed([], {dead: new.id})
    assert state(pg, dead) == "dead"


# Wake-ups


@pytest.fixture
def heard(pg: Store) -> Iterator[Callable[[], list[str]]]:
    """Listen as a worker does, and return what was heard since."""
    assert isinstance(pg.dialect, Postgres)
    channel = pg.dialect.channel
    with psycopg.connect(pg.url, autocommit=True) as listener:
        listener.execute(f"listen {channel}")
        yield lambda: [note.payload for note in _until_echo(listener, channel)]


def _until_echo(listener: psycopg.Connection[Any], channel: str) -> Iterator[psycopg.Notify]:
    # Its own notification comes after all that were committed before it.
    listener.execute("select pg_notify(%s, 'echo')", [channel])
    for note in listener.notifies(timeout=PATIENCE):
        if note.payload == "echo":
            return
        yield note


@on_postgres
def test_actions_that_make_work_wake_the_queue(pg: Store, heard: Callable[[], list[str]]) -> None:
    later = enqueued(pg, "later", delay_ms=60_000)
    dead = [buried(pg) for _ in range(2)]
    heard()
    pg.run(admin.run_now(later, "a"))
    assert heard() == ["later"]
    pg.run(admin.replay(Filter(), 10, "a"))
    assert heard() == ["mail"]
    pg.run(admin.cancel(claimed(pg).job_id, "a"))
    assert heard() == ["mail"]
    pg.run(admin.cancel(dead[1], "a"))
    pg.run(admin.replay(Filter(states=("cancelled",)), 10, "a", dry_run=True))
    assert heard() == []
