"""Jobs that share a transaction (`commit="together"`): each is undone alone, and none of them acts twice."""

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from holdfast import ConfigError, Holdfast, Job, Retry, events
from holdfast.store import group_pumps, groups
from holdfast.store.groups import Group, Groups
from tests.worker.stage import Stage

AT_ONCE = Retry(max_attempts=3, first_delay=0, max_delay=0, jitter=0)
COLOURS = pytest.mark.parametrize("colour", ["async", "def"])
COUNT = 6


ON_SERVERS = pytest.mark.parametrize("stage", ["pg", "mariadb", "mysql"], indirect=True)
ON_POSTGRES = pytest.mark.parametrize("stage", ["pg"], indirect=True)


@pytest.fixture(autouse=True)
def tables(request: pytest.FixtureRequest) -> None:
    if "stage" in request.fixturenames:
        stage: Stage = request.getfixturevalue("stage")
        stage.sql("create table effects (n integer, attempt integer)")
        stage.sql("create table once (n integer unique)")


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, bool]]:
    """Every shared transaction that came to its end: of how many jobs, and whether it was committed."""
    found: list[tuple[int, bool]] = []
    ending = Groups._ending

    def noted(self: Groups, group: Group) -> Any:
        yield from ending(self, group)
        found.append((len(group.left), group.failure is None))

    monkeypatch.setattr(Groups, "_ending", noted)
    # Nobody gets impatient on a slow machine; tests about that set it back.
    monkeypatch.setattr(groups, "PATIENCE_SECONDS", 3600.0)
    monkeypatch.setattr(groups, "OPEN_SECONDS", 3600.0)
    return found


class Odd(Exception):
    """What a handler may raise: it fails whatever it is asked."""

    def __bool__(self) -> bool:
        raise ValueError("neither true nor false")

    @property
    def __class__(self) -> type:
        raise ValueError("of no class")


def _insert(job: Job, n: int) -> str:
    return f"insert into effects (n, attempt) values ({n}, {job.attempt})"  # noqa: S608 - numbers of the test


