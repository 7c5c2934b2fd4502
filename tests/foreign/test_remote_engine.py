"""Our engine dispatches and the real workers of npm and PyPI do the steps, on PostgreSQL and MariaDB."""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast, events
from tests.foreign.conftest import Sql
from tests.foreign.remote_app import declare
from tests.foreign.remote_peers import PATIENCE, Peer, node_worker, pypi_worker

ROOT = Path(__file__).resolve().parents[2]
WORKER = [sys.executable, "-c", "from holdfast.cli import main; main()", "worker"]
pytestmark = pytest.mark.slow


@pytest.fixture(params=["pg", "emptied_mariadb"], ids=["postgres", "mariadb"])
def durable_url(request: pytest.FixtureRequest) -> str:
    url: str = request.getfixturevalue(f"{request.param}_url")
    return url


@pytest.fixture
def app(durable_url: str, hf: Holdfast) -> Holdfast:
    """An application with workflows whose remote steps go over the tables; a lost one is sent again soon."""
    hf.migrate()
    engine = hf.remote_engine(lost_after=0.6, poll=0.1)
    engine.create_schema()
    declare(hf)
    return hf


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    return tmp_path / "notes"


MAKERS: dict[str, Callable[..., Peer]] = {"node": node_worker, "pypi": pypi_worker}
both_makers = pytest.mark.parametrize("maker", MAKERS)
# Of two workers, the first and the second.
pairs = pytest.mark.parametrize("makers", [("node", "node"), ("pypi", "pypi"), ("pypi", "node")], ids="-".join)


@pytest.fixture
def peer_of(durable_url: str, app: Holdfast, notes: Path) -> Iterator[Callable[..., Peer]]:
    """Starts workers of other makers, which end with the test."""
    started: list[Peer] = []

    def start(maker: str, **said: Any) -> Peer:
        started.append(MAKERS[maker](notes, url=durable_url, **said))
        return started[-1]

    yield start
    for peer in started:
        peer.kill()


def ended(app: Holdfast, *handles: Any) -> list[Any]:
    """Work until these runs are over and return their results."""

    async def work() -> list[Any]:
        async with app.worker(poll=0.1):
            found = list(await asyncio.gather(*(handle.aresult(timeout=PATIENCE) for handle in handles)))
        await app.aclose()
        return found

    return asyncio.run(work())


def counts(sql: Sql) -> tuple[int, ...]:
    names = ("durable_transport_tasks", "durable_transport_results", "holdfast_dispatches", "holdfast_signals")
    return tuple(int(sql.one(f"select count(*) from {name}")[0]) for name in names)  # noqa: S608 - names of ours


ALL = [
    ("echo", {"text": "Çağrı 🎈", "list": [1, 2.5, None], "big": 9007199254740991}),
    ("nothing", None),
    ("none", None),
    ("a:b.c", 41),
    ("fails", "order"),
    ("fatal", "x"),
    ("third_time", "y"),
]


def test_a_node_worker_does_the_steps_of_our_runs(
    app: Holdfast, peer_of: Callable[..., Peer], notes: Path, sql: Sql
) -> None:
    seen: list[events.RemoteStepEnded] = []
    app.on(events.RemoteStepEnded, seen.append)
    peer = peer_of("node")
    many = app.handlers["many@1"]
    [found] = ended(app, many.start(steps=ALL, id="r-all"))  # type: ignore[attr-defined]
    assert found[0] == {"echo": ALL[0][1], "by": "node"}
    assert found[1:4] == [None, None, 42]
    assert found[4] == {"type": "RemoteStepFailed", "text": "no order", "code": "E_NO"}
    assert found[5] == {"type": "RemoteStepFailed", "text": "never", "code": "E_NEVER"}
    assert found[6] == 3
    assert len(peer.noted("fails")) == 5
    assert len(peer.noted("fatal")) == 1
    assert len(peer.noted("third_time")) == 3
    assert counts(sql) == (0, 0, 0, 0)
    done = [one for one in seen if one.outcome == "done"]
    assert {one.step for one in done} == {"echo", "nothing", "none", "a:b.c", "third_time"}
    assert all(0 <= one.waited < PATIENCE and 0 <= one.took < PATIENCE for one in done)  # type: ignore[operator]


