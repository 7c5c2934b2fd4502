"""Pauses in a worker: claims stop within about a second, running work goes on, and nothing is lost over a resume."""

import asyncio
import time
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast import Holdfast, Rate, events, jobs, lines
from holdfast.flow import Flow
from holdfast.jobs.special import Special
from holdfast.lines import StintLease
from holdfast.values.pauses import Paused
from holdfast.values.queues import QueueSettings
from holdfast.values.rows import Lease
from holdfast.worker import Worker, pauses, suspects
from holdfast.worker.holdings import apart
from holdfast.worker.patience import Patience
from holdfast.worker.rounds import give_back
from holdfast.worker.rounds.settings import Settings
from tests.worker.looks import Looks
from tests.worker.stage import Stage


class Two:
    """An application with a queue that is paused and one that is not, and what ran of each."""

    def __init__(self, stage: Stage, hf: Holdfast | None = None) -> None:
        self.ran: list[str] = []
        self.stage, self.hf = stage, hf or stage.hf
        hf = self.hf

        @hf.job(queue="mail")
        async def send(n: int) -> None:
            self.ran.append(f"mail {n}")

        @hf.job(queue="bulk")
        async def load(n: int) -> None:
            self.ran.append(f"bulk {n}")

        self.send, self.load = send, load

    async def until_claims_know(self) -> None:
        """Wait until a claim that was under way when the pause came is over: it takes along what is added meanwhile."""
        self.load.enqueue(0)
        await self.stage.until(lambda: "bulk 0" in self.ran)

    def add(self, *numbers: int) -> None:
        for n in numbers:
            self.send.enqueue(n)
            self.load.enqueue(n)


def started(stage: Stage, queue: str) -> int:
    """Count the live jobs of a queue that an attempt was begun of; what was claimed and went back has none."""
    return int(stage.sql("select count(*) from holdfast_jobs where queue = ? and attempts > 0", queue)[0][0])


def leased(stage: Stage) -> int:
    return int(stage.sql("select count(*) from holdfast_jobs where state = 'leased'")[0][0])


@pytest.mark.parametrize("ring", [False, True], ids=["alone", "ring"])
def test_a_paused_queue_is_not_claimed_from_while_another_is_and_a_resume_runs_everything(
    stage: Stage, ring: bool, looks: Looks
) -> None:
    two = Two(stage)
    looks.until(two.hf, events.QueuePaused)

    async def body(worker: Worker) -> None:
        two.add(0)
        await stage.until(lambda: len(two.ran) == 2)
        assert await two.hf.apause("mail", reason="the provider is down", actor="ann")
        before = looks.now()
        [told] = await stage.until_said(events.QueuePaused)
        assert looks.saw_it_at_once(before)
        assert (told.worker, told.queue, told.by, told.reason) == (worker.id, "mail", "ann", "the provider is down")
        # A claim that was under way takes this one along: those behind it know of the pause.
        two.load.enqueue(1)
        await stage.until(lambda: len(two.ran) == 3)
        two.send.enqueue(1)
        two.add(2)
        await stage.until(lambda: len(two.ran) == 4)
        two.add(3)
        await stage.until(lambda: len(two.ran) == 5)
        assert sorted(two.ran[2:]) == ["bulk 1", "bulk 2", "bulk 3"]
        assert started(stage, "mail") == 0
        assert await two.hf.aresume("mail")
        await stage.until_empty()
        assert [told.queue for told in stage.heard(events.QueueResumed)] == ["mail"]

    stage.work(body, poll=0.05, ring=ring)
    assert sorted(two.ran[5:]) == ["mail 1", "mail 2", "mail 3"]


def test_a_pause_counts_for_all_workers(stage: Stage, looks: Looks) -> None:
    two, other = Two(stage), Two(stage, stage.app())
    for one in (two, other):
        looks.until(one.hf, events.QueuePaused)

    async def body(_: Worker) -> None:
        async with other.hf.worker(poll=0.05):
            await two.hf.apause("mail")
            before = looks.now()
            await stage.until_said(events.QueuePaused, 2)
            assert looks.saw_it_at_once(before)
            two.add(1, 2, 3)
            await stage.until(lambda: len(two.ran) + len(other.ran) == 3)
            # A claim that was under way goes back.
            await stage.until(lambda: started(stage, "mail") == 0)
            await two.hf.aresume("mail")
            await stage.until_empty()
        await other.hf.aclose()

    stage.work(body, poll=0.05)
    assert sorted(two.ran + other.ran) == [f"{queue} {n}" for queue in ("bulk", "mail") for n in (1, 2, 3)]


