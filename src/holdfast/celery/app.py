"""The object that stands where the Celery application stood, and the tasks that any application may run."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Coroutine, Iterable, Mapping
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, TypedDict, TypeVar, Unpack, cast, overload

from holdfast.app import Holdfast
from holdfast.celery.attempts import running
from holdfast.celery.canvas import Signature
from holdfast.celery.instead import refuse_attribute, refuse_misspelt, refuse_setting, unknown_setting
from holdfast.celery.options import CallKeywords, TaskKeywords, TaskOptions, call_options
from holdfast.celery.results import AsyncResult, EagerResult, NotInstalled
from holdfast.celery.schedules import Periodic, entry, not_defined
from holdfast.celery.tasks import Task, TaskHome
from holdfast.errors import ConfigError, UnknownKind
from holdfast.values.options import only_options

P = ParamSpec("P")
R = TypeVar("R")
AnyTask = Task[..., Any]


class ConfKeywords(TypedDict, total=False):
    """What may be said of the whole application."""

    task_always_eager: bool
    task_eager_propagates: bool
    task_default_queue: str
    task_routes: Mapping[str, Any]
    beat_schedule: Mapping[str, Any]
    timezone: str | None


_CONF = tuple(ConfKeywords.__annotations__)


class Conf:
    """The settings of an application: `app.conf.task_always_eager = True`, `app.conf.update(…)`."""

    task_always_eager: bool = False
    task_eager_propagates: bool = False
    task_default_queue: str = "default"
    task_routes: Mapping[str, Any] = {}
    beat_schedule: Mapping[str, Any]
    timezone: str | None = None

    def __init__(self, changed: Callable[[str], None]) -> None:
        self.__dict__["_changed"] = changed
        # Its own, which may be filled entry by entry.
        self.__dict__["beat_schedule"] = {}

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in _CONF:
            refuse_setting(name, value)
            refuse_misspelt(name, value, _CONF)
            only_options("app.conf", {name: value}, _CONF)
        self.__dict__[name] = value
        self.__dict__["_changed"](name)

    if not TYPE_CHECKING:
        # Type checkers are to find what is not there by themselves.
        def __getattr__(self, name):
            raise AttributeError(unknown_setting(name, _CONF), name=name, obj=self)

    def update(self, settings: Mapping[str, Any] | None = None, **more: Any) -> None:
        """Set several."""
        for name, value in {**(settings or {}), **more}.items():
            setattr(self, name, value)


class Celery:
    """Tasks, and the Holdfast application that runs them: `app = Celery("shop", holdfast=hf)`.

    holdfast: the application, or the URL of its database. It becomes the one that shared tasks belong to, unless
    `set_as_current` is False. conf: settings, as `app.conf` has them.
    """

    def __init__(
        self,
        main: str | None = None,
        *,
        holdfast: Holdfast | str | None = None,
        set_as_current: bool = True,
        **conf: Unpack[ConfKeywords],
    ) -> None:
        self._main = main
        self.tasks: dict[str, AnyTask] = {}
        self._holdfast = Holdfast(holdfast) if isinstance(holdfast, str) else holdfast
        self._added: dict[str, tuple[Any, Signature]] = {}
        # Of the schedules that were declared last: their entries, and whether anything has changed since.
        self._seen: Mapping[str, Any] = {}
        self._stale = False
        if self._holdfast is not None:
            self._periodic = Periodic(self._holdfast)
            self._holdfast.context.late_schedules.append(self._declare_late)
        self.conf = Conf(self._conf_changed)
        self.conf.update(cast("Mapping[str, Any]", conf))
        if set_as_current:
            shared.belong_to(self)

    def __repr__(self) -> str:
        return f"<Celery {self._main or '(unnamed)'} on {self._holdfast!r}>"

    if not TYPE_CHECKING:
        # Type checkers are to find what is not there by themselves.
        def __getattr__(self, name):
            refuse_attribute(name, self.__dict__.get("_main"))
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    @property
    def main(self) -> str | None:
        """What it is called: the module of tasks in a program that is run by itself."""
        return self._main

    @property
    def holdfast(self) -> Holdfast:
        """The application that runs the tasks. Raises: ConfigError if none was given."""
        if self._holdfast is None:
            raise NotInstalled(repr(self.main))
        return self._holdfast

    @property
    def always_eager(self) -> bool:
        return self.conf.task_always_eager

    @property
    def eager_propagates(self) -> bool:
        return self.conf.task_eager_propagates

    @overload
    def task(self, fn: Callable[P, Coroutine[Any, Any, R]], /) -> Task[P, Coroutine[Any, Any, R]]: ...
    @overload
    def task(self, fn: Callable[P, R], /) -> Task[P, R]: ...
    @overload
    def task(self, *, bind: Literal[True], **options: Unpack[TaskKeywords]) -> BoundDecorator: ...
    @overload
    def task(self, *, bind: Literal[False] = False, **options: Unpack[TaskKeywords]) -> TaskDecorator: ...
    def task(self, fn: Callable[..., Any] | None = None, *, bind: bool = False, **options: Unpack[TaskKeywords]) -> Any:
        """Make a task of a function: `@app.task`, or `@app.task(bind=True, autoretry_for=(IOError,), …)`."""
        return _decorated("@app.task()", self, self.add, fn, bind, options)

    def add(self, task: AnyTask) -> None:
        """Take a task in, and register it on the Holdfast application. Raises: ConfigError for a name that is taken."""
        known = self.tasks.get(task.name)
        if known is not None and known is not task and known.run.__qualname__ != task.run.__qualname__:
            raise ConfigError("name", "each task has a name of its own; give this one another name=", task.name)
        self.tasks[task.name] = task
        if self._holdfast is not None:
            self._register(task, self._holdfast)

    def _register(self, task: AnyTask, hf: Holdfast) -> None:
        options, queue = task.options, self._queue_of(task)
        before = hf.handlers.get(task.name)
        if before is not None and isinstance(getattr(before.fn, "task", None), Task):
            # Told of another queue since, or installed again. A handler that is not a task's is refused by `hf.job`.
            del hf.handlers[task.name]
        if options.rate is not None:
            self._limit(task, queue, hf)
        register = hf.job(
            kind=task.name,
            queue=queue,
            retry=options.retry,
            lease=options.lease,
            timeout=options.timeout,
            priority=options.priority,
        )
        register(task.entry)
        self._stale = True

    def _limit(self, task: AnyTask, queue: str, hf: Holdfast) -> None:
        """Give a queue the rate of its task, which must be the only one there."""
        for other in self.tasks.values():
            if other is not task and self._queue_of(other) == queue and other.options.rate != task.options.rate:
                rule = f"the rate would be that of {other.name}, too, which has the queue {queue!r}: give each its own"
                raise ConfigError("rate_limit", rule, task.name)
        hf.queue(queue, rate=task.options.rate)

    def _queue_of(self, task: AnyTask) -> str:
        if task.options.queue is not None:
            return task.options.queue
        for pattern, route in self.conf.task_routes.items():
            if fnmatchcase(task.name, pattern):
                return _queue_in(pattern, route)
        return self.conf.task_default_queue

    def _conf_changed(self, name: str) -> None:
        if self._holdfast is None:
            return
        if name in ("task_routes", "task_default_queue"):
            for task in self.tasks.values():
                self._register(task, self._holdfast)
        if name in ("task_routes", "task_default_queue", "timezone", "beat_schedule"):
            self._declare()

    def _declare(self, *, all_of_them: bool = False) -> None:
        """Declare the schedules as they are known now, without entries whose task is not defined yet.

        Raises: ConfigError, with `all_of_them` also for those.
        """
        self._stale = True
        calls = dict(self._added)
        entries = {name: entry(name, given) for name, given in self.conf.beat_schedule.items()}
        for name, said in entries.items():
            if name in self._added:
                raise _taken(name)
            if said["task"] in self.tasks:
                options = cast("CallKeywords", {**said.get("options", {})})
                made = self.signature(said["task"], said.get("args", ()), said.get("kwargs"), **options)
                calls[name] = said["schedule"], made
            elif all_of_them:
                raise not_defined(name, said["task"], self.tasks)
        self._periodic.keep(calls)
        for name, (schedule, signature) in calls.items():
            self._periodic.declare(name, schedule, signature, self.conf.timezone)
        self._stale, self._seen = len(calls) < len(self._added.keys() | entries), dict(entries)

    def _declare_late(self) -> None:
        # Entries may also have been added to the mapping itself.
        if self._stale or self._seen != self.conf.beat_schedule:
            self._declare(all_of_them=True)

    def add_periodic_task(self, schedule: Any, signature: Signature, name: str | None = None) -> None:
        """Have a task come again and again: every `schedule` seconds, or by `crontab(…)` in the time zone of `conf`."""
        called = name or repr(signature)
        if called in self.holdfast.context.schedules or called in self._added:
            raise _taken(called)
        self._periodic.declare(called, schedule, signature, self.conf.timezone)
        self._added[called] = schedule, signature

    def autodiscover_tasks(self, packages: Iterable[str] = (), related_name: str = "tasks") -> None:
        """Import the module `tasks` of each of these packages, where there is one."""
        for package in packages:
            name = f"{package}.{related_name}"
            importlib.import_module(package)
            if importlib.util.find_spec(name) is not None:
                importlib.import_module(name)

    def signature(
        self,
        name: str,
        args: Iterable[Any] | None = (),
        kwargs: Mapping[str, Any] | None = None,
        immutable: bool = False,
        **options: Unpack[CallKeywords],
    ) -> Signature:
        """Make a signature of a task by its name. Raises: UnknownKind."""
        if name not in self.tasks:
            raise UnknownKind(name, self.tasks)
        return Signature(self.tasks[name], args, kwargs, immutable=immutable).set(**options)

    def send_task(
        self,
        name: str,
        args: Iterable[Any] | None = (),
        kwargs: Mapping[str, Any] | None = None,
        **options: Unpack[CallKeywords],
    ) -> AsyncResult | EagerResult:
        """Call a task by its name; one that this process does not know takes its arguments by name."""
        if name in self.tasks:
            return self.signature(name, args, kwargs).apply_async(**options)
        if given := list(args or ()):
            rule = f"{name} is not known here, so its arguments must be given by name: send_task(name, kwargs={{…}})"
            raise ConfigError("args", rule, given)
        said = call_options("send_task()", options)
        made = self.holdfast.enqueue(name, kwargs, tx=options.get("tx"), check=False, **said)
        return AsyncResult(made.id, self)

    def AsyncResult(self, id: str) -> AsyncResult:  # noqa: N802 - Celery's name
        """Return a job by its id."""
        return AsyncResult(id, self)

    def config_from_object(self, obj: object, *_: Any, **__: Any) -> None:
        """Refuse to read Celery's settings, most of which mean nothing here."""
        known = ", ".join(_CONF)
        rule = f"Celery's settings are not read, since most mean nothing here; give app.conf.update(…) those of {known}"
        raise ConfigError("config_from_object", rule, obj)


