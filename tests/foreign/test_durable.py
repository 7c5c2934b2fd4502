"""The remote step tables on real rows: the worker's side of the contract, and every trap in it."""

import json
from typing import Any

import pytest

from holdfast import Cancel, Fatal, Holdfast, Job, Retry, Snooze
from holdfast.errors import ConfigError, Conflict, LeaseLost
from holdfast.foreign import DurableSteps
from holdfast.testing.clock import Clock
from holdfast.values.rows import Completion, Finish, Lease, Park, PutBack
from tests.foreign.conftest import Do, Sql, ids
from tests.foreign.mini_worker import drain

STEP = "pipeline.extract"


@pytest.fixture(autouse=True)
def handled(steps: DurableSteps) -> list[Any]:
    """What the step's handler was called with."""
    calls: list[Any] = []

    @steps.step(STEP)
    async def extract(value: Any, job: Job) -> Any:
        calls.append((value, dict(job.headers), job.attempt))
        return {"got": value}

    return calls


def ms(clock: Clock) -> int:
    return int(clock.now.timestamp() * 1000)


def dispatch(
    sql: Sql, step_id: str, clock: Clock, name: str = STEP, given: str | None = "null", **columns: Any
) -> None:
    """Insert a task as an engine does."""
    run_id, _, seq = step_id.rpartition(":")
    values = {"grp": name.replace(":", "-"), "attempt": 1, "status": "pending", "created_at": ms(clock)} | columns
    sql(
        "insert into durable_transport_tasks (step_id, run_id, seq, name, grp, input, attempt, status, created_at) "
        "values (:step_id, :run_id, :seq, :name, :grp, :input, :attempt, :status, :created_at)",
        step_id=step_id,
        run_id=run_id,
        seq=int(seq),
        name=name,
        input=given,
        **values,
    )


def result(sql: Sql) -> dict[str, Any]:
    names = (
        "step_id",
        "run_id",
        "seq",
        "status",
        "output",
        "error",
        "started_at",
        "claimed_by",
        "claimed_at",
        "created_at",
    )
    row = sql.one(
        "select step_id, run_id, seq, status, output, error, started_at, claimed_by, claimed_at, created_at "
        "from durable_transport_results"
    )
    return dict(zip(names, row, strict=True))


def tasks(sql: Sql) -> list[Any]:
    return [row[0] for row in sql("select step_id from durable_transport_tasks order by step_id")]


def claim(do: Do, steps: DurableSteps, limit: int = 10, worker: str = "w") -> list[Lease]:
    leases: list[Lease] = do(steps.claim(dict.fromkeys(steps.handlers, 1), limit, worker))
    return leases


def finish(do: Do, steps: DurableSteps, lease: Lease, worker: str = "w", **more: Any) -> Any:
    fields = {"outcome": "done", "result": '{"pages":3}'} | more
    return do(steps.settle([Finish(lease.id, lease.fence, **fields)], worker))


# Claim


def test_a_claim_stamps_who_and_when(do: Do, steps: DurableSteps, sql: Sql, clock: Clock) -> None:
    dispatch(sql, "r1:0", clock, given='{"page": 1}')
    [lease] = claim(do, steps)
    assert (lease.kind, lease.queue, lease.key, lease.attempt, lease.max_attempts) == (STEP, STEP, "r1", 1, 1)
    assert json.loads(lease.payload) == {"value": {"page": 1}}
    by, at = sql.one("select claimed_by, claimed_at from durable_transport_tasks")
    assert by.startswith("w/")
    assert at == ms(clock)
    assert claim(do, steps, worker="other") == []


def test_the_oldest_of_all_groups_comes_first(do: Do, steps: DurableSteps, sql: Sql, clock: Clock) -> None:
    steps.step("a:b")(lambda value: None)
    for number, name in enumerate((STEP, "a:b", "not.ours", "a:b", STEP)):
        dispatch(sql, f"r{number}:0", clock, name, created_at=ms(clock) - number)
    assert ids(claim(do, steps, limit=3)) == ["r4:0", "r3:0", "r1:0"]
    assert ids(claim(do, steps)) == ["r0:0"]
    assert tasks(sql) == ["r0:0", "r1:0", "r2:0", "r3:0", "r4:0"]