class Crowd:
    """Handlers that come to their block at the same time, the first time round; `acts` says what each does inside."""

    def __init__(self, stage: Stage, colour: str, acts: dict[int, str], count: int = COUNT, **options: Any) -> None:
        self.stage = stage
        self.acts = acts
        self.started = 0
        self._catches = options.pop("catches", False)
        self.attempts: list[tuple[int, int]] = []
        self._all = count
        self._here: Any = None
        self._together = False
        self._arrived = threading.Event()
        self._handler: Any = self._async if colour == "async" else self._def
        options = {"retry": AT_ONCE, "commit": "together"} | options
        job = stage.hf.job(kind="act", **options)(self._handler)
        self.jobs = stage.hf.enqueue_many([job.bind(n) for n in range(count)])

    async def _async(self, job: Job, n: int) -> int:
        try:
            return await self._act_async(job, n)
        except Exception:
            if not self._catches:
                raise
        return n

    async def _act_async(self, job: Job, n: int) -> int:
        self._here = self._here or asyncio.Event()
        self._note(job, n)
        if self.started >= self._all:
            self._here.set()
        await self._here.wait()
        async with job.transaction() as tx:
            [shared] = self.stage.hf.store._async_groups.values()
            await self.stage.until(lambda: self._gathered(shared))
            job.result = n
            for sql in self._statements(job, n):
                try:
                    await tx.execute(sql)
                except Exception:
                    if not sql.startswith("swallowed"):
                        raise
            await asyncio.to_thread(self._finish, job, n)
        assert job.settled
        return n

    def _def(self, job: Job, n: int) -> int:
        try:
            return self._act_def(job, n)
        except Exception:
            if not self._catches:
                raise
        return n

    def _act_def(self, job: Job, n: int) -> int:
        self._note(job, n)
        if self.started >= self._all:
            self._arrived.set()
        assert self._arrived.wait(30)
        with job.transaction() as tx:
            while not self._gathered(self.stage.hf.store._groups):
                time.sleep(0.001)
            job.result = n
            cursor = tx.cursor()
            for sql in self._statements(job, n):
                try:
                    cursor.execute(sql)
                except Exception:
                    if not sql.startswith("swallowed"):
                        raise
            self._finish(job, n)
        assert job.settled
        return n

    def _note(self, job: Job, n: int) -> None:
        self.attempts.append((n, job.attempt))
        self.started += 1

    def _gathered(self, shared: Groups) -> bool:
        """Tell whether all others wait for their turn, which the first one inside waits for."""
        self._together = self._together or len(shared._waiting) == self._all - 1
        return self._together

    def _act(self, job: Job, n: int) -> str:
        act = self.acts.get(n, "write")
        return act if act.endswith("always") or sum(one[0] == n for one in self.attempts) == 1 else "write"

    def _statements(self, job: Job, n: int) -> list[str]:
        writes = [_insert(job, n), f"insert into once values ({n})"]  # noqa: S608 - a number of the test
        match self._act(job, n):
            case "fail in SQL":
                return [*writes, "insert into no_such_table values (1)"]
            case "swallow always":
                return [*writes, "swallowed as no SQL is"]
            case "write twice always":
                return [*writes, writes[1]]
            case "end the transaction":
                return [*writes, "rollback"]
        return writes

    def _finish(self, job: Job, n: int) -> None:
        match self._act(job, n):
            case "raise" | "raise always":
                raise ValueError("as told")
            case "raise something odd":
                raise Odd("as told")
            case "lose the lease":
                self.stage.steal(job)

    def work(self, body: Callable[[Any], Any] | None = None, **options: Any) -> None:
        self.stage.work(body, **{"concurrency": self._all, "poll": 0.05} | options)

    def effects(self) -> list[tuple[int, int]]:
        return sorted(tuple(row) for row in self.stage.sql("select n, attempt from effects"))  # type: ignore[misc]

    def shown(self) -> list[tuple[str, int]]:
        return [(shown.state, shown.attempts) for shown in map(self.stage.show, self.jobs)]


@COLOURS
def test_handlers_that_come_together_are_one_commit(stage: Stage, ended: Any, colour: str) -> None:
    crowd = Crowd(stage, colour, {})
    crowd.work()
    assert ended == [(COUNT, True)]
    assert crowd.shown() == [("done", 1)] * COUNT
    assert [stage.show(job).result for job in crowd.jobs] == list(range(COUNT))
    assert crowd.effects() == [(n, 1) for n in range(COUNT)]
    assert len(stage.heard(events.JobDone)) == COUNT


@COLOURS
@pytest.mark.parametrize("act", ["raise", "raise something odd", "fail in SQL"])
@pytest.mark.parametrize("which", [0, 3, COUNT - 1])
def test_an_error_undoes_its_own_job_only(stage: Stage, ended: Any, colour: str, act: str, which: int) -> None:
    crowd = Crowd(stage, colour, {which: act})
    crowd.work()
    assert crowd.shown() == [("done", 1 + (n == which)) for n in range(COUNT)]
    assert crowd.effects() == [(n, 1 + (n == which)) for n in range(COUNT)]
    # Nobody else began a second time.
    assert sorted(crowd.attempts) == sorted([(n, 1) for n in range(COUNT)] + [(which, 2)])
    assert sum(size for size, committed in ended if committed) == COUNT


@COLOURS
def test_the_dead_take_nobody_along(stage: Stage, ended: Any, colour: str) -> None:
    crowd = Crowd(stage, colour, {1: "raise always", 4: "write twice always"})
    crowd.work()
    assert crowd.shown() == [("dead", 3) if n in (1, 4) else ("done", 1) for n in range(COUNT)]
    assert crowd.effects() == [(n, 1) for n in range(COUNT) if n not in (1, 4)]


