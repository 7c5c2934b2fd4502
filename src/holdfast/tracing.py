"""Traces by OpenTelemetry: what enqueues a job and what it does become one trace, or are linked.

`hf.trace()` turns it on. An enqueue or a publish within a sampled span leaves its context in the headers of the job,
in the same transaction; the attempt has a span of its own below it, or linked to it. A job without a sampled context
costs no more than without tracing. The names follow OpenTelemetry's conventions for messaging.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import Context
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

import msgspec

from holdfast.errors import ConfigError, DriverMissing
from holdfast.values.failure import type_name, words
from holdfast.values.rows import Lease, when

if TYPE_CHECKING:
    from opentelemetry.trace import Span, TracerProvider

log = logging.getLogger("holdfast.tracing")

Join = Literal["auto", "parent", "link"]
SYSTEM = "holdfast"
# A first attempt that was due this many seconds after it was enqueued has not been put off.
UNDELAYED_SECONDS = 1.0
_MARK = '"traceparent":"'
# Of a W3C trace context: 00-(32 digits)-(16 digits)-(2 digits).
_LENGTH, _FLAGS = 55, 53
_FAILURES = ("retried", "dead", "lost")


class Tracing:
    """The spans of one application's jobs.

    join: whether an attempt is below what enqueued it, or only linked to it; "auto" puts the first attempt of a job
    that was not put off below it, and links the others. roots: whether a job without a context begins a trace.
    """

    def __init__(self, provider: TracerProvider | None = None, join: Join = "auto", roots: bool = False) -> None:
        if join not in get_args(Join):
            raise ConfigError("join", f"must be one of {', '.join(get_args(Join))}", join)
        try:
            from opentelemetry import trace
            from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
        except ImportError as error:
            raise DriverMissing("opentelemetry", "otel", str(error)) from error
        self._trace = trace
        self._tracer = trace.get_tracer("holdfast", tracer_provider=provider)
        self._wire = TraceContextTextMapPropagator()
        self._join = join
        self.roots = roots

    # Enqueueing

    def hook(self, new: Any) -> dict[str, str] | None:
        """Say in the headers of a job which span enqueues it; a hook for `hf.enqueue_hook`."""
        if "traceparent" in new.headers or not self._is_wanted():
            return None
        said = {"holdfast.job.kind": new.kind} | ({"messaging.message.id": new.id} if new.id else {})
        return self._sent(new.queue, said)

    def hook_of_many(self, new: Sequence[tuple[str, str]]) -> Callable[[Any], dict[str, str] | None]:
        """Make the hook of jobs that are added at once, each given by queue and kind: a span for each queue."""
        carried: dict[str, dict[str, str] | None] = {}

        def hook(one: Any) -> dict[str, str] | None:
            if "traceparent" in one.headers:
                return None
            if one.queue not in carried:
                kinds = [kind for queue, kind in new if queue == one.queue]
                if len(kinds) == 1:
                    return self.hook(one)
                said: dict[str, Any] = {"messaging.batch.message_count": len(kinds)}
                said |= {"holdfast.job.kind": kinds[0]} if len(set(kinds)) == 1 else {}
                carried[one.queue] = self._sent(one.queue, said) if self._is_wanted() else None
            return carried[one.queue]

        return hook

    def _is_wanted(self) -> bool:
        """Tell whether what is enqueued now is to have a span."""
        current = self._trace.get_current_span().get_span_context()
        return bool(current.trace_flags.sampled) if current.is_valid else self.roots

    def _sent(self, queue: str, more: dict[str, Any]) -> dict[str, str] | None:
        """Make the span of an enqueue, and return its context as headers; None where it is not sampled."""
        said = self._said("send", queue) | more
        carried: dict[str, str] = {}
        with _harmless("send"):
            span = self._tracer.start_span(f"send {queue}", kind=self._trace.SpanKind.PRODUCER, attributes=said)
            span.end()
            if span.get_span_context().trace_flags.sampled:
                self._wire.inject(carried, self._trace.set_span_in_context(span))
        return carried or None

    # Attempts

    def wants(self, lease: Lease) -> bool:
        """Tell whether an attempt is to have a span: its context says that it is sampled."""
        headers = lease.headers
        if headers is None:
            return self.roots
        if "traceparent" not in headers:
            return self.roots
        return _is_sampled(headers)

    def begin(self, leases: Sequence[Lease], worker: str, operation: str) -> Attempt:
        """Begin the span of an attempt, for one job or for several in one call; it never raises."""
        span: Span = self._trace.INVALID_SPAN
        with _harmless(operation):
            span = self._begun(leases, worker, operation)
        return Attempt(self._trace, span)

    def _begun(self, leases: Sequence[Lease], worker: str, operation: str) -> Span:
        first, alone = leases[0], len(leases) == 1
        contexts = [self._context_of(lease) for lease in leases]
        below = contexts[0] if alone and contexts[0] is not None and self._is_below(first) else None
        links = [] if below is not None else self._links(contexts)
        said = self._said(operation, first.queue) | {"messaging.client.id": worker, "holdfast.job.kind": first.kind}
        if alone:
            said |= {"messaging.message.id": first.job_id, "holdfast.job.attempt": first.attempt}
        else:
            said["messaging.batch.message_count"] = len(leases)
        kinds = self._trace.SpanKind
        return self._tracer.start_span(
            f"{operation} {first.queue}",
            context=_nothing() if below is None else below,
            kind=kinds.CONSUMER if operation == "process" else kinds.CLIENT,
            attributes=said,
            links=links,
        )

    @contextmanager
    def step(self, key: str) -> Iterator[None]:
        """Have a span around a step of a run, below that of the attempt."""
        if not self._trace.get_current_span().is_recording():
            yield
            return
        span: Span = self._trace.INVALID_SPAN
        with _harmless("step"):
            span = self._tracer.start_span(f"step {key}", attributes={"holdfast.step": key})
        with self._trace.use_span(span, record_exception=False, set_status_on_exception=False):
            try:
                yield
            except Exception as error:
                with _harmless("step"):
                    _failed(span, error)
                    span.set_status(self._trace.StatusCode.ERROR, f"{type_name(error)}: {words(error)}")
                raise
            finally:
                with _harmless("step"):
                    span.end()

    def leave(self) -> None:
        """Have no span be the current one in the context that runs."""
        _attach(_nothing())

    def trace_id(self) -> str | None:
        """Name the trace of the code that runs now."""
        context = self._trace.get_current_span().get_span_context()
        return self._trace.format_trace_id(context.trace_id) if context.is_valid else None

    def _is_below(self, lease: Lease) -> bool:
        if self._join != "auto":
            return self._join == "parent"
        waited = when(lease.available_at) - when(lease.created_at)
        return lease.attempt <= 1 and waited.total_seconds() < UNDELAYED_SECONDS

    def _context_of(self, lease: Lease) -> Any:
        """Read the context in a job's headers, as OpenTelemetry has it; None where there is none."""
        headers = _headers(lease.headers)
        if "traceparent" not in headers:
            return None
        found = self._wire.extract(headers, context=_nothing())
        return found if self._trace.get_current_span(found).get_span_context().is_valid else None

    def _links(self, contexts: Sequence[Any]) -> list[Any]:
        """Link to each span once: jobs that were added at once have theirs in common."""
        spans = [self._trace.get_current_span(one).get_span_context() for one in contexts if one is not None]
        return [self._trace.Link(one) for one in {(one.trace_id, one.span_id): one for one in spans}.values()]

    def _said(self, operation: str, queue: str) -> dict[str, Any]:
        return {
            "messaging.system": SYSTEM,
            "messaging.operation.name": operation,
            "messaging.operation.type": operation,
            "messaging.destination.name": queue,
        }


