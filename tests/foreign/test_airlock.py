"""Airlock's outbox table on real rows: the relay's side of the contract, and every trap in it."""

import json
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from holdfast import Cancel, Fatal, Holdfast, Job, Retry, Snooze
from holdfast.errors import ConfigError, Conflict, ForeignTablesMissing, LeaseLost, SchemaMismatch
from holdfast.foreign import AirlockOutbox
from holdfast.foreign.airlock import flows
from holdfast.foreign.airlock.flows import FullJitter
from holdfast.foreign.airlock.messages import Takes
from holdfast.testing.clock import Clock
from holdfast.values.cloudevents import CloudEvent, from_structured
from holdfast.values.rows import Completion, Finish, Lease, Park, PutBack
from tests.foreign.airlock import TYPE, AirlockRelay, event, look, produce
from tests.foreign.conftest import Do, Sql, ids
from tests.foreign.mini_worker import drain
from tests.foreign.rows import failure
from tests.foreign.test_vectors import VECTORS

TIMES = ("next_retry_at", "locked_until")


@pytest.fixture(autouse=True)
def handled(outbox: AirlockOutbox) -> list[Any]:
    """What the type's handler was called with."""
    calls: list[Any] = []

    @outbox.handler(TYPE)
    async def created(event: CloudEvent, job: Job) -> None:
        calls.append((event, dict(job.headers), job.attempt))

    return calls


@pytest.fixture
def relay(hf: Holdfast) -> Iterator[AirlockRelay]:
    """Another relay on the table, which claims as Airlock's does."""
    one = AirlockRelay(hf.store)
    yield one
    one.close()


def add(sql: Sql, clock: Clock, payload: Any = ..., **columns: Any) -> str:
    return produce(sql, payload, **({"created_at": clock.now, "next_retry_at": clock.now} | columns))


def claim(do: Do, outbox: AirlockOutbox, limit: int = 10, worker: str = "w") -> list[Lease]:
    leases: list[Lease] = do(outbox.claim(dict.fromkeys(outbox.handlers, 1), limit, worker))
    return leases


def settle(do: Do, outbox: AirlockOutbox, *ends: Any, worker: str = "w") -> Any:
    return do(outbox.settle(ends, worker))


def done(lease: Lease) -> Finish:
    return Finish(lease.id, lease.fence, "done")


def dead(lease: Lease, message: str = "boom") -> Finish:
    return Finish(lease.id, lease.fence, "dead", None, failure(message))


# Claim


def test_a_claim_writes_what_airlocks_own_would(do: Do, outbox: AirlockOutbox, sql: Sql, clock: Clock) -> None:
    row = add(sql, clock, idempotency_key="once", partition_key="p", aggregate_id="a")
    [lease] = claim(do, outbox)
    assert (lease.id, lease.kind, lease.queue, lease.key, lease.attempt) == (row, TYPE, "order", "p", 1)
    assert (lease.max_attempts, lease.lease_ms) == (8, 30_000)
    found = look(sql, row)
    assert (found.status, found.retry_count, found.locked_by) == ("IN_FLIGHT", 0, "holdfast/w")
    assert found.locked_until == clock.now + timedelta(seconds=30)
    first, last = sql.one("select first_attempt_at, last_attempt_at from airlock_messages")
    assert first == last == clock.now
    assert claim(do, outbox, worker="other") == []


def test_a_holders_name_fits_its_column_and_tells_workers_apart(
    do: Do, outbox: AirlockOutbox, sql: Sql, clock: Clock
) -> None:
    long = "a-host-with-a-name-that-goes-on-and-on-and-on-and-on-and-on-12345-0123456789"
    add(sql, clock)
    [lease] = claim(do, outbox, worker=f"{long}ab")
    assert settle(do, outbox, done(lease), worker=f"{long}cd").lost == {lease.id}
    assert settle(do, outbox, done(lease), worker=f"{long}ab").done == {lease.id}


