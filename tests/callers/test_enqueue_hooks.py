"""Enqueue hooks: functions of an application that add headers to every job, whichever way it is enqueued."""

import asyncio
from typing import Any

import pytest

from holdfast import Enqueueing, Holdfast, Job
from holdfast.errors import ConfigError
from holdfast.testing.inline import enqueued, run_due
from tests.callers.callers import KINDS

each_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)


@pytest.fixture
def hf(sqlite_url: str):
    app = Holdfast(sqlite_url)
    app.migrate()
    yield app
    app.close()


@pytest.fixture
def send(hf: Holdfast):
    @hf.job(queue="mail")
    def send(job: Job, order: int = 0) -> None: ...

    return send


def headers(hf: Holdfast) -> list[dict[str, str]]:
    return [dict(view.headers or {}) for view in enqueued(hf)]


@each_kind
def test_headers_of_a_hook_commit_with_the_job_on_every_connection(shop, caller):
    shop.hf.enqueue_hook(lambda new: {"trace": f"of {new.kind} on {new.queue}"})
    caller.enqueue(shop.hf, shop.receipt.bind(order=1))
    caller.commit()
    assert headers(shop.hf) == [{"trace": "of receipt on default"}]


WAYS = {
    "enqueue": lambda hf, send: send.enqueue(order=1),
    "aenqueue": lambda hf, send: asyncio.run(send.aenqueue(order=1)),
    "using": lambda hf, send: send.using(key="order:1").enqueue(order=1),
    "async using": lambda hf, send: asyncio.run(send.using(key="order:1").aenqueue(order=1)),
    "without a word to workers": lambda hf, send: send.using(notify=False).enqueue(order=1),
    "with a key": lambda hf, send: send.using(idempotency_key="order:1", unique="order:1").enqueue(order=1),
    "many": lambda hf, send: hf.enqueue_many([send.bind(order=1)]),
    "many, async": lambda hf, send: asyncio.run(hf.aenqueue_many([send.bind(order=1)])),
    "by name": lambda hf, send: hf.enqueue("send", {"order": 1}),
    "by name, async": lambda hf, send: asyncio.run(hf.aenqueue("send", {"order": 1})),
    "for another program": lambda hf, send: hf.enqueue("other", {"order": 1}, queue="mail", check=False),
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_a_hook_is_called_whichever_way_a_job_is_enqueued(hf, send, way):
    seen: list[tuple[str, str]] = []

    @hf.enqueue_hook
    def trace(new: Enqueueing) -> dict[str, str]:
        seen.append((new.kind, new.queue))
        return {"trace": "1"}

    way(hf, send)
    assert headers(hf) == [{"trace": "1"}]
    assert seen in ([("send", "mail")], [("other", "mail")])


def test_a_hook_is_called_for_jobs_that_handlers_enqueue_and_for_each_of_many(hf, send):
    numbers = iter(range(100))
    hf.enqueue_hook(lambda new: {"number": str(next(numbers))})
    seen = []

    @hf.job
    def parent(job: Job) -> None:
        seen.append(job.headers["number"])
        hf.enqueue_many([child.bind(), child.bind()])

    @hf.job
    async def child(job: Job) -> None:
        seen.append(job.headers["number"])

    parent.enqueue()
    run_due(hf)
    assert sorted(seen) == ["0", "1", "2"]


def test_hooks_are_called_in_order_and_see_what_is_there_and_cannot_replace_it(hf, send):
    seen = []

    @hf.enqueue_hook
    def first(new: Enqueueing) -> dict[str, str]:
        seen.append(dict(new.headers))
        return {"caller": "first", "trace": "first"}

    @hf.enqueue_hook
    def nothing(new: Enqueueing) -> None:
        seen.append(dict(new.headers))

    @hf.enqueue_hook
    def second(new: Enqueueing) -> dict[str, str]:
        seen.append(dict(new.headers))
        return {"trace": "second", "tenant": "second"}

    send.using(headers={"caller": "said"}).enqueue()
    after_first = {"caller": "said", "trace": "first"}
    assert seen == [{"caller": "said"}, after_first, after_first]
    assert headers(hf) == [{"caller": "said", "trace": "first", "tenant": "second"}]


def test_a_hook_cannot_write_to_the_headers_that_it_sees(hf, send):
    hf.enqueue_hook(lambda new: new.headers.update(trace="1"))
    with pytest.raises(AttributeError):
        send.using(headers={"caller": "said"}).enqueue()
    assert headers(hf) == []


def test_a_hook_that_adds_nothing_leaves_the_job_as_it_is(hf, send):
    hf.enqueue_hook(lambda new: {})
    send.enqueue(order=1)
    assert headers(hf) == [{}]


BAD: dict[str, Any] = {
    "a list": ["trace"],
    "a text": "trace",
    "a number for a value": {"trace": 1},
    "a number for a name": {1: "trace"},
    "an empty name": {"": "trace"},
    "NUL": {"trace": "\0"},
    "too large": {"trace": "x" * 1024 * 1024},
}


@pytest.mark.parametrize("returned", BAD.values(), ids=BAD)
def test_what_is_not_headers_is_refused_by_the_hooks_name_before_anything_is_written(hf, send, returned):
    @hf.enqueue_hook
    def tracing(new: Enqueueing) -> Any:
        return returned if new.kind == "send" else None

    with pytest.raises(ConfigError, match=r"headers of enqueue hook .*tracing: must "):
        send.enqueue(order=1)
    with pytest.raises(ConfigError):
        hf.enqueue_many([hf.bind("other", check=False), send.bind(order=1)])
    assert headers(hf) == []


def test_what_a_hook_raises_is_the_callers_and_nothing_is_enqueued(hf, send):
    @hf.enqueue_hook
    def broken(new: Enqueueing) -> None:
        raise LookupError("no tenant")

    with pytest.raises(LookupError, match="no tenant"):
        send.enqueue(order=1)
    assert headers(hf) == []


async def a_coroutine(new: Enqueueing) -> None: ...


@pytest.mark.parametrize("hook", [None, "trace", a_coroutine])
def test_what_cannot_be_a_hook_is_refused_where_it_is_registered(hf, hook):
    with pytest.raises(ConfigError, match=r"enqueue_hook: must be a `def` function"):
        hf.enqueue_hook(hook)
