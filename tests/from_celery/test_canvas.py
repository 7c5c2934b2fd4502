"""Signatures, chains, groups and chords, as jobs that continue and wait for each other."""

import sqlite3
from datetime import UTC, datetime
from typing import Any

import pytest

from holdfast import ConfigError, Holdfast, InvalidPayload
from holdfast.celery import AsyncResult, Celery, Task, chain, chord, group
from holdfast.testing.inline import enqueued, run_due


@pytest.fixture
def add(app: Celery) -> Task[[int, int], int]:
    @app.task(name="add")
    def add(x: int, y: int) -> int:
        return x + y

    return add


@pytest.fixture
def total(app: Celery) -> Task[[list[int]], int]:
    @app.task(name="total")
    def total(numbers: list[int]) -> int:
        return sum(numbers)

    return total


@pytest.fixture
def fail(app: Celery) -> Task[..., None]:
    @app.task(name="fail")
    def fail(*_: Any) -> None:
        raise ValueError("broken")

    return fail


def test_each_of_a_chain_gets_the_result_before_it(add: Task[[int, int], int], hf: Holdfast) -> None:
    result = chain(add.s(1, 2), add.s(10), add.s(100))()
    piped = (add.s(1, 1) | add.si(5, 5) | add.s(1)).delay()
    assert len(enqueued(hf)) == 2
    run_due(hf)
    assert (result.get(timeout=0), piped.get(timeout=0), result.state) == (113, 11, "SUCCESS")


def test_a_chain_that_is_under_way_has_not_succeeded(add: Task[[int, int], int], hf: Holdfast) -> None:
    result = chain(add.s(1, 2), add.s(10).set(countdown=60, queue="slow", priority=4))()
    run_due(hf)
    assert not result.ready()
    [waits] = enqueued(hf)
    assert (waits.queue, waits.priority, waits.payload) == ("slow", 4, '{"x":3,"y":10}')
    run_due(hf, ahead=61)
    assert result.get(timeout=0) == 13


def test_a_chain_is_revoked_where_it_is(add: Task[[int, int], int], hf: Holdfast) -> None:
    result = chain(add.s(1, 2), add.s(10).set(countdown=60), add.s(1))()
    run_due(hf)
    result.revoke()
    assert run_due(hf, ahead=61) == []
    assert result.state == "REVOKED"


def test_a_link_is_called_with_the_result(add: Task[[int, int], int], hf: Holdfast) -> None:
    result = add.apply_async((1, 2), link=add.s(10))
    run_due(hf)
    assert result.get(timeout=0) == 13
    with pytest.raises(ConfigError, match="one job continues another"):
        add.apply_async((1, 2), link=[add.s(1), add.s(2)])


def test_a_chain_ends_where_a_job_fails(add: Task[[int, int], int], fail: Task[..., None], hf: Holdfast) -> None:
    result = chain(add.s(1, 2), fail.s(), add.s(1))()
    assert [one.kind for one in run_due(hf, raise_errors=False)] == ["add", "fail"]
    assert result.state == "FAILURE"


def test_the_rest_of_a_chain_is_checked_before_anything_is_added(add: Task[[int, int], int], hf: Holdfast) -> None:
    with pytest.raises(InvalidPayload):
        chain(add.s(1, 2), add.s(1, 2))()
    with pytest.raises(ConfigError, match="the first of the chain"):
        chain(add.s(1, 2), add.s(1).set(unique="a"))()
    with pytest.raises(ConfigError, match="must be seconds"):
        chain(add.s(1, 2), add.s(1).set(expires=datetime(2090, 1, 1, tzinfo=UTC)))()
    assert enqueued(hf) == []


def test_a_group_is_added_as_a_whole(add: Task[[int, int], int], hf: Holdfast) -> None:
    results = group(add.s(n, n) for n in range(3))()
    assert repr(results) == f"<GroupResult: {results.results}>"
    assert (len(results), results.ready(), results.completed_count()) == (3, False, 0)
    run_due(hf)
    assert (results.get(timeout=0), results.successful(), results.failed()) == ([0, 2, 4], True, False)
    with pytest.raises(InvalidPayload):
        group(add.s(1, 1), add.s(1, "one")).delay()
    assert enqueued(hf) == []
    assert group(add.s(1), add.s(2)).delay(10)[1].state == "PENDING"


def test_a_chord_calls_back_with_the_results_in_order(
    add: Task[[int, int], int], total: Task[[list[int]], int], app: Celery, hf: Holdfast
) -> None:
    @app.task
    def joined(numbers: list[int], by: str) -> str:
        return by.join(map(str, numbers))

    @app.task
    def any_way(*given: Any) -> list[Any]:
        return list(given)

    in_order = chord(add.s(n, n) for n in (5, 3, 4))(joined.s("-"))
    short = (group(add.s(1, 1), chain(add.s(1, 1), add.s(1))) | total.s() | add.s(100)).delay()
    loose = chord([add.s(1, 1)], any_way.s("x")).delay()
    apart = chord([add.s(1, 1)])(add.si(2, 2))
    run_due(hf)
    assert in_order.get(timeout=0) == "10-6-8"
    assert short.get(timeout=0) == 105
    assert loose.get(timeout=0) == [[2], "x"]
    assert apart.get(timeout=0) == 4
    assert in_order.parent is not None
    assert in_order.parent.get(timeout=0) == [10, 6, 8]


def test_a_chord_whose_group_fails_does_not_call_back(
    add: Task[[int, int], int], total: Task[[list[int]], int], fail: Task[..., None], hf: Holdfast
) -> None:
    result = chord([add.s(1, 1), fail.s()])(total.s())
    assert [one.kind for one in run_due(hf, raise_errors=False)] == ["add", "fail"]
    assert result.state == "REVOKED"