def test_the_order_is_that_of_next_retry_at(do: Do, outbox: AirlockOutbox, sql: Sql, clock: Clock) -> None:
    rows = [add(sql, clock, next_retry_at=clock.now - timedelta(seconds=n)) for n in (1, 3, 2)]
    add(sql, clock, next_retry_at=clock.now + timedelta(seconds=1))
    assert ids(claim(do, outbox, limit=2)) == [rows[1], rows[2]]
    assert ids(claim(do, outbox)) == [rows[0]]


def test_types_without_a_handler_or_without_room_are_left_to_others(
    do: Do, outbox: AirlockOutbox, sql: Sql, clock: Clock
) -> None:
    outbox.handler("slow")(lambda: None)
    other, slow = add(sql, clock, event_type="user.created"), add(sql, clock, event_type="slow")
    assert do(outbox.claim({TYPE: 1}, 10, "w")) == []
    assert ids(claim(do, outbox)) == [slow]
    assert look(sql, other).status == "PENDING"


def test_a_handler_for_every_type_takes_those_that_have_none_of_their_own(
    hf: Holdfast, do: Do, outbox: AirlockOutbox, sql: Sql, clock: Clock, handled: list[Any]
) -> None:
    rest: list[Any] = []
    outbox.handler("*")(lambda event: rest.append(event["type"]))
    add(sql, clock)
    add(sql, clock, event_type="user.created")
    assert [lease.kind for lease in do(outbox.claim({"*": 1}, 10, "w"))] == ["*"]
    clock.advance(31)
    drain(hf)
    assert (rest, [call[0].type for call in handled]) == (["user.created"], [TYPE])


def test_processed_and_failed_rows_are_never_claimed(do: Do, outbox: AirlockOutbox, sql: Sql, clock: Clock) -> None:
    for status in ("PROCESSED", "FAILED", "pending"):
        add(sql, clock, status=status)
    assert claim(do, outbox) == []


def test_both_relays_take_the_rows_that_the_contract_says(
    do: Do, outbox: AirlockOutbox, sql: Sql, clock: Clock, relay: AirlockRelay
) -> None:
    cases = json.loads((VECTORS / "airlock.json").read_text("utf-8"))["claims"]
    rows = {}
    for case in cases:
        at, until = (None if case[name] is None else clock.now + timedelta(seconds=case[name]) for name in TIMES)
        holder = None if until is None else "another"
        rows[case["name"]] = add(
            sql, clock, status=case["status"], next_retry_at=at, locked_until=until, locked_by=holder
        )
    expected = {rows[case["name"]] for case in cases if case["claimed"]}
    before = sql("select id, status, locked_by, locked_until from airlock_messages order by id")
    relay.link.tell("begin")
    assert set(relay.pick(clock.now)) == expected
    relay.link.tell("rollback")
    assert sql("select id, status, locked_by, locked_until from airlock_messages order by id") == before
    assert set(ids(claim(do, outbox))) == expected


# What the handler gets


def test_a_handler_gets_the_event_and_the_rows_columns(
    hf: Holdfast, outbox: AirlockOutbox, sql: Sql, clock: Clock, handled: list[Any]
) -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    text = {"note": "naïve 🎈", "n": 2**60}
    row = produce(
        sql,
        event("e-1", data=text, subject="order:1", traceparent=trace),
        idempotency_key="k",
        aggregate_id="1",
        next_retry_at=clock.now,
    )
    drain(hf)
    [(given, headers, attempt)] = handled
    assert (given.id, given.type, given.source, given.subject, given.data) == ("e-1", TYPE, "airlock", "order:1", text)
    assert given.time.isoformat() == "2026-05-01T10:00:00.123000+00:00"
    assert given.extensions == {"traceparent": trace}
    expected = {"aggregate_type": "order", "aggregate_id": "1", "partition_key": "9182", "idempotency_key": "k"}
    assert (headers, attempt) == (expected | {"traceparent": trace}, 1)
    found = look(sql, row)
    assert (found.status, found.processed_at, found.locked_by, found.locked_until) == (
        "PROCESSED",
        clock.now,
        None,
        None,
    )