# On SQLite nobody else can write while the transaction is open.
@ON_SERVERS
@COLOURS
@pytest.mark.parametrize("which", [0, 3, COUNT - 1])
def test_one_without_its_lease_has_nothing_committed_and_the_others_use_no_attempt(
    stage: Stage, ended: Any, colour: str, which: int
) -> None:
    crowd = Crowd(stage, colour, {which: "lose the lease"})

    async def body(worker: Any) -> None:
        await stage.until(lambda: [state for state, _ in crowd.shown()].count("done") == COUNT - 1)

    crowd.work(body)
    assert ended[0] == (COUNT, False)
    assert [shown for n, shown in enumerate(crowd.shown()) if n != which] == [("done", 1)] * (COUNT - 1)
    assert crowd.effects() == [(n, 1) for n in range(COUNT) if n != which]
    assert stage.state(crowd.jobs[which]) == "leased"
    assert [event.id for event in stage.heard(events.LeaseWasLost)] == [crowd.jobs[which].id]


@ON_SERVERS
@COLOURS
def test_who_catches_that_its_effect_is_gone_is_not_done_for_it(stage: Stage, ended: Any, colour: str) -> None:
    crowd = Crowd(stage, colour, {3: "lose the lease"}, catches=True)

    async def body(worker: Any) -> None:
        await stage.until(lambda: [state for state, _ in crowd.shown()].count("done") == COUNT - 1)

    crowd.work(body)
    assert [shown for n, shown in enumerate(crowd.shown()) if n != 3] == [("done", 1)] * (COUNT - 1)
    assert crowd.effects() == [(n, 1) for n in range(COUNT) if n != 3]


def test_a_job_with_one_attempt_shares_no_transaction(stage: Stage, ended: Any) -> None:
    @stage.hf.job(commit="together", retry=Retry(max_attempts=1))
    async def act(job: Job, n: int) -> None:
        async with job.transaction() as tx:
            await tx.execute(_insert(job, n))

    jobs = stage.hf.enqueue_many([act.bind(n) for n in range(COUNT)])
    stage.work(concurrency=COUNT)
    assert [stage.state(job) for job in jobs] == ["done"] * COUNT
    assert ended == []


@ON_SERVERS
def test_a_time_out_counts_while_the_commit_waits_for_another_handler(stage: Stage, ended: Any) -> None:
    inside = asyncio.Event()

    @stage.hf.job(commit="together", timeout=0.5, retry=Retry(max_attempts=2, first_delay=3600, max_delay=3600))
    async def hasty(job: Job) -> None:
        async with job.transaction() as tx:
            await tx.execute(_insert(job, 1))
            [shared] = stage.hf.store._async_groups.values()
            await stage.until(lambda: shared._waiting)

    @stage.hf.job(commit="together")
    async def slow(job: Job) -> None:
        await asyncio.sleep(0.05)
        async with job.transaction() as tx:
            await tx.execute(_insert(job, 2))
            if not inside.is_set():
                inside.set()
                await stage.until(lambda: stage.heard(events.JobRetried), "the hasty one")

    jobs = [hasty.enqueue(), slow.enqueue()]
    stage.work(lambda _: stage.until(lambda: stage.state(jobs[1]) == "done"), concurrency=2, poll=0.05)
    assert [stage.show(job).state for job in jobs] == ["pending", "done"]
    assert [row[0] for row in stage.sql("select n from effects")] == [2]


def test_a_leader_that_is_interrupted_still_ends_its_group(sqlite_stage: Stage) -> None:
    store = sqlite_stage.hf.store
    shared = group_pumps.SyncGroups(store.lend, store.dialect)
    leader, follower = shared.seat(), shared.seat()
    sqlite_stage.sql("create table if not exists effects (n integer, attempt integer)")
    leader.begin()
    told: list[BaseException] = []
    interrupted = threading.Event()

    def follow() -> None:
        follower.begin()
        assert interrupted.wait(30)
        try:
            follower.complete(Joined(), Told())  # type: ignore[arg-type]
        except BaseException as error:
            told.append(error)

    wait = leader.group.ready.wait

    def wait_and_be_interrupted() -> None:
        if not interrupted.is_set():
            interrupted.set()
            raise KeyboardInterrupt
        wait()

    leader.group.ready.wait = wait_and_be_interrupted
    thread = threading.Thread(target=follow)
    thread.start()
    while not shared._waiting:
        time.sleep(0.001)
    with pytest.raises(KeyboardInterrupt):
        leader.complete(Joined(), Told())  # type: ignore[arg-type]
    thread.join(30)
    assert [type(error).__name__ for error in told] == ["SharedTransactionUndone"]
    # The turn to write was given up.
    sqlite_stage.hf.enqueue("x", check=False)


