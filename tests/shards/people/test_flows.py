"""What people see of shards and do to them, by the flows that the command line and the dashboard use."""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import admin, jobs, lines, observe, runs
from holdfast.admin import JobsDesk
from holdfast.admin.looking import Look, ids_from
from holdfast.errors import ConfigError, DatabaseUnavailable, JobNotFound, RunNotFound
from holdfast.life.listing import EVERYTHING, Page, Wanted
from holdfast.life.merging import audit_pages
from holdfast.observe import COUNTED, Depth, Sample
from holdfast.store import Store
from holdfast.values.ids import new_id
from holdfast.values.shards import stamp_of
from holdfast.values.views import AuditLine
from holdfast.worker import draining, registry
from tests.shards.people.grounds import SHARDS, Shop, declare

DESK = JobsDesk()
EACH = range(SHARDS)


def all_pages(read: Callable[[Any], Page]) -> list[str]:
    found: list[str] = []
    after = None
    while True:
        page = read(after)
        found += [row.id for row in page.rows]
        if page.more is None:
            return found
        after = page.more


@pytest.mark.parametrize("newest", [True, False])
def test_a_list_goes_through_all_shards_by_age(shop: Shop, newest: bool) -> None:
    ids = shop.add()
    found = all_pages(lambda after: shop.run(DESK.rows(limit=5, after=after, newest=newest)))
    assert found == sorted(ids, reverse=newest)


def test_a_look_with_a_horizon_misses_nothing(shop: Shop) -> None:
    ids = shop.add()
    found: list[str] = []
    look = Look([], "")
    while look.more is not None:
        look = shop.run(admin.newest(limit=4, after=look.more or None, window=2))
        found += [row.id for row in look.rows]
    assert found == sorted(ids, reverse=True)


def test_a_job_is_found_by_its_id_wherever_it_is(shop: Shop) -> None:
    for job in shop.add(1):
        assert shop.run(DESK.show(job.upper())).id == job
        assert shop.run(admin.shard_of(job)) == stamp_of(job)
        assert shop.run(ids_from(job[:30])) == [job]
    with pytest.raises(JobNotFound):
        shop.run(DESK.show(new_id()))


def test_a_job_without_a_shard_in_its_id_is_found_too(shop: Shop) -> None:
    from tests.cli.conftest import add

    [job] = add(shop.shards.stores[2])
    assert shop.run(DESK.show(job)).id == job
    assert shop.run(admin.shard_of(job)) == 2
    assert shop.hf.cancel(job).cancelled == [job]


def test_counts_are_of_all_shards(shop: Shop) -> None:
    ids = shop.add()
    for number in EACH:
        shop.kill(number)
    [count] = shop.run(DESK.counts())
    assert (count.queue, count.due, count.dead) == ("mail", len(ids) - SHARDS, SHARDS)
    assert count.oldest_seconds is not None
    [lag] = shop.run(admin.oldest_pending())
    assert lag.due == len(ids) - SHARDS
    depth = shop.run(observe.sample()).queues["mail"]
    assert (depth.due, depth.dead) == (len(ids) - SHARDS, SHARDS)
    assert shop.run(admin.count_jobs(admin.Filter(ids=(ids[0], ids[1])))) == 2


def test_dead_letters_that_fail_alike_are_one_group(shop: Shop) -> None:
    shop.add()
    for number in EACH:
        shop.kill(number, 2)
    [last] = shop.kill(1, 1, "no such order")
    shop.kill(0, 1, "something else")
    large, small = shop.run(DESK.groups())
    assert (large.count, small.count) == (2 * SHARDS + 1, 1)
    assert large.sample_id == last
    assert large.first_at < large.last_at
    assert shop.run(DESK.groups(EVERYTHING, 1)) == [large]


def test_a_group_that_is_the_largest_in_no_shard_is_counted_in_all(shop: Shop) -> None:
    shop.add(6)
    for number in EACH:
        shop.kill(number, 3, f"only in shard {'abc'[number]}")
        shop.kill(number, 2, "everywhere")
    [largest] = shop.run(DESK.groups(EVERYTHING, 1))
    assert (largest.error_message, largest.count) == ("everywhere", 2 * SHARDS)


@pytest.mark.parametrize("dry_run", [True, False])
def test_a_job_does_not_go_to_a_queue_that_is_kept_in_another_shard(shop: Shop, dry_run: bool) -> None:
    """What it would count for, or stand in line behind, is in another shard."""
    hf = shop.hf
    ids = shop.add(2)
    for queue, settings in (("narrow", {"concurrency": 1}), ("wide", {"concurrency": 9, "across": "split"})):
        shop.run(admin.change_queue(queue, settings, "ann"))
    home = hf.shard_of("narrow")
    there = {job for job in ids if stamp_of(job) == home}
    answer = hf.change(ids, to_queue="narrow", dry_run=dry_run)
    assert set(answer.changed) == there
    assert set(answer.left) == set(ids) - there
    assert {"is in another shard than queue narrow, which is kept in one: enqueue it there, cancel this"} == set(
        answer.left.values()
    )
    assert set(hf.change(ids, to_queue="wide", dry_run=dry_run).changed) == set(ids)


