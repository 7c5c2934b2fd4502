"""Inside the transaction of Django's TestCase: no other connection sees any of this."""

import threading

from django.core.management import call_command
from django.db import IntegrityError, connection, connections, transaction
from django.test import TestCase

from holdfast.django import hf
from holdfast.errors import TransactionAborted, TransactionError, UnsupportedConnection, WrongDatabase
from holdfast.testing.inline import aassert_enqueued, arun_due, assert_enqueued, enqueued, run_due
from tests.django.shop import jobs
from tests.django.shop.models import Order


class Undone(Exception):
    """What rolls a block back."""


class InsideTests(TestCase):
    def roll_back(self, act):
        with self.assertRaises(Undone), transaction.atomic():
            act()
            raise Undone

    def test_the_database_is_the_one_of_the_tests(self):
        assert hf.url.endswith("_for_tests")
        assert str(connection.settings_dict["NAME"]) in hf.url

    def test_an_enqueue_commits_with_the_block_around_it_and_goes_with_it(self):
        self.roll_back(lambda: jobs.count_orders.enqueue())
        assert enqueued(hf) == []
        with transaction.atomic():
            jobs.count_orders.enqueue()
        assert_enqueued(hf, jobs.count_orders, times=1)

    def test_whatever_else_is_written_goes_with_the_block(self):
        handle = jobs.fulfil.start(order_id=1)
        self.roll_back(lambda: hf.publish("order.created", {"id": 1}))
        self.roll_back(lambda: hf.enqueue_many([jobs.count_orders.bind()] * 2))
        self.roll_back(lambda: jobs.fulfil.start(id="another", order_id=2))
        self.roll_back(lambda: hf.signal(handle, "delivered", "no"))
        self.roll_back(self.add_batch)
        assert [job.kind for job in enqueued(hf)] == ["fulfil@1"]
        run_due(hf)
        assert handle.status() == "waiting"

    def add_batch(self):
        with hf.batch(then=jobs.count_orders.bind()) as batch:
            batch.add(jobs.count_orders.bind())

    def test_due_jobs_run_in_the_transaction_of_the_test_on_its_thread(self):
        order = Order.objects.create()
        jobs.threads.clear()
        jobs.pay.enqueue(order_id=order.id)
        assert [(ran.kind, ran.outcome) for ran in run_due(hf)] == [("pay", "done")]
        order.refresh_from_db()
        assert (order.state, jobs.threads) == ("paid", [threading.get_ident()])

    def test_the_completion_joins_a_block_of_the_handler_itself(self):
        order = Order.objects.create()
        jobs.pay_by_hand.enqueue(order_id=order.id)
        [ran] = run_due(hf)
        order.refresh_from_db()
        assert (order.state, ran.outcome, ran.result) == ("paid", "done", "by hand")

    def test_a_failed_handler_takes_its_rows_back(self):
        order = Order.objects.create()
        jobs.fail_after_paying.enqueue(order_id=order.id)
        [ran] = run_due(hf, raise_errors=False)
        order.refresh_from_db()
        assert (order.state, ran.outcome, ran.error) == ("new", "dead", "the card was refused")

    def test_a_handler_that_breaks_the_transaction_has_failed_and_the_test_goes_on(self):
        order = Order.objects.create()
        job = jobs.order_again.enqueue(order_id=order.id)
        with self.assertRaises(IntegrityError):
            run_due(hf)
        assert (hf.get(job).state, list(Order.objects.all())) == ("dead", [order])
        jobs.ask_for_nothing.enqueue()
        [ran] = run_due(hf, raise_errors=False)
        assert (ran.outcome, "nowhere" in ran.error) == ("dead", True)
        # Where a failed statement leaves the transaction whole, nothing is undone.
        assert Order.objects.count() == (1 if connection.vendor == "postgresql" else 2)

    def test_what_a_handler_has_broken_and_hidden_is_not_undone_without_a_word(self):
        order = Order.objects.create()
        jobs.order_again_quietly.enqueue(order_id=order.id)
        with self.assertRaises(TransactionAborted), transaction.atomic():
            run_due(hf)

    def test_bulk_handlers_and_runs_see_the_same_rows(self):
        first, second, third = Order.objects.create(), Order.objects.create(), Order.objects.create()
        hf.enqueue_many([jobs.note.bind(first.id), jobs.note.bind(second.id)])
        handle = jobs.fulfil.start(order_id=third.id)
        run_due(hf)
        assert list(Order.objects.order_by("id").values_list("state", flat=True)) == ["noted", "noted", "shipped"]
        hf.signal(handle, "delivered", "yes")
        run_due(hf)
        assert handle.result(timeout=0) == "yes"

    def test_events_are_delivered(self):
        jobs.delivered.clear()
        hf.publish("order.created", {"id": 1})
        run_due(hf)
        assert [message.event.data for message in jobs.delivered] == [{"id": 1}]

    async def test_async_calls_join_the_transaction_of_the_test(self):
        order = await Order.objects.acreate()
        await jobs.count_later.aenqueue(order_id=order.id)
        await aassert_enqueued(hf, jobs.count_later, order_id=order.id)
        assert [ran.result for ran in await arun_due(hf)] == [1, 1]

    def test_a_connection_of_our_own_is_refused_because_it_sees_nothing_of_the_test(self):
        job = jobs.pay_in_async.enqueue(order_id=1)
        with self.assertRaisesRegex(TransactionError, "use TransactionTestCase, or a `def` handler"):
            run_due(hf)
        assert hf.get(job).state == "dead"

    def test_the_command_line_sees_it_too(self):
        job = jobs.count_orders.enqueue()
        call_command("holdfast", "jobs", "cancel", job.id, "--yes", stdout=_Sink(), stderr=_Sink())
        assert hf.get(job).state == "cancelled"

    def test_a_connection_that_is_given_is_the_one_that_is_used(self):
        jobs.count_orders.using(tx=connection).enqueue()
        assert_enqueued(hf, jobs.count_orders, times=1)
        if connection.vendor != "sqlite":
            with self.assertRaises(WrongDatabase):
                jobs.count_orders.using(tx=connections["other"]).enqueue()
        with self.assertRaises(UnsupportedConnection):
            jobs.count_orders.using(tx="default").enqueue()


class _Sink:
    """Takes what a command prints."""

    def write(self, text):
        return len(text)

    def flush(self):
        pass
