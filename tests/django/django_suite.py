"""Run Django's own tests of its Tasks against our backend: `python django_suite.py FOLDER`, with Django 6 or later.

FOLDER is `tests` of Django's source. Its tests name the two backends that come with Django; here these names lead to
ours: one that keeps what was enqueued, and one that runs it at once. Settings come from the environment.
"""

import json
import os
import sys
import unittest
from typing import Any

import django
from django.conf import settings

# Django's tests say of its own two backends what ours need not share.
LEFT_OUT = {
    "ImmediateBackendTestCase.test_cannot_get_result": "ours can read results",
    "ImmediateBackendTestCase.test_cannot_refresh_result": "ours can read results",
    "ImmediateBackendTestCase.test_cannot_pass_run_after": "ours knows run_after",
    "ImmediateBackendTestCase.test_throws_keyboard_interrupt": "an enqueue runs nothing that could raise",
    "ImmediateBackendTransactionTestCase.test_doesnt_wait_until_transaction_commit_by_default": (
        "workers see a task of ours once its transaction is committed"
    ),
    "DummyBackendTestCase.test_refresh_result": "it changes a list of Django's own backend by hand",
    "DummyBackendTestCase.test_refresh_result_async": "it changes a list of Django's own backend by hand",
}
SAMPLE = {"ENGINE": "django.db.backends.sqlite3", "NAME": "suite.sqlite3", "TEST": {"NAME": "suite-test.sqlite3"}}


def configure() -> None:
    # Some read results in async tests without `await`, which Django allows no backend with a database otherwise.
    os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "true"
    database = json.loads(os.environ.get("SUITE_DATABASE", "null")) or SAMPLE
    settings.configure(
        DATABASES={"default": database},
        INSTALLED_APPS=["holdfast.django"],
        USE_TZ=True,
        SECRET_KEY="of no use",
        DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
    )
    django.setup()


def put_ours_in_place() -> None:
    from django.db import connection
    from django.tasks.backends import dummy, immediate

    from holdfast import Retry, admin
    from holdfast.django import hf
    from holdfast.django.tasks import HoldfastBackend
    from holdfast.testing.inline import run_due

    class Kept(HoldfastBackend):
        @property
        def results(self) -> list[Any]:
            found = hf.store.run(admin.list_jobs(newest=False))
            return [self.get_result(job.id) for job in found]

        def clear(self) -> None:
            with connection.cursor() as cursor:
                cursor.execute("delete from holdfast_jobs")
                cursor.execute("delete from holdfast_finished")

    class AtOnce(HoldfastBackend):
        def __init__(self, alias: str, params: Any) -> None:
            super().__init__(alias, params)
            self.retry = Retry(max_attempts=1)

        def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
            result = super().enqueue(task, args, kwargs)
            run_due(hf, raise_errors=False)
            return self.get_result(result.id)

    dummy.DummyBackend, immediate.ImmediateBackend = Kept, AtOnce


def main(folder: str) -> int:
    configure()
    put_ours_in_place()
    sys.path.insert(0, folder)
    from django.test import SimpleTestCase
    from django.test.runner import DiscoverRunner

    # They are written for backends without a database.
    SimpleTestCase.databases = {"default"}

    class Runner(DiscoverRunner):
        def build_suite(self, *args: Any, **kwargs: Any) -> Any:
            suite = super().build_suite(*args, **kwargs)
            for test in suite:
                name = f"{type(test).__name__}.{test._testMethodName}"
                type(test).available_apps = None
                if name in LEFT_OUT:
                    setattr(test, test._testMethodName, unittest.skip(LEFT_OUT[name])(lambda: None))
            return suite

    return Runner(verbosity=2, interactive=False).run_tests(["tasks"])


if __name__ == "__main__":
    sys.exit(1 if main(sys.argv[1]) else 0)