def test_another_annotation_reads_the_event_as_it_is_stored(
    hf: Holdfast, outbox: AirlockOutbox, sql: Sql, clock: Clock
) -> None:
    calls: list[Any] = []
    outbox.handler("plain")(lambda whole: calls.append(whole))
    outbox.handler("none")(lambda: calls.append(None))
    for event_type in ("plain", "none"):
        add(sql, clock, event("e-1", type=event_type, custom="x"), event_type=event_type)
    drain(hf)
    assert sorted(calls, key=str) == [None, event("e-1", type="plain", custom="x")]


def test_an_event_that_was_stored_as_text_is_read_as_airlocks_relay_reads_it(
    hf: Holdfast, outbox: AirlockOutbox, sql: Sql, clock: Clock, handled: list[Any]
) -> None:
    add(sql, clock, json.dumps(json.dumps(event("e-1"))))
    drain(hf)
    assert [call[0].id for call in handled] == ["e-1"]


def test_what_sends_events_on_gets_them_as_they_are_stored(
    do: Do, outbox: AirlockOutbox, sql: Sql, clock: Clock
) -> None:
    row = add(sql, clock, event("e-1", type="any.type"), event_type="any.type", partition_key="p")
    [lease] = do(flows.claim(outbox.tables, {"*": Takes(None)}, 10, "w"))
    assert (lease.id, lease.key, from_structured(lease.payload)) == (
        row,
        "p",
        from_structured(json.dumps(event("e-1", type="any.type"))),
    )
    assert settle(do, outbox, done(lease)).done == {row}


def test_a_handler_takes_the_event_alone(outbox: AirlockOutbox) -> None:
    with pytest.raises(ConfigError, match="takes the event alone"):
        outbox.handler("two")(lambda one, two: None)
    with pytest.raises(ConfigError, match="has a handler"):
        outbox.handler(TYPE)(lambda: None)


# Poison


BAD: dict[str, Any] = {
    "a number": 5,
    "a list": [1],
    "null": "null",
    "text that is not JSON": json.dumps("{nonsense"),
    "no id": event("") | {"type": TYPE},
    "no source": event("e", source=""),
    "no type": {"id": "e", "source": "airlock", "specversion": "1.0"},
    "another type": event("e", type="user.created"),
    "another version": event("e", specversion="0.3"),
    "a time that cannot be read": event("e", time="yesterday"),
    "bytes that cannot be read": event("e") | {"data_base64": "!"},
}


def test_a_batch_with_one_bad_row_loses_that_row_alone(do: Do, outbox: AirlockOutbox, sql: Sql, clock: Clock) -> None:
    first, bad, last = (
        add(sql, clock, payload, next_retry_at=clock.now - timedelta(seconds=9 - n))
        for n, payload in enumerate((..., 5, ...))
    )
    assert ids(claim(do, outbox)) == [first, last]
    found = look(sql, bad)
    assert (found.status, found.retry_count, found.locked_by) == ("FAILED", 1, None)


def test_no_kind_of_bad_payload_stops_a_claim(do: Do, outbox: AirlockOutbox, sql: Sql, clock: Clock) -> None:
    bad = {name: add(sql, clock, payload) for name, payload in BAD.items()}
    good = add(sql, clock, next_retry_at=clock.now)
    assert ids(claim(do, outbox, limit=50)) == [good]
    found = {name: look(sql, row) for name, row in bad.items()}
    assert {name: row.status for name, row in found.items()} == dict.fromkeys(BAD, "FAILED")
    reasons = {name: row.error_reason or "" for name, row in found.items()}
    assert [name for name, reason in reasons.items() if not reason.startswith("Unreadable: the ")] == []
    assert "the event's type is 'user.created', but the row's event_type is 'order.created'" in reasons["another type"]


