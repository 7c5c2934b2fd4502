"""The PHP queue tables on real rows: what the contract says, and every trap in it."""

import asyncio
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from holdfast import Holdfast, Job
from holdfast.contracts.foreign import PdoQueue
from holdfast.errors import ConfigError, Conflict, InvalidPayload, JobNotFound, LeaseLost, PayloadTooLarge
from holdfast.fingerprint import ErrorRecord
from holdfast.model import Finish, Lease, PutBack
from holdfast.testing.clock import Clock
from tests.contracts.conftest import Do, Sql, ids
from tests.contracts.mini_worker import drain

URN = "urn:babel:orders:created"
STAMP = "%Y-%m-%d %H:%M:%S"
LIMIT = 65_535


@pytest.fixture(autouse=True)
def handled(jobs: PdoQueue) -> list[dict[str, Any]]:
    """What the handler of the urn was called with."""
    calls: list[dict[str, Any]] = []

    @jobs.handler(URN)
    def created(order_id: int = 0, note: Any = None, *, job: Job) -> None:
        calls.append({"order_id": order_id, "note": note, **job.headers, "attempt": job.attempt})

    return calls


def claim(do: Do, jobs: PdoQueue, limit: int = 10, worker: str = "w") -> list[Lease]:
    leases: list[Lease] = do(jobs.claim(dict.fromkeys(jobs.handlers, 1), limit, worker))
    return leases


def finish(do: Do, jobs: PdoQueue, lease: Lease, outcome: Any = "done", error: str | None = None) -> Any:
    return do(jobs.settle([Finish(lease.id, lease.fence, outcome, None, error)], [], "w"))


def put_back(do: Do, jobs: PdoQueue, lease: Lease, delay_ms: int | None = 0, attempts_back: int = 0) -> Any:
    return do(jobs.settle([], [PutBack(lease.id, lease.fence, delay_ms, attempts_back)], "w"))


def envelope(**changes: Any) -> dict[str, Any]:
    meta = {"id": "m-1", "queue": "default", "lang": "php", "schema_version": 1, "created_at": 1749132727000}
    return {"job": URN, "trace_id": "t-1", "data": {"order_id": 7}, "meta": meta, "attempts": 0} | changes


def insert(sql: Sql, body: str, now: datetime, reserved_at: str | None = None, **columns: Any) -> int:
    """Add a row as another program would."""
    at = now.strftime(STAMP)
    values = {"queue": "default", "urn": URN, "trace_id": "t-1", "attempts": 0, "available_at": at} | columns
    sql(
        "insert into jobs (queue, urn, trace_id, attempts, payload, available_at, reserved_at, created_at) "
        "values (:queue, :urn, :trace_id, :attempts, :payload, :available_at, :reserved_at, :created_at)",
        payload=body,
        reserved_at=reserved_at,
        created_at=at,
        **values,
    )
    return int(sql.one("select max(id) from jobs")[0])


def payload(sql: Sql, table: str = "jobs") -> dict[str, Any]:
    texts = {"jobs": "select payload from jobs", "jobs_failed": "select payload from jobs_failed"}
    value: dict[str, Any] = json.loads(sql.one(texts[table])[0])
    return value


def failure(message: str = "boom", name: str = "ValueError") -> str:
    now = datetime.now(UTC)
    record = ErrorRecord.of(ValueError(message), attempt=1, worker="w", started_at=now, failed_at=now)
    return record.named(name).to_json()


# Publish


def test_a_published_row_is_what_the_contract_says(do: Do, jobs: PdoQueue, sql: Sql, clock: Clock) -> None:
    row_id = jobs.publish(URN, {"order_id": 7, "name": "Çağrı/🎈"}, trace_id="t-9")
    at = clock.now.strftime(STAMP)
    row = sql.one(
        "select id, queue, urn, trace_id, attempts, reserved_at, cast(available_at as char(19)), "
        "cast(created_at as char(19)) from jobs"
    )
    assert row == (row_id, "default", URN, "t-9", 0, None, at, at)
    [[text]] = sql("select payload from jobs")
    assert '"name":"Çağrı/🎈"' in text
    body = json.loads(text)
    assert list(body) == ["job", "trace_id", "data", "meta", "attempts"]
    assert {name: body["meta"][name] for name in ("queue", "lang", "schema_version")} == {
        "queue": "default",
        "lang": "python",
        "schema_version": 1,
    }
    assert isinstance(body["meta"]["created_at"], int)


