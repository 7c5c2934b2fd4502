"""Chains, jobs after jobs and batches in a worker: what a handler says comes true, once, on every database."""

import asyncio
from typing import Any

import pytest

from holdfast import Bulk, Conflict, Continue, Fatal, Holdfast, Job, JobDead, Retry, events
from holdfast.celery import Celery, chord
from holdfast.values.ids import new_id
from tests.worker.stage import Stage

AT_ONCE = Retry(max_attempts=3, first_delay=0, max_delay=0, jitter=0)


def quiet(stage: Stage) -> Holdfast:
    return stage.hf


@pytest.mark.parametrize("colour", ["async", "def"])
def test_a_chain_runs_to_its_end_with_the_headers_of_its_first_job(stage: Stage, colour: str) -> None:
    hf, ran = quiet(stage), []

    if colour == "async":

        @hf.job
        async def step(job: Job, n: int) -> Any:
            ran.append((n, job.headers.get("tenant"), job.headers.get("holdfast-chain")))
            return Continue(step.bind(n + 1)) if n < 4 else "end"
    else:

        @hf.job(kind="step")
        def step(job: Job, n: int) -> Any:
            ran.append((n, job.headers.get("tenant"), job.headers.get("holdfast-chain")))
            return Continue(step.bind(n + 1)) if n < 4 else "end"

    first = step.using(headers={"tenant": "acme"}).enqueue(1)
    stage.work()
    assert ran == [(1, "acme", None), (2, "acme", first.id), (3, "acme", first.id), (4, "acme", first.id)]


@pytest.mark.parametrize("commit", ["alone", "together"])
def test_an_effect_its_completion_and_the_next_job_are_one_commit(stage: Stage, commit: Any) -> None:
    hf, ran = quiet(stage), []
    stage.sql("create table effects (what text)")

    @hf.job(commit=commit, retry=AT_ONCE)
    async def pay(job: Job) -> None:
        async with job.transaction() as tx:
            await tx.execute("insert into effects (what) values ('paid')")
            job.then(follow.bind())
            if job.attempt == 1:
                raise ValueError("not yet")

    @hf.job
    async def follow(job: Job) -> None:
        ran.append(job.headers["holdfast-continues"])

    first = pay.enqueue()
    stage.work()
    assert ran == [first.id]
    assert len(stage.sql("select what from effects")) == 1


def test_a_completion_by_hand_can_be_continued(stage: Stage) -> None:
    hf, ran = quiet(stage), []

    @hf.job
    def pay(job: Job) -> None:
        with hf.store.link() as link, link.transaction():
            job.then(follow.bind())
            job.complete(link.raw)

    @hf.job
    def follow() -> None:
        ran.append("followed")

    pay.enqueue()
    stage.work()
    assert ran == ["followed"]


def test_a_bound_job_that_a_handler_returns_by_itself_is_a_failed_attempt(stage: Stage) -> None:
    hf = quiet(stage)

    @hf.job(retry=Retry(max_attempts=1))
    async def pay() -> Any:
        return pay.bind()

    pay.enqueue()
    stage.work()
    [dead] = stage.heard(events.JobDead)
    assert "return Continue(…)" in dead.error


def test_a_continue_that_comes_after_the_completion_is_told(stage: Stage) -> None:
    hf = quiet(stage)

    @hf.job
    async def pay(job: Job) -> Any:
        async with job.transaction():
            pass
        return Continue(pay.bind())

    pay.enqueue()
    stage.work()
    [told] = stage.heard(events.FailedAfterDone)
    assert "Continue came after" in told.error


def test_items_of_a_bulk_handler_can_be_continued_each(stage: Stage) -> None:
    hf, ran = quiet(stage), []

    @hf.bulk(size=10)
    async def pack(items: list[int]) -> list[Any]:
        return [Continue(send.bind(n)) if n % 2 else None for n in items]

    @hf.job
    async def send(n: int) -> None:
        ran.append(n)

    hf.enqueue_many(pack.bind(n) for n in range(6))
    stage.work()
    assert sorted(ran) == [1, 3, 5]


def test_a_bulk_transaction_completes_and_continues_together(stage: Stage) -> None:
    hf, ran = quiet(stage), []

    @hf.bulk(size=10)
    async def pack(items: list[int], bulk: Bulk) -> None:
        async with bulk.transaction():
            for n, job in zip(items, bulk.jobs, strict=True):
                job.then(send.bind(n))

    @hf.job
    async def send(n: int) -> None:
        ran.append(n)

    hf.enqueue_many(pack.bind(n) for n in range(6))
    stage.work()
    assert sorted(ran) == list(range(6))


