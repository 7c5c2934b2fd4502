"""The reply to COMMIT is lost: the database has written, the client does not know. Nothing is lost and nothing doubled.

A statement that runs alone commits by itself; there it is its own reply that is lost.
"""

import asyncio
import itertools
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import psycopg
import pytest
from asyncpg.exceptions import PostgresConnectionError

from holdfast import Bulk, Debounce, Holdfast, admin, chains, jobs, schedules
from holdfast.errors import Conflict, DatabaseUnavailable, LeaseLost, SharedTransactionUndone
from holdfast.flow import Flow, Steps, flow, run_text
from holdfast.job import Job
from holdfast.jobs.source import OURS
from holdfast.life import door
from holdfast.store import Store, migrate
from holdfast.testing import Clock, Do, Look, empty, failure, new_job
from holdfast.testing.fixtures import colour, do
from holdfast.testing.suite_chains import MARK, child_of
from holdfast.testing.suite_debounce import call
from holdfast.testing.suite_door import BIT, note
from holdfast.testing.suite_schedules import schedule
from holdfast.values.ids import next_id
from holdfast.values.rows import Continued, Enqueued, Finish, Lease, NewJob, Park, PutBack
from tests.proxy import Proxy
from tests.servers import Postgres

__all__ = ["colour", "do"]

Cut = Callable[..., None]
Settle = Callable[[list[Lease]], Flow[jobs.Settled]]


@pytest.fixture(scope="module")
def url(postgres: Postgres) -> Iterator[str]:
    """One database for this module, emptied before each test."""
    url = postgres.start().fresh_database()
    store = Store(url)
    store.run(migrate.apply(store.migrations))
    store.close()
    yield url
    postgres.start().drop_database(url.rpartition("/")[2])


@pytest.fixture
def direct(url: str) -> Iterator[Store]:
    """The same database, not through the proxy."""
    store = Store(url)
    store.run(empty(store))
    yield store
    store.close()


@pytest.fixture
def store(direct: Store, pg_proxy: Proxy) -> Iterator[Store]:
    """A store whose connections go through the proxy."""
    store = Store(pg_proxy.url(direct.url))
    yield store
    store.close()


@pytest.fixture
def look(direct: Store) -> Look:
    return Look(direct.run, direct)


@flow
def warm() -> Steps[None]:
    """Let asyncpg ask now what it wants to know about array types, so that it is our statement whose reply is lost."""
    types = "uuid[], text[], int2[], int4[], int8[], timestamptz[]"
    yield from run_text("warm", f"select {', '.join(f'null::{name}' for name in types.split(', '))}")


@pytest.fixture
def cut(do: Do, pg_proxy: Proxy) -> Iterator[Cut]:
    """Lose the replies to the next commits; at the end, make sure that they were lost."""
    ordered = []

    def order(times: int = 1) -> None:
        do(warm())
        ordered.append(times)
        pg_proxy.drop_reply(lambda tag: tag != "BEGIN", times=times)

    yield order
    assert pg_proxy.cuts == sum(ordered) > 0


def claimed(direct: Store, count: int = 1, **fields: Any) -> list[Lease]:
    direct.run(jobs.enqueue_many([new_job(**fields) for _ in range(count)]))
    return direct.run(jobs.claim("mail", limit=count, worker="w1"))


Enqueue = Callable[[NewJob], tuple[Flow[Any], Callable[[], Flow[Any]]]]


def one(job: NewJob) -> tuple[Flow[Any], Callable[[], Flow[Any]]]:
    return jobs.enqueue(job, fresh=True), lambda: jobs.enqueue(job)


def many(job: NewJob) -> tuple[Flow[Any], Callable[[], Flow[Any]]]:
    new = [job, *(new_job("bulk") for _ in range(10))]
    return jobs.enqueue_many(new, fresh=True), lambda: jobs.enqueue_many(new)


ENQUEUES: dict[str, Enqueue] = {"one": one, "many": many}


SAID = [{}, {"idempotency_key": "k"}, {"unique": "u"}, {"idempotency_key": "k", "unique": "u"}]