def test_any_status_text_and_a_null_input_are_accepted(
    hf: Holdfast, steps: DurableSteps, sql: Sql, clock: Clock, handled: Any
) -> None:
    dispatch(sql, "r1:0", clock, given=None, status="whatever")
    drain(hf)
    assert handled == [(None, {"run_id": "r1", "seq": "0", "step_id": "r1:0"}, 1)]


def test_a_partition_is_part_of_the_group(hf: Holdfast, do: Do, steps: DurableSteps, sql: Sql, clock: Clock) -> None:
    acme = hf.foreign.durable(partition="acme")
    acme.step("a:b.c")(lambda: None)
    dispatch(sql, "r1:0", clock, "a:b.c", grp="a-b.c@acme")
    dispatch(sql, "r2:0", clock, "a:b.c", grp="a-b.c")
    assert ids(claim(do, acme)) == ["r1:0"]


def test_a_step_without_a_handler_fails_for_good(do: Do, steps: DurableSteps, sql: Sql, clock: Clock) -> None:
    steps.step("a:b")(lambda: None)
    dispatch(sql, "r1:0", clock, "a-b", grp="a-b")
    assert claim(do, steps) == []
    found = result(sql)
    assert found["status"] == "failed"
    assert json.loads(found["error"]) == {"message": "no handler for a-b", "retryable": False}
    assert tasks(sql) == []


@pytest.mark.parametrize("given", ["{", "NaN", "", "[1,", "nul"])
def test_an_input_that_is_no_json_fails_for_good(
    do: Do, steps: DurableSteps, sql: Sql, clock: Clock, given: str
) -> None:
    dispatch(sql, "r1:0", clock, given=given)
    dispatch(sql, "r2:0", clock)
    assert ids(claim(do, steps)) == ["r2:0"]
    assert json.loads(result(sql)["error"])["retryable"] is False


def test_no_attempt_starts_before_the_last_ones_result_is_gone(
    do: Do, steps: DurableSteps, sql: Sql, clock: Clock
) -> None:
    dispatch(sql, "r1:0", clock)
    [first] = claim(do, steps)
    finish(do, steps, first, outcome="dead", result=None, error='{"type":"E","message":"boom"}')
    # A slow engine: it has dispatched the retry, and deletes the result a moment later.
    dispatch(sql, "r1:0", clock, attempt=2)
    assert claim(do, steps) == []
    sql("delete from durable_transport_results")
    [second] = claim(do, steps)
    assert second.attempt == 2
    finish(do, steps, second)
    assert result(sql)["status"] == "completed"


def test_a_kind_without_room_is_left_for_others(do: Do, steps: DurableSteps, sql: Sql, clock: Clock) -> None:
    steps.step("slow", concurrency=1)(lambda: None)
    dispatch(sql, "r1:0", clock, "slow")
    dispatch(sql, "r2:0", clock)
    assert ids(do(steps.claim({STEP: 1}, 10, "w"))) == ["r2:0"]
    assert tasks(sql) == ["r1:0", "r2:0"]


# Results


def test_a_result_is_what_the_contract_says(do: Do, steps: DurableSteps, sql: Sql, clock: Clock) -> None:
    dispatch(sql, "run:with:colons:3", clock)
    [lease] = claim(do, steps)
    picked_up = ms(clock)
    clock.advance(5)
    finish(do, steps, lease)
    assert result(sql) == {
        "step_id": "run:with:colons:3",
        "run_id": "run:with:colons",
        "seq": 3,
        "status": "completed",
        "output": '{"pages":3}',
        "error": None,
        "started_at": picked_up,
        "claimed_by": None,
        "claimed_at": None,
        "created_at": ms(clock),
    }
    assert tasks(sql) == []


