"""A worker of a Django project on PostgreSQL whose sessions are cut between two jobs; prints what the jobs came to."""

import asyncio
import json
import os
from typing import Any

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


def enqueue(handler: Any) -> Any:
    try:
        return handler.enqueue()
    finally:
        connections.close_all()


async def states(handler: Any) -> list[str]:
    """Run three jobs one after the other, and cut all sessions of Django behind each."""
    found = []
    async with hf.worker(concurrency=1, poll=0.05):
        for _ in range(3):
            job = await asyncio.to_thread(enqueue, handler)
            async with asyncio.timeout(60):
                while (view := await apart.arun(admin.show(job.id))).finished_at is None:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
            found.append(view.state)
            await asyncio.to_thread(cut_sessions)
    await apart.aclose()
    await hf.aclose()
    return found


def scene(handler: Any, *, checked: bool) -> list[str]:
    connections.settings["default"]["CONN_HEALTH_CHECKS"] = checked
    return asyncio.run(states(handler))


call_command("migrate", verbosity=0)
connections.close_all()
told = {"def": scene(jobs.read_orders, checked=True), "async": scene(jobs.read_orders_async, checked=True)}
told["unchecked"] = scene(jobs.read_orders, checked=False)
hf.context.care = None
told["without care"] = scene(jobs.read_orders, checked=False)
print(json.dumps(told))
