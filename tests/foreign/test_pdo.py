"""The PHP queue tables on real rows: publish, reserve, renew, release, and every trap of the contract in them."""

import asyncio
import json
import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any

import pymysql
import pytest

from holdfast import Holdfast, Job
from holdfast.errors import Conflict, InvalidPayload, LeaseLost, NoTransaction, PayloadTooLarge
from holdfast.foreign import PdoQueue
from holdfast.store.dialects.mysql import split_url
from holdfast.testing.clock import Clock
from holdfast.values.rows import Completion, Finish, Park
from tests.foreign.conftest import Do, Sql, ids
from tests.foreign.rows import LIMIT, STAMP, URN, claim, envelope, failure, finish, insert, payload, put_back


@pytest.fixture(autouse=True)
def handled(jobs: PdoQueue) -> list[dict[str, Any]]:
    """What the handler of the urn was called with."""
    calls: list[dict[str, Any]] = []

    @jobs.handler(URN)
    def created(order_id: int = 0, note: Any = None, *, job: Job) -> None:
        calls.append({"order_id": order_id, "note": note, **job.headers, "attempt": job.attempt})

    return calls


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


def application_connection(hf: Holdfast) -> Any:
    """Open a connection as an application does: sqlite3, or PyMySQL with its own defaults."""
    if hf.store.embedded:
        return sqlite3.connect(hf.url.removeprefix("sqlite:///"), isolation_level=None)
    address = split_url(hf.url)
    return pymysql.connect(host=address.host, port=address.port, user=address.user, database=address.database)


def test_a_publish_in_a_transaction_is_there_if_and_only_if_it_commits(hf: Holdfast, jobs: PdoQueue, sql: Sql) -> None:
    with closing(application_connection(hf)) as connection:
        for number, end in enumerate(["rollback", "commit"], 1):
            connection.cursor().execute("begin")
            row_id = jobs.publish(URN, {"order_id": number}, tx=connection)
            # On SQLite nobody else may even look while the transaction is open.
            if not hf.store.embedded:
                assert sql("select id from jobs") == []
            connection.cursor().execute(end)
    rows = sql("select id, payload from jobs")
    assert [(found, json.loads(text)["data"]) for found, text in rows] == [(row_id, {"order_id": 2})]


@pytest.mark.parametrize("pdo_url", ["emptied_mariadb", "emptied_mysql"], indirect=True)
def test_a_publish_on_a_connection_in_autocommit_is_refused(hf: Holdfast, jobs: PdoQueue, sql: Sql) -> None:
    with closing(application_connection(hf)) as connection:
        connection.autocommit(True)
        with pytest.raises(NoTransaction):
            jobs.publish(URN, {}, tx=connection)
    assert sql("select id from jobs") == []


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
    assert sql.one("select typeof(available_at), length(available_at), available_at like '%T%' from jobs") == (
        "text",
        19,
        0,
    )


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


def test_keys_that_the_handler_does_not_take_are_ignored_and_kept(
    do: Do, jobs: PdoQueue, sql: Sql, clock: Clock
) -> None:
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
    assert sql.one("select cast(reserved_at as char(19)) from jobs") == (clock.now.strftime(STAMP),)
    # A number that rises, as that of every job: handlers hand it to systems that refuse an older one.
    assert (type(now.fence), now.fence > late.fence) == (int, True)
    assert finish(do, jobs, now).done == {now.job_id}


def test_a_completion_in_a_transaction_is_fenced_strictly(do: Do, jobs: PdoQueue, sql: Sql, clock: Clock) -> None:
    jobs.publish(URN, {})
    [late] = claim(do, jobs)
    clock.advance(90)
    [now] = claim(do, jobs, worker="other")
    with pytest.raises(LeaseLost):
        do(jobs.complete(Completion(late), "w"))
    do(jobs.complete(Completion(now), "other"))
    assert sql("select id from jobs") == []
    with pytest.raises(LeaseLost):
        do(jobs.complete(Completion(now), "other"))


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


def test_a_job_of_php_tables_cannot_wait_and_nothing_of_its_batch_is_written(
    do: Do, jobs: PdoQueue, sql: Sql, clock: Clock
) -> None:
    jobs.publish(URN, {"order_id": 7})
    jobs.publish(URN, {"order_id": 8})
    done, lease = claim(do, jobs)
    with pytest.raises(Conflict, match="PHP queues have no place for a job that waits"):
        do(jobs.settle([Finish(done.id, done.fence, "done"), Park(lease.id, lease.fence, "signal:approved")], "w"))
    assert len(sql("select id from jobs where reserved_at is not null")) == 2
