"""The shop's jobs. `holdfast.django` imports the `jobs.py` of every application of the project."""

from django.core.mail import send_mail

from holdfast import Job
from holdfast.django import hf
from shop.models import Order, Receipt


@hf.job
def write_receipt(job: Job, order_id: int) -> None:
    """Number the receipt of an order: the rows and the end of the job are one commit."""
    with job.transaction():
        order = Order.objects.select_for_update().get(id=order_id)
        receipt = Receipt.objects.create(order=order)
        order.receipt_number = receipt.id
        order.save()
        mail_receipt.enqueue(order_id=order_id)


@hf.job
def mail_receipt(order_id: int) -> None:
    """Mail the receipt. A mail server knows no transactions, so a crash behind it means a second mail."""
    order = Order.objects.get(id=order_id)
    send_mail(f"Receipt {order.receipt_number}", f"You paid {order.total}.", None, [order.email])