@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("enqueue", ENQUEUES.values(), ids=ENQUEUES)
@pytest.mark.parametrize("said", SAID, ids=lambda said: "+".join(said) or "plain")
def test_an_enqueue_whose_reply_is_lost_adds_each_job_once(
    do: Do, look: Look, cut: Cut, enqueue: Enqueue, said: dict[str, str], times: int
) -> None:
    job = new_job(**said)
    cut(times)
    answer = do(*enqueue(job))
    first = answer if isinstance(answer, Enqueued) else answer[0]
    assert first == Enqueued(job.id, created=True)
    assert [row.id for row in look.live() if row.queue == "mail"] == [job.id]
    assert len(look.live()) == (1 if isinstance(answer, Enqueued) else 11)
    assert [job_id for _, _, job_id in look.key_rows()] == ([job.id] if "idempotency_key" in said else [])


def test_an_enqueue_that_found_a_job_by_its_key_finds_it_again(do: Do, direct: Store, look: Look, cut: Cut) -> None:
    first = direct.run(jobs.enqueue(new_job(idempotency_key="k")))
    cut()
    assert do(jobs.enqueue(new_job(idempotency_key="k"))) == Enqueued(first.id, created=False)
    assert len(look.live()) == 1


@pytest.mark.parametrize("enqueue", ENQUEUES.values(), ids=ENQUEUES)
def test_a_job_that_was_finished_before_its_enqueue_was_repeated_does_not_run_twice(
    do: Do, store: Store, direct: Store, look: Look, cut: Cut, enqueue: Enqueue
) -> None:
    work, again = enqueue(new_job())
    cut()
    with pytest.raises(DatabaseUnavailable):
        store.run_once(work)
    [lease] = direct.run(jobs.claim("mail", limit=9))
    direct.run(jobs.complete(lease))
    do(again())
    assert direct.run(jobs.claim("mail", limit=9)) == []
    assert [row.id for row in look.over()] == [lease.job_id]


@pytest.mark.parametrize("keep", [True, False], ids=["kept", "dropped"])
@pytest.mark.parametrize("count", [1, 3])
def test_an_application_that_repeats_an_enqueue_does_not_add_what_was_finished_meanwhile(
    store: Store, direct: Store, look: Look, pg_proxy: Proxy, monkeypatch: pytest.MonkeyPatch, count: int, keep: bool
) -> None:
    app = Holdfast(store.url)

    @app.job(queue="mail")
    def send(order: int) -> None: ...

    def finish_after_the_cut(work: Flow[Any]) -> Any:
        try:
            return Store.run_once(app.store, work)
        except DatabaseUnavailable:
            for lease in direct.run(jobs.claim("mail", limit=9)):
                direct.run(jobs.complete(lease, keep=keep))
            raise

    monkeypatch.setattr(app.store, "run_once", finish_after_the_cut)
    pg_proxy.drop_reply(lambda tag: tag != "BEGIN")
    bound = [send.bind(order=n) for n in range(count)]
    added = app.enqueue_many(bound) if count > 1 else [send.enqueue(order=1)]
    app.close()
    assert pg_proxy.cuts == 1
    assert look.live() == []
    assert {row.id for row in look.over()} == ({answer.id for answer in added} if keep else set())


@pytest.mark.parametrize("said", SAID, ids=lambda said: "+".join(said) or "plain")
def test_an_effect_is_not_doubled_when_the_reply_to_an_enqueue_is_lost_and_the_queue_keeps_nothing(
    colour: str, store: Store, direct: Store, look: Look, pg_proxy: Proxy, said: dict[str, str]
) -> None:
    direct.run(made_anew("effect"))
    app = Holdfast(store.url)

    @app.job(queue="mail")
    def charge(order: int) -> None: ...

    def work_off() -> None:
        """Do what a worker of such a queue does: effect and completion in one transaction."""
        for lease in direct.run(jobs.claim("mail", limit=9)):
            job = Job(lease, direct, keep=False)
            with job.transaction() as tx:
                tx.execute("insert into effect values (%s)", (job.id,))

    pg_proxy.drop_reply(lambda tag: tag != "BEGIN")
    with_worker(app.store, work_off)
    using = charge.using(**said)  # type: ignore[arg-type]
    answer = using.enqueue(order=1) if colour == "sync" else asyncio.run(enqueued(app, using))
    work_off()
    app.close()
    assert pg_proxy.cuts == 1
    assert answer.created
    assert look.rows("select job from effect") == [(answer.id,)]
    assert (look.live(), look.over()) == ([], [])