def test_rows_without_a_column_that_they_must_have_are_dead_letters(
    do: Do, outbox: AirlockOutbox, sql: Sql, clock: Clock
) -> None:
    bad = {}
    for column in ("aggregate_type", "aggregate_id", "event_type", "partition_key", "payload"):
        bad[column] = add(sql, clock)
        sql(f"alter table airlock_messages alter column {column} drop not null")
        sql(f"update airlock_messages set {column} = null where id = :id::text::uuid", id=bad[column])  # noqa: S608
    good = add(sql, clock)
    assert ids(claim(do, outbox)) == [good]
    for column, row in bad.items():
        assert look(sql, row)[0] == "FAILED"
        assert look(sql, row).error_reason == f"Unreadable: the row has no {column}"


def test_many_bad_rows_at_the_head_do_not_keep_a_claim_from_what_is_behind_them(
    do: Do, outbox: AirlockOutbox, sql: Sql, clock: Clock
) -> None:
    for n in range(25):
        add(sql, clock, 5, next_retry_at=clock.now - timedelta(seconds=n + 1))
    good = add(sql, clock)
    assert ids(claim(do, outbox, limit=2)) == [good]
    assert sql.one("select count(*) from airlock_messages where status = 'FAILED'") == (25,)


def test_a_row_larger_than_a_whole_batch_is_a_dead_letter(hf: Holdfast, do: Do, sql: Sql, clock: Clock) -> None:
    small = hf.foreign.airlock(max_batch_bytes=1024, name="small")
    small.handler(TYPE)(lambda: None)
    # The size that the producer wrote is not what is asked.
    large = add(sql, clock, event("e", data="x" * 1024))
    sql("update airlock_messages set payload_size = 1")
    good = add(sql, clock)
    assert ids(claim(do, small)) == [good]
    assert "PayloadTooLarge: The payload has 1,190 bytes" in (look(sql, large).error_reason or "")


# Limits


def test_rows_that_a_byte_limit_cuts_are_free_at_once(
    hf: Holdfast, do: Do, sql: Sql, clock: Clock, relay: AirlockRelay
) -> None:
    small = hf.foreign.airlock(max_batch_bytes=2000, name="small")
    small.handler(TYPE)(lambda: None)
    rows = [
        add(sql, clock, event("e", data="x" * 600), next_retry_at=clock.now - timedelta(seconds=9 - n))
        for n in range(5)
    ]
    assert ids(claim(do, small)) == rows[:2]
    assert [look(sql, row).status for row in rows[2:]] == ["PENDING"] * 3
    assert relay.claim(clock.now, 1) == rows[2:3]
    assert ids(claim(do, small, worker="other")) == rows[3:]


def test_a_released_message_is_free_at_once_in_its_old_place(
    do: Do, outbox: AirlockOutbox, sql: Sql, clock: Clock
) -> None:
    row = add(sql, clock, next_retry_at=clock.now - timedelta(seconds=5))
    before = look(sql, row)
    [lease] = claim(do, outbox)
    assert settle(do, outbox, PutBack(lease.id, lease.fence, None, 1)).done == {row}
    assert look(sql, row) == before
    assert ids(claim(do, outbox, worker="other")) == [row]


# Ends


def test_a_failed_message_is_tried_again_later_and_dies_after_its_last_attempt(
    hf: Holdfast, outbox: AirlockOutbox, sql: Sql, clock: Clock
) -> None:
    @outbox.handler("fails")
    def fails(event: CloudEvent) -> None:
        raise ValueError("bo\x00om")

    row = add(sql, clock, event_type="fails")
    for attempt in range(1, 8):
        drain(hf)
        found = look(sql, row)
        assert (found.status, found.retry_count, found.locked_by) == ("PENDING", attempt, None)
        assert found.error_reason == "ValueError: bo\ufffdom"
        assert clock.now <= found.next_retry_at <= clock.now + timedelta(seconds=min(300, 2 ** (attempt - 1)))
        clock.advance(301)
    drain(hf)
    assert (look(sql, row).status, look(sql, row).retry_count) == ("FAILED", 8)


