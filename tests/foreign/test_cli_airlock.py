"""`holdfast … --store airlock:airlock_messages`: Airlock's outbox table as a user at a keyboard meets it."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.foreign import AirlockOutbox
from tests.cli.conftest import Run, lines, place, run  # noqa: F401 - fixtures
from tests.foreign.airlock import TYPE, event, look, produce
from tests.foreign.conftest import Sql

APP = """
from holdfast import Holdfast
from holdfast.values.cloudevents import CloudEvent

hf = Holdfast({url!r})
outbox = hf.foreign.airlock({table!r}, meta={meta!r})


@outbox.handler("order.created")
def created(event: CloudEvent) -> None:
    pass
"""
STORE = ("--store", "airlock:airlock_messages", "--app", "shop:hf")


@pytest.fixture
def shop(run: Run, place: Path, airlock_url: str, outbox: AirlockOutbox) -> Run:  # noqa: F811
    """A keyboard before an application whose tables, and those that it shares with Airlock, are there."""
    (place / "shop.py").write_text(APP.format(url=airlock_url, table="airlock_messages", meta="airlock_meta"))
    run("migrate", "apply", "--app", "shop:hf")
    return run


def ago(**span: float) -> datetime:
    return datetime.now(UTC) - timedelta(**span)


def add(sql: Sql, seconds: float = 0, **columns: Any) -> str:
    at = ago(seconds=seconds)
    return produce(sql, **({"created_at": at, "next_retry_at": at} | columns))


def bury(sql: Sql, reason: str = "order 1 is gone", seconds: float = 0, **columns: Any) -> str:
    """Add a dead letter as a relay would leave it."""
    at = ago(seconds=seconds)
    given = {"status": "FAILED", "error_reason": reason, "retry_count": 8, "last_attempt_at": at} | columns
    return add(sql, seconds, **given)


def listed(shop: Run, *words: str) -> list[str]:
    return [row["id"] for row in lines(shop("jobs", "list", "--json", *STORE, *words))]


def letters(shop: Run, *words: str) -> list[str]:
    return [row["id"] for row in lines(shop("dead", "list", "--json", *STORE, *words))]


def test_messages_are_listed_by_age_chosen_and_paged(shop: Run, sql: Sql, airlock_url: str) -> None:
    old = add(sql, 30)
    held = add(sql, 20, status="IN_FLIGHT", locked_by="node-1", locked_until=ago(seconds=-60), partition_key="p")
    new = add(sql, 10, event_type="user.created", aggregate_type="user")
    add(sql, 5, status="PROCESSED")
    bury(sql)
    assert "airlock:airlock_messages: 2 due, 1 leased;" in shop("jobs", "list", "--app", "shop:hf").stderr
    assert listed(shop) == [new, held, old]
    assert listed(shop, "--oldest") == [old, held, new]
    assert (
        listed(shop, "--state", "leased") == listed(shop, "--worker", "node-1") == listed(shop, "--key", "p") == [held]
    )
    assert listed(shop, "--state", "pending", "--kind", TYPE) == [old]
    assert listed(shop, "--queue", "user") == listed(shop, "--since", "15s") == [new]
    assert listed(shop, "--limit", "1", "--after", new) == [held]
    assert listed(shop, "--oldest", "--after", old) == [held, new]
    alone = shop("jobs", "list", "--json", "--store", "airlock?lease=60&max_attempts=3", "--url", airlock_url)
    assert [row["max_attempts"] for row in lines(alone)] == [3, 3, 3]
    assert "keeps only what waits and runs" in shop("jobs", "list", "--state", "done", *STORE, code=2).stderr
    gone = "00000000-0000-4000-8000-000000000000"
    assert "is gone" in shop("jobs", "list", *STORE, "--after", gone, code=6).stderr
    assert "UUID" in shop("jobs", "show", "17", *STORE, code=2).stderr


def test_one_message_is_shown_in_every_state(shop: Run, sql: Sql) -> None:
    row = add(sql, idempotency_key="k", error_reason="Error: once", retry_count=1)
    [told] = lines(shop("jobs", "show", row, "--json", *STORE))
    assert (told["kind"], told["queue"], told["key"], told["attempts"]) == (TYPE, "order", "9182", 1)
    assert (told["payload"]["data"], told["headers"]["idempotency_key"]) == ({"order": 9182}, "k")
    assert told["errors"][0]["message"] == "once"
    done = add(sql, status="PROCESSED", processed_at=ago(seconds=1))
    assert lines(shop("jobs", "show", done, "--json", *STORE))[0]["state"] == "done"
    assert "not among the dead letters" in shop("dead", "show", row, *STORE, code=5).stderr


def test_retry_makes_due_replays_and_leaves_what_is_held_or_processed(shop: Run, sql: Sql) -> None:
    later, letter = add(sql, -600), bury(sql)
    held = add(sql, status="IN_FLIGHT", locked_by="node-1", locked_until=ago(seconds=-60))
    done = add(sql, status="PROCESSED")
    refused = shop("jobs", "retry", later, letter, held, done, "--actor", "ada", *STORE, code=6)
    assert f"{later} is due now\n" in refused.stdout
    assert letter in refused.stdout
    assert "held by a worker" in refused.stderr
    assert "does not wait" in refused.stderr
    assert look(sql, later).next_retry_at < ago(seconds=-1)
    assert (look(sql, letter).status, look(sql, letter).retry_count) == ("PENDING", 0)
    assert "replay by ada" in shop("jobs", "show", letter, *STORE).stdout
    assert "knows no cancel" in shop("jobs", "cancel", later, *STORE, code=6).stderr


def test_a_list_ends_after_a_number_of_dead_letters_and_says_so(
    shop: Run, sql: Sql, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.foreign.desk.WINDOW", 2)
    far = bury(sql, "the network is down", 50, event_type="user.created", aggregate_type="user")
    others = [bury(sql, seconds=seconds) for seconds in (40, 30, 20, 10)]
    asked = ("dead", "list", "--json", *STORE)
    for words in (("--kind", "user.created"), ("--error", "network"), ("--queue", "user", "--error", "network")):
        short = shop(*asked, *words)
        assert short.stdout == ""
        assert "looked at 20,000 dead letters; for the others: --all, or --after " in short.stderr
        after = short.stderr.split("--after ")[1].split()[0]
        assert after == others[2]
        assert letters(shop, *words, "--after", after) == []
        assert "--all" not in shop(*asked, *words, "--after", others[0]).stderr
        assert letters(shop, *words, "--after", others[0]) == letters(shop, *words, "--all") == [far]
    # What is asked for by its id, or not asked anything, is found in any case.
    assert letters(shop, "--id", far) == [far]
    assert len(letters(shop)) == 5
    [group] = lines(shop("dead", "groups", "--json", "--kind", "user.created", *STORE))
    assert group["count"] == 1
    shop("dead", "discard", "--kind", "user.created", "--yes", *STORE)
    assert len(letters(shop)) == 4


def test_dead_letters_are_grouped_replayed_and_discarded_as_they_are_chosen(shop: Run, sql: Sql) -> None:
    first, second = bury(sql, "order 1 is gone", 30), bury(sql, "order 27 is gone", 20)
    other = bury(sql, "KafkaError: the broker is away", 10, event_type="user.created", idempotency_key="k")
    bad = bury(sql, "Unreadable: the payload is not a CloudEvent", 5, payload=5)
    assert letters(shop) == [bad, other, second, first]
    assert letters(shop, "--error", "KAFKAERROR: THE") == letters(shop, "--kind", "user.created") == [other]
    assert letters(shop, "--until", "15s") == [second, first]
    groups = lines(shop("dead", "groups", "--json", *STORE))
    assert [group["count"] for group in groups] == [2, 1, 1]
    dry = shop("dead", "replay", "--all", "--dry-run", *STORE)
    assert f"{bad} cannot be replayed" in dry.stderr
    assert len(letters(shop)) == 4
    shop("dead", "replay", "--kind", TYPE, "--error", "order", "--actor", "ada", "--yes", *STORE)
    assert listed(shop) == [second, first]
    shop("dead", "discard", "--all", "--yes", *STORE)
    assert letters(shop) == []
    # Its key stays taken, so that a producer that repeats itself adds nothing.
    assert sql("select id::text, status from airlock_messages where idempotency_key = 'k'") == [(other, "PROCESSED")]
    assert sql("select 1 from airlock_messages where id = :id::text::uuid", id=bad) == []


def test_prune_deletes_processed_messages_by_age_and_letters_when_they_are_named(shop: Run, sql: Sql) -> None:
    week, fresh = ago(days=8), ago(days=1)
    for at in (week, week, fresh):
        add(sql, status="PROCESSED", processed_at=at, aggregate_type="user")
    bury(sql, seconds=86_400 * 9)
    waiting = add(sql, 86_400 * 9)
    store = ("--older-than", "7d", "--yes", *STORE)
    assert "2" in shop("prune", "--dry-run", *store).stdout
    shop("prune", "--chunk", "1", *store)
    assert sql("select status, count(*) from airlock_messages group by 1 order by 1") == [
        ("FAILED", 1),
        ("PENDING", 1),
        ("PROCESSED", 1),
    ]
    shop("prune", "--outcome", "dead", *store)
    assert letters(shop) == []
    assert listed(shop) == [waiting]


def test_doctor_finds_lag_silence_letters_and_rows_that_nobody_can_take(shop: Run, sql: Sql) -> None:
    add(sql)
    assert shop("doctor", *STORE).stdout.endswith("all is well\n")
    add(sql, 3700)
    add(sql, 3700, status="IN_FLIGHT", locked_by="node-1", locked_until=ago(seconds=3600))
    add(sql, payload=event("e", type="user.created"))
    strange = add(sql, status="pending")
    sql("alter table airlock_messages alter column next_retry_at drop not null")
    timeless = add(sql)
    sql("update airlock_messages set next_retry_at = null where id = :id::text::uuid", id=timeless)
    bury(sql, "boom")
    found = [f for f in lines(shop("doctor", "--app", "shop:hf", "--json", code=7)) if f["check"] == "foreign"]
    seen = {finding["seen"]: finding for finding in found}
    for words, severity in (
        ("order: 3 due, the oldest for 1:01:", "warning"),
        ("order: 1 held by workers", "warning"),
        ("1 malformed message, such as", "warning"),
        (f"1 message with a status that no relay knows, such as {strange}", "problem"),
        (f"1 message without next_retry_at, such as {timeless}", "problem"),
        (f"1 × {TYPE}", "warning"),
    ):
        [finding] = [finding for text, finding in seen.items() if words in text]
        assert (finding["severity"], bool(finding["do"])) == (severity, True)
    assert len(found) == 6


def test_doctor_and_check_name_a_missing_table_and_another_version(shop: Run, sql: Sql) -> None:
    sql("update airlock_meta set value = '3'")
    told = shop("doctor", *STORE, code=7).stdout
    assert "airlock_meta says schema_version 3, and this Holdfast knows 0" in told
    assert "upgrade holdfast" in told
    assert "schema_version 3" in shop("migrate", "check", *STORE, code=3).stderr
    assert "schema_version 3" in shop("worker", "shop:hf", code=3).stderr
    sql("drop table airlock_meta")
    told = shop("doctor", *STORE, code=7).stdout
    assert "there is no table airlock_meta" in told
    assert "holdfast migrate apply --store airlock:airlock_messages" in told
    assert shop("migrate", "apply", *STORE).stdout == "created airlock_meta\n"
    shop("migrate", "check", *STORE)


def test_without_its_tables_nothing_starts_and_migrate_makes_them(
    run: Run,  # noqa: F811
    place: Path,  # noqa: F811
    airlock_url: str,
    hf: Holdfast,
) -> None:
    (place / "shop.py").write_text(APP.format(url=airlock_url, table="Shop_messages", meta="shop_meta"))
    store = ("--store", "airlock:Shop_messages", "--app", "shop:hf")
    run("migrate", "apply", "--app", "shop:hf")
    assert "no table Shop_messages and no shop_meta" in run("worker", "shop:hf", code=3).stderr
    run("jobs", "list", *store, code=3)
    script = run("migrate", "sql", *store).stdout
    assert 'create table if not exists "Shop_messages"' in script
    assert "insert into \"shop_meta\" (key, value) values ('schema_version', '0')" in script
    assert run("migrate", "apply", *store).stdout.count("created ") == 2
    run("migrate", "check", *store)
    assert run("jobs", "list", *store).stderr == "no jobs found\n"
