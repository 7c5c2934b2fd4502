"""What the shop keeps."""

from django.db import models


class Order(models.Model):
    email = models.EmailField()
    total = models.DecimalField(max_digits=8, decimal_places=2)
    receipt_number = models.IntegerField(null=True)


class Receipt(models.Model):
    """A numbered receipt: an order must not get two."""

    order = models.ForeignKey(Order, on_delete=models.CASCADE, related_name="receipts")
