"""The history checker against real faults: each is there while a worker runs, and the rule for it speaks.

A trigger does to the rows what a fault in the code would do, so that the code itself need not be broken by hand. Where
no trigger can, a function of the code is replaced by one with the fault.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from holdfast import Continue, Holdfast, Job, Rate, Retry, admin, jobs, schedules
from holdfast.events import JobDone, LeaseWasLost
from holdfast.flow import Flow, Steps, ask
from holdfast.jobs.source import JobsSource
from holdfast.life.source import Settled
from holdfast.lines import claiming
from holdfast.lines.heads import Head, Line, Wishes, pick
from holdfast.schedules import TICK_HEADER
from holdfast.store import Store
from holdfast.testing.history import History, Recorder
from holdfast.testing.rules import Promises, by_rule
from holdfast.values.queues import QueueSettings
from holdfast.values.rows import Finish, Lease
from tests.worker.conftest import migrated_file, sqlite_stage  # noqa: F401
from tests.worker.stage import Stage

PROMISES: Promises = {
    "ordered": ["orders"],
    "concurrency": {"stripe": 2},
    "key_concurrency": {"tenants": 1},
    "rates": {"meter": (4, 0.2)},
    "key_rates": {"turns": (2, 0.2)},
    "chains": ["begin"],
    "once": True,
}
QUEUES = ("default", "orders", "stripe", "tenants", "meter", "turns")
AGAIN = """
    create trigger fault after delete on holdfast_jobs when old.kind = 'charge' and old.fence = 1 begin
        insert into holdfast_jobs (id, queue, kind, payload, available_at, created_at, max_attempts, fence)
        values (old.id, old.queue, old.kind, old.payload, 0, 0, 5, 1);
    end"""
TWICE = """
    create trigger fault after insert on holdfast_jobs when {} begin
        insert into holdfast_jobs (id, queue, kind, payload, headers, available_at, created_at, max_attempts)
        values (substr(new.id, 1, 32) || 'ffff', new.queue, new.kind, new.payload, new.headers, 0, 0, 5);
    end"""
IS_TICK = f"new.headers like '%{TICK_HEADER}%'"
NO_TICK = """
    create trigger fault after insert on holdfast_jobs when {} begin
        delete from holdfast_jobs where id = new.id;
    end"""
OVERLAP, INVERSION = "jobs of one key ran at once", "a later job of a key began first"
TICK, STALE_END = "a tick has not one job", "a job is done by a claim that did not do it"
# By what is wrong: the fault, and the rule that must name it.
FAULTS = {
    "a limit gives back too much": (
        "create trigger fault after update on holdfast_queues begin update holdfast_queues set held = -8; end",
        "a queue ran more jobs at once than its limit",
    ),
    "a continuation is added twice": (TWICE.format("new.kind = 'go_on'"), "a completion has not one continuation"),
    "a tick adds two jobs": (TWICE.format(IS_TICK), TICK),
    "a tick adds no job": (NO_TICK.format(IS_TICK), TICK),
    "a job that has ended is not taken away": (AGAIN, "a job ran twice"),
    "an end is not written": (
        "create trigger fault after insert on holdfast_finished when new.kind = 'ship' begin"
        " delete from holdfast_finished where id = new.id; end",
        "an acknowledged job is lost",
    ),
}


def lock_no_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the worker take an ordered queue for a plain one, so that it locks no line."""
    learn = JobsSource.learn_settings

    def forgetful(source: JobsSource, settings: Mapping[str, QueueSettings]) -> None:
        learn(source, {queue: said for queue, said in settings.items() if queue != "orders"})

    monkeypatch.setattr(JobsSource, "learn_settings", forgetful)


def begin_at_the_end_of_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have claims read the jobs of a line from its end."""

    def backwards(settings: QueueSettings, heads: Sequence[Head], wishes: Wishes) -> list[Head]:
        return pick(settings, heads[::-1], wishes)

    monkeypatch.setattr(claiming, "pick", backwards)


def count_no_holders_of_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have claims find room in every line."""
    monkeypatch.setattr(Line, "room", lambda line, settings: None)


def count_no_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have claims take as many jobs of a queue as if it had no rate."""
    monkeypatch.setattr(claiming, "tokens", lambda rate, tat, now: 1_000)


def count_no_starts_of_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have claims take as many jobs of a key as if it had no rate."""
    monkeypatch.setattr(Line, "starts", lambda line, settings: None)