class Joined:
    """Stands in for a completion that nobody comes to run."""


class Told:
    def sending(self) -> None: ...

    def committed(self) -> None: ...


@COLOURS
@pytest.mark.parametrize("act", ["end the transaction", "swallow always"])
@pytest.mark.parametrize("which", [0, 3, COUNT - 1])
def test_who_ends_or_breaks_the_transaction_pays_for_it_alone(
    stage: Stage, ended: Any, colour: str, act: str, which: int
) -> None:
    crowd = Crowd(stage, colour, {which: act})
    crowd.work()
    # An error that was swallowed spoils a transaction on PostgreSQL alone.
    dies = act == "swallow always" and "postgres" in stage.url
    for n, (state, attempts) in enumerate(crowd.shown()):
        if n != which:
            assert (n, state, attempts) == (n, "done", 1)
        else:
            assert state == ("dead" if dies else "done")
    assert [n for n, _ in crowd.effects()] == [n for n in range(COUNT) if n != which or not dies]


# Only PostgreSQL checks anything at the commit.
@ON_POSTGRES
@COLOURS
def test_a_commit_that_fails_is_the_end_of_its_own_job_only(stage: Stage, ended: Any, colour: str) -> None:
    stage.sql("alter table once drop constraint once_n_key")
    stage.sql("alter table once add constraint one unique (n) deferrable initially deferred")
    crowd = Crowd(stage, colour, {2: "write twice always"})
    crowd.work()
    assert ended[0] == (COUNT, False)
    assert crowd.shown() == [("dead", 3) if n == 2 else ("done", 1) for n in range(COUNT)]
    assert crowd.effects() == [(n, 1) for n in range(COUNT) if n != 2]
    assert all("unique" in error["message"] for error in stage.show(crowd.jobs[2]).errors)


@ON_SERVERS
@COLOURS
def test_a_connection_that_dies_costs_nobody_an_effect(stage: Stage, ended: Any, colour: str) -> None:
    kill = "select pg_terminate_backend(pg_backend_pid())" if "postgres" in stage.url else "kill connection_id()"
    crowd = Crowd(stage, colour, {})
    usual = crowd._statements
    crowd._statements = lambda job, n: [*usual(job, n), kill] if (n, job.attempt) == (3, 1) else usual(job, n)  # type: ignore[method-assign]
    crowd.work()
    assert [state for state, _ in crowd.shown()] == ["done"] * COUNT
    assert [attempts for n, (_, attempts) in enumerate(crowd.shown()) if n != 3] == [1] * (COUNT - 1)
    assert [n for n, _ in crowd.effects()] == list(range(COUNT))


def test_a_time_out_inside_costs_the_others_no_attempt(stage: Stage, ended: Any) -> None:
    @stage.hf.job(retry=AT_ONCE, commit="together", timeout=1)
    async def act(job: Job, n: int) -> None:
        async with job.transaction() as tx:
            await tx.execute(_insert(job, n))
            if (n, job.attempt) == (0, 1):
                await asyncio.sleep(60)

    jobs = stage.hf.enqueue_many([act.bind(n) for n in range(4)])
    stage.work(concurrency=4, poll=0.05)
    shown = [stage.show(job) for job in jobs]
    assert [one.state for one in shown] == ["done"] * 4
    # Those that waited for their turn were as late, which is their own.
    assert shown[0].attempts == 2
    assert sorted(row[0] for row in stage.sql("select n from effects")) == [0, 1, 2, 3]