def _taken(name: str) -> ConfigError:
    return ConfigError("schedule", "each name is declared once; give this one another", name)


def _queue_in(pattern: str, route: object) -> str:
    queue = cast("Mapping[str, object]", route).get("queue") if isinstance(route, Mapping) else route
    if not isinstance(queue, str):
        raise ConfigError("task_routes", f"{pattern!r} must name a queue, as in {{'queue': 'mail'}}", queue)
    return queue


class Shared:
    """Tasks that belong to the application that was installed last, also if that happens later."""

    def __init__(self) -> None:
        self._tasks: dict[str, AnyTask] = {}
        self._app: Celery | None = None

    @property
    def app(self) -> Celery:
        if self._app is None:
            raise NotInstalled("no application")
        return self._app

    @property
    def main(self) -> str | None:
        return None if self._app is None else self._app.main

    @property
    def holdfast(self) -> Holdfast:
        return self.app.holdfast

    @property
    def always_eager(self) -> bool:
        return self.app.always_eager

    @property
    def eager_propagates(self) -> bool:
        return self._app is not None and self._app.eager_propagates

    @property
    def tasks(self) -> Mapping[str, AnyTask]:
        return self.app.tasks

    def add(self, task: AnyTask) -> None:
        self._tasks[task.name] = task
        if self._app is not None:
            self._app.add(task)

    def belong_to(self, app: Celery) -> None:
        """Have all shared tasks, and those to come, run by this application."""
        self._app = app
        for task in self._tasks.values():
            app.add(task)


