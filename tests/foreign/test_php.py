"""A real PHP program and our worker on one pair of tables, on SQLite and MariaDB."""

import json
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from holdfast import Holdfast, Job
from holdfast.foreign import PdoQueue
from tests.foreign.conftest import Sql, ids
from tests.foreign.mini_worker import drain
from tests.foreign.php import Php, answer

URN = "urn:babel:orders:created"


@pytest.fixture
def peer(pdo_url: str) -> Php:
    return Php(pdo_url)


@pytest.fixture
def calls() -> list[Any]:
    return []


@pytest.fixture
def queue(hf: Holdfast, pdo_url: str, peer: Php, calls: list[Any]) -> PdoQueue:
    """Tables that PHP made, and a handler that remembers its calls."""
    peer("schema")
    jobs = hf.foreign.pdo(backoff=[0])

    @jobs.handler(URN)
    def created(job: Job, order_id: int = 0, name: str = "") -> None:
        calls.append((order_id, name, job.headers["lang"], job.attempt))

    @jobs.handler("urn:babel:fails")
    def fails() -> None:
        raise RuntimeError("said by Python")

    return jobs


def test_both_sides_make_the_same_tables(queue: PdoQueue, hf: Holdfast, sql: Sql, peer: Php) -> None:
    for table in ("jobs", "jobs_failed"):
        sql(f"drop table {table}")
    peer("schema")
    ours = hf.foreign.pdo(table="ours")
    ours.create_schema()
    if hf.store.dialect.name == "sqlite":
        texts = dict(sql("select name, sql from sqlite_master where sql is not null"))
        plain = {name: _words(text) for name, text in texts.items()}
        assert plain["ours"].replace("ours", "jobs") == plain["jobs"]
        assert plain["ours_failed"].replace("ours", "jobs") == plain["jobs_failed"]
        assert plain["ours_reserve_idx"].replace("ours", "jobs") == plain["jobs_reserve_idx"]
        return
    for mine, theirs in (("ours", "jobs"), ("ours_failed", "jobs_failed")):
        assert _columns(sql, mine) == _columns(sql, theirs)
    assert _indexes(sql, "ours") == _indexes(sql, "jobs")


def _columns(sql: Sql, table: str) -> list[Any]:
    return sql(
        "select column_name, column_type, is_nullable, column_default, extra, collation_name "
        "from information_schema.columns where table_schema = database() and table_name = :name "
        "order by ordinal_position",
        name=table,
    )


def _indexes(sql: Sql, table: str) -> list[Any]:
    rows = sql(
        "select index_name, seq_in_index, column_name from information_schema.statistics "
        "where table_schema = database() and table_name = :name order by index_name, seq_in_index",
        name=table,
    )
    return [(name.replace("ours", "jobs"), place, column) for name, place, column in rows]


def _words(text: str) -> str:
    return "".join(text.lower().replace("if not exists", "").replace('"', "").split())


def test_php_produces_and_python_consumes(queue: PdoQueue, hf: Holdfast, peer: Php, calls: list[Any], sql: Sql) -> None:
    peer("publish", urn=URN, data={"order_id": 7, "name": "Çağrı/🎈"})
    peer("publish", urn=URN, data=[])  # an empty array is all that PHP has
    assert '"data":[]' in sql.one("select max(payload) from jobs where payload like '%[]%'")[0]
    drain(hf)
    assert calls == [(7, "Çağrı/🎈", "php", 1), (0, "", "php", 1)]
    assert sql("select id from jobs") == []


def test_python_produces_and_php_consumes(queue: PdoQueue, peer: Php, sql: Sql) -> None:
    queue.publish("urn:babel:for:php", {"path": "a/b", "name": "Çağrı 🎈", "n": 9007199254740993, "f": 1.5})
    queue.publish("urn:babel:for:php", {})
    first, second = peer("work")
    assert first[1:] == [
        "urn:babel:for:php",
        0,
        "ack",
        {"path": "a/b", "name": "Çağrı 🎈", "n": 9007199254740993, "f": 1.5},
    ]
    assert second[4] == []
    assert sql("select id from jobs") == []


def test_a_delay_of_one_is_honoured_by_the_other(queue: PdoQueue, hf: Holdfast, peer: Php, calls: list[Any]) -> None:
    peer("publish", urn=URN, data={"order_id": 1}, delay=60)
    queue.publish("urn:babel:for:php", {}, delay=60)
    assert peer("reserve") is None
    drain(hf)
    assert calls == []
    hf.store.now = _later(61)
    drain(hf)
    assert [call[0] for call in calls] == [1]


