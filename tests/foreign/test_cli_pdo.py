"""`holdfast … --store pdo:jobs`: the PHP queue tables as a user at a keyboard meets them."""

import asyncio
import json
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast, admin
from holdfast.cli.follow import Follower
from holdfast.cli.schemas import ForeignSchema
from holdfast.cli.stores import Opened
from holdfast.errors import ForeignTablesMissing, SchemaMissing
from holdfast.foreign import PdoQueue, desk
from holdfast.life import letters as chunks
from holdfast.life.listing import EVERYTHING
from tests.cli.conftest import Run, lines, place, run  # noqa: F401 - fixtures
from tests.foreign.conftest import Sql
from tests.foreign.rows import STAMP, URN, envelope, insert, payload
from tests.servers import free_port

APP = """
from holdfast import Holdfast

hf = Holdfast({url!r})
queue = hf.foreign.pdo(table={table!r}, retry_after=30)


@hf.job
def greet(name: str) -> None:
    pass


@queue.handler("urn:babel:orders:created")
def created(order_id: int) -> None:
    pass
"""
SECRET = "hunter2-xyzzy"
STORE = ("--store", "pdo:jobs", "--app", "shop:hf")


@pytest.fixture
def shop(run: Run, place: Path, pdo_url: str, jobs: PdoQueue) -> Run:  # noqa: F811
    """A keyboard before an application whose tables, and those that it shares with PHP, are there."""
    (place / "shop.py").write_text(APP.format(url=pdo_url, table="jobs"))
    run("migrate", "apply", "--app", "shop:hf")
    return run


def ago(**span: float) -> str:
    return (datetime.now(UTC) - timedelta(**span)).strftime(STAMP)


def reserve(sql: Sql, row_id: int, at: str) -> None:
    sql("update jobs set reserved_at = :at where id = :id", at=at, id=row_id)


def bury(sql: Sql, error: str = "order 1 is gone", body: str | None = None, **columns: Any) -> int:
    """Add a dead letter as a PHP program would."""
    letter = {"reason": "failed", "error": error, "exception": "GatewayTimeout", "original_queue": "orders"}
    values = {"queue": "orders", "urn": URN, "reason": "failed", "at": ago(minutes=5)} | columns
    sql(
        "insert into jobs_failed (queue, urn, trace_id, attempts, payload, reason, failed_at, created_at) "
        "values (:queue, :urn, 't-1', 3, :payload, :reason, :at, :at)",
        payload=body if body is not None else json.dumps(envelope(attempts=3, dead_letter=letter)),
        **values,
    )
    return int(sql.one("select max(id) from jobs_failed")[0])


def listed(shop: Run, *words: str) -> list[str]:
    return [row["id"] for row in lines(shop("jobs", "list", "--json", *STORE, *words))]


def letters(shop: Run, *words: str) -> list[str]:
    return [row["id"] for row in lines(shop("dead", "list", "--json", *STORE, *words))]


def test_our_list_tells_of_the_others_and_store_lists_them(shop: Run, jobs: PdoQueue, sql: Sql) -> None:
    waits = jobs.publish(URN, {"order_id": 1}, delay=600)
    held = jobs.publish(URN, {"order_id": 2}, queue="orders")
    reserve(sql, held, ago())
    ready = jobs.publish("urn:babel:other", {})
    ours = shop("jobs", "list", "--app", "shop:hf")
    assert ours.stdout == ""
    assert "pdo:jobs: 1 due, 1 scheduled, 1 leased; --store pdo:jobs lists it" in ours.stderr
    assert listed(shop) == [str(ready), str(held), str(waits)]
    shown = shop("jobs", "list", *STORE).stdout.splitlines()
    assert [line.split()[:4] for line in shown[1:3]] == [
        [str(ready), "pending", "urn:babel:other", "default"],
        [str(held), "leased", URN, "orders"],
    ]
    assert {row["store"] for row in lines(shop("jobs", "list", "--json", *STORE))} == {"pdo:jobs"}