def wait_for_no_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the worker run jobs whatever they are to run after."""
    monkeypatch.setattr(JobsSource, "ready", lambda source, claimed: None)


def enqueue_beside_the_transaction(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have jobs be enqueued in a transaction of their own, although one is given."""
    monkeypatch.setattr(Store, "run_in", lambda store, tx, work, what: store.run(work))


def settle_without_the_fence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the worker write ends whatever fence the row has, as statements that do not compare it would."""
    settle = JobsSource.settle

    def unfenced(
        source: JobsSource, ends: Sequence[Finish], worker: str, leases: Sequence[Lease] = ()
    ) -> Flow[Settled]:
        def steps() -> Steps[Settled]:
            rows = yield from ask("live", ids=[end.id for end in ends])
            fences = {str(job): fence for job, fence in rows}
            current = [end._replace(fence=fences.get(str(end.id), end.fence)) for end in ends]
            return (yield from settle(source, current, worker, leases).start())

        return Flow("settle", steps)

    monkeypatch.setattr(JobsSource, "settle", unfenced)


BROKEN_CODE: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], str]] = {
    "lines are not locked": (lock_no_line, OVERLAP),
    "lines begin at their end": (begin_at_the_end_of_a_line, INVERSION),
    "what a key holds is not counted": (count_no_holders_of_a_key, "a key ran more jobs at once than its limit"),
    "what a queue starts is not counted": (count_no_starts, "a queue started more jobs than its rate"),
    "what a key starts is not counted": (count_no_starts_of_a_key, "a key started more jobs than its rate"),
    "parents are not waited for": (wait_for_no_parent, "a job began before one that it runs after was over"),
    "members are not waited for": (wait_for_no_parent, "a batch did not call back after its last member"),
    "a rollback does not reach the job": (enqueue_beside_the_transaction, "a job ran that was rolled back"),
}


class RolledBack(Exception):
    """What rolls back an application's transaction."""


def shop(hf: Holdfast, recorder: Recorder) -> None:
    """Declare the jobs, and enqueue some of each."""
    hf.queue("orders", ordered=True)
    hf.queue("stripe", concurrency=2)
    hf.queue("tenants", key_concurrency=1)
    hf.queue("meter", rate=Rate(4, per=0.2))
    hf.queue("turns", key_rate=Rate(2, per=0.2))

    @hf.job(queue="orders", key="{key}")
    async def ship(key: str) -> None:
        await asyncio.sleep(0.02)

    @hf.job(queue="stripe")
    async def charge() -> None:
        await asyncio.sleep(0.02)

    @hf.job
    async def go_on() -> None: ...

    @hf.job
    async def begin() -> Continue:
        return Continue(go_on.bind())

    for queue, key, job in (
        ("orders", "a", ship.bind("a")),
        ("stripe", None, charge.bind()),
        ("tenants", "a", charge.using(queue="tenants", key="a").bind()),
        ("meter", None, go_on.using(queue="meter").bind()),
        ("turns", "a", go_on.using(queue="turns", key="a").bind()),
    ):
        for _ in range(8):
            with recorder.enqueue(queue, key) as note:
                note(hf.enqueue_many([job]))
    begin.enqueue()
    family(hf, recorder)
    hf.schedule("daily", go_on.bind(), every=timedelta(hours=12), catch_up="all")
    hf.store.now = datetime.now(UTC) - timedelta(days=1)
    hf.sync_schedules()
    hf.store.now = None


def family(hf: Holdfast, recorder: Recorder) -> None:
    """Enqueue a child behind its parent, a batch, and a job that is rolled back."""
    charge, go_on = hf.handlers["charge"], hf.handlers["go_on"]
    with recorder.enqueue("stripe") as note:
        parent = charge.using(priority=-1).enqueue()
        note(parent)
    with recorder.enqueue("default", after=[parent]) as note:
        note(go_on.using(after=[parent]).enqueue())
    with recorder.enqueue("default") as note, hf.batch(then=go_on.bind()) as batch:
        batch.add_many(charge.bind() for _ in range(3))
        note(batch)
    with closing(hf.store.dialect.connect(hf.url)) as tx, suppress(RolledBack), recorder.enqueue("default") as note:
        tx.execute("begin")
        note(hf.enqueue_many([go_on.bind()], tx=tx))
        tx.execute("rollback")
        raise RolledBack


