"""Run the promises of modules inside the project `taskshop`, in one process: `python inner.py MODULE …`.

A process can have one Django project and one database, so pytest's own cannot run them; `outer.py` asks this one.
Prints one line of JSON: by the name of each promise, the traceback of its failure, or null.
"""

import importlib
import json
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any

PROMISES: dict[str, Callable[[], None]] = {}


def promise(fn: Callable[[], None]) -> Callable[[], None]:
    """Mark a function as one of the promises of its module."""
    PROMISES[fn.__name__] = fn
    return fn


def emptied() -> None:
    """Delete what an earlier promise has left."""
    from django.contrib.auth.models import Group, User
    from django.db import connection

    from holdfast.django.tables import table

    with connection.cursor() as cursor:
        for name in ("jobs", "finished", "audit"):
            cursor.execute(f"delete from {table(name)}")  # noqa: S608 - names of our own
    User.objects.all().delete()
    Group.objects.all().delete()


def kept(fn: Callable[[], None]) -> str | None:
    emptied()
    try:
        fn()
    except BaseException:
        return traceback.format_exc()
    return None


def main(modules: list[str]) -> dict[str, Any]:
    os.environ["DJANGO_SETTINGS_MODULE"] = "taskshop.settings"
    import django
    from django.core.management import call_command
    from django.test.utils import setup_test_environment

    django.setup()
    call_command("migrate", verbosity=0)
    setup_test_environment()
    for module in modules:
        importlib.import_module(module)
    return {name: kept(fn) for name, fn in PROMISES.items()}


if __name__ == "__main__":
    # The module under the name by which the promises import it.
    sys.modules["inner"] = sys.modules["__main__"]
    print(json.dumps(main(sys.argv[1:])))