def test_the_backoff_is_any_time_up_to_a_delay_that_doubles() -> None:
    retry = FullJitter(max_attempts=8, first_delay=1, max_delay=300)
    assert [retry.delay(n, lambda: 1.0) for n in (1, 2, 3, 9, 10, 50)] == [1, 2, 4, 256, 300, 300]
    assert retry.delay(4, lambda: 0.0) == 0
    assert 0 <= retry.delay(4) <= 8


@pytest.mark.parametrize(
    "answer, status, retries, reason",
    [
        (lambda: Fatal("never"), "FAILED", 1, "Fatal: never"),
        (lambda: Cancel("not wanted"), "PROCESSED", 0, "Cancelled: not wanted"),
        (lambda: Snooze(45), "PENDING", 0, None),
        (lambda: Retry.after(5, "later"), "PENDING", 1, "Retry: later"),
    ],
)
def test_what_a_handler_answers_becomes_the_rows_end(
    hf: Holdfast, outbox: AirlockOutbox, sql: Sql, clock: Clock, answer: Any, status: str, retries: int, reason: str
) -> None:
    outbox.handler("answers")(answer)
    row = add(sql, clock, event_type="answers")
    drain(hf)
    found = look(sql, row)
    assert (found.status, found.retry_count, found.error_reason, found.locked_by) == (status, retries, reason, None)


def test_an_event_that_does_not_fit_its_handler_is_a_dead_letter(
    hf: Holdfast, outbox: AirlockOutbox, sql: Sql, clock: Clock
) -> None:
    @outbox.handler("typed")
    def typed(event: dict[str, str]) -> None: ...

    row = add(sql, clock, event_type="typed")
    drain(hf)
    assert look(sql, row).status == "FAILED"


def test_a_batch_of_ends_is_written_together(do: Do, outbox: AirlockOutbox, sql: Sql, clock: Clock) -> None:
    rows = [add(sql, clock, next_retry_at=clock.now - timedelta(seconds=9 - n)) for n in range(5)]
    first, second, third, fourth, fifth = claim(do, outbox)
    ends = [
        dead(first, "one"),
        PutBack(second.id, second.fence, 2_000, 0, failure("two")),
        done(third),
        dead(fourth, "four"),
        PutBack(fifth.id, fifth.fence, 7_000, 1),
    ]
    assert settle(do, outbox, *ends).done == set(rows)
    found = [look(sql, row) for row in rows]
    assert [row.status for row in found] == ["FAILED", "PENDING", "PROCESSED", "FAILED", "PENDING"]
    assert [row.retry_count for row in found] == [1, 1, 0, 1, 0]
    assert [(row.error_reason or "").partition(": ")[2] for row in found] == ["one", "two", "", "four", ""]
    assert [found[n].next_retry_at - clock.now for n in (1, 4)] == [timedelta(seconds=2), timedelta(seconds=7)]


def test_a_park_is_refused(do: Do, outbox: AirlockOutbox, sql: Sql, clock: Clock) -> None:
    add(sql, clock)
    [lease] = claim(do, outbox)
    with pytest.raises(Conflict, match="no place for a job that waits"):
        settle(do, outbox, Park(lease.id, lease.fence, "signal:x"))


# Leases and the fence


def test_a_lost_lease_is_taken_over_and_a_renewed_one_is_not(
    do: Do, outbox: AirlockOutbox, sql: Sql, clock: Clock
) -> None:
    row = add(sql, clock)
    [lease] = claim(do, outbox)
    clock.advance(20)
    assert do(outbox.renew([lease], "w")).kept == {row}
    clock.advance(29)
    assert claim(do, outbox, worker="other") == []
    clock.advance(2)
    [taken] = claim(do, outbox, worker="other")
    # The worker that had it died: that was an attempt.
    assert (taken.id, taken.attempt, look(sql, row).retry_count) == (row, 2, 1)
    assert do(outbox.renew([lease], "w")).kept == set()
    assert do(outbox.renew([taken], "other")).kept == {row}


