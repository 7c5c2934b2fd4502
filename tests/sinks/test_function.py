"""The Function sink: the suite on each way to write the function, and what its answers mean."""

import asyncio
import contextlib
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from holdfast import Fatal
from holdfast.errors import ConfigError
from holdfast.sinks import Delivered, Failed, Function, Message, Outcome, Refused, SinkDown
from holdfast.testing.sink_suite import *  # noqa: F403
from holdfast.testing.sinks import Receiver, message
from holdfast.values.cloudevents import CloudEvent

# It has none.
del test_secrets_are_not_shown  # noqa: F821

LIMIT = 10_000


class Collector(Receiver):
    """A list that functions append to."""

    def __init__(self, way: str) -> None:
        self.way = way
        self.events: list[CloudEvent] = []
        self.down = self.losing = False

    def take(self, one: Message) -> Outcome | None:
        if self.down:
            raise SinkDown("closed for today")
        if len(one.event.body) > LIMIT:
            raise Fatal("too large", code=413)
        self.events.append(one.event)
        return Failed("no answer", unknown=True) if self.losing else None

    async def atake(self, one: Message) -> Outcome | None:
        await asyncio.sleep(0)
        return self.take(one)

    def take_all(self, messages: Sequence[Message]) -> list[Outcome]:
        outcomes: list[Outcome] = []
        stopped = set()
        for one in messages:
            try:
                outcomes.append(Failed("behind") if one.key in stopped else self.take(one) or Delivered())
            except Fatal as error:
                outcomes.append(Refused(str(error)))
            stopped |= {one.key} - {None} if not isinstance(outcomes[-1], Delivered) else set()
        return outcomes

    async def atake_all(self, messages: Sequence[Message]) -> list[Outcome]:
        return self.take_all(messages)

    def sink(self) -> Function:
        return {
            "def": lambda: Function(self.take),
            "async def": lambda: Function(self.atake),
            "several at once": lambda: Function(self.atake, concurrency=4),
            "def with a batch": lambda: Function(self.take_all, batch=True),
            "async def with a batch": lambda: Function(self.atake_all, batch=True),
        }[self.way]()

    async def received(self) -> list[CloudEvent]:
        return self.events

    def bad(self) -> Message:
        return message("bad", "x" * LIMIT * 2)

    @contextlib.contextmanager
    def outage(self) -> Iterator[None]:
        self.down = True
        yield
        self.down = False

    @contextlib.contextmanager
    def lost_answers(self) -> Iterator[None]:
        self.losing = True
        yield
        self.losing = False


WAYS = ["def", "async def", "several at once", "def with a batch", "async def with a batch"]


@pytest.fixture(params=WAYS)
def receiver(request: pytest.FixtureRequest) -> Collector:
    return Collector(request.param)


def outcomes_of(function: Any, *messages: Message, **settings: Any) -> list[Outcome]:
    return list(asyncio.run(Function(function, **settings).send(messages)))


def test_what_a_function_raises_is_a_failed_attempt_of_that_message() -> None:
    def fails(one: Message) -> None:
        if one.key == "a":
            raise ValueError("not this one")

    failed, behind, fine = outcomes_of(fails, message("a"), message("a"), message("b"))
    assert failed == Failed("ValueError: not this one")
    assert isinstance(behind, Failed)
    assert fine == Delivered()


@pytest.mark.parametrize("concurrency", [1, 2])
def test_a_function_that_would_end_the_process_fails_its_message_alone(concurrency: int) -> None:
    async def deliver(one: Message) -> None:
        if one.key == "b":
            raise SystemExit("enough")

    outcomes = outcomes_of(deliver, message("a"), message("b"), message("c"), concurrency=concurrency)
    assert outcomes == [Delivered(), Failed("SystemExit: enough"), Delivered()]


def test_fatal_is_a_refusal_with_its_code() -> None:
    def refuses(one: Message) -> None:
        raise Fatal("no such customer", code="E42")

    assert outcomes_of(refuses, message()) == [Refused("no such customer", "E42")]


def test_an_outcome_is_passed_on() -> None:
    said: list[Outcome] = [Delivered("r1"), Failed("later", retry_after=5), Refused("never")]
    answers = iter(said)
    assert outcomes_of(lambda one: next(answers), message(), message(), message()) == said


def test_down_for_some_is_a_failure_of_those() -> None:
    def half(one: Message) -> None:
        if one.key == "b":
            raise SinkDown("busy", retry_after=3)

    assert outcomes_of(half, message("a"), message("b")) == [Delivered(), Failed("busy", retry_after=3)]


def test_with_one_call_at_a_time_the_order_is_that_of_the_messages() -> None:
    seen: list[str] = []
    messages = [message("a"), message("b"), message(), message("a")]
    outcomes_of(lambda one: seen.append(one.event.id), *messages)
    assert seen == [one.event.id for one in messages]


def test_a_def_runs_on_a_thread_so_that_the_loop_goes_on() -> None:
    threads: list[threading.Thread] = []
    outcomes_of(lambda one: threads.append(threading.current_thread()), message())
    assert threads[0] is not threading.main_thread()


def test_what_is_delivered_behind_a_failure_of_its_key_is_not_counted() -> None:
    def careless(messages: list[Message]) -> list[Outcome]:
        return [Failed("broken"), *([Delivered()] * (len(messages) - 1))]

    outcomes = outcomes_of(careless, message("a"), message("a"), message("b"), batch=True)
    assert [type(one) for one in outcomes] == [Failed, Failed, Delivered]


@pytest.mark.parametrize("answer", [[], [Delivered(), Delivered()], ["yes"]])
def test_a_batch_that_is_answered_wrongly_is_a_mistake_that_is_named(answer: list[Any]) -> None:
    with pytest.raises(ConfigError, match="function"):
        outcomes_of(lambda messages: answer, message(), batch=True)


@pytest.mark.parametrize("settings", [{"concurrency": 0}, {"concurrency": True}])
def test_settings_are_checked_at_once(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        Function(print, **settings)
    with pytest.raises(ConfigError):
        Function("print")  # type: ignore[arg-type]