def test_a_pause_survives_a_restart_and_is_known_before_the_first_claim(stage: Stage) -> None:
    two = Two(stage)
    two.hf.pause("mail")
    two.add(1, 2)

    async def rest(_: Worker) -> None:
        await stage.until(lambda: len(two.ran) == 2)
        await stage.until_said(events.QueuePaused)

    stage.work(rest)
    stage.said.clear()
    stage.work(rest)
    assert (sorted(two.ran), started(stage, "mail")) == (["bulk 1", "bulk 2"], 0)
    assert [told.queue for told in stage.heard(events.QueuePaused)] == ["mail"], "a worker that starts tells of it"
    two.hf.resume("mail")
    stage.work()
    assert sorted(two.ran[2:]) == ["mail 1", "mail 2"]


def test_a_paused_kind_is_not_claimed_while_others_of_its_queue_are(stage: Stage) -> None:
    ran: list[str] = []

    @stage.hf.job
    async def send(n: int) -> None:
        ran.append(f"send {n}")

    @stage.hf.job
    async def load(n: int) -> None:
        ran.append(f"load {n}")

    async def body(_: Worker) -> None:
        await stage.hf.apause(kind="send")
        [told] = await stage.until_said(events.KindPaused)
        assert told.kind == "send"
        for n in range(3):
            await send.aenqueue(n)
            await load.aenqueue(n)
        await stage.until(lambda: len(ran) == 3)
        assert sorted(ran) == ["load 0", "load 1", "load 2"]
        # A claim that was under way goes back.
        begun = "select count(*) from holdfast_jobs where kind = 'send' and attempts > 0"
        await stage.until(lambda: stage.sql(begun)[0][0] == 0)
        await stage.hf.aresume(kind="send")
        await stage.until_empty()
        assert [told.kind for told in stage.heard(events.KindResumed)] == ["send"]

    stage.work(body, poll=0.05)
    assert sorted(ran[3:]) == ["send 0", "send 1", "send 2"]


def test_a_resumed_queue_is_looked_at_at_once(stage: Stage) -> None:
    """The poll is far away: only the news itself can bring the worker to look."""
    two = Two(stage, stage.app(notify=False))
    two.hf.pause("mail")

    async def body(_: Worker) -> None:
        await two.hf.aenqueue("send", {"n": 1})
        await stage.until_said(events.QueuePaused)
        # Not by the application: that would wake the workers of its process.
        stage.sql("delete from holdfast_pauses")
        await stage.until_empty()

    stage.work(body, two.hf, poll=1000)
    assert two.ran == ["mail 1"]


# What was claimed ahead


