"""What runs cost, counted in statements, rows and memory, never in time."""

import asyncio
import gc
import tracemalloc
from collections import Counter

import pytest

from holdfast import Holdfast, Run
from holdfast.admin import examine
from holdfast.flow import Rows, Statement
from holdfast.jobs.due import MOST_KEPT, Due
from holdfast.jobs.source import JobsSource
from holdfast.life.source import LearningFlow, Settled
from holdfast.store.sessions import OwnSession
from holdfast.testing.inline import run_due
from holdfast.values.ids import new_id
from holdfast.values.rows import Park, PutBack

PATIENCE = 60.0
STEPS = 10_000


class Asked:
    """Statements that were sent to SQLite, by their names, and the rows that came back."""

    def __init__(self) -> None:
        self.statements: Counter[str] = Counter()
        self.rows: Counter[str] = Counter()

    @property
    def checkpoints(self) -> int:
        return self.statements["checkpoint"] + self.statements["checkpoint_one"]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    found, run = Asked(), OwnSession.run

    def counted(self: OwnSession, statement: Statement) -> Rows:
        rows = run(self, statement)
        found.statements[statement.name] += 1
        found.rows[statement.name] += len(rows)
        return rows

    monkeypatch.setattr(OwnSession, "run", counted)
    return found


async def step(n: int) -> int:
    return n