def test_a_stale_settle_changes_nothing(do: Do, outbox: AirlockOutbox, sql: Sql, clock: Clock) -> None:
    row = add(sql, clock)
    [stale] = claim(do, outbox)
    clock.pass_lease(stale)
    # The same worker, so that its name alone would not tell the claims apart.
    [taken] = claim(do, outbox)
    before = look(sql, row)
    for end in (done(stale), dead(stale), PutBack(stale.id, stale.fence, 0, 0)):
        assert settle(do, outbox, end).lost == {row}
        assert look(sql, row) == before
    with pytest.raises(LeaseLost):
        do(outbox.complete(Completion(stale), "w"))
    assert settle(do, outbox, done(taken)).done == {row}


@pytest.mark.parametrize("finished", [True, False], ids=["finished", "put back"])
def test_a_settle_after_another_relay_had_the_row_is_lost(
    do: Do, outbox: AirlockOutbox, sql: Sql, clock: Clock, relay: AirlockRelay, finished: bool
) -> None:
    row = add(sql, clock)
    [stale] = claim(do, outbox)
    clock.pass_lease(stale)
    assert relay.claim(clock.now) == [row]
    assert relay.finish(row, clock.now) if finished else relay.fail(row, clock.now, "boom")
    before = look(sql, row)
    assert settle(do, outbox, done(stale)).lost == {row}
    assert settle(do, outbox, PutBack(stale.id, stale.fence, 0, 0)).lost == {row}
    assert look(sql, row) == before


@pytest.mark.parametrize("end", [done, dead, lambda lease: PutBack(lease.id, lease.fence, 5_000, 0)])
def test_an_end_whose_answer_was_lost_may_be_written_again(
    do: Do, outbox: AirlockOutbox, sql: Sql, clock: Clock, end: Any
) -> None:
    row = add(sql, clock)
    [lease] = claim(do, outbox)
    assert settle(do, outbox, end(lease)).done == {row}
    before = look(sql, row)
    clock.advance(1)
    assert settle(do, outbox, end(lease)).done == {row}
    assert look(sql, row) == before


def test_a_message_that_kills_its_workers_ends_as_a_dead_letter(hf: Holdfast, do: Do, sql: Sql, clock: Clock) -> None:
    twice = hf.foreign.airlock(max_attempts=2, name="twice")
    twice.handler(TYPE)(lambda: None)
    row = add(sql, clock)
    for attempt in (1, 2):
        [lease] = claim(do, twice)
        assert lease.attempt == attempt
        clock.pass_lease(lease)
    assert claim(do, twice) == []
    assert look(sql, row).status == "FAILED"
    assert look(sql, row).error_reason == "LeaseExpired: The worker that held it did not come back."


def test_a_lease_that_the_other_relay_let_run_out_is_not_an_attempt(
    do: Do, outbox: AirlockOutbox, sql: Sql, clock: Clock, relay: AirlockRelay
) -> None:
    row = add(sql, clock)
    assert relay.claim(clock.now) == [row]
    assert claim(do, outbox) == []
    clock.advance(30)
    assert claim(do, outbox) == []
    clock.advance(0.001)
    [lease] = claim(do, outbox)
    assert (lease.attempt, look(sql, row).retry_count) == (1, 0)


def test_what_a_lost_answer_to_a_claim_left_leased_is_given_back(
    do: Do, outbox: AirlockOutbox, sql: Sql, clock: Clock
) -> None:
    for _ in range(3):
        add(sql, clock)
    known, stray, _ = claim(do, outbox)
    assert do(outbox.release_strays("w", [known])) == 2
    assert (look(sql, stray.id).status, look(sql, stray.id).retry_count) == ("PENDING", 0)
    assert look(sql, known.id).locked_by == "holdfast/w"
    assert do(outbox.release_strays("w", [known])) == 0


def test_completing_twice_commits_one_effect(do: Do, outbox: AirlockOutbox, sql: Sql, clock: Clock) -> None:
    add(sql, clock)
    [lease] = claim(do, outbox)
    do(outbox.complete_all([Completion(lease)], "w"))
    with pytest.raises(LeaseLost):
        do(outbox.complete(Completion(lease), "w"))
    assert settle(do, outbox, done(lease)).done == {lease.id}


