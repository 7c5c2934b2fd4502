"""A Django application with `def` handlers on PostgreSQL, whose sessions are cut between two jobs.

Called with a URL and with how many jobs to run; a further argument leaves out the hook. Prints the states they came to.
"""

import asyncio
import contextlib
import json
import sys
from collections.abc import Iterator
from urllib.parse import urlsplit

import django
import psycopg
from django.conf import settings
from django.db import close_old_connections, connection

from holdfast import Holdfast, Job, Retry, admin

url, count, *without_hook = sys.argv[1:]
place = urlsplit(url)
database = {
    "ENGINE": "django.db.backends.postgresql",
    "NAME": place.path[1:],
    "USER": place.username,
    "PASSWORD": place.password or "",
    "HOST": place.hostname,
    "PORT": place.port,
    "OPTIONS": {"application_name": "django_shop"},
}
settings.configure(DATABASES={"default": database}, USE_TZ=True)
django.setup()

hf = Holdfast(url)

if not without_hook:

    @hf.around_handler
    @contextlib.contextmanager
    def fresh_connections(job: Job) -> Iterator[None]:
        close_old_connections()
        try:
            yield
        finally:
            close_old_connections()


@hf.job(retry=Retry(max_attempts=1))
def read_orders() -> int:
    with connection.cursor() as cursor:
        cursor.execute("select 1")
        return int(cursor.fetchone()[0])


def cut_sessions() -> None:
    with psycopg.connect(url, autocommit=True) as other:
        other.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'django_shop'"
        ).fetchall()


async def main() -> list[str]:
    states = []
    async with hf.worker(concurrency=1):
        for _ in range(int(count)):
            job = await read_orders.aenqueue()
            async with asyncio.timeout(60):
                while (view := await hf.store.arun(admin.show(job.id))).finished_at is None:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
            states.append(view.state)
            await asyncio.to_thread(cut_sessions)
    await hf.aclose()
    return states


print(json.dumps(asyncio.run(main())))
