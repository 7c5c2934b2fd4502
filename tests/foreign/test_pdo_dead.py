"""Dead letters, unknown urns, what people see and settings of the PHP queue tables."""

import json
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from holdfast import Holdfast, Job
from holdfast.errors import ConfigError, Conflict, JobNotFound
from holdfast.foreign import PdoQueue
from holdfast.testing.clock import Clock
from tests.foreign.conftest import Do, Sql, ids
from tests.foreign.mini_worker import drain
from tests.foreign.rows import LIMIT, STAMP, URN, claim, envelope, failure, finish, insert, payload, put_back


@pytest.fixture(autouse=True)
def handled(jobs: PdoQueue) -> list[dict[str, Any]]:
    """What the handler of the urn was called with."""
    calls: list[dict[str, Any]] = []

    @jobs.handler(URN)
    def created(order_id: int = 0, note: Any = None, *, job: Job) -> None:
        calls.append({"order_id": order_id, "note": note, **job.headers, "attempt": job.attempt})

    return calls


# Dead letters


def test_a_dead_letter_keeps_the_message_and_says_why(do: Do, jobs: PdoQueue, sql: Sql, clock: Clock) -> None:
    jobs.publish(URN, {"order_id": 1}, trace_id="t-5")
    before = payload(sql)
    [lease] = claim(do, jobs)
    finish(do, jobs, lease, "dead", failure("Grüße/boom"))
    assert sql("select id from jobs") == []
    at = clock.now.strftime(STAMP)
    row = sql.one("select queue, urn, trace_id, attempts, reason, cast(failed_at as char(19)) from jobs_failed")
    assert row == ("default", URN, "t-5", 1, "failed", at)
    body = payload(sql, "jobs_failed")
    letter = body.pop("dead_letter")
    assert body == before | {"attempts": 1}
    assert letter == {
        "reason": "failed",
        "error": "Grüße/boom",
        "exception": "ValueError",
        "failed_at": int(clock.now.timestamp() * 1000),
        "original_queue": "default",
        "attempts": 1,
        "lang": "python",
    }


def test_replay_strips_the_letter_forgets_attempts_and_goes_home(do: Do, jobs: PdoQueue, sql: Sql) -> None:
    jobs.publish(URN, {"order_id": 1})
    before = payload(sql)
    [lease] = claim(do, jobs)
    finish(do, jobs, lease, "dead", failure())
    [[failed_id]] = sql("select id from jobs_failed")
    sql("update jobs_failed set queue = 'moved'")
    new_id = jobs.replay(failed_id)
    assert sql("select id, queue, attempts from jobs") == [(new_id, "default", 0)]
    assert payload(sql) == before
    assert sql("select id from jobs_failed") == []
    with pytest.raises(JobNotFound):
        jobs.replay(failed_id)


def test_discard_and_prune_delete_dead_letters(do: Do, jobs: PdoQueue, sql: Sql, clock: Clock) -> None:
    for _ in range(3):
        jobs.publish(URN, {})
        [lease] = claim(do, jobs)
        finish(do, jobs, lease, "dead", failure())
        clock.advance(timedelta(hours=1))
    [first, *_] = [row[0] for row in sql("select id from jobs_failed order by id")]
    jobs.discard(first)
    with pytest.raises(JobNotFound):
        jobs.discard(first)
    assert jobs.prune(timedelta(hours=1, minutes=30)) == 1
    assert sql.one("select count(*) from jobs_failed") == (1,)
    assert jobs.prune(0) == 1


@pytest.mark.parametrize(
    "body",
    [
        "not json",
        json.dumps(envelope(meta={"schema_version": 2})),
        json.dumps(envelope(meta={"schema_version": True})),
        json.dumps([1]),
        '{"job": "\\ud800"}',
    ],
)
def test_a_malformed_body_is_kept_in_its_dead_letter_at_once(
    do: Do, jobs: PdoQueue, sql: Sql, clock: Clock, body: str
) -> None:
    insert(sql, body, clock.now, attempts=2)
    good = jobs.publish(URN, {})
    assert ids(claim(do, jobs)) == [good]
    assert sql.one("select reason, attempts, urn, trace_id from jobs_failed") == ("poison", 2, URN, "t-1")
    letter = payload(sql, "jobs_failed")["dead_letter"]
    assert letter["raw"] == body
    assert letter["detail"] in letter["error"]
    [[failed_id]] = sql("select id from jobs_failed")
    with pytest.raises(Conflict):
        jobs.replay(failed_id)


