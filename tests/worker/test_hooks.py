"""What runs when a worker starts: it gives handlers their resources, and ends with the worker."""

import asyncio
import contextlib
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NewType

import pytest

from holdfast import GIVEN, Bulk, ConfigError, Holdfast, HookFailed, InvalidPayload, Job, Run
from holdfast.errors import WorkerFailed
from holdfast.testing.inline import enqueued, given, run_due


class Client:
    """What stands for an HTTP client: no payload can carry it."""

    def __init__(self, name: str = "real") -> None:
        self.name = name


class Pool:
    pass


@dataclass
class Settings:
    """What a payload could carry as well."""

    shop: str


@pytest.fixture
def hf(sqlite_url: str) -> Iterator[Holdfast]:
    app = Holdfast(sqlite_url)
    app.migrate()
    yield app
    app.close()


def work(hf: Holdfast, until: Any, **options: Any) -> None:
    """Let a worker run until something is true."""

    async def scene() -> None:
        async with asyncio.timeout(30), hf.worker(poll=0.02, **options):
            while not until():  # noqa: ASYNC110 - what is looked at are lists and events of any kind
                await asyncio.sleep(0.01)
        await hf.aclose()

    asyncio.run(scene())


def test_handlers_of_every_kind_are_given_what_hooks_yield(hf: Holdfast) -> None:
    seen: list[object] = []

    @hf.on_start
    async def client() -> AsyncIterator[Client]:
        yield Client()

    @hf.on_start
    def pool() -> Pool:
        return Pool()

    @hf.job
    async def plain(client: Client, url: str) -> None:
        seen.append((client.name, url))

    @hf.job
    async def with_job(job: Job, client: Client, pool: Pool, url: str = "default") -> None:
        seen.append((job.kind, client.name, type(pool), url))

    @hf.job
    def on_a_thread(url: str, client: Client = GIVEN) -> None:
        seen.append((client.name, url))

    @hf.job
    def on_a_thread_with_job(job: Job, url: str, client: Client = GIVEN) -> None:
        seen.append((job.kind, client.name, url))

    @hf.bulk
    async def index(pages: list[str], bulk: Bulk, client: Client = GIVEN) -> None:
        seen.append((client.name, *pages, len(bulk.jobs)))

    plain.enqueue(url="a")
    with_job.enqueue()
    on_a_thread.enqueue("c")
    on_a_thread_with_job.enqueue("d")
    index.enqueue("e")
    work(hf, lambda: len(seen) == 5)
    expected = [("real", "a"), ("with_job", "real", Pool, "default"), ("real", "c")]
    assert set(seen) == {*expected, ("on_a_thread_with_job", "real", "d"), ("real", "e", 1)}