def test_pypis_worker_does_the_steps_of_our_runs(app: Holdfast, durable_url: str, notes: Path, sql: Sql) -> None:
    steps = [step for step in ALL if step[0] not in ("none", "a:b.c")] + [("nan", 1)]
    with pypi_worker(notes, url=durable_url, prefix="durable") as peer:
        [found] = ended(app, app.handlers["many@1"].start(steps=steps, id="r-all"))  # type: ignore[attr-defined]
        assert found[0] == {"echo": ALL[0][1], "by": "pypi"}
        assert found[1] is None
        assert (found[2]["text"], len(peer.noted("fails"))) == ("no order", 5)
        assert (found[3]["code"], len(peer.noted("fatal"))) == ("E_NEVER", 1)
        assert found[4] == 3
        # A result that is not JSON is a failed step, and its text is kept; nothing behind it waits.
        assert (found[5]["code"], "NaN" in found[5]["text"]) == ("invalid_result", True)
    assert counts(sql) == (0, 0, 0, 0)


@pairs
def test_a_step_longer_than_the_lease_of_its_workers_gives_one_result(
    app: Holdfast, peer_of: Callable[..., Peer], makers: tuple[str, str], sql: Sql
) -> None:
    """These workers never renew, so it runs twice; the run gets the first result, and the second is dropped."""
    peer, _ = [peer_of(maker, steps=["slow"], leaseMs=400) for maker in makers]
    handle = app.handlers["one@1"].start(step="slow", given=1200, id="r-slow")  # type: ignore[attr-defined]
    echo = app.handlers["hasty@1"]
    assert ended(app, handle) == ["slow"]
    assert len(peer.noted("slow began")) >= 2
    assert len([row for row in handle.history() if row.kind == "remote"]) == 1
    deadline = time.monotonic() + PATIENCE
    while len(peer.noted("slow ended")) < len(peer.noted("slow began")):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    # What came late is deleted by the next look for results.
    assert ended(app, echo.start(step="slow", given=1, timeout=20, id="r-next")) == ["slow"]  # type: ignore[attr-defined]
    assert counts(sql)[1:] == (0, 0, 0)
    assert len([row for row in handle.history() if row.kind == "remote"]) == 1


@pairs
def test_another_worker_finishes_what_a_killed_one_began(
    app: Holdfast, peer_of: Callable[..., Peer], makers: tuple[str, str], sql: Sql
) -> None:
    first, second = makers
    victim = peer_of(first, steps=["hangs_once"], leaseMs=600)
    handle = app.handlers["one@1"].start(step="hangs_once", given=1, id="r-kill")  # type: ignore[attr-defined]

    async def work() -> Any:
        async with app.worker(poll=0.1):
            await asyncio.to_thread(victim.wait_for_note, f"hangs_once {victim.pid}")
            victim.kill()
            await asyncio.to_thread(peer_of, second, steps=["hangs_once"], leaseMs=600)
            found = await handle.aresult(timeout=PATIENCE)
        await app.aclose()
        return found

    assert asyncio.run(work()) == "finished by another"
    assert len(victim.noted("hangs_once")) == 2
    assert counts(sql) == (0, 0, 0, 0)


