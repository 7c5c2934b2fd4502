"""From each older version to the latest, with jobs in the tables and workers of the older version at them."""

import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import takewhile

import psycopg
import pytest

from holdfast import Holdfast, admin, jobs, lines, runs
from holdfast.errors import Conflict, DatabaseBusy
from holdfast.store import Store, migrate
from holdfast.store.catalogue import Query
from holdfast.store.dialects import SCHEMA_VERSION
from holdfast.store.migrate import Migration
from holdfast.testing import Look, new_job
from holdfast.values.debounce import throttle_scope
from holdfast.values.ids import new_id
from holdfast.values.queues import QueueSettings
from holdfast.values.rows import Enqueued
from holdfast.worker import registry
from holdfast.workflows import NewRun, start

WAITING, BUSY = 60, 40
NOW = {"sqlite": "unixepoch() * 1000000", "postgres": "statement_timestamp()", "mysql": "utc_timestamp(6)"}
LONG_AGO = {"sqlite": "1", "postgres": "timestamptz '2001-01-01'", "mysql": "'2001-01-01'"}
# What the finished table took from the live one in versions 1 and 2.
FINISHED = (
    "id, fence, available_at, created_at, leased_at, attempts, max_attempts, lease_ms, replays, priority, bucket,"
    " queue, kind, key, unique_key, leased_by, payload, headers, progress, errors"
)


@pytest.fixture(params=["sqlite", "pg", "mariadb", "mysql"], ids=["sqlite", "postgres", "mariadb", "mysql"])
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    """A store without tables."""
    store = Store(request.getfixturevalue(f"{request.param}_url"))
    yield store
    store.close()


def names_after(hf: Holdfast, version: int) -> list[str]:
    """Name the migrations that bring tables of a version to today's."""
    return [migration.name for migration in hf.store.migrations[version:]]


def sql(store: Store, *texts: str) -> None:
    """Run statements of an older version in one transaction, and again after a deadlock, as every version does."""
    while True:
        try:
            with store.link() as link, link.transaction():
                for text in texts:
                    if store.dialect.name == "mysql":
                        text = re.sub(r"\bkey\b", "`key`", text)
                    link.raw.cursor().execute(text)
            return
        except Exception as error:
            if not isinstance(store.dialect.translate(error), DatabaseBusy):
                raise


def add(store: Store, **columns: str) -> str:
    job_id, now = new_id(), NOW[store.dialect.name]
    row = {"id": f"'{job_id}'", "queue": "'mail'", "kind": "'send'", "payload": "'{}'", "max_attempts": "5"}
    row |= {"available_at": now, "created_at": now} | columns
    values = ", ".join(row.values()).replace("LONG_AGO", LONG_AGO[store.dialect.name])
    sql(store, f"insert into holdfast_jobs ({', '.join(row)}) values ({values})")  # noqa: S608 - as version 1 had it
    return job_id


def before(store: Store, name: str) -> list[Migration]:
    """List the migrations before one of this name."""
    return list(takewhile(lambda migration: not migration.name.endswith(name), store.migrations))


def add_key(store: Store) -> str:
    """Note an idempotency key as all versions did, and return the job that it names."""
    job_id, later = new_id(), "99999999999999999" if store.dialect.name == "sqlite" else "'2999-01-01'"
    row = f"'send', 'k', '{job_id}', {later}"
    sql(store, f"insert into holdfast_keys (scope, key, job_id, expires_at) values ({row})")  # noqa: S608 - our own
    return job_id


def claim_and_finish(store: Store, job_id: str) -> None:
    """Do what a worker of an older version does, in its words."""
    lease = "update holdfast_jobs set state = 'leased', fence = fence + 1, attempts = attempts + 1, leased_by = 'old'"
    copy = (
        f"insert into holdfast_finished ({FINISHED}, outcome, finished_at)"  # noqa: S608 - names of columns
        f" select {FINISHED}, 'done', {NOW[store.dialect.name]} from holdfast_jobs where id = '{job_id}'"
    )
    sql(store, f"{lease} where id = '{job_id}'")
    sql(store, copy, f"delete from holdfast_jobs where id = '{job_id}' and fence = 1")  # noqa: S608 - an id of ours


@contextmanager
def old_worker(store: Store, ids: list[str]) -> Iterator[list[str]]:
    """Work on jobs as older versions did, on a thread, until the block ends and all are done."""
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