def test_no_output_is_the_text_null(hf: Holdfast, steps: DurableSteps, sql: Sql, clock: Clock) -> None:
    steps.step("quiet")(lambda: None)
    dispatch(sql, "r1:0", clock, "quiet")
    drain(hf)
    assert (result(sql)["status"], result(sql)["output"]) == ("completed", "null")


def test_text_beyond_ascii_survives_a_table_of_another_character_set(
    hf: Holdfast, steps: DurableSteps, sql: Sql, clock: Clock, durable_url: str
) -> None:
    if durable_url.startswith("mysql"):
        sql("alter table durable_transport_results convert to character set latin1")
    text = "Çağrı 🎈 \u2028"
    steps.step("echo")(lambda value: value)
    dispatch(sql, "r1:0", clock, "echo", given=json.dumps(text))
    drain(hf)
    output = result(sql)["output"]
    if durable_url.startswith("mysql"):
        sql("alter table durable_transport_results convert to character set utf8mb4")
    assert json.loads(output) == text
    assert output.isascii()


def boom(value: Any) -> None:
    raise ValueError("bo\x00om")


def fatal(value: Any) -> None:
    raise Fatal("never", code=404)


def unwritable(value: Any) -> Any:
    return float("nan")


def wants_int(value: int) -> int:
    return value


@pytest.mark.parametrize(
    "handler, expected",
    [
        (boom, {"message": "bo\ufffdom"}),
        (fatal, {"message": "never", "code": "404", "retryable": False}),
        (wants_int, {"retryable": False}),
        (unwritable, {"retryable": False}),
        (lambda value: Cancel("not wanted"), {"message": "not wanted", "retryable": False}),
        (lambda value: Fatal("no"), {"message": "no", "retryable": False}),
        (lambda value: Retry(reason="later"), {"message": "later"}),
    ],
)
def test_failures_say_what_the_engine_needs(
    hf: Holdfast, steps: DurableSteps, sql: Sql, clock: Clock, handler: Any, expected: dict[str, Any]
) -> None:
    steps.step("fails")(handler)
    dispatch(sql, "r1:0", clock, "fails", given='"text"')
    drain(hf)
    found = result(sql)
    error = json.loads(found["error"])
    assert (found["status"], found["output"]) == ("failed", None)
    assert error.items() >= expected.items()
    assert ("retryable" in error) == ("retryable" in expected)
    assert isinstance(error["message"], str)
    assert "NaN" not in found["error"]


def test_a_failure_is_final_for_the_worker(hf: Holdfast, steps: DurableSteps, sql: Sql, clock: Clock) -> None:
    steps.step("fails")(boom)
    dispatch(sql, "r1:0", clock, "fails", attempt=7)
    drain(hf)
    assert tasks(sql) == []
    assert "stack" in json.loads(result(sql)["error"])


def test_an_input_left_out_gives_the_default(hf: Holdfast, steps: DurableSteps, sql: Sql, clock: Clock) -> None:
    steps.step("greet")(_greet)
    dispatch(sql, "r1:0", clock, "greet")
    drain(hf)
    assert result(sql)["output"] == '"hello you"'


def _greet(name: str = "you") -> str:
    return f"hello {name}"


def test_a_snooze_puts_the_task_off_for_every_reader(
    hf: Holdfast, do: Do, steps: DurableSteps, sql: Sql, clock: Clock
) -> None:
    steps.step("later")(lambda: Snooze(45))
    dispatch(sql, "r1:0", clock, "later")
    drain(hf)
    clock.advance(44.9)
    assert claim(do, steps) == []
    clock.advance(0.1)
    assert ids(claim(do, steps)) == ["r1:0"]