# Idempotency keys


def test_a_replayed_letter_keeps_its_idempotency_key(do: Do, outbox: AirlockOutbox, sql: Sql, clock: Clock) -> None:
    row = add(sql, clock, status="FAILED", retry_count=8, error_reason="boom", idempotency_key="k")
    outbox.replay(row)
    found = look(sql, row)
    assert (found.status, found.retry_count, found.next_retry_at) == ("PENDING", 0, clock.now)
    assert sql.one("select idempotency_key from airlock_messages") == ("k",)
    assert ids(claim(do, outbox)) == [row]


def test_a_discarded_letter_leaves_its_idempotency_key_taken_and_nothing_else(
    outbox: AirlockOutbox, sql: Sql, clock: Clock
) -> None:
    plain, keyed = (add(sql, clock, status="FAILED", idempotency_key=key) for key in (None, "k"))
    outbox.discard(plain)
    outbox.discard(keyed)
    assert sql("select id::text, idempotency_key, status, payload::text, error_reason from airlock_messages") == [
        (keyed, "k", "PROCESSED", "{}", "discarded")
    ]
    clock.advance(timedelta(days=7, seconds=1))
    assert outbox.prune(timedelta(days=7)) == 1


# The tables themselves


def test_the_tables_are_those_of_airlocks_own_migration(outbox: AirlockOutbox, sql: Sql) -> None:
    outbox.create_schema()
    indexes = sql("select indexname::text from pg_indexes where tablename = 'airlock_messages' order by 1")
    assert [name for [name] in indexes] == [
        "airlock_messages_pkey",
        "idx_airlock_due",
        "idx_airlock_failed",
        "idx_airlock_partition",
        "idx_airlock_processed",
        "uq_airlock_idem",
    ]
    assert sql("select key, value from airlock_meta") == [("schema_version", "0")]


def test_tables_of_another_version_are_refused_with_what_to_do(do: Do, outbox: AirlockOutbox, sql: Sql) -> None:
    do(outbox.check())
    sql("update airlock_meta set value = '1'")
    with pytest.raises(SchemaMismatch, match=r"schema_version 1, and this Holdfast knows 0.*upgrade holdfast"):
        do(outbox.check())
    sql("delete from airlock_meta")
    with pytest.raises(SchemaMismatch, match=r"no schema_version.*migrate apply --store airlock:airlock_messages"):
        do(outbox.check())
    outbox.create_schema()
    do(outbox.check())
    sql("alter table airlock_messages drop column first_attempt_at, drop column last_attempt_at")
    with pytest.raises(SchemaMismatch, match="no column first_attempt_at and no last_attempt_at"):
        do(outbox.check())
    sql("drop table airlock_meta")
    with pytest.raises(ForeignTablesMissing, match="no table airlock_meta"):
        do(outbox.check())


def test_a_table_of_another_name_is_served_beside_it(hf: Holdfast, do: Do, sql: Sql, outbox: AirlockOutbox) -> None:
    other = hf.foreign.airlock("Shop_outbox", meta="shop_meta")
    other.create_schema()
    other.handler(TYPE)(lambda: None)
    row = produce(sql, table='"Shop_outbox"')
    assert ids(do(other.claim({TYPE: 1}, 10, "w"))) == [row]
    assert do(outbox.claim({TYPE: 1}, 10, "w")) == []


@pytest.mark.parametrize(
    "settings, field",
    [
        ({"table": "a b"}, "table"),
        ({"meta": "1"}, "meta"),
        ({"lease": 0.5}, "lease"),
        ({"max_attempts": 0}, "max_attempts"),
        ({"first_delay": 10, "max_delay": 5}, "max_delay"),
        ({"max_batch_bytes": 10}, "max_batch_bytes"),
    ],
)
def test_a_setting_that_cannot_be_is_refused_by_name(hf: Holdfast, settings: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError, match=rf"^{field}: "):
        hf.foreign.airlock(name="another", **settings)