@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("there", [False, True], ids=["new", "absorbed"])
@pytest.mark.parametrize("enqueue", ENQUEUES.values(), ids=ENQUEUES)
def test_a_debounced_call_whose_reply_is_lost_counts_once(
    do: Do, direct: Store, look: Look, cut: Cut, enqueue: Enqueue, there: bool, times: int
) -> None:
    first, job = direct.run(jobs.enqueue(call(1))) if there else None, call(2)
    cut(times)
    answer = do(*enqueue(job))
    told = answer if isinstance(answer, Enqueued) else answer[0]
    assert told == (Enqueued(job.id) if first is None else Enqueued(first.id, created=False))
    assert [(row.id, row.payload) for row in look.live() if row.queue == "mail"] == [(told.id, '{"n":2}')]


@pytest.mark.parametrize("end", ["claimed", "kept", "dropped"])
@pytest.mark.parametrize("there", [False, True], ids=["new", "absorbed"])
def test_a_repeated_debounced_call_does_not_run_a_second_time_what_a_worker_took_meanwhile(
    colour: str, store: Store, direct: Store, look: Look, pg_proxy: Proxy, there: bool, end: str
) -> None:
    app = Holdfast(store.url)

    @app.job(queue="mail")
    def charge(order: int) -> None: ...

    using, ran = charge.using(debounce=Debounce("order:1", wait=0)), []
    first = Holdfast(direct.url)
    if there:
        first.enqueue_bound(using.bind(order=1))

    def work_off() -> None:
        for lease in direct.run(jobs.claim("mail", limit=9)):
            ran.append(lease.payload)
            if end != "claimed":
                direct.run(jobs.complete(lease, keep=end == "kept"))

    with_worker(app.store, work_off)
    pg_proxy.drop_reply(lambda tag: tag == "COMMIT")
    answer = using.enqueue(order=2) if colour == "sync" else asyncio.run(enqueued(app, using, 2))
    work_off()
    app.close()
    first.close()
    assert pg_proxy.cuts == 1
    assert (answer.created, ran) == (not there, ['{"order":2}'])
    assert len(look.live()) == (end == "claimed")


@flow
def made_anew(table: str) -> Steps[None]:
    yield from run_text("drop", f"drop table if exists {table}")
    yield from run_text("create", f"create table {table} (job text)")


async def enqueued(app: Holdfast, using: Any, order: int = 1) -> Enqueued:
    answer: Enqueued = await using.aenqueue(order=order)
    await app.aclose()
    return answer


def with_worker(store: Store, work_off: Callable[[], None]) -> None:
    """Let a worker work off the queue whenever a try has lost its connection, before the next one."""
    run_once, arun_once = store.run_once, store.arun_once

    def run(work: Flow[Any]) -> Any:
        try:
            return run_once(work)
        except DatabaseUnavailable:
            work_off()
            raise

    async def arun(work: Flow[Any]) -> Any:
        try:
            return await arun_once(work)
        except DatabaseUnavailable:
            work_off()
            raise

    store.run_once, store.arun_once = run, arun  # type: ignore[method-assign]


def test_jobs_of_a_claim_whose_reply_is_lost_are_given_back_and_none_is_lost(
    do: Do, direct: Store, look: Look, cut: Cut
) -> None:
    direct.run(jobs.enqueue_many([new_job() for _ in range(4)]))
    cut()
    known = do(jobs.claim("mail", limit=2, worker="w1"))
    assert [row.state for row in look.live()] == ["leased"] * 4
    assert do(jobs.release_strays("w1", [lease.id for lease in known])) == 2
    strays = direct.run(jobs.claim("mail", limit=9, worker="w2"))
    assert len({lease.id for lease in known + strays}) == 4
    assert {lease.attempt for lease in known + strays} == {1}
    for lease in known:
        do(jobs.complete(lease))


def test_strays_that_nobody_gives_back_are_reaped(do: Do, direct: Store, look: Look, cut: Cut) -> None:
    clock = Clock(direct)
    direct.run(jobs.enqueue(new_job()))
    cut()
    assert do(jobs.claim("mail", limit=1, worker="w1", lease_ms=1_000)) == []
    clock.advance(3_600)
    assert len(direct.run(jobs.reap())) == 1
    assert [row.state for row in look.live()] == ["pending"]


