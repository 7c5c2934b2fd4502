"""Tasks that say more than Django's do: `@task(retry=Retry(max_attempts=3), lease=60, unique="report:{shop_id}")`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any

from holdfast.django.tasks.compat import Task
from holdfast.errors import ConfigError
from holdfast.values.options import KEY_LENGTH, NAME_LENGTH, text
from holdfast.values.reserved import unreserved
from holdfast.values.retry import LONGEST_LEASE, Duration, Retry, seconds
from holdfast.values.templates import KeyTemplate


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldfastTask(Task):
    """A task with what Holdfast can be told of its jobs; None leaves it to the backend.

    retry: how often and how late failed attempts run again. lease: how long a worker may be silent before another takes
    over. unique: at most one live job of the task per text, key: what its jobs are about, for queues with order and
    limits; both are made of the arguments, as in `unique="report:{shop_id}"`.
    """

    retry: Retry | None = None
    lease: Duration | None = None
    unique: str | None = None
    key: str | None = None

    def using(
        self,
        *,
        retry: Retry | None = None,
        lease: Duration | None = None,
        unique: str | None = None,
        key: str | None = None,
        **changes: Any,
    ) -> Any:
        """Create a new task with other defaults, as Django's `using` does."""
        # No `super()`: a dataclass with slots is another class than the one that was written.
        changed = Task.using(self, **changes)
        said = {"retry": retry, "lease": lease, "unique": unique, "key": key}
        given = {name: value for name, value in said.items() if value is not None}
        return replace(changed, **given) if given else changed


def check_task(task: Any) -> None:
    """Refuse what no job can have. Raises: ConfigError."""
    unreserved(text(task.queue_name, "queue_name", NAME_LENGTH), "queue_name")
    retry, lease = getattr(task, "retry", None), getattr(task, "lease", None)
    if retry is not None and not isinstance(retry, Retry):
        raise ConfigError("retry", "must be a Retry, as in retry=Retry(max_attempts=3)", retry)
    if lease is not None:
        seconds(lease, "lease", at_least=1, at_most=LONGEST_LEASE)
    for name in ("unique", "key"):
        if (template := getattr(task, name, None)) is not None:
            _template(task.func, template, name)


def key_of(task: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str | None:
    """Return what a job is about, made of its arguments."""
    return _filled(task, "key", args, kwargs)


def unique_of(task: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str | None:
    """Return the text of which there is one live job: that of the task, because all tasks are of one kind."""
    made = _filled(task, "unique", args, kwargs)
    if made is None:
        return None
    whole = f"{task.module_path}:{made}"
    if len(whole) <= KEY_LENGTH:
        return whole
    digest = blake2b(whole.encode(), digest_size=16).hexdigest()
    return f"{whole[: KEY_LENGTH - len(digest) - 1]}:{digest}"


def _filled(task: Any, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str | None:
    template: str | None = getattr(task, name, None)
    if template is None:
        return None
    signature = inspect.signature(task.func)
    bound = signature.bind(*([None] if task.takes_context else []), *args, **kwargs)
    bound.apply_defaults()
    return _template(task.func, template, name).filled(task.module_path, bound.arguments)


def _template(func: Callable[..., Any], template: str, name: str) -> KeyTemplate:
    try:
        return KeyTemplate(template, [*inspect.signature(func).parameters])
    except ConfigError as error:
        rule = f'names parameters of the task in braces, as in {name}="report:{{shop_id}}"'
        raise ConfigError(name, rule, template) from error