def test_a_released_task_is_free_at_once(do: Do, steps: DurableSteps, sql: Sql, clock: Clock) -> None:
    dispatch(sql, "r1:0", clock)
    [lease] = claim(do, steps)
    do(steps.settle([PutBack(lease.id, lease.fence, None, 1)], "w"))
    assert sql.one("select claimed_by, claimed_at from durable_transport_tasks") == (None, None)
    assert ids(claim(do, steps)) == ["r1:0"]


# Leases


def test_a_lease_that_ran_out_is_taken_over(do: Do, steps: DurableSteps, sql: Sql, clock: Clock) -> None:
    dispatch(sql, "r1:0", clock)
    claim(do, steps)
    clock.advance(30)
    assert claim(do, steps, worker="other") == []
    clock.advance(0.001)
    assert ids(claim(do, steps, worker="other")) == ["r1:0"]


def test_a_renewed_lease_is_not(do: Do, steps: DurableSteps, sql: Sql, clock: Clock) -> None:
    dispatch(sql, "r1:0", clock)
    [lease] = claim(do, steps)
    for _ in range(5):
        clock.advance(20)
        assert do(steps.renew([lease], "w")).kept == {"r1:0"}
        assert claim(do, steps, worker="other") == []
    assert finish(do, steps, lease).done == {"r1:0"}
    assert result(sql)["started_at"] == lease.fence


@pytest.mark.parametrize("taker", ["other", "w"])
def test_a_lost_claim_writes_nothing(do: Do, steps: DurableSteps, sql: Sql, clock: Clock, taker: str) -> None:
    dispatch(sql, "r1:0", clock)
    [late] = claim(do, steps)
    clock.advance(31)
    [now] = claim(do, steps, worker=taker)
    assert finish(do, steps, late).lost == {"r1:0"}
    assert do(steps.settle([PutBack(late.id, late.fence, 0)], "w")).lost == {"r1:0"}
    assert do(steps.renew([late], "w")).kept == set()
    with pytest.raises(LeaseLost):
        do(steps.complete(Completion(late), "w"))
    assert sql("select step_id from durable_transport_results") == []
    assert tasks(sql) == ["r1:0"]
    assert finish(do, steps, now, taker).done == {"r1:0"}


def test_a_completion_in_a_transaction_writes_result_and_end_together(
    do: Do, steps: DurableSteps, sql: Sql, clock: Clock
) -> None:
    dispatch(sql, "r1:0", clock)
    [lease] = claim(do, steps)
    do(steps.complete(Completion(lease), "w"))
    assert (result(sql)["output"], tasks(sql)) == ("null", [])


def test_an_outcome_may_be_written_again_when_its_answer_was_lost(
    do: Do, steps: DurableSteps, sql: Sql, clock: Clock
) -> None:
    dispatch(sql, "r1:0", clock)
    dispatch(sql, "r2:0", clock)
    done, released = claim(do, steps)
    for _ in range(2):
        assert finish(do, steps, done).done == {"r1:0"}
        assert do(steps.settle([PutBack(released.id, released.fence, 60_000)], "w")).done == {"r2:0"}
    # The engine has read it and sent the next attempt: still nothing of the old outcome may be written.
    sql("delete from durable_transport_results")
    dispatch(sql, "r1:0", clock, attempt=2)
    assert finish(do, steps, done).lost == {"r1:0"}
    assert sql("select step_id from durable_transport_results") == []


def test_another_workers_result_wins_if_it_was_first(do: Do, steps: DurableSteps, sql: Sql, clock: Clock) -> None:
    dispatch(sql, "r1:0", clock)
    [lease] = claim(do, steps)
    sql(
        "insert into durable_transport_results (step_id, run_id, seq, status, output, created_at) "
        "values ('r1:0', 'r1', 0, 'completed', '\"theirs\"', 1)"
    )
    assert finish(do, steps, lease).done == {"r1:0"}
    assert (result(sql)["output"], tasks(sql)) == ('"theirs"', [])


