"""The body's own loop: it can only wait, whatever the body is made of, and is left without a trace."""

import asyncio
import gc
import weakref
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

import pytest

from holdfast.errors import NoIO, NonDeterminism
from holdfast.runs import Recorded
from holdfast.workflows.body import Body
from holdfast.workflows.operations import Operation

Make = Callable[[Body], Coroutine[Any, Any, Any]]


def started(make: Make, at: float = 100.0) -> Body:
    body = Body("run", lambda: at)
    body.start(lambda: make(body))
    return body


def step(body: Body, name: str = "a") -> asyncio.Future[Any]:
    return body.announce(Operation("step", body.key_for(name), body.future()))


def tell(body: Body, key: str, value: str | None = None, at: int = 0, **fields: Any) -> None:
    body.deliver(Recorded(0, key, fields.pop("kind", "step"), value=value, at=at, **fields))


def test_what_the_body_gives_and_raises_is_its_outcome() -> None:
    async def gives(body: Body) -> int:
        return int(await step(body)) + int(await step(body))

    body = started(gives)
    assert [op.key for op in body.fresh] == ["a"]
    tell(body, "a", "1")
    tell(body, "a#2", "2")
    assert body.outcome() == (3, None)

    async def raises(body: Body) -> None:
        raise ValueError("no")

    _, error = started(raises).outcome()
    assert isinstance(error, ValueError)


@pytest.mark.parametrize(
    "does",
    [
        lambda: asyncio.to_thread(print),
        lambda: asyncio.get_running_loop().run_in_executor(None, print),
        lambda: asyncio.open_connection("127.0.0.1", 1),
        lambda: asyncio.create_subprocess_exec("true"),
        lambda: asyncio.get_running_loop().getaddrinfo("localhost", 80),
    ],
)
def test_real_io_is_refused_at_once_with_what_to_do_instead(does: Callable[[], Any]) -> None:
    async def body(body: Body) -> None:
        await does()

    _, error = started(body).outcome()
    assert isinstance(error, NoIO)
    assert "await run.step(fn" in str(error)


def test_what_belongs_to_another_loop_is_refused_in_the_same_words() -> None:
    other = asyncio.new_event_loop()
    future = other.create_future()

    async def body(body: Body) -> None:
        await future

    _, error = started(body).outcome()
    other.close()
    assert isinstance(error, NoIO)


def test_as_completed_over_coroutines_is_refused_and_over_steps_it_is_not() -> None:
    async def coroutine() -> None: ...

    async def bad(body: Body) -> None:
        for _ in asyncio.as_completed([coroutine()]):
            pass

    _, error = started(bad).outcome()
    assert isinstance(error, NoIO)
    assert "run.as_completed" in str(error)

    async def good(body: Body) -> list[int]:
        return [await one for one in asyncio.as_completed([step(body), step(body)])]

    running = started(good)
    tell(running, "a#2", "2")
    tell(running, "a", "1")
    assert running.outcome() == ([2, 1], None)


def test_everything_in_asyncio_that_only_waits_works() -> None:
    async def branch(body: Body, queue: asyncio.Queue[int], lock: asyncio.Lock) -> None:
        async with lock:
            queue.put_nowait(await step(body))

    async def make(body: Body) -> list[Any]:
        queue: asyncio.Queue[int] = asyncio.Queue()
        lock, enough = asyncio.Lock(), asyncio.Semaphore(1)
        async with asyncio.TaskGroup() as group, enough:
            group.create_task(branch(body, queue, lock))
            group.create_task(branch(body, queue, lock))
        first, second = await queue.get(), await asyncio.wait_for(queue.get(), 1)
        third = await asyncio.shield(step(body))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5):
                await step(body, "never")
        return [first, second, third]

    body = started(make)
    tell(body, "a", "1")
    tell(body, "a#2", "2")
    tell(body, "a#3", "3")
    due = body.loop.next_timer()
    assert due is not None
    tell(body, f"timer:{due[1]}", kind="timer", at=200_000_000)
    assert body.outcome() == ([1, 2, 3], None)


def test_time_is_that_of_the_last_row_and_a_timer_costs_nothing_before_it_rings() -> None:
    async def make(body: Body) -> list[float]:
        times = [body.time()]
        await step(body)
        times.append(body.time())
        await asyncio.sleep(10)
        return [*times, body.time()]

    body = started(make, at=50.0)
    assert body.began == 50.0
    tell(body, "a", at=70_000_000)
    timer = body.loop.next_timer()
    assert timer == (80.0, 1)
    tell(body, "timer:1", kind="timer", at=79_000_000)
    assert body.outcome() == ([50.0, 70.0, 80.0], None)


def test_a_body_that_is_left_sees_no_exception_and_leaves_nothing_to_the_garbage_collector() -> None:
    seen: list[str] = []
    refs: list[Any] = []

    class Held: ...

    async def branch(body: Body) -> None:
        held = Held()
        refs.append(weakref.ref(held))
        try:
            await step(body)
        except Exception:
            seen.append("exception")
        except asyncio.CancelledError:
            seen.append("cancelled")
        finally:
            seen.append("finally")
            await step(body, "late")
            seen.append("after an await in finally")

    async def make(body: Body) -> None:
        await asyncio.gather(branch(body), branch(body))

    body = started(make)
    body.close()
    assert seen == ["finally", "finally"]
    assert body.fresh == []
    gc.collect()
    assert [ref() for ref in refs] == [None, None]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_body_that_catches_everything_cannot_keep_its_place() -> None:
    async def make(body: Body) -> None:
        while True:
            with suppress(BaseException):
                await step(body)

    body = started(make)
    body.close()
    assert body.loop.is_closed()
    del body
    gc.collect()


def test_the_loop_of_the_caller_is_the_running_one_again() -> None:
    async def outside() -> bool:
        loop = asyncio.get_running_loop()

        def slice_of_it() -> bool:
            async def make(body: Body) -> bool:
                return asyncio.get_running_loop() is body.loop

            inside, _ = started(make).outcome()
            return bool(inside) and asyncio.get_running_loop() is loop

        done = loop.create_future()
        loop.call_soon(lambda: done.set_result(slice_of_it()))
        return bool(await done)

    assert asyncio.run(outside())


def test_a_row_that_the_code_never_asks_for_is_named_with_what_it_asks_for() -> None:
    async def make(body: Body) -> None:
        await step(body, "slow")

    body = Body("run", lambda: 0.0)
    with pytest.raises(NonDeterminism, match="recorded next: undo; the code waits for: slow"):
        body.replay([Recorded(1, "undo", "step")], lambda: make(body))


def test_chance_is_the_same_in_every_replay_and_another_in_every_run() -> None:
    async def make(body: Body) -> tuple[Any, ...]:
        return body.uuid(), body.draw().random(), body.uuid()

    first, again = (started(make).outcome()[0] for _ in range(2))
    other = Body("other", lambda: 0.0)
    other.start(lambda: make(other))
    assert first == again
    assert len({*first, *other.outcome()[0]}) == 6