def test_rows_are_chosen_and_paged(shop: Run, jobs: PdoQueue, sql: Sql) -> None:
    old = str(insert(sql, json.dumps(envelope()), datetime.now(UTC) - timedelta(days=2)))
    held, other = str(jobs.publish(URN, {}, queue="orders")), str(jobs.publish("urn:other", {}))
    reserve(sql, int(held), ago())
    assert listed(shop, "--oldest") == [old, held, other]
    assert listed(shop, "--state", "leased") == [held]
    assert listed(shop, "--state", "pending", "--state", "leased", "--limit", "1") == [other]
    assert listed(shop, "--queue", "orders") == [held]
    assert listed(shop, "--kind", "urn:other") == [other]
    assert listed(shop, "--until", "1d") == [old]
    assert listed(shop, "--since", "1d", "--id", old, "--id", other) == [other]
    assert listed(shop, "--after", other, "--limit", "1") == [held]
    assert listed(shop, "--oldest", "--after", held) == [other]
    assert "there may be more: --limit, or --after" in shop("jobs", "list", *STORE, "--limit", "2").stderr
    assert shop("jobs", "list", *STORE, "--queue", "nothing").stderr == "no jobs found\n"


def test_without_an_application_the_url_and_the_table_are_enough(shop: Run, jobs: PdoQueue, pdo_url: str) -> None:
    row = str(jobs.publish(URN, {}))
    for store in ("pdo", "pdo:jobs", "pdo:jobs?timezone=Europe/Istanbul&retry_after=30&failed_table=jobs_failed"):
        assert [each["id"] for each in lines(shop("jobs", "list", "--json", "--store", store, "--url", pdo_url))] == [
            row
        ]


def test_one_row_is_shown(shop: Run, jobs: PdoQueue) -> None:
    row = str(jobs.publish(URN, {"order_id": 7}))
    assert '"order_id":7' in shop("jobs", "show", row, *STORE).stdout
    [told] = lines(shop("jobs", "show", row, "--json", *STORE))
    assert (told["store"], told["payload"]["data"], told["state"]) == ("pdo:jobs", {"order_id": 7}, "pending")
    assert "no row 999999 in pdo:jobs" in shop("jobs", "show", "999999", *STORE, code=5).stderr
    assert "whole numbers" in shop("jobs", "show", "x", *STORE, code=2).stderr
    assert "no row" in shop("dead", "show", row, *STORE, code=5).stderr


def test_retry_makes_a_waiting_row_due_and_no_other(shop: Run, jobs: PdoQueue, sql: Sql) -> None:
    waits, held = jobs.publish(URN, {}, delay=3600), jobs.publish(URN, {})
    reserve(sql, held, ago())
    refused = shop("jobs", "retry", str(waits), str(held), "999999", *STORE, code=6)
    assert refused.stdout == f"{waits} is due now\n"
    assert "held by a worker" in refused.stderr
    assert "999999" in refused.stderr
    [[at]] = sql("select available_at from jobs where id = :id", id=waits)
    assert str(at) <= ago(seconds=-5)


def test_cancel_says_why_not_and_what_instead(shop: Run, jobs: PdoQueue, sql: Sql) -> None:
    row = str(jobs.publish(URN, {}))
    told = shop("jobs", "cancel", row, *STORE, code=6).stderr
    assert "pdo:jobs knows no cancel" in told
    assert "delete its row in jobs" in told
    assert listed(shop) == [row]