def test_a_step_costs_one_statement_and_one_row_however_long_the_journal_is(hf: Holdfast, asked: Asked) -> None:
    @hf.workflow
    async def long(run: Run, steps: int) -> int:
        for n in range(steps):
            await run.step(step, n)
        return steps

    costs: list[tuple[Counter[str], Counter[str]]] = []
    for steps in (STEPS // 10, STEPS):
        long.start(steps=steps)
        asked.statements.clear()
        asked.rows.clear()
        [ran] = run_due(hf)
        assert ran.outcome == "done"
        assert asked.checkpoints == steps
        costs.append((asked.statements.copy(), asked.rows.copy()))
    (few, few_rows), (many, many_rows) = costs
    assert many_rows["checkpoint_one"] - few_rows["checkpoint_one"] == STEPS - STEPS // 10
    for name in ("checkpoint_one", "signals_there"):
        # The look into the inboxes comes once a second.
        for counter in (few, few_rows, many, many_rows):
            counter.pop(name, None)
    # All the rest is as for a short run: nothing is read again, and nothing else is written.
    assert many == few
    assert many_rows == few_rows


def test_a_journal_is_read_once_by_each_claim(hf: Holdfast, asked: Asked) -> None:
    @hf.workflow
    async def wait(run: Run) -> str:
        for n in range(100):
            await run.step(step, n)
        got: str = await run.signal("go")
        return got

    handle = wait.start()
    run_due(hf)
    handle.signal("go", "now")
    asked.statements.clear()
    asked.rows.clear()
    run_due(hf)
    assert handle.result(0) == "now"
    assert asked.statements["journal_read"] == 2
    # The journal, and what was taken before at the place of the signal: nothing.
    assert asked.rows["journal_read"] == 100


def test_doctor_names_a_run_whose_journal_is_long(everywhere: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.admin.examine.LONG_JOURNAL", 3)

    @everywhere.workflow
    async def grow(run: Run) -> None:
        for n in range(3):
            await run.step(step, n)
        await run.signal("more")
        await run.signal("end")

    grow.start(id="long")
    run_due(everywhere)
    assert [one.severity for one in everywhere.store.run(examine.runs())] == ["ok"]
    everywhere.signal("long", "more")
    run_due(everywhere)
    [found] = everywhere.store.run(examine.runs())
    assert (found.severity, found.seen) == (
        "warning",
        "the journal of run long has 4 rows, which each claim of it reads",
    )
    assert "continue_as_new" in found.do
    everywhere.signal("long", "end")
    run_due(everywhere)
    assert [one.severity for one in everywhere.store.run(examine.runs())] == ["ok"]


@pytest.mark.slow
def test_a_run_waits_for_ten_thousand_children_at_a_cost_that_grows_with_their_number(
    hf_file: Holdfast, asked: Asked
) -> None:
    @hf_file.workflow
    async def child(run: Run, n: int) -> int:
        return n

    @hf_file.workflow
    async def parent(run: Run, children: int) -> int:
        return sum(await asyncio.gather(*(run.child(child, n) for n in range(children))))

    async def main(children: int) -> int:
        handle = await parent.astart(children=children, id=f"of-{children}")
        async with hf_file.worker(concurrency=200, poll=0.1):
            return await handle.aresult(PATIENCE)

    costs: list[int] = []
    for children in (1_000, 10_000):
        asked.statements.clear()
        asked.rows.clear()
        assert asyncio.run(main(children)) == sum(range(children))
        costs.append(asked.statements.total())
        # Each end is read once, by the take that moves it to the journal; a look names at most what the run waits for.
        assert asked.rows["signals_next"] == children
        assert asked.rows["signals_there"] <= asked.statements["signals_there"]
    few, many = costs
    assert {one.status for one in hf_file.runs(workflow="child", limit=10_000)} == {"done"}
    # Starts, ends and what the parent is told share statements; how many share one depends on how busy the machine is.
    assert few < 1_000
    assert many < 10_000


def test_what_a_run_reads_of_its_inbox_follows_from_what_it_takes(hf: Holdfast, asked: Asked) -> None:
    @hf.workflow
    async def fold(run: Run, number: int) -> int:
        return sum([await run.signal("event") for _ in range(number)])

    read: list[int] = []
    for waiting in (10, 1_000):
        handle = fold.start(number=10)
        for n in range(waiting):
            handle.signal("event", n)
            handle.signal("other", n)
        asked.rows.clear()
        run_due(hf)
        assert handle.result(0) == sum(range(10))
        read.append(sum(count for name, count in asked.rows.items() if name.startswith("signals_")))
    assert read[1] == read[0]
    # Each is read by the take that moves it, and some tell a park that it need not be.
    assert read[0] <= 30


def test_runs_share_their_commits(hf_file: Holdfast, asked: Asked) -> None:
    runs, steps = 50, 20

    @hf_file.workflow
    async def work(run: Run) -> None:
        for n in range(steps):
            await run.step(step, n)

    async def main() -> None:
        handles = await work.astart_many([work.bind() for _ in range(runs)])
        async with hf_file.worker(concurrency=runs, poll=0.1):
            for handle in handles:
                await handle.aresult(PATIENCE)

    asyncio.run(main())
    assert asked.checkpoints < runs * steps / 4


def test_the_end_of_a_run_needs_no_look_at_what_follows_it(hf_file: Holdfast, asked: Asked) -> None:
    ended: list[int] = []

    @hf_file.workflow
    async def work(run: Run, n: int) -> int:
        await run.step(step, n)
        ended.append(n)
        return n

    async def main() -> None:
        handles = await work.astart_many([work.bind(n=n) for n in range(20)])
        async with hf_file.worker(poll=0.1) as worker:
            async with asyncio.timeout(PATIENCE):
                while len(ended) < 20 or worker.held:  # noqa: ASYNC110 - no event is told
                    await asyncio.sleep(0.01)
        assert [await handle.aresult(PATIENCE) for handle in handles] == list(range(20))

    asyncio.run(main())
    assert asked.statements["finish"] > 0
    assert asked.statements["followed"] == 0


def test_a_run_in_a_workers_hands_takes_little_memory(hf_file: Holdfast) -> None:
    runs = 200

    async def main() -> None:
        begun, go = Counter[str](), asyncio.Event()

        async def slow() -> None:
            begun["step"] += 1
            await go.wait()

        @hf_file.workflow
        async def work(run: Run) -> None:
            await run.step(slow)

        async def held(count: int) -> int:
            await work.astart_many([work.bind() for _ in range(count)])
            async with asyncio.timeout(PATIENCE):
                while begun["step"] < total:  # noqa: ASYNC110 - as above
                    await asyncio.sleep(0.01)
            gc.collect()
            return tracemalloc.get_traced_memory()[0]

        async with hf_file.worker(concurrency=2 * runs, poll=0.1) as worker:
            # The first half pays for what all share.
            total = runs
            first = await held(runs)
            total = 2 * runs
            assert (await held(runs) - first) / runs < 20_000
            go.set()
            while worker.held:  # noqa: ASYNC110 - as above
                await asyncio.sleep(0.01)

    tracemalloc.start()
    try:
        asyncio.run(main())
    finally:
        tracemalloc.stop()


def test_a_worker_looks_when_what_it_has_put_off_is_due() -> None:
    source = JobsSource(["runs"], {})
    assert source.again_in() is None
    for end, after in ((Park(new_id(), 1, "timer", 50_000), 50.0), (PutBack(new_id(), 1, 20_000), 20.0)):
        settling = source.settle([end], "worker")
        assert isinstance(settling, LearningFlow)
        settling.learn(Settled())
        again = source.again_in()
        assert again is not None
        assert 0 < again <= after
    # One that waits for a signal, and one that is due at once, are found otherwise.
    for end in (Park(new_id(), 1, "signal:go"), PutBack(new_id(), 1)):
        settling = source.settle([end], "worker")
        assert isinstance(settling, LearningFlow)
        settling.learn(Settled())
    assert (source.again_in() or 0) > 10


def test_moments_that_have_passed_are_looked_at_once_and_few_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    now: list[float] = [100.0]
    monkeypatch.setattr("holdfast.jobs.due.time.monotonic", lambda: now[0])
    due = Due()
    assert due.again_in() is None
    due.add([5.0, 1.0])
    due.add([float(n) for n in range(2, 2 * MOST_KEPT)])
    assert due.again_in() == 1.0
    now[0] += 1.5
    assert [due.again_in(), due.again_in()] == [0.0, 0.5]
    now[0] += 2 * MOST_KEPT
    assert [due.again_in(), due.again_in()] == [0.0, None]
