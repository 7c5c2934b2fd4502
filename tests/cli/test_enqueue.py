"""`holdfast enqueue`."""

import json
from datetime import timedelta

import pytest

from holdfast import admin
from holdfast.store import Store
from tests.cli.conftest import Run, lines


def payload(store: Store, job_id: str) -> dict[str, object]:
    return json.loads(store.run(admin.show(job_id)).payload)  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    "words, stored",
    [
        (["order_id=5"], {"order_id": 5}),
        (['{"order_id": 5, "note": "x"}'], {"order_id": 5, "note": "x"}),
        (["order_id=5", "note=a=b c"], {"order_id": 5, "note": "a=b c"}),
        (["order_id=5", "note=10115"], {"order_id": 5, "note": "10115"}),
        (["order_id=5", "note=true"], {"order_id": 5, "note": "true"}),
        (["order_id=5", "note="], {"order_id": 5, "note": ""}),
        (["order_id=5", 'note="5"'], {"order_id": 5, "note": "5"}),
    ],
)
def test_arguments_are_read_as_typed(
    run: Run, app: str, store: Store, words: list[str], stored: dict[str, object]
) -> None:
    job_id = run("enqueue", app, "send_receipt", *words).stdout.strip()
    assert payload(store, job_id) == stored


def test_arguments_may_come_from_stdin(run: Run, app: str, store: Store) -> None:
    job_id = run("enqueue", app, "send_receipt", "-", input='{"order_id": 7}').stdout.strip()
    assert payload(store, job_id) == {"order_id": 7}


def test_what_is_said_about_the_job_is_kept(run: Run, app: str, store: Store) -> None:
    words = [
        "--queue",
        "slow",
        "--priority",
        "7",
        "--delay",
        "1h",
        "--key",
        "order:5",
        "--unique",
        "once",
        "--max-attempts",
        "2",
        "--expires",
        "2h",
    ]
    job = store.run(admin.show(run("enqueue", app, "greet", "name=Ada", *words).stdout.strip()))
    assert (job.queue, job.priority, job.key, job.unique, job.max_attempts) == ("slow", 7, "order:5", "once", 2)
    assert 3590 < (job.available_at - job.created_at).total_seconds() <= 3600
    assert job.expires_at == job.created_at + timedelta(hours=2)


def test_the_same_idempotency_key_finds_the_job_again(run: Run, app: str) -> None:
    words = ("enqueue", app, "greet", "name=Ada", "--idempotency-key", "once")
    first, second = run(*words), run(*words)
    assert first.stdout == second.stdout
    assert "was there already" in second.stderr
    [told] = lines(run(*words, "--json"))
    assert told == {"id": first.stdout.strip(), "created": False}


@pytest.mark.parametrize(
    "words, told",
    [
        (["greeet", "name=Ada"], "Did you mean 'greet'?"),
        (["greet"], "name"),
        (["greet", "name=Ada", "more=1"], "unexpected"),
        (["send_receipt", "order_id=five"], "Expected `int`, got `str`"),
        (["send_receipt", '{"order_id": "5"}'], "Expected `int`, got `str`"),
        (["greet", "{"], "the payload is not JSON"),
        (["greet", "[1]"], "must be an object"),
        (["greet", '"text"'], "must be an object"),
        (["greet", '{"name": NaN}'], "NaN is not JSON"),
        (["greet", "[" * 100_000], "not JSON"),
        (["greet", "Ada"], "neither a JSON object nor name=value"),
        (["greet", "=Ada"], "neither a JSON object nor name=value"),
        (["greet", "name=a", "name=b"], "given twice"),
        (["greet", "name=Ada", "--priority", "1000"], "priority"),
        (["greet", "name=Ada", "--priority", "high"], "not a valid integer"),
        (["greet", "name=Ada", "--delay", "soon"], "is not a duration"),
        (["greet", "name=Ada", "--max-attempts", "0"], "--max-attempts: must be"),
        (["greet", "name=Ada", "--queue", ""], "queue"),
        (["x" * 101, "--no-check"], "kind"),
    ],
)
def test_wrong_input_adds_nothing(run: Run, app: str, store: Store, words: list[str], told: str) -> None:
    assert told in run("enqueue", app, *words, code=2).stderr
    assert store.run(admin.count_jobs()) == 0


def test_bad_json_on_stdin_is_told(run: Run, app: str) -> None:
    assert "the payload is not JSON" in run("enqueue", app, "greet", "-", input="", code=2).stderr


def test_a_kind_of_another_program_needs_no_check(run: Run, app: str, store: Store) -> None:
    assert "No handler is registered" in run("enqueue", app, "theirs", "a=1", code=2).stderr
    job_id = run("enqueue", app, "theirs", "a=1", "--no-check").stdout.strip()
    assert payload(store, job_id) == {"a": 1}


def test_without_tables_it_says_what_to_run(run: Run, app: str, place: object) -> None:
    from pathlib import Path

    for path in Path(".").glob("shop.db*"):
        path.unlink()
    assert "holdfast migrate apply" in run("enqueue", app, "greet", "name=Ada", code=3).stderr


def test_a_queue_that_nobody_knows_is_told(run: Run, app: str, store: Store) -> None:
    told = run("enqueue", app, "greet", "name=Ada", "--queue", "mial")
    assert "no worker serves queue mial, and there are no jobs of it; did you mean mail?" in told.stderr
    assert store.run(admin.show(told.stdout.strip())).queue == "mial"
    assert run("enqueue", app, "greet", "name=Ada", "--queue", "mail").stderr == ""