def test_the_async_twins_do_the_same(hf: Holdfast, jobs: PdoQueue, sql: Sql) -> None:
    async def run() -> int:
        await jobs.acreate_schema()
        row_id = await jobs.apublish(URN, {"order_id": 8}, queue="mail")
        await hf.aclose()
        return row_id

    assert asyncio.run(run()) == sql.one("select id from jobs where queue = 'mail'")[0]


@pytest.mark.parametrize("pdo_url", ["sqlite"], indirect=True)
def test_a_publish_in_a_transaction_is_there_if_and_only_if_it_commits(hf: Holdfast, jobs: PdoQueue, sql: Sql) -> None:
    with hf.store.link() as link:
        link.tell("begin immediate")
        jobs.publish(URN, {"order_id": 1}, tx=link.raw)
        link.tell("rollback")
        link.tell("begin immediate")
        jobs.publish(URN, {"order_id": 2}, tx=link.raw)
        link.tell("commit")
    assert [json.loads(text)["data"] for (text,) in sql("select payload from jobs")] == [{"order_id": 2}]


def test_65535_bytes_fit_and_one_more_is_refused_before_the_insert(jobs: PdoQueue, sql: Sql) -> None:
    jobs.publish(URN, {"note": ""}, trace_id="t")
    spare = LIMIT - len(sql.one("select payload from jobs")[0].encode())
    jobs.publish(URN, {"note": "é" * (spare // 2) + "x" * (spare % 2)}, trace_id="t")
    with pytest.raises(PayloadTooLarge):
        jobs.publish(URN, {"note": "é" * (spare // 2) + "x" * (spare % 2 + 1)}, trace_id="t")
    assert sql.one("select count(*) from jobs") == (2,)


@pytest.mark.parametrize("data", [{"n": float("nan")}, {"n": float("inf")}, {"n": {1}}, {"n": b"x"}, {"n": "\ud800"}])
def test_what_is_not_json_is_refused(jobs: PdoQueue, sql: Sql, data: dict[str, Any]) -> None:
    with pytest.raises(InvalidPayload):
        jobs.publish(URN, data)
    assert sql("select id from jobs") == []


def test_a_delay_is_honoured(do: Do, jobs: PdoQueue, clock: Clock) -> None:
    jobs.publish(URN, {}, delay=30)
    clock.advance(29)
    assert claim(do, jobs) == []
    clock.advance(1)
    assert len(claim(do, jobs)) == 1


# Reserve


def test_the_oldest_id_comes_first_and_reserved_at_is_written(do: Do, jobs: PdoQueue, sql: Sql, clock: Clock) -> None:
    clock.now += timedelta(microseconds=999_999)
    added = [jobs.publish(URN, {"order_id": n}) for n in range(3)]
    leases = claim(do, jobs, limit=2)
    assert ids(leases) == added[:2]
    assert [lease.attempt for lease in leases] == [1, 1]
    at = clock.now.strftime(STAMP)
    assert [row[0] for row in sql("select cast(reserved_at as char(19)) from jobs order by id")] == [at, at, None]
    assert ids(claim(do, jobs)) == added[2:]


@pytest.mark.parametrize("pdo_url", ["sqlite"], indirect=True)
def test_times_on_sqlite_are_text_and_never_iso(do: Do, jobs: PdoQueue, sql: Sql, hf: Holdfast) -> None:
    jobs.publish(URN, {})
    [lease] = claim(do, jobs)
    assert sql.one("select typeof(available_at), typeof(reserved_at), typeof(created_at) from jobs") == ("text",) * 3
    put_back(do, jobs, lease, 1500)
    assert sql.one("select typeof(available_at), length(available_at), available_at like '%T%' from jobs") == ("text", 19, 0)


def test_a_time_zone_is_the_php_processes_own(hf: Holdfast, do: Do, sql: Sql, clock: Clock, jobs: PdoQueue) -> None:
    other = hf.foreign.pdo(table="berlin", timezone="Europe/Berlin")
    other.create_schema()
    clock.now = datetime(2026, 7, 1, 10, 0, 0, tzinfo=UTC)
    other.publish(URN, {})
    assert sql.one("select cast(available_at as char(19)) from berlin") == ("2026-07-01 12:00:00",)


def test_no_fresh_reservation_is_taken_while_clocks_go_back(
    hf: Holdfast, do: Do, clock: Clock, jobs: PdoQueue, handled: Any
) -> None:
    other = hf.foreign.pdo(table="berlin", timezone="Europe/Berlin", queue="default")
    other.create_schema()
    other.handler(URN)(lambda order_id=0: None)
    clock.now = datetime(2026, 10, 25, 1, 0, 5, tzinfo=UTC)  # 02:00:05, the second time
    other.publish(URN, {})
    assert len(claim(do, other)) == 1
    for _ in range(8):
        clock.advance(10)
        assert claim(do, other) == []
    clock.advance(15)
    assert len(claim(do, other)) == 1


def test_empty_data_as_php_writes_it_is_an_empty_object(do: Do, jobs: PdoQueue, sql: Sql, clock: Clock) -> None:
    insert(sql, json.dumps(envelope(data=[])), clock.now)
    [lease] = claim(do, jobs)
    assert lease.payload == "{}"


def test_keys_that_the_handler_does_not_take_are_ignored_and_kept(do: Do, jobs: PdoQueue, sql: Sql, clock: Clock) -> None:
    insert(sql, json.dumps(envelope(data={"order_id": 9, "since_v2": [1]}, tenant="acme")), clock.now)
    [lease] = claim(do, jobs)
    assert json.loads(lease.payload) == {"order_id": 9}
    put_back(do, jobs, lease)
    assert payload(sql)["data"] == {"order_id": 9, "since_v2": [1]}
    assert payload(sql)["tenant"] == "acme"


def test_the_payload_is_the_truth_and_the_columns_are_copies(do: Do, jobs: PdoQueue, sql: Sql, clock: Clock) -> None:
    body = envelope(job=None, urn=URN, attempts=1)
    insert(sql, json.dumps(body), clock.now, urn="urn:babel:wrong", attempts=0)
    [lease] = claim(do, jobs)
    assert (lease.kind, lease.attempt) == (URN, 2)


def test_a_reservation_does_not_rewrite_the_payload(do: Do, jobs: PdoQueue, sql: Sql, clock: Clock) -> None:
    text = json.dumps(envelope(data={"order_id": 1, "x": 1.0}), indent=3)
    insert(sql, text, clock.now)
    claim(do, jobs)
    assert sql.one("select payload from jobs") == (text,)


def test_ids_above_2_to_the_53_are_exact(do: Do, jobs: PdoQueue, sql: Sql, clock: Clock) -> None:
    big = 2**53 + 1
    at = clock.now.strftime(STAMP)
    for row_id in (big, big + 1):
        sql(
            "insert into jobs (id, queue, urn, attempts, payload, available_at, created_at) "
            "values (:id, 'default', :urn, 0, :payload, :at, :at)",
            id=row_id,
            urn=URN,
            payload=json.dumps(envelope()),
            at=at,
        )
    first, second = claim(do, jobs)
    assert (first.id, second.id) == (big, big + 1)
    assert finish(do, jobs, first).done == {str(big)}
    assert sql("select id from jobs") == [(big + 1,)]


def test_a_kind_without_room_is_left_for_others(do: Do, jobs: PdoQueue, sql: Sql) -> None:
    jobs.handler("urn:babel:slow", concurrency=1)(lambda: None)
    slow = [jobs.publish("urn:babel:slow", {}) for _ in range(3)]
    quick = jobs.publish(URN, {})
    assert ids(do(jobs.claim({URN: 1}, 10, "w"))) == [quick]
    assert ids(do(jobs.claim({"urn:babel:slow": 1}, 1, "w"))) == slow[:1]
    assert sql.one("select count(*) from jobs_failed") == (0,)


def test_queues_are_served_in_their_order(hf: Holdfast, do: Do, jobs: PdoQueue, handled: Any) -> None:
    two = hf.foreign.pdo(table="two", queues=["high", "low"])
    two.create_schema()
    two.handler(URN)(lambda: None)
    added = {name: two.publish(URN, {}, queue=name) for name in ("low", "other", "high")}
    assert ids(claim(do, two)) == [added["high"], added["low"]]


# Stale reservations and the fence


def test_a_stale_reservation_is_taken_over_and_counts_as_an_attempt(
    do: Do, jobs: PdoQueue, sql: Sql, clock: Clock
) -> None:
    jobs.publish(URN, {})
    claim(do, jobs)
    clock.advance(89)
    assert claim(do, jobs) == []
    clock.advance(1)
    [second] = claim(do, jobs)
    assert second.attempt == 2
    assert payload(sql)["attempts"] == 1
    assert sql.one("select attempts from jobs") == (1,)


def test_a_job_that_kills_its_worker_ends_in_the_dead_letters(do: Do, jobs: PdoQueue, sql: Sql, clock: Clock) -> None:
    jobs.publish(URN, {})
    for attempt in (1, 2, 3):
        assert [lease.attempt for lease in claim(do, jobs)] == [attempt]
        clock.advance(90)
    assert claim(do, jobs) == []
    assert sql("select id from jobs") == []
    assert sql.one("select reason, attempts from jobs_failed") == ("failed", 3)
    assert payload(sql, "jobs_failed")["dead_letter"]["exception"] == "LeaseExpired"


def test_a_late_ack_of_a_lost_reservation_changes_nothing(do: Do, jobs: PdoQueue, sql: Sql, clock: Clock) -> None:
    jobs.publish(URN, {})
    [late] = claim(do, jobs)
    clock.advance(90)
    [now] = claim(do, jobs, worker="other")
    assert finish(do, jobs, late).lost == {late.job_id}
    assert finish(do, jobs, late, "dead", failure()).lost == {late.job_id}
    assert put_back(do, jobs, late).lost == {late.job_id}
    assert do(jobs.renew([late], "w")).kept == set()
    assert sql.one("select count(*) from jobs_failed") == (0,)
    assert sql.one("select cast(reserved_at as char(19)) from jobs") == (now.fence,)
    assert finish(do, jobs, now).done == {now.job_id}


def test_a_completion_in_a_transaction_is_fenced_strictly(do: Do, jobs: PdoQueue, sql: Sql, clock: Clock) -> None:
    jobs.publish(URN, {})
    [late] = claim(do, jobs)
    clock.advance(90)
    [now] = claim(do, jobs, worker="other")
    with pytest.raises(LeaseLost):
        do(jobs.complete(late, None, keep=True, worker="w"))
    do(jobs.complete(now, None, keep=True, worker="other"))
    assert sql("select id from jobs") == []
    with pytest.raises(LeaseLost):
        do(jobs.complete(now, None, keep=True, worker="other"))


def test_a_renewed_reservation_stays_ours_under_the_fence_of_its_claim(
    do: Do, jobs: PdoQueue, sql: Sql, clock: Clock
) -> None:
    jobs.publish(URN, {})
    [lease] = claim(do, jobs)
    for _ in range(12):
        clock.advance(60)
        assert do(jobs.renew([lease], "w")).kept == {lease.job_id}
        assert claim(do, jobs, worker="other") == []
    assert sql.one("select cast(reserved_at as char(19)) from jobs") == (clock.now.strftime(STAMP),)
    assert finish(do, jobs, lease).done == {lease.job_id}
    assert sql("select id from jobs") == []


def test_a_renewal_whose_answer_was_lost_does_not_cost_the_lease(
    hf: Holdfast, jobs: PdoQueue, sql: Sql, clock: Clock
) -> None:
    jobs.publish(URN, {})
    [lease] = claim(hf.store.run, jobs)
    clock.advance(30)
    hf.store.run(jobs.renew([lease], "w"))  # committed, and nobody reads the answer
    clock.advance(1)
    assert finish(hf.store.run, jobs, lease).done == {lease.job_id}


def test_a_released_row_cannot_be_reserved_again_in_the_same_second(
    do: Do, jobs: PdoQueue, sql: Sql, clock: Clock
) -> None:
    jobs.publish(URN, {})
    [old] = claim(do, jobs)
    put_back(do, jobs, old, None, 1)
    assert claim(do, jobs) == []
    clock.advance(1)
    [new] = claim(do, jobs, worker="other")
    assert new.fence != old.fence
    assert finish(do, jobs, old).lost == {old.job_id}


def test_an_outcome_may_be_written_again_when_its_answer_was_lost(do: Do, jobs: PdoQueue, clock: Clock) -> None:
    for _ in range(3):
        jobs.publish(URN, {})
    acked, buried, released = claim(do, jobs)
    for _ in range(2):
        assert finish(do, jobs, acked).done == {acked.job_id}
        assert finish(do, jobs, buried, "dead", failure()).done == {buried.job_id}
        assert put_back(do, jobs, released, 60_000).done == {released.job_id}


# Release and retry


def test_a_retry_counts_and_waits(do: Do, jobs: PdoQueue, sql: Sql, clock: Clock) -> None:
    jobs.publish(URN, {"order_id": 1}, trace_id="t-5")
    before = payload(sql)
    [lease] = claim(do, jobs)
    put_back(do, jobs, lease, 5_000)
    assert payload(sql) == before | {"attempts": 1}
    ready = (clock.now + timedelta(seconds=5)).strftime(STAMP)
    assert sql.one("select attempts, reserved_at, cast(available_at as char(19)) from jobs") == (1, None, ready)
    clock.advance(5)
    assert claim(do, jobs)[0].attempt == 2


def test_a_snooze_or_a_drain_uses_no_attempt(do: Do, jobs: PdoQueue, sql: Sql, clock: Clock) -> None:
    jobs.publish(URN, {})
    [lease] = claim(do, jobs)
    put_back(do, jobs, lease, 1_000, attempts_back=1)
    assert payload(sql)["attempts"] == 0


def test_the_backoff_is_a_list_whose_last_delay_repeats(hf: Holdfast, jobs: PdoQueue, handled: Any) -> None:
    policy = jobs.handlers[URN].options.retry
    assert policy.max_attempts == 3
    assert [policy.delay(attempt) for attempt in (1, 2, 3, 4, 99)] == [1, 5, 15, 15, 15]


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
    from holdfast.contracts.views import list_failed

    sql(
        "insert into jobs_failed (queue, urn, attempts, payload, reason, failed_at, created_at) "
        "values ('default', :urn, 3, :payload, :reason, :at, :at)",
        urn=URN,
        payload=json.dumps(envelope(attempts=3)),
        reason=reason,
        at=clock.now.strftime(STAMP),
    )
    [view] = do(list_failed(jobs))
    assert view.errors[0]["reason"] == reason
    assert jobs.replay(int(view.id)) > 0


# Unknown urns


@pytest.fixture
def unknown(hf: Holdfast, request: pytest.FixtureRequest, jobs: PdoQueue) -> PdoQueue:
    # The same tables served by an application with another policy.
    app = Holdfast(hf.url)
    app.store.now = hf.store.now
    request.addfinalizer(app.close)
    queue = app.foreign.pdo(unknown=request.param)
    queue.handler("urn:babel:known")(lambda: None)
    return queue


@pytest.mark.parametrize("unknown", ["fail"], indirect=True)
def test_unknown_urns_fail_until_their_attempts_are_used_up(
    hf: Holdfast, clock: Clock, unknown: PdoQueue, sql: Sql, jobs: PdoQueue
) -> None:
    store = unknown._app.store
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
    store = unknown._app.store
    store.now = clock.now
    jobs.publish(URN, {})
    known = jobs.publish("urn:babel:known", {})
    assert ids(claim(store.run, unknown)) == [known]
    row = sql.one("select attempts, cast(available_at as char(19)) from jobs where urn = :urn", urn=URN)
    assert row == (0, (clock.now + timedelta(seconds=60)).strftime(STAMP))


@pytest.mark.parametrize("unknown", ["delete"], indirect=True)
def test_unknown_urns_may_be_deleted(clock: Clock, unknown: PdoQueue, sql: Sql, jobs: PdoQueue) -> None:
    unknown._app.store.now = clock.now
    jobs.publish(URN, {})
    claim(unknown._app.store.run, unknown)
    assert sql("select id from jobs") == sql("select id from jobs_failed") == []


@pytest.mark.parametrize("unknown", ["dead_letter"], indirect=True)
def test_unknown_urns_may_die_at_once(clock: Clock, unknown: PdoQueue, sql: Sql, jobs: PdoQueue) -> None:
    unknown._app.store.now = clock.now
    jobs.publish(URN, {})
    claim(unknown._app.store.run, unknown)
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
    with pytest.raises(ConfigError):
        jobs.handlers[URN].enqueue(order_id=1)
