"""The keywords that type checkers know are those that the code takes: one list must not outgrow the other."""

import asyncio
import functools
import importlib
import inspect
import pkgutil
import typing
from dataclasses import fields

import pytest

import holdfast
from holdfast import sinks
from holdfast.errors import ConfigError
from holdfast.handlers import USING, Handler
from holdfast.job import Job
from holdfast.values.options import EnqueueKeywords, EnqueueOptions, StoreKeywords, StoreOptions, WorkerKeywords
from holdfast.worker import Worker
from holdfast.worker.process import main, run_one


@pytest.mark.parametrize("keywords, options", [(EnqueueKeywords, EnqueueOptions), (StoreKeywords, StoreOptions)])
def test_there_is_a_keyword_for_every_option(keywords: type, options: type) -> None:
    # What says where an application's stores are is no option of one store.
    assert [name for name in keywords.__annotations__ if name != "shards"] == [field.name for field in fields(options)]


def test_there_is_a_keyword_for_everything_that_a_worker_takes() -> None:
    parameters = inspect.signature(Worker).parameters.values()
    takes = {each.name: each.annotation for each in parameters if each.kind is each.KEYWORD_ONLY}
    assert {name: hint.__forward_arg__ for name, hint in WorkerKeywords.__annotations__.items()} == takes


WRONG: dict[str, typing.Callable[[typing.Any, typing.Any], object]] = {
    "txx: using() takes no such option (did you mean tx?); got 1": lambda _, send: send.using(txx=1),
    "order_id: hf.enqueue() takes no such option (it takes tx, notify, queue, priority, run_after, key, "
    "idempotency_key, window, unique, debounce, throttle, expires, max_attempts, lease, headers, after, after_dead, "
    'check; the arguments of the job go into its payload: hf.enqueue(kind, {"order_id": …})); got 1': lambda hf, _: (
        hf.enqueue("send", order_id=1)
    ),
    "chek: hf.bind() takes no such option (did you mean check?; the arguments of the job go into its payload: "
    'hf.enqueue(kind, {"chek": …})); got 1': lambda hf, _: hf.bind("send", chek=1),
    "concurency: hf.worker() takes no such option (did you mean concurrency?); got 1": lambda hf, _: hf.worker(
        concurency=1
    ),
    "que: hf.job() takes no such option (did you mean queue?); got 'a'": lambda hf, _: hf.job(que="a"),
    "order: hf.queue() takes no such option (did you mean ordered?); got True": lambda hf, _: hf.queue("a", order=True),
    "catchup: hf.schedule() takes no such option (did you mean catch_up?); got 'all'": lambda hf, send: hf.schedule(
        "nightly", send.bind(), every=60, catchup="all"
    ),
    "than: hf.batch() takes no such option (did you mean then?); got 1": lambda hf, _: hf.batch(than=1),
    "too: hf.route() takes no such option (did you mean to?); got 1": lambda hf, _: hf.route("order.*", too=1),
    "subjekt: hf.publish() takes no such option (did you mean subject?); got 'a'": lambda hf, _: hf.publish(
        "order.created", {}, subjekt="a"
    ),
    "knd: hf.pause() takes no such option (did you mean kind?); got 'send'": lambda hf, _: hf.pause(knd="send"),
    "timout: hf.result() takes no such option (did you mean timeout?); got 1": lambda hf, _: hf.result("x", timout=1),
    "max_attempt: Retry() takes no such option (did you mean max_attempts?); got 3": lambda _, __: holdfast.Retry(
        max_attempt=3
    ),  # type: ignore[call-arg]
    "pr: Rate() takes no such option (did you mean per?); got 1": lambda _, __: holdfast.Rate(5, pr=1),  # type: ignore[call-arg]
    "maxwait: Debounce() takes no such option (did you mean max_wait?); got 1": lambda _, __: holdfast.Debounce(
        "a", 1, maxwait=1
    ),  # type: ignore[call-arg]
    "kee: hf.job() takes no such option (did you mean key?); got 'a'": lambda hf, _: hf.job(kee="a"),
    "pol_size: Holdfast() takes no such option (did you mean pool_size?); got 1": lambda hf, _: type(hf)(
        "sqlite://", pol_size=1
    ),
}


@pytest.mark.parametrize("said", WRONG)
def test_a_wrong_option_is_named_with_the_call_as_people_write_it(said: str) -> None:
    hf = holdfast.Holdfast("sqlite://")
    send = hf.job(kind="send")(lambda: None)
    with pytest.raises(ConfigError) as raised:
        WRONG[said](hf, send)
    assert str(raised.value) == said