def test_what_follows_the_yield_runs_at_the_stop_last_first_whatever_fails(
    hf: Holdfast, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[str] = []

    @hf.on_start
    async def first() -> AsyncIterator[None]:
        told.append("first")
        yield
        told.append("first ends")

    @hf.on_start
    def second() -> Iterator[Client]:
        told.append("second")
        yield Client()
        told.append("second ends")
        raise OSError("the other side hung up")

    @hf.on_start
    @contextlib.asynccontextmanager
    async def third(client: Client) -> AsyncIterator[Pool]:
        told.append(f"third has {client.name}")
        try:
            yield Pool()
        finally:
            told.append("third ends")

    @hf.job
    async def act(pool: Pool) -> None:
        told.append("job")

    act.enqueue()
    work(hf, lambda: "job" in told)
    assert told == ["first", "second", "third has real", "job", "third ends", "second ends", "first ends"]
    assert "the on_start hook second" in caplog.text
    assert "failed at its end" in caplog.text


def test_a_hook_that_fails_keeps_the_worker_from_starting_and_ends_those_before_it(hf: Holdfast) -> None:
    told: list[str] = []

    @hf.on_start
    async def first() -> AsyncIterator[None]:
        yield
        told.append("first ends")

    @hf.on_start
    async def client() -> Client:
        raise OSError("no route to host")

    @hf.job
    async def act() -> None: ...

    act.enqueue()
    for run in (lambda: work(hf, lambda: False), lambda: run_due(hf)):
        with pytest.raises(HookFailed, match=r"client \(.*test_hooks.py:\d+\).*OSError: no route to host") as caught:
            run()
        assert isinstance(caught.value.__cause__, OSError)
        assert told.pop() == "first ends"
    assert [view.kind for view in enqueued(hf)] == ["act"]


def test_a_hook_that_runs_out_of_an_iterator_is_told_and_hangs_nothing(hf: Holdfast) -> None:
    @hf.on_start
    def pick() -> None:
        next(iter(()))

    @hf.job
    async def act() -> None: ...

    with pytest.raises(HookFailed, match="StopIteration"):
        work(hf, lambda: True)


def test_a_hook_that_cancels_itself_or_gives_what_it_does_not_name_is_told(hf: Holdfast) -> None:
    @hf.job
    async def act() -> None: ...

    def gives_something():  # type: ignore[no-untyped-def]
        return Client()

    async def cancels() -> None:
        raise asyncio.CancelledError

    for hook, why in ((gives_something, "by its annotation what it gives"), (cancels, "cancelled")):
        hf.context.hooks.all.clear()
        hf.on_start(hook)
        with pytest.raises(HookFailed, match=why):
            run_due(hf)


def test_a_hook_lives_in_one_task_so_blocks_that_belong_to_a_task_may_be_open_in_it(hf: Holdfast) -> None:
    ran = asyncio.Event()

    @hf.on_start
    async def tasks() -> AsyncIterator[asyncio.TaskGroup]:
        async with asyncio.TaskGroup() as group:
            yield group

    @hf.job
    async def act(group: asyncio.TaskGroup) -> None:
        group.create_task(asyncio.sleep(0))
        ran.set()

    act.enqueue()
    work(hf, ran.is_set)


def test_a_hook_that_breaks_while_the_worker_runs_stops_it(hf: Holdfast) -> None:
    @hf.on_start
    async def tasks() -> AsyncIterator[asyncio.TaskGroup]:
        async with asyncio.TaskGroup() as group:
            yield group

    async def fails() -> None:
        raise OSError("the connection is gone")

    @hf.job
    async def act(group: asyncio.TaskGroup) -> None:
        group.create_task(fails())

    act.enqueue()
    with pytest.raises(WorkerFailed, match="holdfast-hooks"):
        work(hf, lambda: False)


def test_hooks_that_are_not_async_run_on_a_thread(hf: Holdfast) -> None:
    threads: list[threading.Thread] = []

    @hf.on_start
    def block() -> Iterator[None]:
        threads.append(threading.current_thread())
        yield

    @hf.job
    async def act() -> None: ...

    run_due(hf)
    assert threads[0] is not threading.main_thread()


@pytest.mark.parametrize("fails", [False, True])
def test_what_a_thread_opens_after_the_start_was_called_off_is_ended(hf: Holdfast, fails: bool) -> None:
    told: list[str] = []
    opening, go_on = threading.Event(), threading.Event()

    @hf.on_start
    async def first() -> AsyncIterator[None]:
        yield
        told.append("first ends")

    @hf.on_start
    def slow() -> Iterator[None]:
        opening.set()
        go_on.wait(30)
        told.append("opened")
        if fails:
            raise OSError("no route to host")
        yield
        told.append("closed")

    @hf.job
    async def act() -> None: ...

    async def scene() -> None:
        starting = asyncio.create_task(hf.worker().__aenter__())
        await asyncio.to_thread(opening.wait, 30)
        starting.cancel()
        await asyncio.sleep(0.05)
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await starting
        await hf.aclose()

    asyncio.run(scene())
    assert told == (["opened", "first ends"] if fails else ["opened", "closed", "first ends"])


APP = """
import os
from collections.abc import Iterator

from holdfast import Holdfast

hf = Holdfast({url!r})

@hf.on_start
def note() -> Iterator[None]:
    print("opened", os.getpid(), flush=True)
    yield
    print("closed", os.getpid(), flush=True)

@hf.job
async def act() -> None: ...
"""


def test_each_process_of_a_worker_runs_the_hooks_and_ends_them(hf: Holdfast, tmp_path: Path) -> None:
    (tmp_path / "hooked.py").write_text(APP.format(url=hf.url))
    log = tmp_path / "log"
    command = [sys.executable, "-c", "from holdfast.cli import main; main()", "worker", "hooked:hf", "--processes", "2"]
    with log.open("wb") as out:
        worker = subprocess.Popen(command, cwd=tmp_path, stdout=out, stderr=out, start_new_session=True)
    deadline = time.monotonic() + 60
    while log.read_text().count("worker started") < 2:
        assert worker.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.02)
    worker.terminate()
    assert worker.wait(60) == 0
    said = [line.split() for line in log.read_text().splitlines() if line.startswith(("opened", "closed"))]
    opened, closed = ({pid for word, pid in said if word == wanted} for wanted in ("opened", "closed"))
    assert len(opened) == 2
    assert closed == opened