def owed(stage: Stage, first: datetime) -> list[datetime]:
    """List the ticks of the shop's schedule that were due by now."""
    [stored] = stage.run(schedules.listed("daily"))
    ticks = [first]
    while (tick := stored.timetable.first_after(ticks[-1])) <= datetime.now(UTC):
        ticks.append(tick)
    return ticks


def rules_broken(stage: Stage, folder: Path, trigger: str = "select 1") -> set[str]:
    """Let a worker run through the shop's jobs with a fault, and return the rules that its history breaks."""
    recorder = Recorder(folder / "history.jsonl")
    recorder.attach(stage.hf)
    shop(stage.hf, recorder)
    [daily] = stage.run(schedules.listed("daily"))
    stage.sql(trigger)
    ticks = owed(stage, daily.next_at)

    async def until_all_is_done(_: Any) -> None:
        await stage.until(lambda: stage.run(schedules.listed("daily"))[0].next_at > ticks[-1], "the ticks")
        await stage.until_empty()

    stage.work(until_all_is_done, poll=0.02, queues=QUEUES)
    recorder.close()
    return broken(stage, folder, {**PROMISES, "schedules": {"daily": ticks}})


def broken(stage: Stage, folder: Path, promises: Promises) -> set[str]:
    """Put together what was written and what the tables hold, and return the rules that this breaks."""
    history = History.read([folder / "history.jsonl"])
    history.learn(stage.run(admin.list_jobs(admin.ALL, 1000, None, newest=False)))
    return {rule for rule, found in by_rule(history, **promises).items() if list(found)}


def test_without_a_fault_no_rule_is_broken(sqlite_stage: Stage, tmp_path: Path) -> None:  # noqa: F811
    assert rules_broken(sqlite_stage, tmp_path) == set()


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found_by_its_rule(sqlite_stage: Stage, tmp_path: Path, name: str) -> None:  # noqa: F811
    trigger, rule = FAULTS[name]
    assert rule in rules_broken(sqlite_stage, tmp_path, trigger)


@pytest.mark.parametrize("name", BROKEN_CODE)
def test_code_that_is_broken_is_found_by_its_rule(
    sqlite_stage: Stage,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
) -> None:
    break_it, rule = BROKEN_CODE[name]
    break_it(monkeypatch)
    assert rule in rules_broken(sqlite_stage, tmp_path)


def work_with_a_stale_holder(stage: Stage, folder: Path) -> None:
    """Have a handler return well after its lease was lost, while another worker holds the job, which then fails."""
    recorder = Recorder(folder / "history.jsonl")
    other = stage.app()
    fences: list[int] = []

    async def late(job: Job) -> None:
        fences.append(job.fence)
        if len(fences) == 1:
            # To a queue that only the other worker serves.
            stage.sql("update holdfast_jobs set lease_expires_at = 0, queue = 'others' where id = ?", job.id)
            stage.run(jobs.reap(backoff=lambda kind, attempt: 0.0))
            await stage.until(lambda: len(fences) > 1, "another holder")
        elif len(fences) == 2:
            # By now the worker knows whether the end of the first call was taken.
            await stage.until(lambda: stage.heard(LeaseWasLost) or stage.heard(JobDone), "the end of the first call")
            raise ValueError("not done")

    for app in (stage.hf, other):
        recorder.attach(app)
        app.job(kind="late", retry=Retry(max_attempts=5, first_delay=0.01))(late)

    async def until_empty(_: Any) -> None:
        async with other.worker(queues=["others"], poll=0.02):
            await stage.until_empty()
        await other.aclose()

    with recorder.enqueue("default") as note:
        note(stage.hf.enqueue_many([stage.hf.bind("late", {})]))
    stage.work(until_empty, poll=0.02)
    recorder.close()


def test_the_end_that_a_stale_holder_writes_breaks_no_rule(sqlite_stage: Stage, tmp_path: Path) -> None:  # noqa: F811
    work_with_a_stale_holder(sqlite_stage, tmp_path)
    assert broken(sqlite_stage, tmp_path, {}) == set()


def test_a_settle_without_its_fence_is_found(
    sqlite_stage: Stage,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settle_without_the_fence(monkeypatch)
    work_with_a_stale_holder(sqlite_stage, tmp_path)
    assert broken(sqlite_stage, tmp_path, {}) == {STALE_END}