def batch(leases: list[Lease]) -> Flow[jobs.Settled]:
    done, dropped, dead, retried, released = leases
    return jobs.settle(
        [
            Finish(done.id, done.fence, "done", '"ok"'),
            Finish(dropped.id, dropped.fence, "done", keep=False),
            Finish(dead.id, dead.fence, "dead", None, failure(), "group"),
            PutBack(retried.id, retried.fence, 60_000, 0, failure()),
            PutBack(released.id, released.fence, None, 1),
        ]
    )


SETTLES: dict[str, tuple[int, Settle]] = {
    "done": (1, lambda held: jobs.settle([Finish(held[0].id, held[0].fence, "done", '"ok"')])),
    "dropped": (1, lambda held: jobs.settle([Finish(held[0].id, held[0].fence, "done", keep=False)])),
    "dead": (1, lambda held: jobs.settle([Finish(held[0].id, held[0].fence, "dead", None, failure(), "group")])),
    "retry": (1, lambda held: jobs.settle([PutBack(held[0].id, held[0].fence, 60_000, 0, failure())])),
    "release": (1, lambda held: jobs.settle([PutBack(held[0].id, held[0].fence, None, 1)])),
    "park": (1, lambda held: jobs.settle([Park(held[0].id, held[0].fence, "signal:approved")])),
    "all-at-once": (5, batch),
}


@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("count, settle", SETTLES.values(), ids=SETTLES)
def test_a_settle_whose_reply_is_lost_is_written_once_and_answered_right(
    do: Do, direct: Store, look: Look, cut: Cut, count: int, settle: Settle, times: int
) -> None:
    leases = claimed(direct, count)
    cut(times)
    assert do(settle(leases)) == jobs.Settled({lease.job_id for lease in leases}, set())
    rows = [*look.live(), *look.over()]
    assert len({row.id for row in rows}) == len(rows)
    assert all(len(row.errors) <= 1 for row in rows)
    assert all(row.state in ("pending", "waiting") and row.attempts in (0, 1) and row.fence == 2 for row in look.live())


@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("lost", ["COMMIT", "any"])
@pytest.mark.parametrize("count, settle", SETTLES.values(), ids=SETTLES)
def test_what_follows_a_settle_whose_reply_is_lost_happens_once(
    do: Do, direct: Store, look: Look, pg_proxy: Proxy, count: int, settle: Settle, times: int, lost: str
) -> None:
    leases = claimed(direct, count + 1)
    ids = {lease.job_id for lease in leases[:count]}
    direct.run(jobs.follow(sorted(ids), BIT))
    door.attach(BIT, note)
    try:
        do(warm())
        pg_proxy.drop_reply(lambda tag: tag == "COMMIT" if lost == "COMMIT" else tag != "BEGIN", times=times)
        assert do(settle(leases[:count])) == jobs.Settled(ids, set())
    finally:
        door.detach(BIT)
    assert pg_proxy.cuts == times
    assert sorted(str(line.job_id) for line in direct.run(admin.audit())) == sorted(ids)
    assert ids.isdisjoint({row.id for row in look.live() if row.state == "leased"})


def test_a_settle_whose_lease_was_lost_is_still_refused_when_its_reply_is_lost(do: Do, direct: Store, cut: Cut) -> None:
    [stale] = claimed(direct)
    direct.run(jobs.release(stale))
    direct.run(jobs.claim("mail", limit=1))
    cut()
    assert do(jobs.settle([Finish(stale.id, stale.fence, "done")])) == jobs.Settled(set(), {stale.job_id})


def test_a_renewal_whose_reply_is_lost_is_answered_right(do: Do, direct: Store, cut: Cut) -> None:
    [lease] = claimed(direct)
    cut()
    assert do(jobs.renew([(lease, 30_000)])).kept == {lease.job_id}


def test_a_reap_whose_reply_is_lost_takes_each_lease_back_once(
    do: Do, store: Store, direct: Store, look: Look, cut: Cut
) -> None:
    clock = Clock(direct)
    leases = claimed(direct, 3)
    store.now = clock.pass_lease(leases[0])
    cut()
    do(jobs.reap())
    assert [(row.state, row.lapses, len(row.errors)) for row in look.live()] == [("pending", 1, 1)] * 3


