"""Steps of many runs in few tasks: none of them notices that it shares one."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from contextvars import ContextVar, copy_context
from typing import Any

from holdfast.worker.step_turns import TURN_SECONDS, Doing, StepTurns

Over = list[tuple[str, BaseException | None]]

greeting: ContextVar[str] = ContextVar("greeting", default="hello")


def made(turns: StepTurns, over: Over, name: str, step: Callable[[], Coroutine[Any, Any, None]]) -> Doing:
    """Have a step made as a run has it made: whatever it raises is noted, and a cancel goes on."""

    async def noted() -> None:
        error: BaseException | None = None
        try:
            await step()
        except BaseException as raised:
            error = raised
        over.append((name, error))
        if isinstance(error, asyncio.CancelledError):
            raise error

    doing = Doing(noted, copy_context())
    turns.add(doing)
    return doing


async def settled(over: Over, count: int) -> None:
    while len(over) < count:  # noqa: ASYNC110 - what adds to it has no event to set
        await asyncio.sleep(0)


def test_steps_that_wait_for_nothing_share_a_task_and_one_that_waits_holds_up_nobody() -> None:
    tasks: dict[str, Any] = {}

    async def main() -> None:
        turns, over, go = StepTurns(), Over(), asyncio.Event()

        def step(name: str, waits: bool = False) -> Callable[[], Coroutine[Any, Any, None]]:
            async def made_step() -> None:
                tasks[name] = asyncio.current_task()
                if waits:
                    await go.wait()
                    assert asyncio.current_task() is tasks[name]

            return made_step

        for name in ("first", "second"):
            made(turns, over, name, step(name))
        made(turns, over, "slow", step("slow", waits=True))
        for name in ("third", "fourth"):
            made(turns, over, name, step(name))
        await settled(over, 4)
        go.set()
        await settled(over, 5)
        assert over == [(name, None) for name in ("first", "second", "third", "fourth", "slow")]
        assert tasks["first"] is tasks["second"] is tasks["slow"]
        assert tasks["third"] is tasks["fourth"] is not tasks["slow"]

    asyncio.run(main())


def test_what_a_step_sets_in_a_context_variable_is_not_there_for_the_next() -> None:
    heard: list[str] = []

    async def main() -> None:
        turns, over = StepTurns(), Over()

        async def step() -> None:
            heard.append(greeting.get())
            greeting.set("good bye")
            await asyncio.sleep(0)
            heard.append(greeting.get())

        for name in ("one", "two"):
            made(turns, over, name, step)
        await settled(over, 2)

    asyncio.run(main())
    assert sorted(heard) == ["good bye", "good bye", "hello", "hello"]


def test_a_cancel_hits_the_step_that_waits_and_nobody_else() -> None:
    async def main() -> None:
        turns, over = StepTurns(), Over()

        async def waits() -> None:
            await asyncio.Event().wait()

        async def quick() -> None:
            await asyncio.sleep(0)

        doing = made(turns, over, "cancelled", waits)
        made(turns, over, "after", quick)
        await settled(over, 1)
        doing.cancel()
        await settled(over, 2)
        doing.cancel()
        made(turns, over, "later", quick)
        await settled(over, 3)
        assert [name for name, _ in over] == ["after", "cancelled", "later"]
        assert [type(error) for _, error in over] == [type(None), asyncio.CancelledError, type(None)]

    asyncio.run(main())


def test_a_step_that_is_cancelled_before_it_begins_never_does() -> None:
    async def main() -> None:
        turns, over = StepTurns(), Over()

        async def step() -> None: ...

        made(turns, over, "dropped", step).cancel()
        made(turns, over, "made", step)
        await settled(over, 1)
        await asyncio.sleep(0)
        assert over == [("made", None)]

    asyncio.run(main())


def test_a_step_that_cancels_its_own_task_hits_no_other_step() -> None:
    async def main() -> None:
        turns, over = StepTurns(), Over()

        async def selfish() -> None:
            task: Any = asyncio.current_task()
            task.cancel()

        async def step() -> None:
            await asyncio.sleep(0)

        made(turns, over, "selfish", selfish)
        made(turns, over, "next", step)
        await settled(over, 2)
        assert over == [("selfish", None), ("next", None)]

    asyncio.run(main())


def test_time_outs_work_in_a_step_and_what_it_raises_is_told() -> None:
    async def main() -> None:
        turns, over = StepTurns(), Over()

        async def late() -> None:
            async with asyncio.timeout(0.001):
                await asyncio.Event().wait()

        async def broken() -> None:
            raise ValueError("no")

        made(turns, over, "broken", broken)
        made(turns, over, "late", late)
        await settled(over, 2)
        assert [(name, type(error)) for name, error in over] == [("broken", ValueError), ("late", TimeoutError)]

    asyncio.run(main())


def test_a_cancel_that_a_step_leaves_behind_in_a_callback_does_not_stop_the_serving_of_steps() -> None:
    async def main() -> None:
        turns, over = StepTurns(), Over()

        async def leaves_a_cancel() -> None:
            task: Any = asyncio.current_task()
            asyncio.get_running_loop().call_soon(task.cancel)
            # Longer than a turn: the task lets the loop come round, and the cancel hits it there.
            time.sleep(2 * TURN_SECONDS)  # noqa: ASYNC251 - it keeps the loop, which is the point

        async def step() -> None: ...

        made(turns, over, "first", leaves_a_cancel)
        made(turns, over, "second", step)
        await settled(over, 2)
        made(turns, over, "third", step)
        async with asyncio.timeout(10):
            await settled(over, 3)
        assert over == [(name, None) for name in ("first", "second", "third")]

    asyncio.run(main())