def test_a_message_that_was_malformed_for_an_older_program_can_be_replayed(
    do: Do, jobs: PdoQueue, sql: Sql, clock: Clock
) -> None:
    letter = {"reason": "missing_meta", "raw": json.dumps(envelope(attempts=1))}
    at = clock.now.strftime(STAMP)
    sql(
        "insert into jobs_failed (queue, urn, attempts, payload, reason, failed_at, created_at) "
        "values ('default', '', 0, :payload, 'missing_meta', :at, :at)",
        payload=json.dumps({"dead_letter": letter}),
        at=at,
    )
    jobs.replay(sql.one("select id from jobs_failed")[0])
    assert payload(sql) == envelope()


@pytest.mark.parametrize("body", ["x" * LIMIT, '"' * LIMIT, "é" * (LIMIT // 2), json.dumps({"a": "\n" * 32_000})])
def test_a_malformed_body_too_large_for_a_letter_is_cut_and_says_so(
    do: Do, jobs: PdoQueue, sql: Sql, clock: Clock, body: str
) -> None:
    insert(sql, body, clock.now)
    assert claim(do, jobs) == []
    [[text]] = sql("select payload from jobs_failed")
    letter = json.loads(text)["dead_letter"]
    assert LIMIT - 100 < len(text.encode()) <= LIMIT
    assert body.startswith(letter["raw"])
    assert (letter["raw_cut"], letter["raw_bytes"]) == (True, len(body.encode()))


@pytest.mark.parametrize("pdo_url", ["sqlite"], indirect=True)
def test_bytes_that_are_no_text_stop_nothing(do: Do, jobs: PdoQueue, sql: Sql, hf: Holdfast, clock: Clock) -> None:
    at = clock.now.strftime(STAMP)
    sql(
        "insert into jobs (queue, urn, attempts, payload, available_at, created_at) "
        "values ('default', cast(x'ff41' as text), 0, cast(x'7bff7d' as text), :at, :at)",
        at=at,
    )
    good = jobs.publish(URN, {})
    assert ids(claim(do, jobs)) == [good]
    assert payload(sql, "jobs_failed")["dead_letter"]["raw"] == "{\ufffd}"


def full_body(attempts: int = 0) -> str:
    """A valid message of exactly 65,535 bytes."""
    body = envelope(data={"note": ""}, attempts=attempts)
    size = len(json.dumps(body, separators=(",", ":")).encode())
    return json.dumps(envelope(data={"note": "x" * (LIMIT - size)}, attempts=attempts), separators=(",", ":"))


def test_a_full_message_that_dies_is_not_lost(do: Do, jobs: PdoQueue, sql: Sql, clock: Clock) -> None:
    insert(sql, full_body(), clock.now)
    [lease] = claim(do, jobs)
    finish(do, jobs, lease, "dead", failure())
    [[failed_id, text, reason]] = sql("select id, payload, reason from jobs_failed")
    assert json.loads(text) == json.loads(full_body()) | {"attempts": 1}
    assert reason == "failed"
    jobs.replay(failed_id)
    assert payload(sql) == json.loads(full_body())


def test_a_full_message_with_no_room_for_its_attempts_is_not_lost(
    hf: Holdfast, do: Do, jobs: PdoQueue, sql: Sql, clock: Clock
) -> None:
    insert(sql, full_body(attempts=9), clock.now)
    [lease] = claim(do, jobs)
    assert put_back(do, jobs, lease).done == {lease.job_id}
    assert sql("select id from jobs") == []
    assert payload(sql, "jobs_failed") == json.loads(full_body(attempts=9))


def test_a_letter_short_of_room_gives_up_words_before_the_message(
    do: Do, jobs: PdoQueue, sql: Sql, clock: Clock
) -> None:
    body = json.loads(full_body())
    body["data"]["note"] = body["data"]["note"][:-1000]
    insert(sql, json.dumps(body), clock.now)
    [lease] = claim(do, jobs)
    finish(do, jobs, lease, "dead", failure("y" * 1900))
    dead = payload(sql, "jobs_failed")
    assert dead["dead_letter"]["error"] == "y" * 200
    assert dead["data"] == body["data"]


@pytest.mark.parametrize("reason", ["r" * 64, "missing_meta", ""])
def test_any_reason_up_to_64_characters_is_read(do: Do, jobs: PdoQueue, sql: Sql, clock: Clock, reason: str) -> None:
    sql(
        "insert into jobs_failed (queue, urn, attempts, payload, reason, failed_at, created_at) "
        "values ('default', :urn, 3, :payload, :reason, :at, :at)",
        urn=URN,
        payload=json.dumps(envelope(attempts=3)),
        reason=reason,
        at=clock.now.strftime(STAMP),
    )
    [view] = do(jobs.desk.letters()).rows
    assert view.errors[0]["reason"] == reason
    assert jobs.replay(int(view.id)) > 0


# Unknown urns


@pytest.fixture
def unknown(hf: Holdfast, request: pytest.FixtureRequest, jobs: PdoQueue) -> Iterator[PdoQueue]:
    # The same tables served by an application with another policy.
    app = Holdfast(hf.url)
    app.store.now = hf.store.now
    queue = app.foreign.pdo(unknown=request.param)
    queue.handler("urn:babel:known")(lambda: None)
    yield queue
    app.close()


@pytest.mark.parametrize("unknown", ["fail"], indirect=True)
def test_unknown_urns_fail_until_their_attempts_are_used_up(
    hf: Holdfast, clock: Clock, unknown: PdoQueue, sql: Sql, jobs: PdoQueue
) -> None:
    store = unknown._context.store
    jobs.publish(URN, {})
    for delay in (1, 5):
        store.now = clock.now
        assert claim(store.run, unknown) == []
        assert sql("select id from jobs_failed") == []
        clock.advance(delay)
    assert payload(sql)["attempts"] == 2
    store.now = clock.now
    assert claim(store.run, unknown) == []
    assert sql.one("select reason, attempts from jobs_failed") == ("unknown_urn", 3)


@pytest.mark.parametrize("unknown", ["release"], indirect=True)
def test_unknown_urns_that_are_released_wait_and_starve_nobody(
    hf: Holdfast, clock: Clock, unknown: PdoQueue, sql: Sql, jobs: PdoQueue
) -> None:
    store = unknown._context.store
    store.now = clock.now
    jobs.publish(URN, {})
    known = jobs.publish("urn:babel:known", {})
    assert ids(claim(store.run, unknown)) == [known]
    row = sql.one("select attempts, cast(available_at as char(19)) from jobs where urn = :urn", urn=URN)
    assert row == (0, (clock.now + timedelta(seconds=60)).strftime(STAMP))


@pytest.mark.parametrize("unknown", ["delete"], indirect=True)
def test_unknown_urns_may_be_deleted(clock: Clock, unknown: PdoQueue, sql: Sql, jobs: PdoQueue) -> None:
    unknown._context.store.now = clock.now
    jobs.publish(URN, {})
    claim(unknown._context.store.run, unknown)
    assert sql("select id from jobs") == sql("select id from jobs_failed") == []


@pytest.mark.parametrize("unknown", ["dead_letter"], indirect=True)
def test_unknown_urns_may_die_at_once(clock: Clock, unknown: PdoQueue, sql: Sql, jobs: PdoQueue) -> None:
    unknown._context.store.now = clock.now
    jobs.publish(URN, {})
    claim(unknown._context.store.run, unknown)
    assert sql.one("select reason, attempts from jobs_failed") == ("unknown_urn", 0)


# Through the executor


def test_handlers_get_typed_arguments_and_the_job(hf: Holdfast, jobs: PdoQueue, sql: Sql, handled: Any) -> None:
    jobs.publish(URN, {"order_id": 7, "note": {"a": []}}, trace_id="t-1")
    drain(hf)
    [call] = handled
    assert (call["order_id"], call["note"], call["attempt"], call["lang"]) == (7, {"a": []}, 1, "python")
    assert call["trace_id"] == "t-1"
    assert len(call["message_id"]) == 36
    assert sql("select id from jobs") == []


def test_arguments_that_do_not_fit_are_poison_and_failures_are_not(
    hf: Holdfast, jobs: PdoQueue, sql: Sql, clock: Clock, handled: Any
) -> None:
    jobs.handler("urn:babel:fails")(_fails)
    jobs.publish(URN, {"order_id": "seven"})
    jobs.publish("urn:babel:fails", {})
    for delay in (1, 5, 15):
        drain(hf)
        clock.advance(delay)
    assert sql("select urn, reason, attempts from jobs_failed order by id") == [
        (URN, "poison", 1),
        ("urn:babel:fails", "failed", 3),
    ]
    assert handled == []


def _fails() -> None:
    raise RuntimeError("no")


# What people see


def test_people_see_counts_rows_dead_letters_and_what_is_wrong(
    do: Do, jobs: PdoQueue, sql: Sql, clock: Clock, hf: Holdfast
) -> None:
    for _ in range(3):
        jobs.publish(URN, {"order_id": 1})
    jobs.publish(URN, {}, delay=500, queue="mail")
    dying, *_ = claim(do, jobs, limit=2)
    finish(do, jobs, dying, "dead", failure())
    clock.advance(100)
    default, mail = do(jobs.desk.counts())
    assert (default.due, default.stale, default.leased, default.dead, default.oldest_seconds) == (1, 1, 0, 1, 100)
    assert (mail.due, mail.scheduled, mail.dead) == (0, 1, 0)
    assert {finding.check for finding in do(jobs.desk.examine())} == {"lag", "stale", "dead-letters"}
    leased, ready, waiting = do(jobs.desk.rows(newest=False)).rows
    assert [view.state for view in (leased, ready, waiting)] == ["leased", "pending", "pending"]
    assert leased.lease_expires_at < clock.now < waiting.available_at
    assert ready.to_dict()["payload"]["data"] == {"order_id": 1}
    assert [view.id for view in do(jobs.desk.rows(after=leased.id, newest=False)).rows] == [ready.id, waiting.id]
    [dead] = do(jobs.desk.letters()).rows
    assert (dead.state, dead.kind, dead.last_error["message"]) == ("dead", URN, "boom")


# Settings


@pytest.mark.parametrize("name", ["jobs; drop", "1jobs", "", "a.b", "jöbs", "x" * 53, 'a"b', "jobs\n"])
def test_a_table_name_that_is_no_identifier_is_refused(hf: Holdfast, jobs: PdoQueue, name: str) -> None:
    with pytest.raises(ConfigError):
        hf.foreign.pdo(table=name)


@pytest.mark.parametrize(
    "settings",
    [
        {"timezone": "Mars/Base"},
        {"retry_after": 1},
        {"retry_after": 1.5},
        {"unknown": "ignore"},
        {"backoff": ()},
        {"backoff": (-1,)},
        {"max_attempts": 0},
        {"queues": "mail"},
        {"queues": []},
        {"failed_table": "other"},
    ],
)
def test_settings_that_break_a_rule_are_refused(hf: Holdfast, jobs: PdoQueue, settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        hf.foreign.pdo(table="other", **settings)


def test_the_same_tables_give_the_same_object_or_an_error(hf: Holdfast, jobs: PdoQueue) -> None:
    assert hf.foreign.pdo() is jobs
    assert hf.foreign.sources == [jobs]
    with pytest.raises(ConfigError):
        hf.foreign.pdo(retry_after=91)


def test_a_foreign_handler_cannot_be_enqueued_into_our_own_table(hf: Holdfast, jobs: PdoQueue, handled: Any) -> None:
    assert hf.handlers == {}
    assert not hasattr(jobs.handlers[URN], "enqueue")