def test_a_single_completion_is_strict_about_a_lost_reply_and_still_written_once(
    do: Do, direct: Store, look: Look, cut: Cut
) -> None:
    [lease] = claimed(direct)
    cut()
    with pytest.raises(LeaseLost):
        do(jobs.complete(lease, '"ok"'))
    assert [(row.outcome, row.result) for row in look.over()] == [("done", '"ok"')]
    assert look.live() == []


def test_an_effect_and_its_completion_are_both_there_once_when_the_reply_is_lost(
    colour: str, store: Store, direct: Store, look: Look, cut: Cut, url: str
) -> None:
    with psycopg.connect(url, autocommit=True) as admin:
        admin.execute("drop table if exists effect")
        admin.execute("create table effect (id integer)")
    [lease] = claimed(direct)
    job = Job(lease, store)

    def attempt() -> None:
        with job.transaction() as tx:
            tx.execute("insert into effect values (1)")

    async def async_attempt() -> None:
        try:
            async with job.transaction() as tx:
                await tx.execute("insert into effect values (1)")
        finally:
            await store.aclose()

    cut()
    with pytest.raises(DatabaseUnavailable):
        attempt() if colour == "sync" else asyncio.run(async_attempt())
    # Unknown to the holder, so it may not claim success; a second try to end the lease is refused.
    assert not job.settled
    with pytest.raises(LeaseLost):
        direct.run(jobs.complete(lease))
    assert [row.outcome for row in look.over()] == ["done"]
    assert look.rows("select id from effect") == [(1,)]


def test_neither_effect_nor_completion_is_there_when_the_end_never_reaches_the_server(
    colour: str, store: Store, direct: Store, look: Look, pg_proxy: Proxy, url: str
) -> None:
    with psycopg.connect(url, autocommit=True) as admin:
        admin.execute("drop table if exists effect")
        admin.execute("create table effect (id integer)")
    [lease] = claimed(direct)
    job = Job(lease, store)

    def attempt() -> None:
        with job.transaction() as tx:
            tx.execute("insert into effect values (1)")
            pg_proxy.reset_all()

    async def async_attempt() -> None:
        try:
            async with job.transaction() as tx:
                await tx.execute("insert into effect values (1)")
                pg_proxy.reset_all()
        finally:
            await store.aclose()

    with pytest.raises(DatabaseUnavailable):
        attempt() if colour == "sync" else asyncio.run(async_attempt())
    assert not job.settled
    # The lease holds, so the job is not lost: it may be completed, or reaped and run again.
    direct.run(jobs.complete(lease))
    assert look.rows("select id from effect") == []


@pytest.mark.parametrize("place", range(10))
def test_effects_of_jobs_that_share_a_transaction_are_there_if_and_only_if_they_are_done(
    colour: str, store: Store, direct: Store, look: Look, pg_proxy: Proxy, place: int
) -> None:
    direct.run(made_anew("effect"))
    leases = claimed(direct, 3)
    held = [Job(lease, store, shares_commit=True) for lease in leases]
    begun = threading.Barrier(3)
    replies = itertools.count()
    # The first two come from the drivers, where it is the handler's own statement.
    gone = (psycopg.OperationalError, PostgresConnectionError, DatabaseUnavailable, SharedTransactionUndone)

    def attempt(job: Job) -> None:
        begun.wait(30)
        with suppress(*gone), job.transaction() as tx:
            tx.execute("insert into effect values (%s)", (job.id,))

    async def async_attempt(job: Job) -> None:
        with suppress(*gone):
            async with job.transaction() as tx:
                await tx.execute("insert into effect values ($1)", job.id)

    async def async_attempts() -> None:
        await store.arun(warm())
        pg_proxy.drop_reply(lambda _: next(replies) == place, inside_transactions=True)
        await asyncio.gather(*map(async_attempt, held))
        await store.aclose()

    if colour == "sync":
        store.run(warm())
        pg_proxy.drop_reply(lambda _: next(replies) == place, inside_transactions=True)
        with ThreadPoolExecutor(3) as threads:
            list(threads.map(attempt, held))
    else:
        asyncio.run(async_attempts())
    assert pg_proxy.cuts == 1
    done = {row.id for row in look.over()}
    assert {job_id for (job_id,) in look.rows("select job from effect")} == done
    assert {job.id for job in held if job.settled} <= done
    # Those that are not done keep their lease, and may be completed or reaped.
    for lease in leases:
        if lease.job_id not in done:
            direct.run(jobs.complete(lease))


