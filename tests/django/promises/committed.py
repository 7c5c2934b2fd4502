"""What other connections see: Django's TransactionTestCase commits for real."""

import asyncio
import threading
import time
from unittest.mock import patch

from asgiref.sync import async_to_sync
from django.core.checks import run_checks
from django.core.exceptions import SynchronousOnlyOperation
from django.core.management import call_command
from django.db import connection, connections, transaction
from django.db.migrations.recorder import MigrationRecorder
from django.test import TransactionTestCase, override_settings

from holdfast import events
from holdfast.django import hf, settings
from holdfast.django.application import make
from holdfast.errors import ConfigError, TransactionError
from holdfast.store import migrate
from holdfast.testing.inline import enqueued, run_due
from tests.django.shop import jobs
from tests.django.shop.models import Order


def elsewhere(fn):
    """Call a function on a thread of its own, and so on another connection."""
    found = []

    def call():
        try:
            found.append(fn())
        finally:
            connections.close_all()

    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    return found[0]


def waiting():
    return elsewhere(lambda: [job.kind for job in enqueued(hf)])


class CommittedTests(TransactionTestCase):
    def test_a_an_enqueue_outside_of_any_block_is_committed_at_once(self):
        jobs.count_orders.enqueue()
        assert waiting() == ["count_orders"]

    def test_b_the_next_test_finds_no_jobs_of_the_one_before(self):
        assert enqueued(hf) == []

    def test_an_enqueue_inside_a_block_is_seen_once_that_commits(self):
        with transaction.atomic():
            jobs.count_orders.enqueue()
            # SQLite's readers are kept waiting, or see what was there before.
            if connection.vendor != "sqlite":
                assert waiting() == []
        assert waiting() == ["count_orders"]

    def test_an_async_enqueue_is_committed(self):
        async_to_sync(jobs.count_orders.aenqueue)()
        assert waiting() == ["count_orders"]

    async def test_a_sync_enqueue_in_async_code_is_refused_as_the_orm_refuses_it(self):
        with self.assertRaises(SynchronousOnlyOperation):
            jobs.count_orders.enqueue()

    def test_a_connection_that_was_lost_meanwhile_is_replaced(self):
        Order.objects.count()
        if connection.vendor == "sqlite":
            connection.connection.close()
        else:
            mine = session()
            elsewhere(lambda: kill(mine))
        jobs.count_orders.enqueue()
        assert waiting() == ["count_orders"]

    def test_a_transaction_of_our_own_takes_its_turn_before_it_reads(self):
        if connection.vendor != "sqlite":
            self.skipTest("others have no one lock for all writers")
        begun = []

        def listen(execute, sql, params, many, context):
            begun.extend([sql] if sql.startswith("BEGIN") else [])
            return execute(sql, params, many, context)

        connection.close()
        with connection.execute_wrapper(listen):
            jobs.count_orders.enqueue()
        with connection.execute_wrapper(listen), transaction.atomic():
            Order.objects.count()
        assert begun == ["BEGIN IMMEDIATE", "BEGIN"]

    def test_a_completion_inside_a_block_that_is_rolled_back_is_none(self):
        order = Order.objects.create()
        job = jobs.undo_after_paying.enqueue(order_id=order.id)
        run_due(hf, raise_errors=False)
        order.refresh_from_db()
        assert (order.state, hf.get(job).state) == ("new", "dead")

    def test_a_completion_without_its_lease_takes_the_rows_of_the_handler_with_it(self):
        order = Order.objects.create()
        jobs.lose_its_lease.enqueue(order_id=order.id)
        [ran] = run_due(hf, raise_errors=False)
        order.refresh_from_db()
        assert (order.state, ran.outcome) == ("new", "lost")

    def test_a_completion_outside_of_a_block_is_refused(self):
        jobs.complete_at_once.enqueue()
        with self.assertRaisesMessage(TransactionError, "give it as tx="):
            run_due(hf)

    def test_a_transaction_that_nobody_would_commit_is_refused(self):
        order = Order.objects.create()
        job = jobs.pay_without_autocommit.enqueue(order_id=order.id)
        [ran] = run_due(hf, raise_errors=False)
        order.refresh_from_db()
        assert (order.state, ran.outcome, hf.get(job).state) == ("new", "dead", "dead")
        assert "autocommit is off on Django's connection 'default'" in ran.error

    def test_a_callback_that_fails_after_the_commit_leaves_the_job_done_and_is_told(self):
        for handler in (jobs.pay_and_fail_to_tell, jobs.pay_by_hand_and_fail_to_tell):
            with self.subTest(handler.kind):
                order = Order.objects.create()
                job, told = handler.enqueue(order_id=order.id), heard()
                [ran] = run_due(hf)
                order.refresh_from_db()
                assert (order.state, ran.outcome, hf.get(job).state) == ("paid", "done", "done")
                assert told == [("FailedAfterDone", "ConnectionRefusedError: nobody takes mails")]

    def test_a_worker_tells_of_such_a_callback_and_of_no_lost_lease(self):
        order = Order.objects.create()
        job, told = jobs.pay_by_hand_and_fail_to_tell.enqueue(order_id=order.id), heard()
        asyncio.run(until_done([job]))
        assert told == [("FailedAfterDone", "ConnectionRefusedError: nobody takes mails")]

    def test_what_the_commit_is_refused_with_is_djangos_own_error(self):
        job = jobs.note_for_nobody.enqueue()
        [ran] = run_due(hf, raise_errors=False)
        [error] = hf.get(job).errors
        assert (ran.outcome, error["type"]) == ("dead", "django.db.utils.IntegrityError")

    def test_a_worker_runs_the_jobs_and_leaves_no_connection_of_djangos_behind(self):
        order, other, third = Order.objects.create(), Order.objects.create(), Order.objects.create()
        work = [jobs.pay.enqueue(order_id=order.id), jobs.pay_by_hand.enqueue(order_id=other.id)]
        work += [jobs.count_later.enqueue(order_id=1), jobs.note.enqueue(third.id)]
        before = sessions()
        asyncio.run(until_done(work))
        assert [hf.get(job).state for job in work] == ["done"] * 4
        assert [one.state for one in Order.objects.order_by("id")] == ["paid", "paid", "noted"]
        assert sessions() == before

    def test_progress_in_a_block_is_seen_before_it_commits_and_holds_up_no_renewal(self):
        if connection.vendor == "sqlite":
            self.skipTest("one writer at a time: the block has the whole file")
        seen, before = [], sessions()
        job = jobs.pay_by_hand.enqueue(order_id=Order.objects.create().id)
        jobs.meanwhile.append(lambda: seen.append(elsewhere(lambda: hf.get(job).progress)))
        try:
            run_due(hf)
        finally:
            jobs.meanwhile.clear()
        assert seen == ["half"]
        # As at the end of a test: what is still connected keeps the database from being dropped.
        call_command("flush", verbosity=0, interactive=False)
        deadline = time.monotonic() + 30
        while sessions() > before and time.monotonic() < deadline:
            time.sleep(0.01)
        assert sessions() == before