def test_a_job_does_not_go_to_a_line_that_is_in_another_shard(shop: Shop) -> None:
    hf = shop.hf
    hf.queue("narrow", concurrency=1)
    shop.run(admin.change_queue("lined", {"ordered": True}, "ann"))
    home = hf.shard_of("narrow")
    made = {key: hf.handlers["send"].using(queue="narrow", key=key).enqueue(n=1).id for key in map(str, range(9))}
    answer = hf.change(made.values(), to_queue="lined")
    assert {key for key, job in made.items() if job in answer.changed} == {
        key for key in made if hf.shard_of(key) == home
    }
    assert len(answer.left) + len(answer.changed) == len(made)
    assert set(hf.change(list(answer.left), to_queue="mail").changed) == set(answer.left)


def test_a_cancel_with_a_limit_takes_the_oldest_of_all(shop: Shop) -> None:
    ids = shop.add()
    assert shop.hf.cancel(queue="mail", limit=5, dry_run=True).cancelled == ids[:5]
    assert shop.hf.cancel(queue="mail", limit=5).cancelled == ids[:5]
    assert shop.hf.cancel(queue="mail").cancelled == ids[5:]


def test_a_cancel_by_ids_tells_of_each(shop: Shop) -> None:
    ids = shop.add(1)
    shop.hf.cancel(ids[0])
    strange = new_id()
    answer = shop.hf.cancel([*ids, strange])
    assert answer.cancelled == ids[1:]
    assert answer.left == {ids[0]: "cancelled", strange: "unknown"}


def test_a_change_reaches_every_shard(shop: Shop) -> None:
    ids = shop.add(1)
    assert shop.hf.change(queue="mail", priority=7).changed == ids
    assert {shop.hf.get(job).priority for job in ids} == {7}


@pytest.mark.parametrize("limit", [1, 4, 100])
def test_a_replay_and_a_discard_keep_to_their_limit(shop: Shop, limit: int) -> None:
    shop.add()
    dead = {job for number in EACH for job in shop.kill(number, 3)}
    foreseen = shop.run(DESK.replay(EVERYTHING, limit, "ada", True)).ids
    done = shop.run(DESK.replay(EVERYTHING, limit, "ada")).ids
    assert done == foreseen
    assert len(set(done)) == min(limit, len(dead))
    left = dead - set(done)
    assert shop.run(DESK.count_letters()) == len(left)
    gone = shop.run(DESK.discard(EVERYTHING, limit, "ada"))
    assert set(gone) <= left
    assert len(gone) == min(limit, len(left))
    assert shop.run(DESK.count_letters()) == len(left) - len(gone)


def test_a_replay_by_id_goes_to_its_shard(shop: Shop) -> None:
    shop.add()
    for number in EACH:
        [job] = shop.kill(number)
        assert shop.run(DESK.replay(Wanted(ids=(job,)), 1, "ada")).ids == [job]
        [line] = shop.run(DESK.audit(job))
        assert (line.action, line.actor) == ("replay", "ada")


def test_a_pause_counts_in_every_shard(shop: Shop) -> None:
    ids = shop.add()
    assert shop.hf.pause("mail", actor="ada")
    assert [store.run(jobs.pauses())[0].name for store in shop.shards.stores] == ["mail"] * SHARDS
    [pause] = shop.hf.pauses()
    assert pause.by == "ada"
    [held] = shop.run(admin.held_up())
    assert held.due == len(ids)
    assert not shop.hf.pause("mail")
    assert shop.hf.resume("mail")
    assert shop.hf.pauses() == []


def test_a_pause_that_reached_one_shard_only_can_be_said_again(shop: Shop) -> None:
    shop.shards.stores[1].run(admin.pause("queue", "mail", "ada"))
    assert shop.hf.pause("mail")
    assert all(store.run(jobs.pauses()) for store in shop.shards.stores)


def test_what_was_done_once_to_all_shards_is_told_once(shop: Shop) -> None:
    shop.hf.pause("mail", actor="ada")
    shop.hf.resume("mail", actor="ada")
    shop.hf.pause("mail", actor="ada")
    assert [line.action for line in shop.run(admin.audit())] == ["queue_pause", "queue_resume", "queue_pause"]


