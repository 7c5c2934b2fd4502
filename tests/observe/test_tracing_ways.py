"""Traces over the longer ways: many at once, parked runs, remote steps, replays, publishes, the state of vendors."""

import sqlite3
from collections.abc import Callable
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.trace import (
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    StatusCode,
    TraceFlags,
    TraceState,
    set_span_in_context,
)

from holdfast import Fatal, Job, Retry, Run, admin
from holdfast.sinks import Function
from tests.observe.spans import Seen, is_below, links, trace_of
from tests.worker.stage import Stage


def said(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def carried(stage: Stage, job: Any) -> str:
    """Return the id of the span that is in a job's headers."""
    headers = stage.show(job).headers
    assert headers is not None
    return str(headers["traceparent"].split("-")[2])


def test_jobs_that_are_enqueued_at_once_have_one_span_for_each_queue(stage: Stage, seen: Seen) -> None:
    stage.hf.trace(tracer_provider=seen.provider)

    @stage.hf.job(queue="mail")
    async def send(n: int) -> None: ...

    @stage.hf.job(queue="mail")
    async def remind(n: int) -> None: ...

    @stage.hf.job(queue="images")
    async def resize(n: int) -> None: ...

    own = send.using(headers={"traceparent": f"00-{'a' * 32}-{'b' * 16}-01"}).bind(n=9)
    with seen.tracer.start_as_current_span("request"):
        added = stage.hf.enqueue_many([*(send.bind(n=n) for n in range(3)), own, resize.bind(n=1)])
        mixed = stage.hf.enqueue_many([send.bind(n=1), remind.bind(n=1)])
    first, second = seen.named("send mail")
    image = seen.one("send images")
    assert first.kind is SpanKind.PRODUCER
    assert is_below(first, seen.one("request"))
    assert (said(first)["messaging.batch.message_count"], said(first)["holdfast.job.kind"]) == (4, "send")
    assert "messaging.message.id" not in said(first)
    assert "holdfast.job.kind" not in said(second)
    assert said(image)["messaging.message.id"] == added[4].id
    ids = [f"{one.context.span_id:016x}" for one in (first, second, image)]
    assert [carried(stage, job) for job in added] == [ids[0]] * 3 + ["b" * 16, ids[2]]
    assert [carried(stage, job) for job in mixed] == [ids[1]] * 2


@pytest.mark.parametrize("way", ["batch", "runs", "events"])
def test_members_of_a_batch_runs_and_events_at_once_have_one_span(stage: Stage, seen: Seen, way: str) -> None:
    hf = stage.hf
    hf.trace(tracer_provider=seen.provider)
    hf.route("order.*", to=Function(lambda message: None), name="out")

    @hf.job(queue="mail")
    async def send(n: int) -> None: ...

    @hf.job(queue="last")
    async def report() -> None: ...

    @hf.workflow(queue="runs")
    async def fulfil(run: Run, n: int) -> None: ...

    def batch() -> str:
        with hf.batch(then=report.bind()) as made:
            made.add_many(send.bind(n=n) for n in range(3))
        assert said(seen.one("send last"))["messaging.message.id"] == made.id
        return "send mail"

    def runs() -> str:
        fulfil.start_many([fulfil.bind(n=n) for n in range(3)])
        return "send runs"

    def events() -> str:
        hf.publish_many([hf.draft("order.created", {"id": n}) for n in range(3)])
        return "send route:out"

    ways: dict[str, Callable[[], str]] = {"batch": batch, "runs": runs, "events": events}
    with seen.tracer.start_as_current_span("request"):
        name = ways[way]()
    assert said(seen.one(name))["messaging.batch.message_count"] == 3


def test_the_span_of_one_event_and_of_one_run_names_its_message(stage: Stage, seen: Seen) -> None:
    hf = stage.hf
    hf.trace(tracer_provider=seen.provider)

    @hf.workflow(queue="runs")
    async def fulfil(run: Run) -> None: ...

    with seen.tracer.start_as_current_span("request"):
        event = hf.publish("order.created", {"id": 1})
        run = fulfil.start(id="order-1")
    assert said(seen.one("send route:-"))["messaging.message.id"] == event.id
    assert said(seen.one("send runs"))["messaging.message.id"] == run.named


def test_a_run_that_was_parked_goes_on_linked_to_what_started_it(stage: Stage, seen: Seen) -> None:
    hf = stage.hf
    hf.trace(tracer_provider=seen.provider)

    async def charge() -> int:
        return 1

    async def ship() -> int:
        return 2

    @hf.workflow
    async def fulfil(run: Run) -> int:
        await run.step(charge)
        # Longer than a worker keeps a body that waits.
        await run.sleep(1.2)
        return await run.step(ship)

    with seen.tracer.start_as_current_span("request"):
        fulfil.start(id="order-1")
    stage.work(poll=0.02)
    sent = seen.one("send runs")
    first, *_, last = seen.named("process runs")
    assert is_below(first, sent)
    assert is_below(seen.one("step charge"), first)
    assert said(first)["holdfast.outcome"] == "parked"
    assert last is not first
    assert last.parent is None
    assert links(last) == [sent.context.span_id]
    assert is_below(seen.one("step ship"), last)
    assert said(last)["holdfast.outcome"] == "done"


def test_a_run_with_a_remote_step_stays_joined(stage: Stage, seen: Seen) -> None:
    hf = stage.hf
    hf.trace(tracer_provider=seen.provider)
    hf.remote_engine(poll=0.05)
    steps = hf.foreign.durable(lease=1)
    steps.create_schema()

    @steps.step("echo")
    async def echo(value: int) -> int:
        return value

    async def ship() -> int:
        return 2

    @hf.workflow
    async def fulfil(run: Run) -> int:
        return int(await run.remote("echo", 1)) + await run.step(ship)

    with seen.tracer.start_as_current_span("request"):
        fulfil.start(id="order-1")
    stage.work(poll=0.02)
    sent = seen.one("send runs")
    attempts = seen.named("process runs")
    assert attempts
    assert all(is_below(one, sent) or links(one) == [sent.context.span_id] for one in attempts)
    assert is_below(seen.one("step ship"), attempts[-1])


def test_a_replayed_dead_letter_is_linked_to_what_enqueued_it(sqlite_stage: Stage, seen: Seen) -> None:
    stage, hf = sqlite_stage, sqlite_stage.hf
    hf.trace(tracer_provider=seen.provider)
    healed: list[int] = []

    @hf.job(retry=Retry(max_attempts=1))
    async def send(job: Job) -> None:
        if not healed:
            raise Fatal("not yet")

    with seen.tracer.start_as_current_span("request"):
        job = send.enqueue()
    stage.work(poll=0.02)
    healed.append(1)
    # Letters are replayed hours after they were enqueued, not at once.
    stage.sql("update holdfast_finished set created_at = created_at - 5000000")
    stage.run(admin.retry(job.id, "ada"))
    stage.work(poll=0.02)
    sent = seen.one("send default")
    dead, replayed = seen.named("process default")
    assert (said(dead)["holdfast.outcome"], said(replayed)["holdfast.outcome"]) == ("dead", "done")
    assert is_below(dead, sent)
    assert links(replayed) == [sent.context.span_id]


def test_a_publish_in_the_callers_transaction_carries_its_trace_or_is_not_there(
    sqlite_stage: Stage, seen: Seen
) -> None:
    hf = sqlite_stage.hf
    hf.trace(tracer_provider=seen.provider)
    came: list[Any] = []
    hf.route("order.*", to=Function(lambda message: came.append(message)), name="out")
    connection = sqlite3.connect(sqlite_stage.url.removeprefix("sqlite:///"))
    with seen.tracer.start_as_current_span("undone"):
        hf.publish("order.created", {"id": 1}, tx=connection)
    connection.rollback()
    assert sqlite_stage.live() == 0
    with seen.tracer.start_as_current_span("request"):
        event = hf.publish("order.created", {"id": 2}, tx=connection)
    connection.commit()
    connection.close()
    sqlite_stage.work(poll=0.02)
    [message] = came
    request = seen.one("request")
    _, published, delivered = seen.named("send route:out")
    assert said(published)["messaging.message.id"] == event.id
    assert is_below(published, request)
    assert is_below(delivered, published)
    assert message.event.extensions["traceparent"].split("-")[1] == f"{trace_of(request):032x}"


def test_the_state_of_vendors_goes_with_the_trace(stage: Stage, seen: Seen) -> None:
    hf = stage.hf
    hf.trace(tracer_provider=seen.provider)
    came: list[Any] = []
    hf.route("order.*", to=Function(lambda message: came.append(message)), name="out")

    @hf.job(queue="mail")
    async def send() -> None:
        hf.publish("order.created", {"id": 1})

    theirs = SpanContext(1, 2, is_remote=True, trace_flags=TraceFlags(1), trace_state=TraceState([("shop", "a1")]))
    with seen.tracer.start_as_current_span("request", context=set_span_in_context(NonRecordingSpan(theirs))):
        job = send.enqueue()
    headers = stage.show(job).headers
    assert headers is not None
    assert headers["tracestate"] == "shop=a1"
    stage.work(poll=0.02)
    assert seen.one("process mail").context.trace_state.get("shop") == "a1"
    assert came[0].event.extensions["tracestate"] == "shop=a1"


class Speechless(Exception):
    def __str__(self) -> str:
        raise ValueError("asked for its words")


class Failing(SpanProcessor):
    """A processor of the application's that fails at the begin or at the end of spans."""

    def __init__(self, at: str) -> None:
        self.at = at

    def on_start(self, span: Any, parent_context: Any = None) -> None:
        if self.at == "start":
            raise RuntimeError("the processor is broken")

    def on_end(self, span: Any) -> None:
        if self.at == "end":
            raise RuntimeError("the processor is broken")


def test_an_exception_that_cannot_say_its_words_ends_no_worker(stage: Stage, seen: Seen) -> None:
    stage.hf.trace(tracer_provider=seen.provider)

    @stage.hf.job(retry=Retry(max_attempts=1))
    async def fails() -> None:
        raise Speechless

    async def fails_as_well() -> None:
        raise Speechless

    @stage.hf.workflow(retry=Retry(max_attempts=1))
    async def steps(run: Run) -> None:
        await run.step(fails_as_well, retry=Retry(max_attempts=1))

    with seen.tracer.start_as_current_span("request"):
        job = fails.enqueue()
        steps.start(id="a")
    stage.work(poll=0.02)
    assert stage.state(job) == "dead"
    [run] = stage.run(admin.list_jobs(admin.Filter(kind="steps@1")))
    record = stage.show(run).last_error
    assert record is not None
    assert "asked for its words" not in record["message"], "the error of telling took the place of the step's own"
    spans = [seen.one("process default"), seen.one("step fails_as_well")]
    for span in spans:
        assert span.status.status_code is StatusCode.ERROR
        [event] = span.events
        assert str((event.attributes or {})["exception.type"]).endswith("Speechless")


@pytest.mark.parametrize("at", ["start", "end"])
def test_tracing_that_fails_fails_no_job(stage: Stage, at: str, caplog: pytest.LogCaptureFixture) -> None:
    provider = TracerProvider()
    stage.hf.trace(tracer_provider=provider, roots=True)

    @stage.hf.job
    async def send() -> None: ...

    @stage.hf.workflow
    async def steps(run: Run) -> None:
        await run.step(send_by_hand)

    async def send_by_hand() -> None: ...

    headers = {"traceparent": f"00-{'a' * 32}-{'b' * 16}-01"}
    job = send.using(headers=headers).enqueue()
    provider.add_span_processor(Failing(at))
    other = send.enqueue()
    steps.start(id="a")
    stage.work(poll=0.02)
    [run] = stage.run(admin.list_jobs(admin.Filter(kind="steps@1")))
    assert {stage.state(one) for one in (job, other, run)} == {"done"}
    assert "tracing failed" in caplog.text
