"""The pages of the shop, in JSON."""

from django.db import transaction
from django.http import HttpRequest, JsonResponse
from django.shortcuts import get_object_or_404
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

from shop.jobs import write_receipt
from shop.models import Order


@csrf_exempt
@require_POST
def place_order(request: HttpRequest) -> JsonResponse:
    """Take an order. The order and its job are there together, or neither is."""
    with transaction.atomic():
        order = Order.objects.create(email=request.POST["email"], total=request.POST["total"])
        write_receipt.enqueue(order_id=order.id)
    return JsonResponse({"order": order.id}, status=201)


def show_order(request: HttpRequest, order_id: int) -> JsonResponse:
    """Show an order, and the number of its receipt once there is one."""
    order = get_object_or_404(Order, id=order_id)
    return JsonResponse({"order": order.id, "receipt": order.receipt_number})