def test_the_pages_of_the_audit_leave_no_line_out(shop: Shop) -> None:
    ids = shop.add()
    for job in ids:
        shop.hf.cancel(job)
    told: list[str | None] = []
    before = None
    while True:
        found, before = shop.run(admin.audit_page(3, before))
        told += [line.job_id for line in found]
        if before is None:
            break
    assert sorted(map(str, told)) == ids


def test_settings_of_a_queue_are_the_same_everywhere(shop: Shop) -> None:
    before, now = shop.run(admin.change_queue("orders", {"ordered": True}, "ada"))
    assert (before.ordered, now.ordered) == (False, True)
    assert all(store.run(lines.stored())["orders"].settings == now for store in shop.shards.stores)
    assert shop.run(lines.stored())["orders"].settings == now


def test_a_line_is_stopped_and_started_wherever_it_is(shop: Shop) -> None:
    shop.run(admin.change_queue("orders", {"ordered": True}, "ada"))
    assert shop.run(admin.stop_lines("orders", ["order:1", "order:2"], "ada")) == ["order:1", "order:2"]
    found = shop.run(admin.list_lines(stopped=True))
    assert [line.key for line in found] == ["order:1", "order:2"]
    assert [line.key for line in shop.run(admin.list_lines(stopped=True, limit=1))] == ["order:1"]
    assert shop.run(admin.start_lines("orders", ["order:1", "order:2"], "ada")) == ["order:1", "order:2"]
    assert shop.run(admin.list_lines(stopped=True)) == []


def test_a_worker_is_one_worker_in_all_shards(shop: Shop) -> None:
    for store in shop.shards.stores:
        store.run(registry.beat("web1-1-a", '{"host": "web1"}'))
    shop.shards.stores[2].run(registry.beat("web2-1-b", '{"host": "web2"}'))
    assert [worker.id for worker in shop.run(registry.workers())] == ["web1-1-a", "web2-1-b"]
    answer = shop.hf.drain(["web1-1-a", "web2-1-b", "nobody"])
    assert answer.asked == ["web1-1-a", "web2-1-b"]
    assert answer.left == {"nobody": "unknown"}
    assert {worker.status for worker in shop.run(registry.workers())} == {"draining"}
    assert shop.hf.drain(host="web1").left == {"web1-1-a": "draining"}


def test_runs_are_listed_shown_and_signalled_by_their_own_ids(shop: Shop) -> None:
    flow: Any = shop.hf.handlers["fulfil@1"]
    names = [f"order-{n}" for n in range(12)]
    for n, name in enumerate(names):
        flow.start(n, id=name)
    found = shop.hf.runs(limit=100)
    assert sorted(view.id for view in found) == sorted(names)
    assert [view.job_id for view in found] == sorted((view.job_id for view in found), reverse=True)
    assert len({stamp_of(view.job_id) for view in found}) > 1
    assert [view.id for view in shop.hf.runs(limit=5)] == [view.id for view in found[:5]]
    for name in names:
        view, _ = shop.run(runs.timeline(name))
        assert view.id == name
        assert shop.hf.signal(name, "approved")
    with pytest.raises(RunNotFound):
        shop.run(runs.show("order-99"))
    assert sorted(shop.hf.cancel(names).cancelled) == sorted(names)


def test_a_worker_tells_what_it_did_in_all_shards(files: Shop) -> None:
    ids = files.add()

    async def work() -> None:
        async with files.hf.worker():
            for job in ids:
                await files.hf.aresult(job, 20)

    asyncio.run(work())
    assert files.run(observe.history(120)).figures(queue="mail").ended == {"done": len(ids)}
    assert len(files.run(registry.workers())) == 1


def test_a_shard_that_is_away_is_left_out_and_told(files: Shop) -> None:
    ids = files.add()
    files.lose(1)
    missing: list[int] = []
    files.shards.missing = lambda number, error: missing.append(number)
    here = [job for job in ids if stamp_of(job) != 1]
    assert [row.id for row in files.run(DESK.rows(newest=False)).rows] == here
    assert missing == [1]
    assert asyncio.run(files.hf.store.arun(DESK.counts()))[0].due == len(here)


def test_what_is_about_a_shard_that_is_away_is_not_done_by_halves(files: Shop) -> None:
    ids = files.add()
    files.lose(1)
    with pytest.raises(DatabaseUnavailable):
        files.hf.cancel(queue="mail")
    with pytest.raises(DatabaseUnavailable):
        files.hf.pause("mail")
    [there, *_] = [job for job in ids if stamp_of(job) == 1]
    with pytest.raises(DatabaseUnavailable):
        files.hf.cancel(there)