@pytest.mark.parametrize("place", range(12))
def test_effects_of_a_bulk_handler_are_there_if_and_only_if_all_its_jobs_are_done(
    colour: str, store: Store, direct: Store, look: Look, pg_proxy: Proxy, place: int
) -> None:
    direct.run(made_anew("effect"))
    leases = claimed(direct, 3)
    bulk = Bulk([Job(lease, store) for lease in leases], store, OURS, "w1")
    replies = itertools.count()
    gone = (psycopg.OperationalError, PostgresConnectionError, DatabaseUnavailable)

    def attempt() -> None:
        with suppress(*gone), bulk.transaction() as tx:
            for lease in leases:
                tx.execute("insert into effect values (%s)", (lease.job_id,))

    async def async_attempt() -> None:
        await store.arun(warm())
        cut_one()
        with suppress(*gone):
            async with bulk.transaction() as tx:
                for lease in leases:
                    await tx.execute("insert into effect values ($1)", lease.job_id)
        await store.aclose()

    def cut_one() -> None:
        pg_proxy.drop_reply(lambda _: next(replies) == place, inside_transactions=True)

    if colour == "sync":
        store.run(warm())
        cut_one()
        attempt()
    else:
        asyncio.run(async_attempt())
    assert pg_proxy.cuts == 1
    ids, done = {lease.job_id for lease in leases}, {row.id for row in look.over()}
    assert done in (set(), ids)
    assert {job_id for (job_id,) in look.rows("select job from effect")} == done
    # The holder may not know that it succeeded. It never says so of what is not done, and its next write tells.
    assert {job.id for job in bulk.jobs if job.settled} <= done
    settled = direct.run(jobs.settle([PutBack(lease.id, lease.fence, 0, 0, failure()) for lease in leases]))
    assert (settled.done, settled.lost) == (ids - done, done)


def test_a_migration_whose_reply_is_lost_has_run_once(do: Do, direct: Store, url: str, cut: Cut) -> None:
    with psycopg.connect(url, autocommit=True) as admin:
        for table in direct.dialect.tables:
            admin.execute(f"drop table if exists holdfast_{table}")
    cut()
    do(migrate.apply(direct.migrations))
    direct.check()


def test_nothing_is_lost_when_every_connection_is_reset(do: Do, store: Store, look: Look, pg_proxy: Proxy) -> None:
    new = [new_job() for _ in range(5)]
    for job in new:
        do(jobs.enqueue(job))
        pg_proxy.reset_all()
    assert [row.id for row in look.live()] == [job.id for job in new]


@pytest.fixture
def cut_commit(do: Do, pg_proxy: Proxy) -> Iterator[Cut]:
    """As `cut`, for flows that look before their transaction begins."""
    ordered = []

    def order(times: int = 1) -> None:
        do(warm())
        ordered.append(times)
        pg_proxy.drop_reply(lambda tag: tag == "COMMIT", times=times)

    yield order
    assert 0 < pg_proxy.cuts <= sum(ordered)


def test_a_tick_whose_reply_is_lost_adds_its_job_once(
    do: Do, store: Store, direct: Store, look: Look, cut_commit: Cut
) -> None:
    clock = Clock(direct)
    direct.run(schedules.sync([schedule(every=60)]))
    store.now = clock.advance(60)
    cut_commit()
    do(schedules.tick("nightly"))
    assert len(look.live()) == 1
    [one] = direct.run(schedules.listed())
    assert one.last_at is not None
    assert one.last_at <= clock.now < one.next_at