shared = Shared()
AsyncResult.installed = shared


@overload
def shared_task(fn: Callable[P, Coroutine[Any, Any, R]], /) -> Task[P, Coroutine[Any, Any, R]]: ...
@overload
def shared_task(fn: Callable[P, R], /) -> Task[P, R]: ...
@overload
def shared_task(*, bind: Literal[True], **options: Unpack[TaskKeywords]) -> BoundDecorator: ...
@overload
def shared_task(*, bind: Literal[False] = False, **options: Unpack[TaskKeywords]) -> TaskDecorator: ...
def shared_task(fn: Callable[..., Any] | None = None, /, *, bind: bool = False, **options: Unpack[TaskKeywords]) -> Any:
    """Make a task of a function, for the application that is installed: `@shared_task`, `@shared_task(bind=True, …)`.

    bind: the function takes the task first, as `self`. Raises: ConfigError for what has no counterpart here.
    """
    return _decorated("@shared_task()", shared, shared.add, fn, bind, options)


def install(holdfast: Holdfast | str, **conf: Unpack[ConfKeywords]) -> Celery:
    """Have this Holdfast application run all shared tasks: the one line of set-up."""
    return Celery(holdfast=holdfast, **conf)


class _Current:
    """Stands for what is known only when it is asked."""

    def __init__(self, find: Callable[[], Any]) -> None:
        self.__dict__["_find"] = find

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_find"](), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.__dict__["_find"](), name, value)


