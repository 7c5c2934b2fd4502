"""Traces: what enqueues, runs, continues, publishes and replays a job is one trace, or linked."""

import asyncio
import contextlib
import http.server
import sqlite3
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased
from opentelemetry.trace import SpanKind, StatusCode

from holdfast import ConfigError, Continue, Holdfast, Job, Retry, Run
from holdfast.sinks import Function
from holdfast.worker.handler_executor import Executor
from tests.observe.spans import Seen, is_below, links, trace_of
from tests.worker.stage import Stage


def test_an_attempt_is_below_the_span_that_enqueued_it_and_its_own_work_below_that(stage: Stage, seen: Seen) -> None:
    stage.hf.trace(tracer_provider=seen.provider)
    workers: list[str] = []

    @stage.hf.job(queue="mail")
    async def send(n: int, job: Job) -> None:
        workers.append(job.worker)
        with seen.tracer.start_as_current_span("query"):
            await asyncio.sleep(0)

    with seen.tracer.start_as_current_span("request"):
        job = send.enqueue(n=1)
    stage.work(poll=0.02)
    request, sent, ran, query = (seen.one(name) for name in ("request", "send mail", "process mail", "query"))
    assert is_below(sent, request)
    assert is_below(ran, sent)
    assert is_below(query, ran)
    assert (sent.kind, ran.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    assert (sent.attributes or {})["messaging.message.id"] == job.id
    said = dict(ran.attributes or {})
    assert said["messaging.system"] == "holdfast"
    assert said["messaging.destination.name"] == "mail"
    assert said["messaging.operation.type"] == said["messaging.operation.name"] == "process"
    assert said["messaging.message.id"] == job.id
    assert [said["messaging.client.id"]] == workers
    assert (said["holdfast.job.kind"], said["holdfast.job.attempt"], said["holdfast.outcome"]) == ("send", 1, "done")


def test_the_context_is_written_in_the_callers_transaction(sqlite_stage: Stage, seen: Seen) -> None:
    hf = sqlite_stage.hf
    hf.trace(tracer_provider=seen.provider)

    @hf.job
    async def send() -> None: ...

    connection = sqlite3.connect(sqlite_stage.url.removeprefix("sqlite:///"))
    with seen.tracer.start_as_current_span("request"):
        send.using(tx=connection).enqueue()
        kept = send.using(tx=connection).enqueue()
    connection.rollback()
    assert sqlite_stage.live() == 0
    with seen.tracer.start_as_current_span("request"):
        kept = send.using(tx=connection).enqueue()
        connection.commit()
    headers = sqlite_stage.show(kept).headers
    assert headers is not None
    assert int(headers["traceparent"][-2:], 16) & 1


def test_a_retry_is_linked_and_carries_its_error(stage: Stage, seen: Seen) -> None:
    stage.hf.trace(tracer_provider=seen.provider)

    @stage.hf.job(retry=Retry(max_attempts=3, first_delay=0))
    async def flaky(job: Job) -> None:
        if job.attempt < 2:
            raise LookupError("not there")

    with seen.tracer.start_as_current_span("request"):
        flaky.enqueue()
    stage.work(poll=0.02)
    sent = seen.one("send default")
    first, second = seen.named("process default")
    assert is_below(first, sent)
    assert first.status.status_code is StatusCode.ERROR
    assert (first.attributes or {})["error.type"] == "LookupError"
    assert [event.name for event in first.events] == ["exception"]
    assert second.parent is None
    assert links(second) == [sent.context.span_id]
    assert second.status.status_code is not StatusCode.ERROR


@pytest.mark.parametrize("join, below", [("auto", False), ("parent", True), ("link", False)])
def test_one_setting_says_whether_attempts_are_below_or_linked(
    sqlite_stage: Stage, seen: Seen, join: Any, below: bool
) -> None:
    hf = sqlite_stage.hf
    hf.trace(tracer_provider=seen.provider, join=join)

    @hf.job
    async def later() -> None: ...

    @hf.job
    async def soon() -> None: ...

    with seen.tracer.start_as_current_span("request"):
        later.using(run_after=5).enqueue()
        if join != "auto":
            soon.enqueue()
    sqlite_stage.sql("update holdfast_jobs set available_at = available_at - 3000000")
    sqlite_stage.sql("update holdfast_jobs set created_at = created_at - 5000000")
    sqlite_stage.sql("update holdfast_jobs set available_at = available_at - 3000000 where kind = 'later'")
    sqlite_stage.work(poll=0.02)
    for ran in seen.named("process default"):
        assert (ran.parent is not None) is below
        assert len(links(ran)) == (not below)


def test_jobs_on_threads_in_bulk_and_enqueued_by_jobs_are_joined(stage: Stage, seen: Seen) -> None:
    stage.hf.trace(tracer_provider=seen.provider)

    @stage.hf.bulk(queue="bulk", size=10)
    async def together(items: list[int]) -> None: ...

    @stage.hf.job(queue="threads")
    def on_a_thread() -> None:
        stage.hf.enqueue_many([together.bind(n) for n in range(3)])

    with seen.tracer.start_as_current_span("request"):
        on_a_thread.enqueue()
    stage.work(poll=0.02)
    ran = seen.one("process threads")
    sent = seen.one("send bulk")
    assert is_below(sent, ran)
    for batch in seen.named("process bulk"):
        # One of them may be alone in its call, and is below it then.
        assert links(batch) == [sent.context.span_id] or is_below(batch, sent)


def test_a_chain_is_one_trace(stage: Stage, seen: Seen) -> None:
    stage.hf.trace(tracer_provider=seen.provider)

    @stage.hf.job(queue="second")
    async def second() -> None: ...

    @stage.hf.job(queue="first")
    async def first() -> Continue:
        return Continue(second.bind())

    with seen.tracer.start_as_current_span("request"):
        first.enqueue()
    stage.work(poll=0.02)
    assert trace_of(seen.one("process second")) == trace_of(seen.one("process first")) == trace_of(seen.one("request"))


def test_an_event_carries_its_trace_to_the_sink(stage: Stage, seen: Seen) -> None:
    stage.hf.trace(tracer_provider=seen.provider)
    came: list[Any] = []
    stage.hf.route("order.*", to=Function(lambda message: came.append(message)), name="out")
    with seen.tracer.start_as_current_span("request"):
        stage.hf.publish("order.created", {"id": 1})
    stage.work(poll=0.02)
    request, sent = seen.one("request"), seen.named("send route:out")
    published, delivered = sent
    assert is_below(published, request)
    assert trace_of(delivered) == trace_of(request)
    [message] = came
    assert message.event.extensions["traceparent"].split("-")[1] == f"{trace_of(request):032x}"


def test_a_run_its_steps_and_its_children_are_one_trace(stage: Stage, seen: Seen) -> None:
    hf = stage.hf
    hf.trace(tracer_provider=seen.provider)

    async def charge() -> int:
        with seen.tracer.start_as_current_span("charging"):
            return 1

    @hf.workflow(queue="children")
    async def child(run: Run) -> int:
        return 2

    @hf.workflow
    async def fulfil(run: Run) -> int:
        paid = await run.step(charge)
        return paid + await run.child(child)

    with seen.tracer.start_as_current_span("request"):
        fulfil.start(id="order-1")
    stage.work(poll=0.02)
    request, step, charging = seen.one("request"), seen.one("step charge"), seen.one("charging")
    assert is_below(charging, step)
    first = seen.named("process runs")[0]
    assert is_below(step, first)
    assert trace_of(first) == trace_of(request)
    assert trace_of(seen.one("process children")) == trace_of(request)


def test_what_is_not_sampled_is_neither_written_nor_traced_and_keeps_the_short_way(
    sqlite_stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, off = Seen(), TracerProvider(sampler=ParentBased(ALWAYS_OFF))
    hf = sqlite_stage.hf
    hf.trace(tracer_provider=seen.provider)
    ways: list[str] = []
    attempt = Executor.attempt

    def watched(self: Executor, work: Any, **said: Any) -> Any:
        running = attempt(self, work, **said)
        ways.append(running.cr_code.co_name)
        return running

    monkeypatch.setattr(Executor, "attempt", watched)

    @hf.job
    async def plain() -> None: ...

    with off.get_tracer("test").start_as_current_span("request"):
        unsampled = plain.enqueue()
    outside = plain.enqueue()
    marked = plain.using(headers={"traceparent": f"00-{'a' * 32}-{'b' * 16}-00"}).enqueue()
    assert sqlite_stage.show(unsampled).headers is None
    assert sqlite_stage.show(outside).headers is None
    assert sqlite_stage.show(marked).headers
    sqlite_stage.work(poll=0.02)
    assert ways == ["_attempt"] * 3
    assert not seen.memory.get_finished_spans()


def test_roots_begin_a_trace_where_there_is_none(sqlite_stage: Stage, seen: Seen) -> None:
    hf = sqlite_stage.hf
    hf.trace(tracer_provider=seen.provider, roots=True)

    @hf.job
    async def plain() -> None: ...

    sqlite_stage.put("plain", "{}")
    plain.enqueue()
    sqlite_stage.work(poll=0.02)
    [sent] = seen.named("send default")
    ran = seen.named("process default")
    assert len(ran) == 2
    assert sorted(span.parent is None for span in ran) == [False, True]
    assert any(is_below(span, sent) for span in ran)


def test_wrong_settings_are_refused(sqlite_stage: Stage) -> None:
    with pytest.raises(ConfigError, match="auto, parent, link"):
        sqlite_stage.hf.trace(join="sometimes")  # type: ignore[arg-type]
    sqlite_stage.hf.trace()
    with pytest.raises(ConfigError, match="already"):
        sqlite_stage.hf.trace()


def test_headers_that_are_no_trace_context_harm_nothing(sqlite_stage: Stage, seen: Seen) -> None:
    hf = sqlite_stage.hf
    hf.trace(tracer_provider=seen.provider)

    @hf.job
    async def plain() -> None: ...

    broken = ["", "00-1-2-3", "x" * 60, f"00-{'0' * 32}-{'0' * 16}-01"]
    jobs = [plain.using(headers={"traceparent": one}).enqueue() for one in broken]
    sqlite_stage.work(poll=0.02)
    assert {sqlite_stage.state(job) for job in jobs} == {"done"}


@contextlib.contextmanager
def receiver() -> Iterator[tuple[str, Callable[[], list[Any]]]]:
    """Receive spans over OTLP, as a collector does."""
    requests: list[ExportTraceServiceRequest] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            requests.append(ExportTraceServiceRequest.FromString(body))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: Any) -> None: ...

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield (
            f"http://127.0.0.1:{server.server_port}/v1/traces",
            lambda: [
                span
                for request in requests
                for resource in request.resource_spans
                for scope in resource.scope_spans
                for span in scope.spans
            ],
        )
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_spans_arrive_at_a_receiver_of_otlp(sqlite_stage: Stage) -> None:
    with receiver() as (address, arrived):
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(address)))
        hf: Holdfast = sqlite_stage.hf
        hf.trace(tracer_provider=provider)

        @hf.job(queue="mail")
        async def send() -> None: ...

        with provider.get_tracer("test").start_as_current_span("request"):
            send.enqueue()
        sqlite_stage.work(poll=0.02)
        provider.shutdown()
        spans = {span.name: span for span in arrived()}
    assert set(spans) == {"request", "send mail", "process mail"}
    assert len({span.trace_id for span in spans.values()}) == 1
    assert spans["process mail"].parent_span_id == spans["send mail"].span_id
    assert spans["process mail"].kind == spans["process mail"].SPAN_KIND_CONSUMER


@pytest.mark.parametrize("colour", ["async", "thread"])
def test_a_worker_inside_a_span_of_its_application_makes_that_the_parent_of_no_job(
    sqlite_stage: Stage, seen: Seen, colour: str
) -> None:
    hf = sqlite_stage.hf
    hf.trace(tracer_provider=seen.provider)
    found: dict[str, int] = {}

    def note(name: str) -> None:
        found[name] = trace.get_current_span().get_span_context().trace_id

    @hf.job
    async def on_the_loop(name: str) -> None:
        note(name)

    @hf.job
    def on_a_thread(name: str) -> None:
        note(name)

    look = on_the_loop if colour == "async" else on_a_thread
    look.enqueue(name="without")
    with seen.tracer.start_as_current_span("request"):
        look.enqueue(name="with")
    look.enqueue(name="without, after it")
    with seen.tracer.start_as_current_span("serving"):
        sqlite_stage.work(poll=0.02)
    assert found == {"without": 0, "with": trace_of(seen.one("request")), "without, after it": 0}
    assert is_below(seen.one("process default"), seen.one("send default"))