@pytest.mark.parametrize("said", [{"unique": "u"}, {"idempotency_key": "k"}, {"after": [new_id()]}])
def test_a_next_job_that_might_not_be_added_is_refused_where_it_is_said(stage: Stage, said: Any) -> None:
    hf = quiet(stage)

    @hf.job
    async def act() -> None: ...

    with pytest.raises(Exception, match=f"{next(iter(said))}: cannot be said of a job in Continue"):
        Continue(act.using(**said).bind())


def test_a_job_runs_after_others_with_their_results(stage: Stage) -> None:
    hf, seen = quiet(stage), []

    @hf.job
    async def resize(n: int) -> int:
        await asyncio.sleep(0.01 * n)
        return n * 10

    @hf.job
    async def publish(job: Job, album: int) -> None:
        parents = await job.aparents()
        assert parents is not None
        seen.append((album, sorted(parents.results().values())))

    a, b = resize.enqueue(1), resize.enqueue(2)
    publish.using(after=[a, b.id]).enqueue(album=7)
    stage.work()
    assert seen == [(7, [10, 20])]
    assert stage.sql("select count(*) from holdfast_joins")[0][0] == 0


def test_a_child_is_cancelled_for_a_dead_parent_with_the_reason(stage: Stage) -> None:
    hf, ran = quiet(stage), []

    @hf.job
    async def breaks() -> None:
        raise Fatal("no")

    @hf.job
    async def child(n: int) -> None:
        ran.append(n)

    dead = breaks.enqueue()
    one = child.using(after=[dead], after_dead="cancel").enqueue(1)
    grandchild = child.using(after=[one], after_dead="cancel").enqueue(2)
    child.using(after=[dead]).enqueue(3)
    stage.work()
    assert ran == [3]
    assert [stage.state(one), stage.state(grandchild)] == ["cancelled", "cancelled"]
    assert dead.id in stage.show(one).errors[-1]["message"]


def test_a_batch_calls_back_once_after_all_members(stage: Stage) -> None:
    hf, ran, calls = quiet(stage), [], []

    @hf.job(retry=AT_ONCE)
    async def send(job: Job, n: int) -> None:
        if n % 10 == 0 and job.attempt == 1:
            raise ValueError("once")
        if n == 7:
            raise Fatal("never")
        ran.append(n)

    @hf.job
    async def report(job: Job) -> None:
        parents = await job.aparents()
        assert parents is not None
        calls.append((len(ran), parents.total, parents.done, parents.dead))

    with hf.batch(then=report.bind()) as batch:
        ids = batch.add_many(send.bind(n) for n in range(100))
    assert len(batch) == len(set(ids)) == 100
    stage.work(concurrency=8)
    assert calls == [(99, 100, 99, 1)]


def test_a_batch_in_the_callers_transaction_is_there_if_it_commits(stage: Stage) -> None:
    hf, calls = quiet(stage), []

    @hf.job
    async def send(n: int) -> None: ...

    @hf.job
    async def report(day: str) -> None:
        calls.append(day)

    for day, end in (("monday", "rollback"), ("tuesday", "commit")):
        with hf.store.link() as link:
            link.tell(link.dialect.begin)
            with hf.batch(then=report.bind(day), tx=link.raw) as batch:
                batch.add_many(send.bind(n) for n in range(3))
            link.tell(end)
    stage.work()
    assert calls == ["tuesday"]


def test_a_block_that_fails_adds_nothing_and_a_batch_is_for_one_block(stage: Stage) -> None:
    hf = quiet(stage)

    @hf.job
    async def send(n: int) -> None: ...

    batch = hf.batch(then=send.bind(0))

    def fail() -> None:
        with batch:
            batch.add(send.bind(1))
            raise ValueError("stop")

    with pytest.raises(ValueError, match="stop"):
        fail()
    assert stage.live() == 0
    with pytest.raises(Conflict, match="seal=False"):
        batch.add(send.bind(2))
    with pytest.raises(Conflict, match="one block"), batch:
        pass