class SerializedTests(TransactionTestCase):
    """Django tells nobody of the flush behind these."""

    serialized_rollback = True

    def test_a_jobs_are_enqueued_for_real(self):
        jobs.count_orders.enqueue()
        assert waiting() == ["count_orders"]

    def test_b_the_next_test_finds_no_jobs_of_the_one_before(self):
        assert enqueued(hf) == []


def heard():
    """Return a list in which everything is noted from now on that is told of a job that went wrong."""
    told = []
    for kind in (events.FailedAfterDone, events.LeaseWasLost, events.JobRetried, events.JobDead):
        hf.on(kind, lambda one: told.append((type(one).__name__, getattr(one, "error", ""))))
    return told


def session():
    query = {"postgresql": "select pg_backend_pid()", "mysql": "select connection_id()"}[connection.vendor]
    with connection.cursor() as cursor:
        cursor.execute(query)
        return cursor.fetchone()[0]


def kill(pid):
    query = {"postgresql": "select pg_terminate_backend(%s)", "mysql": "kill %s"}[connection.vendor]
    with connection.cursor() as cursor:
        cursor.execute(query, [pid])


def sessions():
    """Count the connections to the database of the tests, where a server knows."""
    query = {
        "postgresql": "select count(*) from pg_stat_activity where datname = current_database()",
        "mysql": "select count(*) from information_schema.processlist where db = database()",
    }.get(connection.vendor, "select 1")
    with connection.cursor() as cursor:
        cursor.execute(query)
        return cursor.fetchone()[0]


async def until_done(work):
    async with hf.worker(concurrency=3, poll=0.05), asyncio.timeout(60):
        while await asyncio.to_thread(elsewhere, lambda: [hf.get(job).state for job in work]) != ["done"] * len(work):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    await hf.aclose()


class MigrationTests(TransactionTestCase):
    databases = {"default", "other"}  # noqa: RUF012 - as Django has it

    def test_the_tables_are_on_the_alias_that_was_named_and_on_no_other(self):
        assert hf.store.run(migrate.version()) == hf.store.schema_version
        assert not [name for name in connections["other"].introspection.table_names() if name.startswith("holdfast")]
        applied = [name for app, name in MigrationRecorder(connection).applied_migrations() if app == "holdfast"]
        assert len(applied) == hf.store.schema_version


class SettingsTests(TransactionTestCase):
    def test_wrong_settings_are_found_by_the_checks(self):
        assert run_checks() == []
        for said, word in [
            ({"databse": "default"}, "did you mean database?"),
            ({"database": "elsewhere"}, "must be an alias of DATABASES, which has default, other"),
            ({"prefix": "No!"}, "prefix"),
            (["default"], "must be a dictionary"),
        ]:
            with override_settings(HOLDFAST=said):
                [found] = run_checks()
                assert (found.id, word in found.msg) == ("holdfast.E001", True), found.msg

    def test_autocommit_that_is_off_is_found_by_the_checks(self):
        with patch.dict(connection.settings_dict, {"AUTOCOMMIT": False}):
            [found] = run_checks()
        assert (found.id, found.is_serious()) == ("holdfast.W001", False)

    def test_options_come_from_the_setting(self):
        with override_settings(HOLDFAST={"database": "other", "pool_size": 3}):
            assert (settings.alias(), settings.options()["pool_size"]) == ("other", 3)
            app = make()
            assert (app.url, app.options.pool_size) == ("sqlite:///:memory:", 3)
            with self.assertRaisesMessage(ConfigError, "a worker needs a file or a server"):
                app.job(kind="nothing")(lambda: None)
                app.worker()