@pytest.mark.parametrize("version", [1, 2, 3, 4, 5, 6])
def test_an_upgrade_comes_while_jobs_wait_are_held_and_are_worked_on(store: Store, version: int) -> None:
    store.run(migrate.apply(store.migrations[:version]))
    waiting = [add(store) for _ in range(WAITING)]
    busy = [add(store) for _ in range(BUSY)]
    held = {"state": "'leased'", "attempts": "1", "fence": "1", "leased_at": "LONG_AGO", "lease_expires_at": "LONG_AGO"}
    held |= {"began": "true"} if version > 1 else {}
    many, once = add(store, **held), add(store, **held, max_attempts="1")
    over = add(store)
    claim_and_finish(store, over)
    sql(store, "update holdfast_finished set outcome = 'dead'")
    assert store.run(migrate.version()) == version

    with old_worker(store, busy) as done:
        while len(done) < 3:
            time.sleep(0.01)
        applied = [one.number for one in store.run(migrate.apply(store.migrations))]
        assert applied == list(range(version + 1, SCHEMA_VERSION + 1))

    store.check()
    look = Look(store.run, store)
    assert {row.id for row in look.live()} == {*waiting, many, once}
    assert {row.id for row in look.over()} == {*busy, over}
    assert {row.id: (row.lapses, row.began, row.waits_for, row.followers) for row in look.live()} == {
        **dict.fromkeys(waiting, (0, False, None, None)),
        many: (0, True, None, None),
        once: (0, True, None, None),
    }
    # Of what was held then, a single attempt is not made again.
    reaped = store.run(jobs.reap(backoff=lambda *_: 0))
    assert {one.id: one.outcome for one in reaped} == {many: "retry", once: "dead"}
    # What was there before can do what is new.
    for lease in store.run(jobs.claim("mail", limit=100)):
        store.run(jobs.park(lease, "signal:upgrade"))
    assert {row.state for row in look.live()} == {"waiting"}
    assert len(store.run(jobs.wake([row.id for row in look.live()]))) == WAITING + 1
    assert store.run(admin.retry(over, None)) == "replayed"
    for lease in store.run(jobs.claim("mail", limit=100)):
        store.run(jobs.complete(lease))
    done = dict.fromkeys([*busy, *waiting, many, over], "done")
    assert {row.id: row.outcome for row in look.over()} == done | {once: "dead"}
    assert look.live() == []


PLACE_OF_ROWS = {
    "postgres": "select pg_relation_filenode('{}')",
    "mariadb": "select table_id from information_schema.innodb_sys_tables where name like concat(database(), '/{}')",
    "mysql": "select table_id from information_schema.innodb_tables where name like concat(database(), '/{}')",
}


@pytest.mark.parametrize("database", ["postgres", "mariadb", "mysql"])
def test_the_upgrade_to_waiting_jobs_copies_no_table(database: str, request: pytest.FixtureRequest) -> None:
    store = Store(request.getfixturevalue("pg_url" if database == "postgres" else f"{database}_url"))
    store.run(migrate.apply(store.migrations[:2]))
    # MySQL makes an empty table again, whatever it could do.
    add(store)
    claim_and_finish(store, add(store))
    add_key(store)
    tables = ("holdfast_jobs", "holdfast_finished", "holdfast_keys")
    asked = [PLACE_OF_ROWS[database].format(table) for table in tables]
    look = Look(store.run, store)
    before = [look.rows(one) for one in asked]
    assert all(len(rows) == 1 for rows in before)
    store.run(migrate.apply(store.migrations))
    assert [look.rows(one) for one in asked] == before
    store.close()


def test_audit_lines_from_before_are_kept_and_pruned_by_their_age(store: Store) -> None:
    store.run(migrate.apply(store.migrations[:6]))
    for at in (NOW, LONG_AGO):
        moment = at[store.dialect.name]
        sql(store, f"insert into holdfast_audit (at, action, actor, detail) values ({moment}, 'replay', 'ann', '{{}}')")  # noqa: S608
    store.run(migrate.apply(store.migrations))
    assert store.run(jobs.pauses()) == []
    assert store.run(admin.prune_audit(86_400_000)) == 1
    assert [line.actor for line in store.run(admin.audit())] == ["ann"]


def test_keys_from_before_are_found_and_the_longest_kind_has_room_for_throttles(store: Store) -> None:
    store.run(migrate.apply(before(store, "debounces")))
    job_id = add_key(store)
    store.run(migrate.apply(store.migrations))
    assert store.run(jobs.enqueue(new_job(kind="send", idempotency_key="k"))) == Enqueued(job_id, created=False)
    kind = "k" * 100
    throttled = [new_job(kind=kind, idempotency_key="k", scope=throttle_scope(kind)) for _ in range(2)]
    assert [answer.created for answer in store.run(jobs.enqueue_many(throttled))] == [True, False]
    debounced = [new_job(kind=kind, debounce="k") for _ in range(2)]
    assert [answer.created for answer in store.run(jobs.enqueue_many(debounced))] == [True, False]