def test_members_add_members_until_they_seal_the_batch(stage: Stage) -> None:
    hf, ran = quiet(stage), []

    @hf.job
    async def crawl(job: Job, depth: int) -> None:
        ran.append(depth)
        assert job.batch is not None
        if depth < 3:
            await hf.aextend(job.batch, [crawl.bind(depth + 1)])
        else:
            await hf.aseal(job.batch)

    @hf.job
    async def done() -> None:
        ran.append(99)

    with hf.batch(then=done.bind(), seal=False) as batch:
        batch.add(crawl.bind(1))

    stage.work()
    assert ran == [1, 2, 3, 99]


def test_what_waits_for_a_job_is_due_as_soon_as_it_has_ended(stage: Stage) -> None:
    """Without waiting for the next poll, which is far away here."""
    hf, ran = quiet(stage), []

    @hf.job
    async def first() -> None: ...

    @hf.job
    async def second() -> None:
        ran.append("second")

    a = first.enqueue()
    second.using(after=[a]).enqueue()
    stage.work(poll=30)
    assert ran == ["second"]


def test_a_batch_in_async_code_is_added_at_the_end_of_its_block(stage: Stage) -> None:
    hf, calls = quiet(stage), []

    @hf.job
    async def send(n: int) -> None: ...

    @hf.job
    async def report() -> None:
        calls.append("called")

    async def body(_: Any) -> None:
        async with hf.batch(then=report.bind(), seal=False) as batch:
            batch.add_many(send.bind(n) for n in range(3))
        await hf.aextend(batch.id, [send.bind(9)])
        assert await hf.aseal(batch.id)
        await stage.until_empty()

    stage.work(body)
    assert calls == ["called"]


@pytest.mark.parametrize("retention", [3600, 0], ids=["kept", "dropped"])
@pytest.mark.parametrize("colour", ["async", "def"])
def test_the_result_of_a_chain_is_its_last_jobs(stage: Stage, retention: int, colour: str) -> None:
    """Those who wait before the chain begins get it, through every step, also where nothing of done jobs is kept."""
    hf = quiet(stage)
    hf.queue("default", retention=retention)

    @hf.job
    async def step(n: int) -> Any:
        await asyncio.sleep(0.02)
        return Continue(step.bind(n + 1)) if n < 6 else f"end {n}"

    async def body(_: Any) -> Any:
        first = await step.aenqueue(1)
        if colour == "async":
            return await hf.aresult(first, timeout=60)
        return await asyncio.to_thread(hf.result, first, 60)

    assert stage.work(body) == "end 6"


def test_the_result_of_a_chain_that_is_over_is_found_from_its_first_job(stage: Stage) -> None:
    hf = quiet(stage)

    @hf.job
    async def step(n: int) -> Any:
        return Continue(step.bind(n + 1)) if n < 50 else n

    first = step.enqueue(1)
    stage.work()
    assert hf.result(first, timeout=0) == 50


def test_a_chain_that_is_under_way_has_no_result_yet_and_says_what_it_waits_for(stage: Stage) -> None:
    hf = quiet(stage)

    @hf.job
    async def step(n: int) -> Any:
        return Continue(step.bind(n + 1)) if n < 40 else Continue(late.using(run_after=3600).bind())

    @hf.job
    async def late() -> None: ...

    first = step.enqueue(1)

    async def body(_: Any) -> None:
        await stage.until(lambda: stage.sql("select 1 from holdfast_jobs where kind = 'late'"))

    stage.work(body)
    with pytest.raises(TimeoutError, match=r"\(late, queue default\) has not ended yet: it is pending"):
        hf.result(first, timeout=0)


def test_a_chain_that_dies_is_dead_for_those_who_wait_for_its_first_job(stage: Stage) -> None:
    hf = quiet(stage)

    @hf.job
    async def step(n: int) -> Any:
        if n == 3:
            raise Fatal("broken")
        return Continue(step.bind(n + 1))

    first = step.enqueue(1)
    stage.work()
    with pytest.raises(JobDead, match="broken"):
        hf.result(first, timeout=0)


def test_a_chord_of_those_who_come_from_celery_calls_back_once_with_every_result(stage: Stage) -> None:
    app = Celery("shop", holdfast=stage.hf, set_as_current=False)
    calls: list[list[int]] = []

    @app.task
    def double(n: int) -> int:
        return 2 * n

    @app.task
    def total(numbers: list[int]) -> int:
        calls.append(numbers)
        return sum(numbers)

    result = chord(double.s(n) | double.s() for n in range(30))(total.s())
    stage.work()
    assert calls == [[4 * n for n in range(30)]]
    assert result.get(timeout=0) == sum(calls[0])