class Attempt:
    """The span of one call."""

    def __init__(self, trace: Any, span: Span) -> None:
        self._trace = trace
        self._span = span

    def inside(self, variables: Context) -> Context:
        """Return a copy of a context in which the span is the current one."""
        made = variables.copy()
        made.run(_attach, self._trace.set_span_in_context(self._span, _nothing()))
        return made

    def end(self, outcome: str, error: BaseException | None) -> None:
        """End the span with what became of the job; it never raises."""
        span = self._span
        with _harmless("end"):
            span.set_attribute("holdfast.outcome", outcome)
            if error is not None:
                _failed(span, error)
            if outcome in _FAILURES:
                span.set_status(self._trace.StatusCode.ERROR, outcome)
            span.end()


def _failed(span: Span, error: BaseException) -> None:
    """Note in a span why it failed."""
    span.set_attribute("error.type", type_name(error))
    try:
        span.record_exception(error)
    except Exception:
        # It asks the exception for its words, and one of a handler's own may answer with another exception.
        span.add_event("exception", {"exception.type": type_name(error), "exception.message": words(error)})


@contextmanager
def _harmless(what: str) -> Iterator[None]:
    """Have what fails in tracing end no job and no worker: samplers and processors are the application's."""
    try:
        yield
    except Exception:
        log.warning("tracing failed (%s); the job is not concerned", what, exc_info=True)


def _attach(context: Any) -> None:
    from opentelemetry.context import attach

    attach(context)


def _nothing() -> Any:
    from opentelemetry.context import Context as Nothing

    return Nothing()


def _is_sampled(headers: str) -> bool:
    """Read the flags of a trace context, without reading all headers where they are written as we write them."""
    place = headers.find(_MARK)
    written = headers[place + len(_MARK) : place + len(_MARK) + _LENGTH] if place >= 0 else _traceparent(headers)
    try:
        return bool(int(written[_FLAGS:_LENGTH], 16) & 1)
    except ValueError:
        return False


def _traceparent(headers: str) -> str:
    return str(_headers(headers).get("traceparent", ""))


def _headers(text: str | None) -> dict[str, Any]:
    try:
        found: object = {} if text is None else msgspec.json.decode(text)
    except msgspec.MsgspecError:
        return {}
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}