def test_a_second_apply_does_nothing(store: Store) -> None:
    store.run(migrate.apply(store.migrations[:1]))
    job = add(store)
    assert len(store.run(migrate.apply(store.migrations))) == SCHEMA_VERSION - 1
    assert store.run(migrate.apply(store.migrations)) == []
    assert [lease.job_id for lease in store.run(jobs.claim("mail", limit=9))] == [job]


@pytest.mark.parametrize("version", [1, 2, 3, 4, 5, 6, 14])
@pytest.mark.parametrize("database", ["mariadb", "mysql"])
def test_an_upgrade_that_was_cut_off_after_any_statement_can_be_run_again(
    database: str, version: int, request: pytest.FixtureRequest
) -> None:
    """Where a change of the schema commits by itself."""
    server = request.getfixturevalue(database).start()
    cut, *rest = Store(server.fresh_database()).migrations[version:]
    for ran in range(len(cut.statements) + 1):
        store = Store(server.fresh_database())
        store.run(migrate.apply(store.migrations[:version]))
        waiting, held = add(store), add(store, state="'leased'", lease_expires_at="LONG_AGO", attempts="1")
        with store.link() as link:
            for statement in cut.statements[:ran]:
                link.tell(statement)
        assert store.run(migrate.version()) == version
        assert store.run(migrate.apply(store.migrations)) == [cut, *rest]
        store.check()
        assert {row.id for row in Look(store.run, store).live()} == {waiting, held}
        [lease] = store.run(jobs.claim("mail", limit=9))
        store.run(jobs.park(lease, "signal:upgrade"))
        store.close()


