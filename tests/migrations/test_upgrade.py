"""From version 1 to version 2, with jobs in the tables and workers of version 1 at them."""

import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest

from holdfast import Holdfast, jobs
from holdfast.errors import DatabaseBusy
from holdfast.store import Store, migrate
from holdfast.store.catalogue import Query
from holdfast.store.dialects import SCHEMA_VERSION
from holdfast.testing import Look
from holdfast.values.ids import new_id

WAITING, BUSY = 60, 40
NOW = {"sqlite": "unixepoch() * 1000000", "postgres": "statement_timestamp()", "mysql": "utc_timestamp(6)"}
LONG_AGO = {"sqlite": "1", "postgres": "timestamptz '2001-01-01'", "mysql": "'2001-01-01'"}
# What the finished table took from the live one in version 1.
FINISHED = (
    "id, fence, available_at, created_at, leased_at, attempts, max_attempts, lease_ms, replays, priority, bucket,"
    " queue, kind, key, unique_key, leased_by, payload, headers, progress, errors"
)


@pytest.fixture(params=["sqlite", "pg", "mariadb", "mysql"], ids=["sqlite", "postgres", "mariadb", "mysql"])
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    """A store of version 1."""
    store = Store(request.getfixturevalue(f"{request.param}_url"))
    store.run(migrate.apply(store.migrations[:1]))
    yield store
    store.close()


def sql(store: Store, *texts: str) -> None:
    """Run statements of version 1 in one transaction."""
    with store.link() as link, link.transaction():
        for text in texts:
            if store.dialect.name == "mysql":
                text = re.sub(r"\bkey\b", "`key`", text)
            link.raw.cursor().execute(text)


def add(store: Store, **columns: str) -> str:
    job_id, now = new_id(), NOW[store.dialect.name]
    row = {"id": f"'{job_id}'", "queue": "'mail'", "kind": "'send'", "payload": "'{}'", "max_attempts": "5"}
    row |= {"available_at": now, "created_at": now} | columns
    values = ", ".join(row.values()).replace("LONG_AGO", LONG_AGO[store.dialect.name])
    sql(store, f"insert into holdfast_jobs ({', '.join(row)}) values ({values})")  # noqa: S608 - as version 1 had it
    return job_id


def claim_and_finish(store: Store, job_id: str) -> None:
    """Do what a worker of version 1 does, in its words."""
    lease = "update holdfast_jobs set state = 'leased', fence = fence + 1, attempts = attempts + 1, leased_by = 'old'"
    copy = (
        f"insert into holdfast_finished ({FINISHED}, outcome, finished_at)"  # noqa: S608 - names of columns
        f" select {FINISHED}, 'done', {NOW[store.dialect.name]} from holdfast_jobs where id = '{job_id}'"
    )
    sql(store, f"{lease} where id = '{job_id}'")
    sql(store, copy, f"delete from holdfast_jobs where id = '{job_id}' and fence = 1")  # noqa: S608 - an id of ours


@contextmanager
def old_worker(store: Store, ids: list[str]) -> Iterator[list[str]]:
    """Work on jobs as version 1 did, on a thread, until the block ends and all are done."""
    done: list[str] = []
    failed: list[BaseException] = []

    def work() -> None:
        own = Store(store.url)
        try:
            for job_id in ids:
                claim_and_finish(own, job_id)
                done.append(job_id)
                time.sleep(0.01)
        except BaseException as error:
            failed.append(error)
        finally:
            own.close()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield done
    finally:
        thread.join(60)
    assert not failed, failed[0]


def test_version_2_comes_while_jobs_wait_are_held_and_are_worked_on(store: Store) -> None:
    waiting = [add(store) for _ in range(WAITING)]
    busy = [add(store) for _ in range(BUSY)]
    held = {"state": "'leased'", "attempts": "1", "fence": "1", "leased_at": "LONG_AGO", "lease_expires_at": "LONG_AGO"}
    many, once = add(store, **held), add(store, **held, max_attempts="1")
    assert store.run(migrate.version()) == 1

    with old_worker(store, busy) as done:
        while len(done) < 3:
            time.sleep(0.01)
        assert [one.number for one in store.run(migrate.apply(store.migrations))] == [2]

    store.check()
    look = Look(store.run, store)
    assert {row.id for row in look.live()} == {*waiting, many, once}
    assert {row.id for row in look.over()} == set(busy)
    assert {row.id: (row.lapses, row.began) for row in look.live()} == {
        **dict.fromkeys(waiting, (0, False)),
        many: (0, True),
        once: (0, True),
    }
    # Of what was held then, a single attempt is not made again.
    reaped = store.run(jobs.reap(backoff=lambda *_: 0))
    assert {one.id: one.outcome for one in reaped} == {many: "retry", once: "dead"}
    for lease in store.run(jobs.claim("mail", limit=100)):
        store.run(jobs.complete(lease))
    assert {row.id: row.outcome for row in look.over()} == dict.fromkeys([*busy, *waiting, many], "done") | {
        once: "dead"
    }
    assert look.live() == []


def test_a_second_apply_does_nothing(store: Store) -> None:
    job = add(store)
    assert len(store.run(migrate.apply(store.migrations))) == SCHEMA_VERSION - 1
    assert store.run(migrate.apply(store.migrations)) == []
    assert [lease.job_id for lease in store.run(jobs.claim("mail", limit=9))] == [job]


@pytest.mark.parametrize("database", ["mariadb", "mysql"])
def test_an_upgrade_that_was_cut_off_after_any_statement_can_be_run_again(
    database: str, request: pytest.FixtureRequest
) -> None:
    """Where a change of the schema commits by itself."""
    server = request.getfixturevalue(database).start()
    second = Store(server.fresh_database()).migrations[1]
    for ran in range(len(second.statements) + 1):
        store = Store(server.fresh_database())
        store.run(migrate.apply(store.migrations[:1]))
        waiting, held = add(store), add(store, state="'leased'", lease_expires_at="LONG_AGO", attempts="1")
        with store.link() as link:
            for statement in second.statements[:ran]:
                link.tell(statement)
        assert store.run(migrate.version()) == 1
        assert store.run(migrate.apply(store.migrations)) == [second]
        store.check()
        assert {row.id for row in Look(store.run, store).live()} == {waiting, held}
        assert len(store.run(jobs.claim("mail", limit=9))) == 1
        store.close()


def test_a_table_that_a_long_transaction_holds_is_not_waited_for_in_front_of_everybody(
    pg_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hf = Holdfast(pg_url)
    hf.store.run(migrate.apply(hf.store.migrations[:1]))
    add(hf.store)
    [patience] = hf.store.dialect.queries["schema_patience"].parts
    hurried = Query(hf.store.dialect, "schema_patience", [patience.replace("5s", "50ms")])
    monkeypatch.setitem(hf.store.dialect.queries, "schema_patience", hurried)
    with psycopg.connect(pg_url) as long:
        long.execute("select count(*) from holdfast_jobs")
        with pytest.raises(DatabaseBusy, match=r"Nothing was changed\. End the long transaction .* and run it again\."):
            hf.migrate()
        # Others do not find a migrator in front of them.
        with psycopg.connect(pg_url, autocommit=True) as other:
            other.execute("set lock_timeout = '2s'")
            other.execute("update holdfast_jobs set priority = 1")
    assert hf.migrate() == ["0002_deaths"]
    hf.close()