@pytest.mark.parametrize("ended", ["kept", "dropped"])
def test_a_tick_that_was_run_before_it_was_repeated_does_not_run_twice(
    do: Do, store: Store, direct: Store, look: Look, cut_commit: Cut, ended: str
) -> None:
    clock = Clock(direct)
    direct.run(schedules.sync([schedule(every=60)]))
    store.now = clock.advance(60)
    cut_commit()
    with pytest.raises(DatabaseUnavailable):
        store.run_once(schedules.tick("nightly"))
    [lease] = direct.run(jobs.claim("mail", limit=9))
    direct.run(jobs.complete(lease, keep=ended == "kept"))
    assert do(schedules.tick("nightly")) is None
    assert (look.live(), len(look.over())) == ([], 1 if ended == "kept" else 0)


@pytest.mark.parametrize("change", ["sync", "add", "pause", "resume", "trigger"])
def test_a_change_of_a_schedule_whose_reply_is_lost_is_made_once(
    do: Do, store: Store, direct: Store, look: Look, cut_commit: Cut, change: str
) -> None:
    if change not in ("sync", "add"):
        direct.run(schedules.sync([schedule()]))
    work: dict[str, Flow[Any]] = {
        "sync": schedules.sync([schedule()]),
        "add": schedules.add(schedule(), "ada"),
        "pause": schedules.pause("nightly", "ada"),
        "resume": schedules.resume("nightly", "ada"),
        "trigger": schedules.trigger("nightly", new_job().id, "ada"),
    }
    cut_commit()
    with suppress(Conflict):
        # A pause that is repeated finds it paused.
        do(work[change])
    assert len(direct.run(schedules.listed())) == 1
    assert len(look.live()) == (1 if change == "trigger" else 0)


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("keep", [True, False], ids=["kept", "dropped"])
def test_a_continuation_whose_reply_is_lost_is_added_once(
    do: Do, direct: Store, look: Look, cut_commit: Cut, keep: bool, times: int
) -> None:
    [lease] = claimed(direct)
    following = new_job(id=next_id(lease.job_id))
    cut_commit(times)
    assert do(jobs.settle([Continued(lease.id, lease.fence, following, keep)])).done == {lease.job_id}
    assert [row.id for row in look.live()] == [following.id]


def test_a_last_parent_whose_reply_is_lost_lets_its_child_go_once(
    do: Do, direct: Store, look: Look, cut_commit: Cut
) -> None:
    [lease] = claimed(direct)
    direct.run(jobs.enqueue(child_of(lease.job_id)))
    assert direct.run(jobs.meet(direct.run(jobs.claim("mail", limit=9)))) == []
    cut_commit()
    do(jobs.settle([Finish(lease.id, lease.fence, "done", "1")]))
    [child] = direct.run(jobs.meet(direct.run(jobs.claim("mail", limit=9))))
    found = direct.run(chains.parents_of(child.job_id))
    assert found is not None
    assert (found.open, found.done, found.results()) == (0, 1, {lease.job_id: 1})


def test_a_look_at_parents_whose_reply_is_lost_parks_once(do: Do, direct: Store, look: Look, cut_commit: Cut) -> None:
    [lease] = claimed(direct)
    child = direct.run(jobs.enqueue(child_of(lease.job_id))).id
    met = direct.run(jobs.claim("mail", limit=9))
    cut_commit()
    assert do(jobs.meet(met)) == []
    assert {row.id: (row.state, row.attempts) for row in look.live()}[child] == ("waiting", 0)


@pytest.mark.parametrize("ended", ["running", "kept", "dropped"])
def test_a_batch_whose_reply_is_lost_is_added_once(
    do: Do, store: Store, direct: Store, look: Look, cut_commit: Cut, ended: str
) -> None:
    """Also where its members, and the callback, have run before it is repeated."""
    members, then = [new_job(), new_job()], new_job(headers=MARK, kind="callback")
    cut_commit()
    with pytest.raises(DatabaseUnavailable):
        store.run_once(jobs.add_batch(then, members, fresh=True))
    while ended != "running" and (leases := direct.run(jobs.meet(direct.run(jobs.claim("mail", limit=9))))):
        keep = ended == "kept"
        direct.run(jobs.settle([Finish(lease.id, lease.fence, "done", keep=keep) for lease in leases]))
    do(jobs.add_batch(then, members))
    assert len(look.live()) == (3 if ended == "running" else 0)
    assert len(look.over()) == (3 if ended == "kept" else 0)