@pytest.mark.parametrize("server", ["mariadb", "mysql"])
def test_a_long_transaction_is_not_waited_for_on_mysql_either(
    request: pytest.FixtureRequest, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hf = Holdfast(request.getfixturevalue(f"{server}_url"))
    hf.store.run(migrate.apply(hf.store.migrations[:1]))
    [patience] = hf.store.dialect.queries["schema_patience"].parts
    hurried = Query(hf.store.dialect, "schema_patience", [patience.replace("= 5", "= 1")])
    monkeypatch.setitem(hf.store.dialect.queries, "schema_patience", hurried)
    with hf.store.link() as long:
        long.tell("begin")
        long.raw.execute("select count(*) from holdfast_jobs")
        with pytest.raises(DatabaseBusy, match=r"What ran before stays\. End the long transaction"):
            hf.migrate()
        long.tell("commit")
    assert hf.migrate() == names_after(hf, 1)
    hf.close()


OBSTACLES = {
    "table receipts": "create table receipts (job text references holdfast_jobs (id) on delete cascade)",
    "view open_jobs": "create view open_jobs as select id from holdfast_jobs",
    "trigger noted": "create trigger noted after insert on holdfast_jobs begin select 1; end",
    "index by_bucket": "create index by_bucket on holdfast_jobs (bucket)",
}


@pytest.mark.parametrize("name", OBSTACLES)
def test_what_an_application_hung_on_the_table_of_sqlite_is_named_and_not_lost(sqlite_url: str, name: str) -> None:
    hf = Holdfast(sqlite_url)
    hf.store.run(migrate.apply(hf.store.migrations[:2]))
    add(hf.store)
    with hf.store.link() as link:
        link.tell(OBSTACLES[name])
        if name == "table receipts":
            link.tell("insert into receipts select id from holdfast_jobs")
    with pytest.raises(Conflict, match=f"these refer to it: {name}\\. Drop them"):
        hf.migrate()
    assert hf.store.run(migrate.version()) == 2
    with hf.store.link() as link:
        if name == "table receipts":
            assert link.raw.execute("select count(*) from receipts").fetchone()[0] > 0
        link.tell(f"drop {name}")
    assert hf.migrate() == names_after(hf, 2)
    hf.close()


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
    assert hf.migrate() == names_after(hf, 1)
    hf.close()


def test_what_ended_before_places_were_kept_is_replayed_and_workers_stay_as_they_are(store: Store) -> None:
    store.run(migrate.apply(before(store, "places_and_stops")))
    now = NOW[store.dialect.name]
    key = {"key": "'a'"} | ({"place": "1"} if store.dialect.name == "postgres" else {})
    over, live = add(store, **key), add(store, **key)
    claim_and_finish(store, over)
    sql(store, "update holdfast_finished set outcome = 'cancelled'")
    for worker, status in (("old", "dead"), ("busy", "alive")):
        values = f"'{worker}', '{status}', {now}, {now}, '{{}}'"
        sql(store, f"insert into holdfast_workers (id, status, started_at, seen_at, info) values ({values})")  # noqa: S608
    store.run(migrate.apply(store.migrations))
    # A worker of the version before goes on: it ends jobs without their place, and is dead when it stops.
    sql(store, "update holdfast_workers set status = 'dead' where id = 'busy'")
    claim_and_finish(store, live)
    sql(store, f"update holdfast_finished set outcome = 'cancelled' where id = '{live}'")  # noqa: S608 - an id of ours
    assert {worker.id: worker.status for worker in store.run(registry.workers())} == {"old": "dead", "busy": "dead"}
    settings = QueueSettings(ordered=True)
    store.run(lines.declare({"mail": settings}))
    later = store.run(jobs.enqueue(new_job(key="a"))).id
    assert store.run(admin.replay(admin.Filter(states=("cancelled",)), 9, None)).ids == [over, live]
    claimed = store.run(lines.claim("mail", settings, limit=9)).leases
    assert [lease.job_id for lease in claimed] == [over, live, later]


def test_tables_from_before_runs_take_runs_and_keep_their_jobs(store: Store) -> None:
    store.run(migrate.apply(before(store, "runs")))
    job_id = add(store)
    store.run(migrate.apply(store.migrations))
    job = new_job("runs", "fulfil@1")
    store.run(start([NewRun(job, "fulfil", "order-1", 1)]))
    assert {row.id: row.followers for row in Look(store.run, store).live()} == {job_id: None, job.id: runs.RUN}


def test_runs_and_workers_from_before_are_found_as_they_are_and_nothing_is_sharded(store: Store) -> None:
    store.run(migrate.apply(before(store, "shards_and_outcomes")))
    now = NOW[store.dialect.name]
    over = [new_id() for _ in range(3)]
    for run_id, outcome in zip(over, ("done", "dead", "done"), strict=True):
        row = f"'{run_id}', 'fulfil', '{run_id}', '{outcome}', {now}, {now}"
        sql(store, f"insert into holdfast_runs (id, workflow, run_key, outcome, created_at, ended_at) values ({row})")  # noqa: S608
    worker = f"'old', 'alive', {now}, {now}, '{{}}'"
    sql(store, f"insert into holdfast_workers (id, status, started_at, seen_at, info) values ({worker})")  # noqa: S608
    store.run(migrate.apply(store.migrations))
    store.run(start([NewRun(new_job("runs", "fulfil@1"), "fulfil", "order-1", 1)]))
    found = store.run(runs.runs(runs.RunFilter(status="done")))
    assert [view.job_id for view in found] == [over[2], over[0]]
    assert [one.id for one in store.run(registry.workers())] == ["old"]
    look = Look(store.run, store)
    assert [row[0] for row in look.rows("select counted from holdfast_workers")] == [None]
    row = f"insert into holdfast_shard_map (one, number, version, map, set_at) values (1, 0, 1, '{{}}', {now})"  # noqa: S608
    sql(store, row)
    # There is one row at most.
    for one in ("1", "2"):
        with pytest.raises(Exception, match=r"(?i)unique|duplicate|check|constraint"):
            sql(store, row.replace("(1,", f"({one},", 1))
    assert [tuple(row) for row in look.rows("select number, version, map from holdfast_shard_map")] == [(0, 1, "{}")]


def test_the_end_of_a_child_that_its_parent_has_not_taken_is_found_after_the_upgrade(store: Store) -> None:
    store.run(migrate.apply(before(store, "letters")))
    parent, other, key = new_id(), new_id(), 'ship "now"'
    letters = [(f"!child:{key}", '{"outcome":"done","result":17}'), ("paid", "1"), ("!children", "2")]
    for name, payload in letters:
        row = f"'{new_id()}', '{parent}', '{name}', '{payload}', 1, {NOW[store.dialect.name]}"
        sql(store, f"insert into holdfast_signals (id, run_id, name, payload, told, created_at) values ({row})")  # noqa: S608
    store.run(migrate.apply(store.migrations))
    assert store.run(runs.news({parent: [runs.CHILD, "paid"], other: [runs.CHILD]})) == {parent: {runs.CHILD, "paid"}}
    add(store, id=f"'{parent}'", fence="1")
    wanted = [runs.Wanted(name, name, "signal") for name in ("paid", "!children")]
    wanted.append(runs.Wanted(runs.CHILD, key, "child"))
    taken = store.run(runs.take(parent, 1, wanted, 1, "w"))
    assert {row.key: row.value for row in taken} == {"paid": "1", "!children": "2", key: letters[0][1]}
