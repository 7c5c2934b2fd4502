import django
from django.contrib.auth.models import Group

from holdfast import Retry
from holdfast.django.tasks import compat

its_task = __import__(compat.framework(), fromlist=["task"]).task
AT_ONCE = Retry(max_attempts=3, first_delay=0, jitter=0)
SLOWLY = Retry(max_attempts=2, first_delay=3600, max_delay=3600, jitter=0)


def task(fn=None, **options):
    """Decorate as `@task` does; Django 6.0 takes what is ours by `using` alone, which does the same in a module."""
    if fn is not None:
        return its_task(fn)
    if compat.framework() != compat.DJANGO or django.VERSION >= (6, 1):
        return its_task(**options)
    ours = {name: options.pop(name) for name in ("retry", "lease", "unique", "key") if name in options}
    return lambda function: its_task(**options)(function).using(**ours)


@task
def add(a, b):
    return a + b


@task(takes_context=True)
async def told(context, word, times=1):
    group, _ = await Group.objects.aget_or_create(name=word)
    return {"word": group.name * times, "attempt": context.attempt, "id": context.task_result.id}


@task(queue_name="mail")
def found_group(name):
    Group.objects.create(name=name)


@task(retry=AT_ONCE, takes_context=True)
def fails_twice(context):
    if context.attempt < 3:
        raise ValueError(f"not yet: {context.attempt}")
    return [error.exception_class_path for error in context.task_result.errors]


@task(retry=Retry(never=LookupError))
def fails_for_good() -> None:
    raise LookupError("nothing there")


@task(retry=SLOWLY)
def fails_slowly():
    raise LookupError("nothing there")


@task(backend="once")
def fails_once():
    raise LookupError("nothing there")


@task(backend="once")
def gives_what_json_has_no_form_for():
    return object()


@task(unique="{shop}", key="shop:{shop}", lease=45)
def report(shop, day="today"):
    return shop


@task(unique="{shop}")
def another_report(shop):
    return shop


def no_task():
    raise AssertionError("this is not a task, and must not be run")