NOT_A_FUNCTION = 'decorates a function, and its options are given by name, as in @{}(queue="mail"); got {}'
NAMELESS = "must be given, as in @hf.{}({}=…): this has no name of its own"
MISTAKEN: dict[str, typing.Callable[[typing.Any, typing.Any], object]] = {
    "@hf.job: " + NOT_A_FUNCTION.format("hf.job", "'mail'"): lambda hf, _: hf.job("mail"),
    "@hf.bulk: " + NOT_A_FUNCTION.format("hf.bulk", "'mail'"): lambda hf, _: hf.bulk("mail"),
    "@hf.workflow: " + NOT_A_FUNCTION.format("hf.workflow", "3"): lambda hf, _: hf.workflow(3),
    "kind: " + NAMELESS.format("job", "kind"): lambda hf, _: hf.job(functools.partial(print)),
    "name: " + NAMELESS.format("workflow", "name"): lambda hf, _: hf.workflow(functools.partial(print)),
    "kind: must be the name of a kind; a handler has calls of its own, as in send.enqueue(": lambda hf, send: (
        hf.enqueue(send, {})
    ),
    "kind: must be the name of a kind; a handler has calls of its own, as in send.bind(": lambda hf, send: hf.bind(
        send
    ),
    "Invalid payload of 'enqueue_many': give a list of handler.bind(…), not Handler": lambda hf, send: hf.enqueue_many(
        send
    ),
}


@pytest.mark.parametrize("said", MISTAKEN)
def test_what_is_taken_for_something_else_is_told_in_words(said: str) -> None:
    hf = holdfast.Holdfast("sqlite://")
    send = hf.job(kind="send")(lambda: None)
    with pytest.raises(holdfast.HoldfastError) as raised:
        MISTAKEN[said](hf, send)
    assert str(raised.value).startswith(said)


def test_a_right_option_is_taken_everywhere() -> None:
    hf = holdfast.Holdfast("sqlite://")
    send = hf.job(kind="send")(lambda: None)
    send.using(**dict.fromkeys(USING)).bind()
    hf.bind("send", check=True, **dict.fromkeys(EnqueueKeywords.__annotations__))


def test_an_async_call_refuses_a_wrong_option_too() -> None:
    hf = holdfast.Holdfast("sqlite://")
    assert inspect.iscoroutinefunction(hf.apublish)
    with pytest.raises(ConfigError, match=r"subjekt: hf.apublish\(\) takes no such option \(did you mean subject\?\)"):
        asyncio.run(hf.apublish("order.created", {}, subjekt="a"))  # type: ignore[call-arg]


def test_every_call_of_the_application_with_options_of_its_own_says_what_was_meant() -> None:
    """Those with `**options` or `**which` have checks of their own."""
    plain = []
    for name, method in inspect.getmembers(holdfast.Holdfast, inspect.isfunction):
        parameters = inspect.signature(method).parameters.values()
        kinds = {each.kind for each in parameters}
        loose = inspect.Parameter.VAR_KEYWORD in kinds
        has_options = inspect.Parameter.KEYWORD_ONLY in kinds and not name.startswith("_")
        if has_options and not loose and not hasattr(method, "__wrapped__"):
            plain.append(name)
    assert plain == ["draft"], "these raise a TypeError that names no option; decorate them with `spelt`"


def sink_classes() -> list[type]:
    """List the classes of all modules of sinks, with those that say what a sink needs of others."""
    modules = [importlib.import_module(one.name) for one in pkgutil.iter_modules(sinks.__path__, "holdfast.sinks.")]
    found = {each for module in modules for _, each in inspect.getmembers(module, inspect.isclass)}
    return sorted((each for each in found if each.__module__.startswith("holdfast.sinks.")), key=repr)


def public_calls() -> list[typing.Any]:
    classes = [holdfast.Holdfast, Handler, Job, *sink_classes()]
    methods = [method for each in classes for method in vars(each).values() if inspect.isfunction(method)]
    return [*methods, StoreOptions.of, main, run_one]


@pytest.mark.parametrize("call", public_calls(), ids=lambda call: call.__qualname__)
def test_no_public_call_hides_its_options_behind_any(call: typing.Any) -> None:
    loose = [each for each in inspect.signature(call).parameters.values() if each.kind is each.VAR_KEYWORD]
    assert [str(each) for each in loose if each.annotation == "Any"] == []