def test_who_is_called_off_while_it_waits_leaves_its_turn_to_the_next(stage: Stage, ended: Any) -> None:
    inside: list[int] = []

    @stage.hf.job(commit="together")
    async def first(job: Job) -> None:
        async with job.transaction():
            inside.append(0)
            await stage.until(lambda: stage.heard(events.JobRetried), "the late one")

    @stage.hf.job(commit="together", timeout=0.2, retry=Retry(max_attempts=2, first_delay=3600, max_delay=3600))
    async def late(job: Job) -> None:
        await stage.until(lambda: inside)
        async with job.transaction():
            inside.append(1)

    @stage.hf.job(commit="together")
    async def last(job: Job) -> None:
        await stage.until(lambda: inside)
        async with job.transaction():
            inside.append(2)

    jobs = [handler.enqueue() for handler in (first, late, last)]
    stage.work(lambda _: stage.until(lambda: stage.state(jobs[0]) == stage.state(jobs[2]) == "done"), concurrency=3)
    assert inside == [0, 2]
    assert [stage.state(job) for job in jobs] == ["done", "pending", "done"]


# SQLite has one writer at a time.
@ON_SERVERS
@COLOURS
def test_nobody_waits_for_long_behind_a_slow_handler(
    stage: Stage, ended: Any, colour: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(groups, "PATIENCE_SECONDS", 0.01)
    crowd = Crowd(stage, colour, {})
    crowd._together = True
    usual, inside = crowd._finish, []

    def slowly(job: Job, n: int) -> None:
        usual(job, n)
        inside.append(n)
        deadline = time.monotonic() + 30
        while n == inside[0] and len(stage.heard(events.JobDone)) < COUNT - 1:
            assert time.monotonic() < deadline
            time.sleep(0.01)

    crowd._finish = slowly  # type: ignore[method-assign]
    crowd.work()
    assert crowd.shown() == [("done", 1)] * COUNT


def test_how_rows_are_made_is_not_passed_on(stage: Stage, ended: Any) -> None:
    begun, seen = threading.Event(), []

    @stage.hf.job(commit="together")
    def act(job: Job) -> None:
        with job.transaction() as tx:
            begun.set()
            while len(stage.hf.store._groups._waiting) < 2:
                time.sleep(0.001)
            if hasattr(tx, "row_factory"):
                tx.row_factory = lambda *_: lambda *_: "changed"
            else:
                tx.cursorclass = None
            seen.append(job.id)

    @stage.hf.job(commit="together")
    def read(job: Job) -> None:
        assert begun.wait(30)
        with job.transaction() as tx:
            cursor = tx.cursor()
            cursor.execute("select 1")
            seen.append(tuple(cursor.fetchone()))

    jobs = [act.enqueue(), read.enqueue(), read.enqueue()]
    stage.work(concurrency=3)
    assert [stage.state(job) for job in jobs] == ["done"] * 3
    assert seen.count((1,)) == 2
    assert ended == [(3, True)]


def test_a_turn_that_comes_with_a_cancellation_is_the_next_ones(sqlite_stage: Stage) -> None:
    async def scene() -> None:
        shared = group_pumps.AsyncGroups(sqlite_stage.hf.store.alend, sqlite_stage.hf.store.dialect)
        first = await shared.turn()
        late, last = asyncio.create_task(shared.turn()), asyncio.create_task(shared.turn())
        await asyncio.sleep(0)
        shared.pass_on(first)
        late.cancel()
        assert await last is first
        with pytest.raises(asyncio.CancelledError):
            await late

    asyncio.run(scene())


def test_what_it_may_be_is_said() -> None:
    hf = Holdfast("sqlite:///:memory:")
    with pytest.raises(ConfigError, match="'alone', 'together'"):
        hf.job(commit="both")  # type: ignore[call-overload]