def _running_task() -> Any:
    found = running.get()
    if found is None:
        raise ConfigError("current_task", "is there only while a task runs", None)
    return found.task_object


current_app = cast("Celery", _Current(lambda: shared.app))
current_task = cast("AnyTask", _Current(_running_task))


class TaskDecorator:
    """What `@shared_task(…)` returns: applied to a function, it makes a task of it and keeps its types."""

    def __init__(self, home: TaskHome, add: Callable[[AnyTask], None], options: TaskOptions) -> None:
        self._home = home
        self._add = add
        self._options = options

    def __call__(self, fn: Callable[P, R], /) -> Task[P, R]:
        task: Task[P, R] = Task(fn, self._options, self._home)
        self._add(task)
        return task


class BoundDecorator:
    """The same with `bind=True`: the function takes the task first."""

    def __init__(self, decorator: TaskDecorator) -> None:
        self._decorator = decorator

    def __call__(self, fn: Callable[Concatenate[Any, P], R], /) -> Task[P, R]:
        made: Any = self._decorator
        return cast("Task[P, R]", made(fn))


def _decorated(
    call: str,
    home: TaskHome,
    add: Callable[[AnyTask], None],
    fn: Callable[..., Any] | None,
    bind: bool,
    options: TaskKeywords,
) -> Any:
    decorator = TaskDecorator(home, add, TaskOptions.of(call, bind, options))
    if fn is None:
        return BoundDecorator(decorator) if bind else decorator
    return decorator(fn)