def test_jobs_of_other_shards_are_acted_on_while_one_is_away(files: Shop) -> None:
    ids = files.add()
    files.lose(1)
    here = [job for job in ids if stamp_of(job) != 1]
    assert files.hf.cancel(here[:2]).cancelled == here[:2]
    assert files.hf.change(here[2], priority=3).changed == [here[2]]
    assert files.run(DESK.retry(here[0], "ada")) == "replayed"


def test_a_cancel_in_a_transaction_is_for_the_jobs_of_its_shard(files: Shop) -> None:
    import sqlite3

    ids = files.add(1)
    [here, *_] = [job for job in ids if stamp_of(job) == 2]
    [other, *_] = [job for job in ids if stamp_of(job) == 0]
    tx = sqlite3.connect(files.files[2], isolation_level=None)
    tx.execute("begin immediate")
    with pytest.raises(ConfigError, match="several shards"):
        files.hf.cancel([here, other], tx=tx)
    with pytest.raises(ConfigError, match="several shards"):
        files.hf.cancel(queue="mail", tx=tx)
    with pytest.raises(ConfigError, match="several shards"):
        files.hf.pause("mail", tx=tx)
    assert files.hf.cancel(here, tx=tx).cancelled == [here]
    tx.rollback()
    tx.close()
    assert files.hf.get(here).state == "pending"


def test_schemas_of_one_database_are_changed_in_one_transaction(pg_url: str) -> None:
    import psycopg

    from holdfast import Holdfast

    with Holdfast(pg_url, shards=SHARDS) as hf, psycopg.connect(pg_url) as tx:
        declare(hf).migrate()
        shop = Shop(hf, lambda: hf, [])
        ids = shop.add(1)
        assert hf.pause("mail", tx=tx)
        assert hf.cancel(queue="mail", tx=tx).cancelled == ids
        tx.rollback()
        assert hf.pauses() == []
        assert {hf.get(job).state for job in ids} == {"pending"}


def test_workers_drain_in_those_shards_that_answer(files: Shop) -> None:
    for store in files.shards.stores:
        store.run(registry.beat("web1-1-a", "{}"))
    files.lose(1)
    assert files.run(draining.drain("web1-1-a", None, "ada")).asked == ["web1-1-a"]
    assert [worker.status for worker in files.run(registry.workers())] == ["draining"]


def test_pruning_empties_every_shard(shop: Shop) -> None:
    ids = shop.add()
    shop.hf.cancel(everything=True)
    [part] = shop.run(DESK.kept())
    assert shop.run(DESK.count_older(part, timedelta(0))) == len(ids)
    removed = 0
    while chunk := shop.run(DESK.prune(part, timedelta(0), limit=2)):
        removed += chunk
    assert removed == len(ids)


def test_a_sum_of_counts_says_only_that_there_are_more() -> None:
    at = datetime.now(UTC)
    many, few = Depth(due=COUNTED + 1, oldest=2.0), Depth(due=1, oldest=5.0)
    merged = Sample.merged([Sample(at, 0.0, {"mail": many}), Sample(at, 3.0, {"mail": few, "other": few})])
    assert merged.queues == {"mail": Depth(due=COUNTED + 1, oldest=5.0), "other": few}
    assert merged.age == 3.0


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 2)), max_size=40), st.integers(1, 6))
def test_pages_by_time_hold_every_line_once(said: list[tuple[int, int]], limit: int) -> None:
    """Lines of one moment stay on one page, in every shard."""
    start = datetime(2026, 5, 1, tzinfo=UTC)
    every = [
        (shard, AuditLine(start + timedelta(seconds=at), "cancel", f"{place}", None, {}))
        for place, (at, shard) in enumerate(said)
    ]

    def page(shard: int, before: datetime | None) -> tuple[list[AuditLine], datetime | None]:
        left = [line for its, line in every if its == shard and (before is None or line.at < before)]
        left.sort(key=lambda line: line.at, reverse=True)
        if len(left) < limit:
            return left, None
        last = left[limit - 1].at
        return [line for line in left if line.at >= last], last

    told: list[AuditLine] = []
    before = None
    for _ in range(len(every) + 2):
        found, before = audit_pages(limit, [page(shard, before) for shard in range(3)])
        told += found
        if before is None:
            break
    assert sorted(line.job_id or "" for line in told) == sorted(line.job_id or "" for _, line in every)
    assert told == sorted(told, key=lambda line: line.at, reverse=True)


def test_without_shards_nothing_is_merged(sqlite_url: str) -> None:
    """A flow that belongs on every shard is the same flow on one store."""
    store = Store(sqlite_url)
    from holdfast.store import migrate

    store.run(migrate.apply(store.migrations))
    assert store.run(DESK.counts()) == []
    assert store.run(DESK.rows()) == Page([])
    store.close()