def test_a_step_that_kills_its_workers_fails_in_the_end(do: Do, steps: DurableSteps, sql: Sql, clock: Clock) -> None:
    dispatch(sql, "r1:0", clock)
    for worker in ("a", "b", "c"):
        assert ids(claim(do, steps, worker=worker)) == ["r1:0"]
        clock.advance(31)
    assert claim(do, steps, worker="d") == []
    error = json.loads(result(sql)["error"])
    assert error == {"message": f"3 workers vanished while they ran {STEP}", "code": "worker_lost"}


def test_a_step_id_of_191_characters_fits(do: Do, steps: DurableSteps, sql: Sql, clock: Clock) -> None:
    step_id = "r" * 189 + ":0"
    dispatch(sql, step_id, clock)
    [lease] = claim(do, steps, worker="w" * 500)
    assert finish(do, steps, lease, "w" * 500).done == {step_id}


# What people see, and settings


def test_people_see_counts_rows_and_what_is_wrong(do: Do, steps: DurableSteps, sql: Sql, clock: Clock) -> None:
    for number in range(3):
        dispatch(sql, f"r{number}:0", clock, created_at=ms(clock) - 90_000 + number)
    claim(do, steps, limit=1)
    [done] = claim(do, steps, limit=1)
    finish(do, steps, done)
    clock.advance(61)
    steps_count, results = do(steps.desk.counts())
    assert (steps_count.queue, steps_count.due, steps_count.stale, steps_count.leased) == (STEP, 1, 1, 0)
    assert steps_count.oldest_seconds == pytest.approx(151, abs=0.1)
    assert (results.unread, results.oldest_seconds) == (1, pytest.approx(61, abs=0.1))
    assert {finding.check for finding in do(steps.desk.examine())} == {"lag", "stale", "results"}
    leased, pending = do(steps.desk.rows(newest=False)).rows
    assert (leased.state, pending.state, pending.id) == ("leased", "pending", "r2:0")
    assert leased.leased_by is not None
    assert do(steps.desk.rows(after=pending.id, newest=False)).rows == []


def test_tables_are_made_once_and_again(hf: Holdfast, steps: DurableSteps) -> None:
    steps.create_schema()
    assert hf.foreign.durable() is steps
    with pytest.raises(ConfigError):
        hf.foreign.durable(lease=60)


def test_capital_letters_in_a_prefix_count(hf: Holdfast, sql: Sql, clock: Clock, durable_url: str) -> None:
    source = hf.foreign.durable(prefix="My_App")
    source.create_schema()
    mark = '"' if durable_url.startswith("postgres") else "`"
    assert sql(f"select * from {mark}My_App_transport_tasks{mark}") == []  # noqa: S608


@pytest.mark.parametrize("name", ["", "x" * 192])
def test_a_step_name_that_does_not_fit_is_refused(steps: DurableSteps, name: str) -> None:
    with pytest.raises(ConfigError):
        steps.step(name)


def test_a_step_takes_one_input(steps: DurableSteps) -> None:
    with pytest.raises(ConfigError, match="at most one parameter"):
        steps.step("two")(lambda a, b: None)
    with pytest.raises(ConfigError, match="already"):
        steps.step(STEP)(lambda: None)


@pytest.mark.parametrize("settings", [{"prefix": "a-b"}, {"prefix": "x" * 40}, {"lease": 0.5}, {"max_losses": 0}])
def test_settings_that_break_a_rule_are_refused(hf: Holdfast, steps: DurableSteps, settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        hf.foreign.durable(**settings)


def test_a_step_cannot_wait_and_nothing_of_its_batch_is_written(
    do: Do, steps: DurableSteps, sql: Sql, clock: Clock
) -> None:
    dispatch(sql, "r1:0", clock)
    dispatch(sql, "r1:1", clock)
    done, lease = claim(do, steps)
    with pytest.raises(Conflict, match="durable engine have no place for a job that waits"):
        do(steps.settle([Finish(done.id, done.fence, "done", "1"), Park(lease.id, lease.fence, "signal:x")], "w"))
    assert tasks(sql) == ["r1:0", "r1:1"]