class Gate:
    """Handlers that run until one of them waits, so that others are claimed behind it."""

    def __init__(self) -> None:
        self.ran: list[Any] = []
        self.open = asyncio.Event()
        self.waits = False

    async def pass_(self, n: Any, *, stops: bool) -> None:
        self.ran.append(n)
        if stops:
            self.waits = True
            await self.open.wait()


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits for a slot is not given back for that."""
    monkeypatch.setattr(give_back, "LONGEST_WAIT_SECONDS", 1000.0)
    monkeypatch.setattr(suspects, "CALM_SECONDS", 0.0)


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("scope", ["queue", "kind"])
def test_what_was_claimed_ahead_is_given_back_unused_and_what_runs_goes_on(stage: Stage, scope: str) -> None:
    gate = Gate()

    @stage.hf.job(queue="mail")
    async def act(n: int) -> None:
        await gate.pass_(n, stops=n == 150)

    stage.hf.enqueue_many(act.bind(n) for n in range(400))

    async def body(_: Worker) -> None:
        await stage.until(lambda: gate.waits and leased(stage) > 1, "claimed ahead")
        await (stage.hf.apause("mail") if scope == "queue" else stage.hf.apause(kind="act"))
        await stage.until(lambda: leased(stage) == 1, "given back")
        rows = stage.sql("select attempts, lapses from holdfast_jobs where state = 'pending'")
        assert {tuple(row) for row in rows} == {(0, 0)}
        gate.open.set()
        await stage.until(lambda: leased(stage) == 0, "the one that ran has ended")
        assert gate.ran == list(range(151)), "nothing began in the pause"
        await (stage.hf.aresume("mail") if scope == "queue" else stage.hf.aresume(kind="act"))
        await stage.until_empty()

    stage.work(body, concurrency=1, poll=0.05)
    assert sorted(gate.ran) == list(range(400))
    assert not stage.heard(events.LeaseWasLost)


@pytest.mark.usefixtures("patient")
def test_the_rest_of_a_stint_goes_back_to_its_line(stage: Stage) -> None:
    gate = Gate()
    stage.hf.queue("orders", ordered=True)

    @stage.hf.job(queue="orders", key="a")
    async def act(n: int) -> None:
        await gate.pass_(n, stops=n == 0)

    stage.hf.enqueue_many(act.bind(n) for n in range(5))

    async def body(_: Worker) -> None:
        await stage.until(lambda: gate.waits and leased(stage) == 5)
        await stage.hf.apause("orders")
        await stage.until(lambda: leased(stage) == 1)
        assert [tuple(row) for row in stage.sql("select held from holdfast_lines")] == [(1,)]
        gate.open.set()
        await stage.until(lambda: leased(stage) == 0)
        assert gate.ran == [0]
        await stage.hf.aresume("orders")
        await stage.until_empty()

    stage.work(body, concurrency=8, poll=0.05)
    assert gate.ran == list(range(5))


@pytest.mark.usefixtures("patient")
def test_what_is_behind_a_paused_kind_in_a_stint_does_not_pass_it(stage: Stage) -> None:
    gate = Gate()
    stage.hf.queue("orders", ordered=True)

    @stage.hf.job(queue="orders", key="{key}")
    async def act(key: str, n: int) -> None:
        await gate.pass_((key, n), stops=(key, n) == ("a", 0))

    @stage.hf.job(queue="orders", key="{key}")
    async def send(key: str, n: int) -> None:
        await gate.pass_((key, n), stops=False)

    stage.hf.enqueue_many([act.bind("a", 0), act.bind("a", 1), send.bind("a", 2), act.bind("a", 3), act.bind("a", 4)])

    async def body(_: Worker) -> None:
        await stage.until(lambda: gate.waits and leased(stage) == 5)
        await stage.hf.apause(kind="send")
        await stage.until(lambda: leased(stage) == 2, "the paused one and what is behind it went back")
        gate.open.set()
        await stage.until(lambda: leased(stage) == 0)
        await act.aenqueue("a", 5)
        await act.aenqueue("b", 0)
        await stage.until(lambda: ("b", 0) in gate.ran)
        assert gate.ran == [("a", 0), ("a", 1), ("b", 0)]
        await stage.hf.aresume(kind="send")
        await stage.until_empty()

    stage.work(body, concurrency=8, poll=0.05)
    assert [n for key, n in gate.ran if key == "a"] == list(range(6))


@pytest.mark.usefixtures("patient")
def test_items_of_a_bulk_handler_that_wait_for_their_call_go_back(stage: Stage) -> None:
    gate, calls = Gate(), []

    @stage.hf.bulk(size=5, concurrency=1)
    async def index(pages: list[int]) -> None:
        calls.append(pages)
        await gate.pass_(len(calls), stops=len(calls) == 1)

    stage.hf.enqueue_many(index.bind(n) for n in range(20))

    async def body(worker: Worker) -> None:
        await stage.until(lambda: gate.waits)
        await stage.until(lambda: leased(stage) >= 5)
        # As if a claim had brought more than the calls that may be made.
        more = stage.run(jobs.claim("default", limit=10, worker=worker.id, leases={"index": 30_000}))
        worker.claims[0].take(worker.sources[0], more, time.monotonic())
        await stage.until(lambda: leased(stage) >= 15)
        await stage.hf.apause(kind="index")
        await stage.until(lambda: leased(stage) == len(calls[0]))
        gate.open.set()
        await stage.until(lambda: leased(stage) == 0)
        assert len(calls) == 1
        await stage.hf.aresume(kind="index")
        await stage.until_empty()

    stage.work(body, concurrency=4, poll=0.05)
    assert sorted(page for pages in calls for page in pages) == list(range(20))


@pytest.mark.usefixtures("patient")
def test_suspects_that_wait_for_their_turn_go_back(stage: Stage) -> None:
    gate = Gate()

    @stage.hf.job
    async def act(n: int) -> None:
        await gate.pass_(n, stops=not gate.waits)

    stage.hf.enqueue_many(act.bind(n) for n in range(6))
    stage.sql("update holdfast_jobs set lapses = 1")

    async def body(_: Worker) -> None:
        await stage.until(lambda: gate.waits and leased(stage) == 6)
        await stage.hf.apause(kind="act")
        await stage.until(lambda: leased(stage) == 1)
        gate.open.set()
        await stage.until(lambda: leased(stage) == 0)
        assert len(gate.ran) == 1
        await stage.hf.aresume(kind="act")
        await stage.until_empty()

    stage.work(body, poll=0.05)
    assert sorted(gate.ran) == list(range(6))


def test_a_claim_that_was_under_way_when_the_pause_was_heard_of_goes_back(stage: Stage) -> None:
    two = Two(stage)

    async def body(worker: Worker) -> None:
        [source], [claiming] = worker.sources, worker.claims
        two.hf.pause("mail")
        await stage.until_said(events.QueuePaused)
        await two.until_claims_know()
        two.send.enqueue(1)
        late = stage.run(jobs.claim("mail", limit=5, worker=worker.id, leases={"send": 30_000}))
        assert [lease.attempt for lease in late] == [1]
        claiming.take(source, late, time.monotonic())
        await stage.until(lambda: leased(stage) == 0)
        assert [tuple(row) for row in stage.sql("select state, attempts from holdfast_jobs")] == [("pending", 0)]
        two.hf.resume("mail")
        await stage.until_empty()

    stage.work(body, poll=0.05)
    assert two.ran == ["bulk 0", "mail 1"]


def test_what_is_behind_a_paused_job_of_a_late_claim_goes_back_with_it() -> None:
    def work(kind: str, key: str | None, lease: type[Lease] = StintLease) -> Any:
        fields = dict.fromkeys(Lease._fields, 0) | {"queue": "orders", "kind": kind, "key": key}
        return SimpleNamespace(lease=lease(**fields))  # type: ignore[arg-type]

    works = [work("act", "a"), work("send", "a"), work("act", "a"), work("act", "b"), work("act", "a", Lease)]
    ready, back = apart(works, Paused(kinds=frozenset({"send"})))
    assert (ready, back) == ([works[0], works[3], works[4]], works[1:3])
    assert apart(works, Paused(queues=frozenset({"orders"}))) == ([], works)


# When the news is late


def test_a_claim_asks_itself_where_what_is_known_of_pauses_is_old(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The round that reads them is held up, as by an outage: no claim may go by what was known before."""
    monkeypatch.setattr(Settings, "every_seconds", 1000.0)
    monkeypatch.setattr(pauses, "STALE_SECONDS", 0.0)
    two = Two(stage)

    async def body(_: Worker) -> None:
        two.add(1)
        await stage.until(lambda: len(two.ran) == 2)
        await two.hf.apause("mail")
        await two.until_claims_know()
        two.add(2)
        await stage.until(lambda: len(two.ran) == 4)
        assert (two.ran[2:], started(stage, "mail")) == (["bulk 0", "bulk 2"], 0)
        await two.hf.aresume("mail")
        await stage.until_empty()

    stage.work(body, poll=0.05)