@both_makers
def test_another_engine_takes_the_result_when_ours_is_killed(
    app: Holdfast, durable_url: str, peer_of: Callable[..., Peer], maker: str, notes: Path, sql: Sql
) -> None:
    peer = peer_of(maker, steps=["slow"])
    environment = {
        **os.environ,
        "REMOTE_URL": durable_url,
        "REMOTE_NOTES": str(notes),
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")])),
    }
    command = [*WORKER, "tests.foreign.remote_app:hf", "--poll", "0.1"]
    handle = app.handlers["one@1"].start(step="slow", given=700, id="r-engine")  # type: ignore[attr-defined]
    victim = subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.DEVNULL)
    try:
        peer.wait_for_note("slow began")
    finally:
        victim.kill()
        victim.wait()
    peer.wait_for_note("slow ended")
    second = subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.DEVNULL)
    try:
        assert handle.result(timeout=PATIENCE) == "slow"
    finally:
        second.kill()
        second.wait()
    assert len(peer.noted("slow began")) == 1
    assert peer.noted("run got") == ["run got slow"]
    assert counts(sql) == (0, 0, 0, 0)


@both_makers
def test_a_task_that_its_worker_deletes_late_does_not_swallow_the_retry(
    app: Holdfast, peer_of: Callable[..., Peer], maker: str, sql: Sql
) -> None:
    """The first hang of these tables: the delete by the step's id takes the next attempt with it."""
    lost: list[events.DispatchLost] = []
    app.on(events.DispatchLost, lost.append)
    peer = peer_of(maker, steps=["third_time"], deleteLateMs=400)
    runs = [
        app.handlers["one@1"].start(step="third_time", given=n, id=f"r-{n}")  # type: ignore[attr-defined]
        for n in range(2)
    ]
    assert ended(app, *runs) == [3, 3]
    assert peer.noted("deleted late")
    # On MariaDB the package of PyPI writes the result and deletes the task in one transaction: nothing is late there.
    at_once = maker == "pypi" and app.store.dialect.name == "mysql"
    assert bool(lost) is not at_once, "no retry was swallowed: the test shows nothing"
    assert counts(sql)[1:] == (0, 0, 0)


@pairs
def test_retries_at_once_lose_no_result(
    app: Holdfast, peer_of: Callable[..., Peer], makers: tuple[str, str], sql: Sql
) -> None:
    """The second hang: a result that the engine deletes late takes the result of the retry with it."""
    for maker in makers:
        peer_of(maker, steps=["third_time"])
    runs = [
        app.handlers["many@1"].start(steps=[["third_time", f"{n}/{k}"] for k in range(3)], id=f"r-{n}")  # type: ignore[attr-defined]
        for n in range(10)
    ]
    found = ended(app, *runs)
    assert all(type(value) is int and value >= 2 for values in found for value in values), found
    assert counts(sql)[1:] == (0, 0, 0)


@both_makers
def test_first_use_raced_by_both_sides_makes_the_tables(
    durable_url: str, hf: Holdfast, notes: Path, maker: str
) -> None:
    """A worker of theirs may die of this race; we never do, and its next start works."""
    hf.migrate()
    deaths = 0
    for number in range(4):
        prefix = f"race{number}_{time.time_ns() % 1_000_000}"
        with Holdfast(durable_url) as app:
            app.remote_engine(prefix, poll=0.1)
            declare(app)
            again = partial(MAKERS[maker], notes, url=durable_url, prefix=prefix, steps=["echo"], create=True)
            peers = [again() for _ in range(2)]
            try:
                assert asyncio.run(_raced(app, prefix, peers, again)) == {"echo": 1, "by": maker}
            finally:
                deaths += sum(not peer.alive for peer in peers)
                for peer in peers:
                    peer.kill()
    print(f"their workers died {deaths} times")


async def _raced(app: Holdfast, prefix: str, peers: list[Peer], again: Callable[[], Peer]) -> Any:
    handle = await app.handlers["one@1"].astart(step="echo", given=1, id=prefix)  # type: ignore[attr-defined]
    async with app.worker(poll=0.1):
        await asyncio.sleep(0.05)
        if not any(peer.alive for peer in peers):
            peers.append(await asyncio.to_thread(again))
        found = await handle.aresult(timeout=PATIENCE)
    await app.aclose()
    return found