# What is missing or ambiguous


def test_a_resource_that_no_hook_gives_is_told_when_a_worker_is_made(hf: Holdfast) -> None:
    @hf.job
    async def act(client: Client) -> None: ...

    for make in (hf.worker, lambda: run_due(hf)):
        with pytest.raises(ConfigError, match=r"parameter client of act: asks for .*Client, .*no on_start hook gives"):
            make()
    hf.on_start(lambda: None)
    with pytest.raises(ConfigError, match="they give nothing"):
        hf.worker()


def test_a_hook_that_does_not_say_what_it_gives_is_named_where_that_is_missed(hf: Holdfast) -> None:
    @hf.on_start
    def make_client():  # type: ignore[no-untyped-def]
        yield Client()

    @hf.job
    async def act(client: Client) -> None: ...

    said = (
        r"parameter client of act: .*make_client \(.*test_hooks\.py:\d+\) does not say what it gives: .*`-> .*Client`"
    )
    with pytest.raises(ConfigError, match=said):
        hf.worker()


def test_the_order_of_registering_does_not_matter(hf: Holdfast) -> None:
    @hf.job
    async def act(client: Client) -> str:
        return client.name

    @hf.on_start
    def client() -> Client:
        return Client()

    act.enqueue()
    assert [one.result for one in run_due(hf)] == ["real"]


def test_two_hooks_that_give_the_same_are_refused_unless_their_annotations_tell_them_apart(hf: Holdfast) -> None:
    Other = NewType("Other", Client)

    def one() -> Client:
        return Client("one")

    def two() -> Client:
        return Client("two")

    def three() -> Annotated[Client, "stripe"]:
        return Client("three")

    def four() -> Other:
        return Other(Client("four"))

    hf.on_start(one)
    with pytest.raises(ConfigError, match=r"on_start hook two: gives .*Client, and so does one .*NewType"):
        hf.on_start(two)
    hf.on_start(three)
    hf.on_start(four)

    @hf.job
    async def act(a: Client, b: Annotated[Client, "stripe"], c: Other) -> list[str]:
        return [a.name, b.name, c.name]

    act.enqueue()
    assert [each.result for each in run_due(hf)] == [["one", "three", "four"]]


def test_what_a_payload_could_carry_must_be_marked(hf: Holdfast) -> None:
    @hf.on_start
    def settings() -> Settings:
        return Settings("corner")

    @hf.job
    async def ambiguous(settings: Settings) -> None: ...

    with pytest.raises(ConfigError, match=r"parameter settings of ambiguous: .*= GIVEN"):
        hf.worker()
    del hf.handlers["ambiguous"]

    @hf.job
    async def clear(settings: Settings = GIVEN) -> str:
        return settings.shop

    clear.enqueue()
    assert [one.result for one in run_due(hf)] == ["corner"]