def test_a_chord_and_a_group_belong_to_the_transaction(
    add: Task[[int, int], int], total: Task[[list[int]], int], hf: Holdfast
) -> None:
    connection = sqlite3.connect(hf.url.removeprefix("sqlite:///"))
    connection.execute("begin")
    chord([add.s(1, 1), add.s(2, 2)], total.s()).apply_async(tx=connection)
    group(add.s(1, 1)).apply_async(tx=connection)
    (add.s(1, 1) | add.s(2)).apply_async(tx=connection)
    connection.rollback()
    assert enqueued(hf) == []
    connection.execute("begin")
    result = chord([add.s(1, 1), add.s(2, 2)], total.s()).apply_async(tx=connection)
    connection.commit()
    connection.close()
    run_due(hf)
    assert result.get(timeout=0) == 6


def test_what_no_jobs_can_say_is_refused_with_what_to_use(
    add: Task[[int, int], int], total: Task[[list[int]], int]
) -> None:
    several = group(add.s(1), add.s(2))
    refused: list[Any] = [
        lambda: chain(add.s(1, 1), several),
        lambda: add.s(1, 1) | chord([add.s(1)], total.s()),
        lambda: group(several),
        lambda: chain(several),
        lambda: chain(),
        lambda: chord([])(total.s()),
        lambda: chord([add.s(1, 1)]).delay(),
        lambda: chain("add"),
    ]
    for make in refused:
        with pytest.raises(ConfigError):
            make()
    with pytest.raises(ConfigError, match=r"@hf\.workflow"):
        chain(add.s(1, 1), several)


def test_a_chain_whose_next_task_is_not_known_says_so(add: Task[[int, int], int], app: Celery, hf: Holdfast) -> None:
    result = chain(add.s(1, 1), add.s(2))()
    assert isinstance(result, AsyncResult)
    elsewhere = Celery("other", set_as_current=False)
    add.home = elsewhere
    run_due(hf, raise_errors=False)
    assert "No handler is registered for kind 'add'" in str(result.result)


def test_the_canvas_runs_at_once_where_calls_are_eager(eager: Celery) -> None:
    @eager.task
    def add(x: int, y: int) -> int:
        return x + y

    @eager.task
    def total(numbers: list[int]) -> int:
        return sum(numbers)

    @eager.task
    def fail(*_: Any) -> None:
        raise ValueError("broken")

    assert (add.s(1, 1) | add.s(2) | add.si(7, 7)).delay().get() == 14
    assert group(add.s(n, n) for n in range(3))().get() == [0, 2, 4]
    assert chord([add.s(1, 1), add.s(2, 2)])(total.s()).get() == 6
    assert chord([add.s(1, 1), fail.s()])(total.s()).failed()
    assert add.apply_async((1, 1), link=add.s(10)).get() == 12
    assert group(add.s(1, 1), add.s(2, 2) | add.s(3)).apply_async(link=add.s(10)).get() == [12, 17]
    with pytest.raises(ConfigError, match="idempotency_key="):
        group(add.s(1, 1)).apply_async(task_id="mine")  # type: ignore[call-arg]
    with pytest.raises(ConfigError, match="idempotency_key="):
        add.s(1, 1).apply_async(task_id="mine")  # type: ignore[call-arg]
    assert add.s(1)(1) == 2


@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize(
    "options",
    [{"key": 5}, {"expires": "soon"}, {"expires": datetime(2090, 1, 1)}, {"queue": ""}, {"headers": {"number": 1}}],
)
def test_what_a_call_says_is_checked_whether_or_not_it_runs_at_once(
    options: dict[str, Any], at_once: bool, add: Task[[int, int], int], app: Celery, hf: Holdfast
) -> None:
    app.conf.task_always_eager = at_once
    name = next(iter(options))
    for call in (add.s(1, 1), chain(add.s(1, 1), add.s(2)), group(add.s(1, 1))):
        with pytest.raises(ConfigError, match=name):
            call.apply_async(**options)
    with pytest.raises(ConfigError, match=name):
        chain(add.s(1, 1), add.s(2).set(**options))()
    with pytest.raises(ConfigError, match="link"):
        chain(add.s(1, 1), add.s(2).set(link=add.s(3)))()
    assert enqueued(hf) == []


@pytest.mark.parametrize("at_once", [False, True])
def test_a_signature_may_name_what_is_called_with_its_result(
    at_once: bool, add: Task[[int, int], int], app: Celery, hf: Holdfast
) -> None:
    app.conf.task_always_eager = at_once
    first = add.s(1, 1)
    assert repr(first.link(add.s(10))) == "add(10)"
    with pytest.raises(ConfigError, match="one job continues another"):
        first.link(add.s(20))
    result = first.delay()
    run_due(hf)
    assert result.get(timeout=0) == 12
    assert add.s(1).apply((1,)).get() == 2


def test_what_a_canvas_or_result_of_celerys_has_and_ours_has_not_says_what_there_is(
    add: Task[[int, int], int], total: Task[[list[int]], int]
) -> None:
    result: Any = add.delay(1, 1)
    for canvas in (add.s(1, 1), add.s(1, 1) | add.s(2), group(add.s(1, 1)), chord([add.s(1, 1)], total.s())):
        loose: Any = canvas
        with pytest.raises(ConfigError, match="JobDead"):
            loose.link_error(add.s(1))
        with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
            _ = loose.nonsense
    joined: Any = group(add.s(1, 1))
    with pytest.raises(ConfigError, match="join it with the bar"):
        joined.link(add.s(1))
    with pytest.raises(ConfigError, match="retention="):
        result.forget()
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = result.nonsense