def _later(seconds: int) -> Any:
    return datetime.now(UTC) + timedelta(seconds=seconds)


def test_a_time_zone_is_shared(queue: PdoQueue, hf: Holdfast, peer: Php, pdo_url: str) -> None:
    here = Holdfast(pdo_url)
    tokyo = here.foreign.pdo(timezone="Asia/Tokyo", queue="tz")
    tokyo.handler(URN)(lambda: None)
    published = tokyo.publish(URN, {})
    assert peer("reserve", queue="tz", timezone="Asia/Tokyo")["id"] == published
    theirs = peer("publish", urn=URN, data={}, queue="tz", timezone="Asia/Tokyo")
    assert ids(here.store.run(tokyo.claim({URN: 1}, 5, "w"))) == [theirs]
    here.close()


def test_retries_go_back_and_forth_and_count(queue: PdoQueue, hf: Holdfast, peer: Php, sql: Sql) -> None:
    row = queue.publish("urn:babel:fails", {"n": 1}, trace_id="t-1")
    meta = json.loads(sql.one("select payload from jobs")[0])["meta"]
    assert peer("work", failing=["urn:babel:fails"], most=1)[0][2:4] == [0, "release"]
    # Ours releases into the next second: the clock stands still, or a slow drain would run the job again.
    hf.store.now = _later(0)
    drain(hf)
    hf.store.now = None
    assert sql.one("select id, attempts from jobs") == (row, 2)
    time.sleep(1.1)
    assert peer("work", failing=["urn:babel:fails"], most=1)[0][2:4] == [2, "dead"]
    [[payload, reason]] = sql("select payload, reason from jobs_failed")
    body = json.loads(payload)
    assert (body["trace_id"], body["meta"], body["attempts"], reason) == ("t-1", meta, 3, "failed")


def test_a_letter_that_python_wrote_is_replayed_by_php(
    queue: PdoQueue, hf: Holdfast, peer: Php, sql: Sql, calls: list[Any]
) -> None:
    jobs = hf.foreign.pdo(backoff=[0])
    jobs.publish("urn:babel:fails", {"n": 1})
    for _ in range(3):
        drain(hf)
        hf.store.now = _later(2) if hf.store.now is None else hf.store.now + (_later(2) - _later(0))
    hf.store.now = None
    [[failed]] = sql("select id from jobs_failed")
    new = peer("replay", failed=failed)
    assert sql("select id, queue, attempts from jobs") == [(new, "default", 0)]
    assert sql("select id from jobs_failed") == []
    assert "dead_letter" not in json.loads(sql.one("select payload from jobs")[0])


def test_a_letter_that_php_wrote_is_replayed_by_python(
    queue: PdoQueue, hf: Holdfast, peer: Php, sql: Sql, calls: list[Any]
) -> None:
    peer("publish", urn=URN, data={"order_id": 5})
    for _ in range(3):
        peer("work", failing=[URN], most=1)
    [[failed, reason]] = sql("select id, reason from jobs_failed")
    assert reason == "failed"
    queue.replay(failed)
    drain(hf)
    assert calls == [(5, "", "php", 1)]
    assert sql("select id from jobs_failed") == []


def test_what_a_dead_php_worker_left_is_taken_over_and_counted(
    queue: PdoQueue, hf: Holdfast, peer: Php, sql: Sql, calls: list[Any]
) -> None:
    peer("publish", urn=URN, data={"order_id": 5})
    peer("reserve")  # and it never comes back
    drain(hf)
    assert calls == []
    hf.store.now = _later(91)
    drain(hf)
    assert calls == [(5, "", "php", 2)]


@pytest.mark.slow
def test_two_workers_of_two_languages_run_nothing_twice(
    queue: PdoQueue, hf: Holdfast, peer: Php, sql: Sql, calls: list[Any]
) -> None:
    count = 150
    for number in range(count):
        queue.publish(URN, {"order_id": number})
    php = [peer.start("work", patience=1.0) for _ in range(2)]
    deadline = time.monotonic() + 30
    while sql("select id from jobs") and time.monotonic() < deadline:
        drain(hf)
    theirs = [entry[4]["order_id"] for process in php for entry in answer(process)]
    ours = [call[0] for call in calls]
    assert Counter(theirs + ours) == Counter(range(count))
