"""The Jobs sink: events become jobs, once each, on PostgreSQL (with a cut connection) and on SQLite."""

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from holdfast import Holdfast, Job
from holdfast.errors import ConfigError
from holdfast.sinks import Delivered, Failed, Jobs, Message, Outcome, Refused
from holdfast.testing.inline import aenqueued, enqueued, run_due
from holdfast.testing.sink_suite import *  # noqa: F403
from holdfast.testing.sinks import Receiver, full_message, message
from holdfast.values.cloudevents import CloudEvent
from tests.gate import Gate
from tests.proxy import Proxy

# It has none; the application has them.
del test_secrets_are_not_shown  # noqa: F821


class ClosingJobs(Jobs):
    """A sink whose application is its own, and closes with it."""

    def __init__(self, url: str) -> None:
        self.hf = Holdfast(url)

        @self.hf.job(kind="take")
        def take(event: CloudEvent) -> None: ...

        super().__init__(take)

    async def close(self) -> None:
        await self.hf.aclose()


class Queue(Receiver):
    """A queue of jobs in PostgreSQL, read by looking at the pending ones."""

    finds_out = True

    def __init__(self, url: str, proxy: Proxy, gate: Gate) -> None:
        self.url, self.proxy, self.gate = url, proxy, gate
        hf = Holdfast(url)
        hf.migrate()
        hf.close()

    def sink(self) -> Jobs:
        return ClosingJobs(self.gate.url(self.proxy.url(self.url)))

    async def received(self) -> list[CloudEvent]:
        hf = Holdfast(self.url)
        jobs = await aenqueued(hf)
        await hf.aclose()
        # In the order of their ids, which is the order in which they were enqueued.
        return [event_of(job.payload) for job in sorted(jobs, key=lambda job: job.id)]

    def bad(self) -> Message:
        return message("bad", "x" * 2_000_000)

    def outage(self) -> Any:
        return self.gate.shut()

    @contextlib.contextmanager
    def lost_answers(self) -> Iterator[None]:
        before = self.proxy.cuts
        self.proxy.cut_commit_reply()
        yield
        self.proxy.heal()
        assert self.proxy.cuts > before


def event_of(payload: str) -> CloudEvent:
    return msgspec.convert(msgspec.json.decode(payload)["event"], CloudEvent)


@pytest.fixture
def receiver(pg_url: str, pg_proxy: Proxy) -> Iterator[Queue]:
    with Gate(pg_proxy.port) as gate:
        yield Queue(pg_url, pg_proxy, gate)


@pytest.fixture
def hf(sqlite_url: str) -> Iterator[Holdfast]:
    hf = Holdfast(sqlite_url)
    hf.migrate()
    yield hf
    hf.close()


def outcomes_of(sink: Jobs, *messages: Message) -> list[Outcome]:
    return list(asyncio.run(sink.send(messages)))


def test_a_handler_gets_the_event_and_the_job_its_key_and_headers(hf: Holdfast) -> None:
    seen: list[Any] = []

    @hf.job
    def paid(event: CloudEvent, job: Job) -> None:
        seen.append((event, job.key, dict(job.headers)))

    one = full_message("order:7")
    [outcome] = outcomes_of(Jobs(paid), Message(one.event, one.key, {"tenant": "a", "holdfast-chain": "forged"}))
    [ran] = run_due(hf)
    assert outcome == Delivered(ran.id)
    [(event, key, headers)] = seen
    assert (event.attributes, event.data, key) == (one.event.attributes, one.event.data, "order:7")
    assert headers == {"tenant": "a", "traceparent": one.event.extensions["traceparent"]}


def test_the_data_may_be_the_arguments_and_the_queue_another(hf: Holdfast) -> None:
    @hf.job
    def ship(order_id: int, express: bool = False) -> None: ...

    sink = Jobs(ship, arguments="data", queue="shipping")
    fine, wrong = outcomes_of(sink, message(None, {"order_id": 7}), message(None, {"order": 7}))
    assert isinstance(fine, Delivered)
    assert isinstance(wrong, Refused)
    assert "order" in wrong.reason
    [job] = enqueued(hf, ship)
    assert (job.payload, job.queue) == ('{"order_id":7}', "shipping")


def test_a_function_may_make_the_arguments(hf: Holdfast) -> None:
    @hf.job
    def ship(order_id: int) -> None: ...

    sink = Jobs(ship, arguments=lambda one: {"order_id": one.event.data["id"]})
    messages = [message("a", {"id": 7}), message("b", {"no": "id"}), message("b", {"id": 8})]
    fine, failed, behind = outcomes_of(sink, *messages)
    assert isinstance(fine, Delivered)
    assert failed == Failed("KeyError: 'id'")
    assert isinstance(behind, Failed)


def test_a_kind_of_another_program_may_be_named(hf: Holdfast) -> None:
    [outcome] = outcomes_of(Jobs(hf, kind="elsewhere.take"), message())
    assert isinstance(outcome, Delivered)
    [job] = enqueued(hf, "elsewhere.take")
    assert job.id == outcome.receipt


def test_a_repeated_event_adds_no_second_job(hf: Holdfast) -> None:
    @hf.job
    def take(event: CloudEvent) -> None: ...

    one = message("a")
    first, again = (outcomes_of(Jobs(take), one) for _ in range(2))
    assert first == again
    assert len(enqueued(hf, take)) == 1


def test_data_that_is_not_json_is_refused_with_its_reason(hf: Holdfast) -> None:
    @hf.job
    def take(event: CloudEvent) -> None: ...

    [outcome] = outcomes_of(Jobs(take), message(None, b"\x00", datacontenttype="image/png"))
    assert isinstance(outcome, Refused)
    assert "bytes has no form in JSON" in outcome.reason


def test_settings_are_checked_at_once(hf: Holdfast) -> None:
    @hf.job
    def take(event: CloudEvent) -> None: ...

    for make in (
        lambda: Jobs(hf),
        lambda: Jobs(take, kind="other"),
        lambda: Jobs(print),  # type: ignore[arg-type]
        lambda: Jobs(take, arguments="everything"),  # type: ignore[arg-type]
        lambda: Jobs(take, queue=""),
        lambda: Jobs(take, window=-1),
    ):
        with pytest.raises(ConfigError):
            make()