@pytest.mark.parametrize("gives", [str, dict[str, int], object, Any])
def test_a_hook_gives_nothing_that_payloads_hold(hf: Holdfast, gives: Any) -> None:
    def hook() -> Any: ...

    hook.__annotations__["return"] = gives
    with pytest.raises(ConfigError, match="which payloads hold"):
        hf.on_start(hook)


def test_a_hook_asks_for_what_hooks_before_it_give(hf: Holdfast) -> None:
    @hf.on_start
    def client(pool: Pool) -> Client:
        return Client()

    @hf.job
    async def act(client: Client) -> None: ...

    with pytest.raises(ConfigError, match=r"parameter pool of on_start hook client: asks for .*Pool, which no hook"):
        hf.worker()


def test_builtins_that_json_cannot_carry_are_still_refused_when_registered(hf: Holdfast) -> None:
    with pytest.raises(ConfigError, match="parameter number of act"):

        @hf.job
        async def act(number: complex) -> None: ...

    with pytest.raises(ConfigError, match="parameter client of bare: must be annotated"):

        @hf.job
        async def bare(client=GIVEN) -> None: ...  # type: ignore[no-untyped-def]


def test_enqueue_neither_asks_for_a_resource_nor_takes_one(hf: Holdfast) -> None:
    @hf.job
    async def fetch(job: Job, client: Client, url: str) -> None: ...

    assert fetch.bind("a").payload == '{"url":"a"}'
    with pytest.raises(InvalidPayload, match=r"client.*given by the worker, and no payload carries a .*Client"):
        fetch.enqueue(url="a", client=Client())


def test_an_argument_that_nobody_gave_says_so() -> None:
    async def fetch(client: Client = GIVEN) -> str:
        return client.name

    with pytest.raises(AttributeError, match="this argument was not given"):
        asyncio.run(fetch())


# Runs


def test_steps_are_given_what_they_mark_and_workflows_are_told_to_ask_there(hf: Holdfast) -> None:
    @hf.on_start
    def client() -> Client:
        return Client()

    async def charge(order_id: int, client: Client = GIVEN) -> str:
        return f"{order_id} by {client.name}"

    def note(tx: Any, order_id: int, *, client: Client = GIVEN) -> str:
        return f"{client.name} in a transaction"

    @hf.workflow
    async def fulfil(run: Run, order_id: int) -> list[str]:
        return [await run.step(charge, order_id), await run.transaction(note, order_id)]

    handle = fulfil.start(order_id=7)
    run_due(hf)
    assert handle.result() == ["7 by real", "real in a transaction"]

    with pytest.raises(ConfigError, match="reaches the world by its steps"):

        @hf.workflow
        async def wrong(run: Run, client: Client) -> None: ...


# In tests


def test_a_test_gives_a_fake_and_the_hook_does_not_run(hf: Holdfast) -> None:
    told: list[str] = []

    @hf.on_start
    def client() -> Iterator[Client]:
        told.append("real")
        yield Client()

    @hf.job
    async def act(client: Client) -> str:
        return client.name

    act.enqueue()
    with given(hf, {Client: Client("fake")}):
        assert [one.result for one in run_due(hf)] == ["fake"]
        assert told == []
    act.enqueue()
    assert [one.result for one in run_due(hf)] == ["real"]
    with pytest.raises(ConfigError, match="must name what an on_start hook gives"), given(hf, {Pool: Pool()}):
        pass


def test_a_missing_resource_leaves_the_clock_of_the_application_alone(hf: Holdfast) -> None:
    @hf.job
    def ask(client: Client = GIVEN) -> None: ...

    with pytest.raises(ConfigError):
        run_due(hf, ahead=3600)
    assert hf.store.now is None
