"""The keywords that type checkers know are those that the code takes: one list must not outgrow the other."""

import inspect
import typing
from dataclasses import fields

import pytest

import holdfast
from holdfast.handlers import Handler
from holdfast.job import Job
from holdfast.values.options import EnqueueKeywords, EnqueueOptions, StoreKeywords, StoreOptions, WorkerKeywords
from holdfast.worker import Worker
from holdfast.worker.process import main, run_one


@pytest.mark.parametrize("keywords, options", [(EnqueueKeywords, EnqueueOptions), (StoreKeywords, StoreOptions)])
def test_there_is_a_keyword_for_every_option(keywords: type, options: type) -> None:
    assert list(keywords.__annotations__) == [field.name for field in fields(options)]


def test_there_is_a_keyword_for_everything_that_a_worker_takes() -> None:
    parameters = inspect.signature(Worker).parameters.values()
    takes = {each.name: each.annotation for each in parameters if each.kind is each.KEYWORD_ONLY}
    assert {name: hint.__forward_arg__ for name, hint in WorkerKeywords.__annotations__.items()} == takes


def public_calls() -> list[typing.Any]:
    classes = [holdfast.Holdfast, Handler, Job]
    methods = [method for each in classes for method in vars(each).values() if inspect.isfunction(method)]
    return [*methods, StoreOptions.of, main, run_one]


@pytest.mark.parametrize("call", public_calls(), ids=lambda call: call.__qualname__)
def test_no_public_call_hides_its_options_behind_any(call: typing.Any) -> None:
    loose = [each for each in inspect.signature(call).parameters.values() if each.kind is each.VAR_KEYWORD]
    assert [str(each) for each in loose if each.annotation == "Any"] == []