def test_tail_tells_changes_and_what_left(shop: Run, hf: Holdfast, jobs: PdoQueue, sql: Sql) -> None:
    first, second = jobs.publish(URN, {}), jobs.publish(URN, {})
    told = shop("jobs", "tail", "--for", "0", *STORE).stdout.splitlines()
    assert [line.split()[1:3] for line in told] == [["pending", str(first)], ["pending", str(second)]]
    assert lines(shop("jobs", "tail", "--for", "0", "-n", "1", "--json", *STORE))[0]["id"] == str(second)
    follower, at = Follower(EVERYTHING), Opened(jobs.desk, hf.store, ForeignSchema(jobs, hf.store), jobs.name)
    follower.look(at)
    sql("delete from jobs where id = :id", id=first)
    reserve(sql, second, ago())
    assert [(row.id, state) for row, state in follower.look(at)] == [(str(first), "gone"), (str(second), "leased")]
    assert follower.look(at) == []


def test_a_list_ends_after_a_number_of_dead_letters_and_says_so(
    shop: Run, sql: Sql, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.foreign.desk.WINDOW", 2)
    far = bury(sql, "the network is down", urn="urn:far", queue="mail")
    others = [bury(sql) for _ in range(4)]
    asked = ("dead", "list", "--json", *STORE)
    for words in (("--kind", "urn:far"), ("--error", "network"), ("--queue", "mail", "--error", "network")):
        short = shop(*asked, *words)
        assert short.stdout == ""
        assert "looked at 20,000 dead letters; for the others: --all, or --after " in short.stderr
        after = short.stderr.split("--after ")[1].split()[0]
        assert after == str(others[2])
        assert letters(shop, *words, "--after", after) == []
        assert "--all" not in shop(*asked, *words, "--after", str(others[0])).stderr
        assert letters(shop, *words, "--after", str(others[0])) == letters(shop, *words, "--all") == [str(far)]
    # What is asked for by its id, or not asked anything, is found in any case.
    assert letters(shop, "--id", str(far)) == [str(far)]
    assert len(letters(shop)) == 5
    [group] = lines(shop("dead", "groups", "--json", "--kind", "urn:far", *STORE))
    assert group["count"] == 1
    shop("dead", "discard", "--kind", "urn:far", "--yes", *STORE)
    assert len(letters(shop)) == 4


def test_dead_letters_are_listed_grouped_and_shown(shop: Run, sql: Sql) -> None:
    one, two = bury(sql, "order 1 is gone", at=ago(days=2)), bury(sql, "order 27 is gone")
    other = bury(sql, "the network is down", queue="mail")
    told = shop("dead", "list", "--app", "shop:hf")
    assert (told.stdout, "pdo:jobs: 3 dead; --store pdo:jobs lists them" in told.stderr) == ("", True)
    assert letters(shop) == [str(other), str(two), str(one)]
    assert letters(shop, "--queue", "mail") == [str(other)]
    assert letters(shop, "--since", "1d", "--error", "ORDER") == [str(two)]
    assert "GatewayTimeout: the network is down" in shop("dead", "list", *STORE).stdout
    large, small = lines(shop("dead", "groups", "--json", *STORE))
    assert (large["count"], large["sample_id"], small["count"], large["store"]) == (2, str(two), 1, "pdo:jobs")
    assert letters(shop, "--group", large["group"]) == [str(two), str(one)]
    assert large["group"] in shop("dead", "groups", *STORE).stdout
    assert "the network is down" in shop("dead", "show", str(other), *STORE).stdout


def test_letters_are_replayed_to_where_they_came_from(shop: Run, sql: Sql) -> None:
    bury(sql, "order 1 is gone")
    kept = bury(sql, "the network is down")
    assert shop("dead", "replay", "--error", "order", *STORE).stdout == "replayed 1 dead letter\n"
    assert sql.one("select queue, attempts from jobs") == ("orders", 0)
    assert payload(sql) == envelope(attempts=0)
    assert letters(shop) == [str(kept)]


def test_bulk_actions_ask_and_can_be_tried_dry(shop: Run, sql: Sql) -> None:
    first, second, third = (bury(sql) for _ in range(3))
    assert "or --all" in shop("dead", "replay", "--yes", *STORE, code=2).stderr
    assert "Replay 3 dead letters of pdo:jobs? Not done" in shop("dead", "replay", "--all", *STORE, code=2).stderr
    assert "--yes" in shop("dead", "discard", "--all", *STORE, code=2).stderr
    assert shop("dead", "replay", "--all", "--dry-run", *STORE).stdout == "would replay 3 dead letters\n"
    [dry] = lines(shop("dead", "discard", "--all", "--limit", "2", "--dry-run", "--json", *STORE))
    assert dry == {"store": "pdo:jobs", "dry_run": True, "discarded": [str(first), str(second)]}
    assert len(letters(shop)) == 3
    [gone] = lines(shop("dead", "discard", "--all", "--limit", "2", "--yes", "--json", *STORE))
    assert gone["discarded"] == [str(first), str(second)]
    [back] = lines(shop("dead", "replay", "--id", str(third), "--json", *STORE))
    assert (back["replayed"], back["rows"]) == ([str(third)], [str(sql.one("select id from jobs")[0])])
    assert "no dead letter matches" in shop("dead", "replay", "--all", *STORE, code=5).stderr


def test_letters_go_back_across_chunks_and_a_malformed_one_stops_none(
    shop: Run, sql: Sql, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(desk, "PAGE_ROWS", 2)
    monkeypatch.setattr(chunks, "LETTERS_PER_COMMIT", 2)
    bad = bury(sql, body="nonsense")
    for _ in range(4):
        bury(sql)
    [foreseen] = lines(shop("dead", "replay", "--all", "--dry-run", "--json", *STORE))
    assert (len(foreseen["replayed"]), list(foreseen["conflicts"]), foreseen["rows"]) == (4, [str(bad)], [])
    told = shop("dead", "replay", "--all", "--yes", *STORE)
    assert told.stdout == "replayed 4 dead letters\n"
    assert f"Dead letter {bad} cannot be replayed" in told.stderr
    [again] = lines(shop("dead", "replay", "--all", "--json", *STORE, code=6))
    assert list(again["conflicts"]) == [str(bad)]
    assert letters(shop) == [str(bad)]


def test_what_is_done_by_hand_is_shown_with_the_row(shop: Run, jobs: PdoQueue, sql: Sql) -> None:
    row, letter = str(jobs.publish(URN, {}, delay=3600)), str(bury(sql, "order 1 is gone"))
    shop("jobs", "retry", row, "--actor", "ada", *STORE)
    assert "run_now by ada" in shop("jobs", "show", row, *STORE).stdout
    shop("dead", "discard", "--id", letter, "--yes", "--actor", "grace", *STORE)
    lines_of = [line.detail for line in jobs._context.store.run(admin.audit()) if line.actor == "grace"]
    assert [(line["store"], line["id"], line["error"]["message"]) for line in lines_of] == [
        ("pdo:jobs", letter, "order 1 is gone")
    ]
    # Messages and dead letters have ids of their own, so the lines of one are not those of the other.
    [told] = lines(shop("jobs", "show", row, "--json", *STORE))
    assert [(line["action"], line["actor"]) for line in told["audit"]] == [("run_now", "ada")]


def test_without_our_own_tables_nothing_is_audited_and_actor_is_refused(run: Run, place: Path) -> None:  # noqa: F811
    store = ("--store", "pdo:jobs", "--url", "sqlite:///alone.db")
    run("migrate", "apply", *store)
    told = run("jobs", "retry", "1", "--actor", "ada", *store, code=2).stderr
    assert "--actor: pdo:jobs keeps no audit here" in told
    with closing(Holdfast("sqlite:///alone.db")) as app:
        row = str(app.foreign.pdo().publish(URN, {}, delay=3600))
    assert run("jobs", "retry", row, *store).stdout == f"{row} is due now\n"
    [shown] = lines(run("jobs", "show", row, "--json", *store))
    assert shown["audit"] == []


def test_dead_letters_are_pruned_by_age_and_when_they_are_named(shop: Run, sql: Sql) -> None:
    for days in (40, 35, 1):
        bury(sql, at=ago(days=days))
    bury(sql, at=ago(days=40), queue="mail")
    assert "give --older-than" in shop("prune", *STORE, code=2).stderr
    assert shop("prune", "--older-than", "30d", *STORE).stdout == "nothing to delete\n"
    dead = ("--older-than", "30d", "--outcome", "dead")
    assert "Delete 3 finished jobs of pdo:jobs older than 30 d 0 h?" in shop("prune", *dead, *STORE, code=2).stderr
    dry = lines(shop("prune", *dead, "--dry-run", "--json", *STORE))
    assert [(part["queue"], part["jobs"], part["store"]) for part in dry] == [
        ("mail", 1, "pdo:jobs"),
        ("orders", 2, "pdo:jobs"),
    ]
    told = shop("prune", *dead, "--queue", "orders", "--chunk", "1", "--yes", *STORE).stdout
    assert told == "deleted 2 dead in orders, older than 30 d 0 h\n"
    assert len(letters(shop)) == 2


def test_doctor_finds_what_is_wrong_and_says_what_to_do(shop: Run, jobs: PdoQueue, sql: Sql) -> None:
    assert shop("doctor", "--store", "pdo:jobs", "--app", "shop:hf").stdout.endswith("all is well\n")
    insert(sql, "nonsense", datetime.now(UTC) - timedelta(hours=1))
    insert(sql, json.dumps(envelope()), datetime.now(UTC) + timedelta(hours=3))
    reserve(sql, jobs.publish(URN, {}), ago(minutes=10))
    dead = bury(sql)
    found = lines(shop("doctor", "--app", "shop:hf", "--json", code=7))
    seen = [finding["seen"] + finding["do"] for finding in found if finding["check"] == "foreign"]
    assert all(finding["severity"] == "ok" for finding in found if finding["check"] != "foreign")
    for words in (
        "default: 1 due, the oldest for 1:00:",
        "1 held by workers that have been silent",
        "1 malformed message among the first 3, such as",
        "1 row made in the future",
        f"holdfast dead show {dead} --store pdo:jobs",
    ):
        assert [line for line in seen if words in line], words
    assert len(seen) == 5
    assert len(lines(shop("doctor", *STORE, "--json", code=7))) == 5
    shop("doctor", "--app", "shop:hf", "--skip", "foreign")


@pytest.fixture
def bare(run: Run, place: Path, pdo_url: str, hf: Holdfast) -> Run:  # noqa: F811
    """As `shop`, but nobody has made the tables that it shares."""
    (place / "shop.py").write_text(APP.format(url=pdo_url, table="orders_queue"))
    run("migrate", "apply", "--app", "shop:hf")
    return run


def test_without_its_tables_a_worker_does_not_start(bare: Run, hf: Holdfast) -> None:
    told = bare("worker", "shop:hf", code=3).stderr
    assert "no table orders_queue and no orders_queue_failed, which pdo:orders_queue needs" in told
    assert "create_schema()" in told
    assert "holdfast migrate apply --store pdo:orders_queue" in told
    queue = hf.foreign.pdo("orders_queue")
    queue.handler(URN)(lambda: None)

    async def work() -> None:
        async with hf.worker():
            pass

    with pytest.raises(ForeignTablesMissing) as raised:
        asyncio.run(work())
    assert raised.value.exit_code == SchemaMissing.exit_code
    assert raised.value.tables == ("orders_queue", "orders_queue_failed")
    with pytest.raises(ForeignTablesMissing):
        queue.publish(URN, {})


def test_migrate_makes_the_tables_that_store_names(bare: Run, hf: Holdfast) -> None:
    store = ("--store", "pdo:orders_queue", "--app", "shop:hf")
    for words in ("jobs list", "dead list", "migrate check"):
        assert "no table orders_queue" in bare(*words.split(), *store, code=3).stderr
    assert "there is no table orders_queue" in bare("jobs", "list", "--app", "shop:hf").stderr
    [finding] = lines(bare("doctor", "--json", *store, code=7))
    assert (finding["check"], finding["severity"]) == ("foreign", "problem")
    planned = [each["table"] for each in lines(bare("migrate", "plan", "--json", *store))]
    assert planned == ["orders_queue", "orders_queue_failed"]
    assert bare("migrate", "sql", *store).stdout.count("create table") == 2
    assert bare("migrate", "apply", *store).stdout == "created orders_queue\ncreated orders_queue_failed\n"
    assert "are there" in bare("migrate", "apply", *store).stdout
    bare("migrate", "check", *store)
    bare("jobs", "list", *store)


@pytest.mark.parametrize(
    "words, told",
    [
        ("jobs list --store nonsense", "--store is pdo:TABLE, durable:PREFIX or airlock:TABLE"),
        ("jobs list --store pdp:jobs", "did you mean pdo?"),
        ("jobs list --store pdo:jobz", "did you mean pdo:jobs?"),
        ("jobs list --store durable:x", "the application has no store durable:x"),
        ("jobs list --store pdo:jobs?timezone=UTC", "leave out ?timezone=UTC"),
        ("jobs list --store pdo:jobs --key k", "key: pdo:jobs keeps no such thing"),
        ("jobs list --store pdo:jobs --error x", "error: pdo:jobs keeps no such thing"),
        (
            "jobs list --store pdo:jobs --state dead",
            "`holdfast dead list --store pdo:jobs --app shop:hf` lists dead letters",
        ),
        ("jobs list --store pdo:jobs --id 01997a3e-5b1c-7d20-8f4e-0a1b2c3d4e5f", "whole numbers"),
        ("jobs list --id 17", "'17' is not a job id"),
        ("dead list --store pdo:jobs --after -1", "whole numbers"),
    ],
)
@pytest.mark.parametrize("pdo_url", ["sqlite"], indirect=True)
def test_wrong_words_are_wrong_usage(shop: Run, words: str, told: str) -> None:
    assert "is empty" in shop("dead", "discard", "--all", "--yes", "--store", "", "--app", "shop:hf", code=2).stderr
    assert told in shop(*words.split(), "--app", "shop:hf", code=2).stderr


@pytest.mark.parametrize(
    "store, told",
    [
        ("pdo:x;drop", "letters, digits and _"),
        ("pdo:jobs?zone=x", "it takes failed_table, timezone, retry_after"),
        ("pdo:jobs?retry_after=soon", "retry_after must be a number"),
        ("pdo:jobs?timezone=Mars/Base", "must be an IANA name"),
        ("durable:x;drop", "letters, digits and _"),
    ],
)
def test_without_an_application_wrong_settings_are_wrong_usage(run: Run, store: str, told: str) -> None:  # noqa: F811
    assert told in run("jobs", "list", "--store", store, "--url", "sqlite:///shop.db", code=2).stderr


@pytest.mark.parametrize("words", ["jobs list", "dead groups", "doctor", "migrate check", "migrate apply"])
def test_no_password_is_shown(run: Run, words: str) -> None:  # noqa: F811
    url = f"mysql://app:{SECRET}@127.0.0.1:{free_port()}/shop"
    result = run(*words.split(), "--store", "pdo:jobs", "--url", url, code=4)
    assert SECRET not in result.output


@pytest.mark.parametrize("words", ["jobs list", "dead list", "doctor", "migrate plan"])
def test_looking_creates_no_file(run: Run, place: Path, words: str) -> None:  # noqa: F811
    told = run(*words.split(), "--store", "pdo:jobs", "--url", "sqlite:///nothing.db", code=3).stderr
    assert "holdfast migrate apply --store pdo:jobs" in told
    assert not (place / "nothing.db").exists()
