"""A worker of a Django project on PostgreSQL whose sessions are cut between two jobs; prints what the jobs came to."""

import asyncio
import json
import os
from collections.abc import Callable

import django
import psycopg

django.setup()

from django.core.management import call_command  # noqa: E402 - once Django is set up
from django.db import connections  # noqa: E402

from holdfast import admin  # noqa: E402
from holdfast.django import hf  # noqa: E402
from holdfast.store import Store  # noqa: E402
from tests.django.shop import jobs  # noqa: E402

url = os.environ["DJANGO_TEST_URL"]
# Not Django's: what is tested must not be healed by looking at it.
apart = Store(url)


def cut_sessions() -> None:
    with psycopg.connect(url, autocommit=True) as other:
        other.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'django_shop'"
        ).fetchall()


def done_and_closed(add: Callable[[], str]) -> str:
    try:
        return add()
    finally:
        connections.close_all()


async def states(add: Callable[[], str]) -> list[str]:
    """Run three jobs one after the other, and cut all sessions of Django behind each."""
    found = []
    async with hf.worker(concurrency=1, poll=0.05):
        for _ in range(3):
            job = await asyncio.to_thread(done_and_closed, add)
            async with asyncio.timeout(60):
                while (view := await apart.arun(admin.show(job))).finished_at is None:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
            found.append(view.state)
            await asyncio.to_thread(cut_sessions)
    await apart.aclose()
    await hf.aclose()
    return found


def scene(add: Callable[[], str], *, checked: bool) -> list[str]:
    connections.settings["default"]["CONN_HEALTH_CHECKS"] = checked
    return asyncio.run(states(add))


call_command("migrate", verbosity=0)
connections.close_all()
ADD = {
    "def": lambda: jobs.read_orders.enqueue().id,
    "async": lambda: jobs.read_orders_async.enqueue().id,
    "bulk": lambda: jobs.read_orders_in_bulk.enqueue(1).id,
    "bulk, async": lambda: jobs.read_orders_in_bulk_async.enqueue(1).id,
    "step of a run": lambda: jobs.read_orders_in_a_run.start().named,
}
told: dict[str, list[str] | str] = {name: scene(add, checked=True) for name, add in ADD.items()}
told["unchecked"] = scene(ADD["def"], checked=False)
hf.context.care = None
told |= {f"{name}, without care": scene(add, checked=False)[-1] for name, add in ADD.items()}
print(json.dumps(told))