def test_one_statement_a_look_tells_all_that_people_have_said(
    sqlite_stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    real = Patience.outlive

    async def noted(patience: Patience, work: Flow[Any], **options: Any) -> Any:
        asked.append(work.name)
        return await real(patience, work, **options)

    monkeypatch.setattr(Patience, "outlive", noted)
    monkeypatch.setattr(Settings, "every_seconds", 0.02)
    two = Two(sqlite_stage)

    async def body(_: Worker) -> None:
        await sqlite_stage.until(lambda: asked.count("said") > 3)
        two.hf.pause("mail")
        await sqlite_stage.until_said(events.QueuePaused)
        await asyncio.to_thread(sqlite_stage.run, lines.change("bulk", {"concurrency": 1}))
        await sqlite_stage.until_said(events.QueueSettingsChanged)

    sqlite_stage.work(body)
    assert not {"pauses", "stored"} & set(asked)


def test_settings_that_cannot_be_read_keep_no_pause_from_being_seen(sqlite_stage: Stage) -> None:
    two = Two(sqlite_stage)

    async def body(_: Worker) -> None:
        await asyncio.to_thread(sqlite_stage.run, lines.change("bulk", {"concurrency": 1}))
        await sqlite_stage.until_said(events.QueueSettingsChanged)
        sqlite_stage.sql("""update holdfast_queues set settings = '{"order": "unheard of"}'""")
        await sqlite_stage.until_said(events.UpkeepFailed)
        await two.load.aenqueue(0)
        await two.send.aenqueue(1)
        await sqlite_stage.until(lambda: two.ran)
        assert two.ran == ["mail 1"], "a queue is not claimed from whose order and limits nobody here knows"
        two.hf.pause("mail")
        await sqlite_stage.until_said(events.QueuePaused)

    sqlite_stage.work(body)


def test_an_answer_that_was_overtaken_by_a_later_one_says_nothing(stage: Stage) -> None:
    two = Two(stage)

    async def body(worker: Worker) -> None:
        known = worker.branches[0].pauses
        two.hf.pause("mail")
        await stage.until_said(events.QueuePaused)
        known._learn([], time.monotonic() - 3600)
        assert worker.sources[0].paused.queues == {"mail"}

    stage.work(body)


# Beside other things


@pytest.mark.parametrize("said", [{"concurrency": 2}, {"fair": True}, {"ordered": True}], ids=str)
def test_queues_with_order_or_limits_pause_and_go_on(stage: Stage, said: dict[str, Any]) -> None:
    two = Two(stage)
    two.hf.queue("mail", **said)

    async def body(_: Worker) -> None:
        await two.hf.apause("mail")
        await stage.until_said(events.QueuePaused)
        for n in range(4):
            await two.send.using(key=f"k{n % 2}").aenqueue(n)
        await two.load.aenqueue(0)
        await stage.until(lambda: two.ran)
        # A claim that was under way when the pause was seen goes back.
        await stage.until(lambda: not started(stage, "mail"))
        assert two.ran == ["bulk 0"]
        await two.hf.aresume("mail")
        await stage.until_empty()

    stage.work(body, poll=0.05)
    assert len(two.ran) == 5


def test_a_rate_does_not_wake_a_worker_for_a_queue_that_is_paused() -> None:
    special = Special(["api", "mail"], floors=False)
    special.learn({"api": QueueSettings(rate=Rate(1, per=1))})
    special._again_at["api"] = time.monotonic()
    assert special.again_in() == 0.0
    special.pause({"api"})
    assert (special.again_in(), special.turns()) == (None, [None])
    special.pause({"api", "mail"})
    assert special.turns() == []


def test_schedules_tick_while_their_queue_is_paused(stage: Stage) -> None:
    two = Two(stage)
    two.hf.schedule("often", two.send.bind(1), every=timedelta(seconds=1))
    two.hf.pause("mail")

    async def body(_: Worker) -> None:
        await stage.until_said(events.ScheduleTicked)
        await stage.until(lambda: stage.live() >= 1)
        assert started(stage, "mail") == 0

    stage.work(body)
    assert two.ran == []


def test_a_queue_that_changes_between_two_claims_of_one_round_does_no_harm(stage: Stage) -> None:
    """What was to be claimed from next is plain, or paused, by the time its turn comes."""
    stage.hf.queue("orders", ordered=True)

    @stage.hf.job(queue="orders")
    async def act() -> None: ...

    async def body(worker: Worker) -> None:
        source: Any = worker.sources[0]
        assert source.claim({"act": 1000}, 1, worker.id, turn="orders") is not None
        source.learn_settings({})
        assert source.claim({"act": 1000}, 1, worker.id, turn="orders") is None
        assert source.claim({"act": 1000}, 1, worker.id, turn=None) is not None
        source.pause(Paused(queues=frozenset({"orders"})))
        assert source.claim({"act": 1000}, 1, worker.id, turn=None) is None
        source.pause(Paused(kinds=frozenset({"act"})))
        assert source.claim({"act": 1000}, 1, worker.id, turn=None) is None

    stage.work(body)
