"""The shop's own tests: Django's test cases, in whose transaction the jobs run."""

from django.core import mail
from django.db import transaction
from django.test import TestCase

from holdfast.django import hf
from holdfast.testing.inline import assert_enqueued, enqueued, run_due
from shop.jobs import write_receipt
from shop.models import Order


class OrderTests(TestCase):
    def test_an_order_gets_its_receipt(self):
        placed = self.client.post("/orders", {"email": "ada@example.org", "total": "9.50"})
        order_id = placed.json()["order"]
        assert_enqueued(hf, write_receipt, order_id=order_id)

        assert [ran.kind for ran in run_due(hf)] == ["write_receipt", "mail_receipt"]

        receipt = self.client.get(f"/orders/{order_id}").json()["receipt"]
        assert receipt is not None
        assert [sent.subject for sent in mail.outbox] == [f"Receipt {receipt}"]

    def test_an_order_that_is_rolled_back_has_no_job(self):
        try:
            with transaction.atomic():
                order = Order.objects.create(email="ada@example.org", total=1)
                write_receipt.enqueue(order_id=order.id)
                raise RuntimeError("the card was refused")
        except RuntimeError:
            pass
        assert enqueued(hf) == []
