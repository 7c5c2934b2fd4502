"""Jobs that views enqueue: what a request commits, and what goes with it."""

from typing import Any

from django.db import connections, transaction
from django.http import HttpRequest, HttpResponse
from django.test import TransactionTestCase, override_settings
from django.urls import path

from holdfast.django import hf
from holdfast.testing.inline import aenqueued, enqueued
from tests.django.shop.jobs import count_orders
from tests.django.shop.models import Order


def place(request: HttpRequest) -> HttpResponse:
    Order.objects.create()
    count_orders.enqueue()
    if "fail" in request.GET:
        raise ValueError("after both")
    return HttpResponse(status=201)


@transaction.non_atomic_requests
def place_apart(request: HttpRequest) -> HttpResponse:
    return place(request)


async def place_async(request: HttpRequest) -> HttpResponse:
    await Order.objects.acreate()
    await count_orders.aenqueue()
    return HttpResponse(status=201)


urlpatterns = [
    path("placed", place),
    path("apart", place_apart),
    path("async", place_async),
]


def written() -> tuple[int, int]:
    return Order.objects.count(), len(enqueued(hf))


@override_settings(ROOT_URLCONF=__name__, ALLOWED_HOSTS=["testserver"])
class RequestTests(TransactionTestCase):
    def setUp(self) -> None:
        self.client.raise_request_exception = False
        said: dict[str, Any] = connections["default"].settings_dict
        before = said["ATOMIC_REQUESTS"]
        said["ATOMIC_REQUESTS"] = True
        self.addCleanup(said.__setitem__, "ATOMIC_REQUESTS", before)

    def test_a_request_commits_its_rows_and_jobs_together(self) -> None:
        assert self.client.get("/placed").status_code == 201
        assert written() == (1, 1)

    def test_a_request_that_fails_leaves_neither(self) -> None:
        assert self.client.get("/placed?fail=yes").status_code == 500
        assert written() == (0, 0)

    def test_a_view_outside_of_that_commits_each_call_by_itself(self) -> None:
        assert self.client.get("/apart?fail=yes").status_code == 500
        assert written() == (1, 1)

    async def test_a_view_in_async_code_enqueues_without_holding_up_its_loop(self) -> None:
        connections["default"].settings_dict["ATOMIC_REQUESTS"] = False
        assert (await self.async_client.get("/async")).status_code == 201
        assert (await Order.objects.acount(), len(await aenqueued(hf))) == (1, 1)
