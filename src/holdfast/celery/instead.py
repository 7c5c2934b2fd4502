"""What Celery's application, settings, canvas and results have, and what there is instead: to be refused in words."""

from __future__ import annotations

from difflib import get_close_matches

from holdfast.celery.options import TaskKeywords
from holdfast.errors import ConfigError

_OF_THE_TASK = "say it of the task itself, in its decorator"
_NO_EXCHANGES = "there are no exchanges: say task_default_queue, or queue= of the task"
_JSON = "arguments are JSON; leave it out"
_REPEATED = "an enqueue is repeated by itself where that is safe; leave it out"
_IMPORTS = "use app.autodiscover_tasks([…]), or import the modules"
_RESULTS = "results are kept with the job, so leave it out; hf.queue(name, retention=…) says for how long"
_QUEUES = "queues need not be declared; hf.queue(name, …) says what belongs to one"
# What settings are for, by their names or how these begin.
_SETTINGS = {
    **{f"task_{name}": _OF_THE_TASK for name in TaskKeywords.__annotations__ if not name.startswith("acks")},
    "broker": "there is no broker: jobs are in the database of holdfast=, so leave it out",
    "backend": _RESULTS,
    "result": _RESULTS,
    "worker": "say it to `holdfast worker`: --concurrency, --processes, --queues",
    "beat": "every worker keeps the schedules: only beat_schedule is read",
    "task_queue": _QUEUES,
    "task_create_missing_queue": _QUEUES,
    "task_acks": "a job has ended when its handler has; leave it out",
    "task_serializer": _JSON,
    "task_compression": "payloads are not compressed; leave it out",
    "task_protocol": "there are no messages; leave it out",
    "accept_content": _JSON,
    "task_annotations": _OF_THE_TASK,
    "task_default_rate_limit": _OF_THE_TASK,
    "task_default_priority": _OF_THE_TASK,
    "task_inherit_parent_priority": _OF_THE_TASK.replace("it", "the priority", 1),
    "task_default_exchange": _NO_EXCHANGES,
    "task_default_routing_key": _NO_EXCHANGES,
    "task_default_delivery_mode": "jobs are rows, which outlive everything; leave it out",
    "task_default_queue_type": _QUEUES,
    "task_publish_retry": _REPEATED,
    "task_send_sent_event": "use hf.on(…), which tells of everything",
    "task_remote_tracebacks": "tracebacks are kept with the job; leave it out",
    "task_store_eager_result": "an eager call gives its result at once; leave it out",
    "task_allow_error_cb_on_chord_header": "use hf.on(holdfast.events.JobDead, …)",
    "enable_utc": "times are UTC; leave it out",
    "imports": _IMPORTS,
    "include": _IMPORTS,
}
# Less like a setting than this, and it is no misspelling of it.
_LIKE = 0.75

_SET = "app.conf.update(…) takes the settings that there are here"
_IMPORTED = "tasks and schedules may be named before they are imported: say it at the top of the module"
_COMMAND = "use the command `holdfast worker`, or hf.worker() in code of yours"
_CONNECTION = "there is no broker: the connection is that of app.holdfast, and a job belongs to a transaction by tx="
# What people use of the application.
_OF_THE_APP = {
    "control": (
        "AsyncResult(id).revoke() or app.holdfast.cancel(id) ends a job; `holdfast workers`, `holdfast queues pause` "
        "and the dashboard look after workers and queues"
    ),
    "on_configure": _IMPORTED,
    "on_after_configure": _IMPORTED,
    "on_after_finalize": _IMPORTED,
    "on_after_fork": "use @hf.on_start, which runs when a worker starts",
    "on_init": _IMPORTED,
    "finalize": "tasks are registered when they are defined; leave it out",
    "worker_main": _COMMAND,
    "start": _COMMAND,
    "Worker": _COMMAND,
    "WorkController": _COMMAND,
    "steps": "use @hf.on_start, which runs when a worker starts",
    "user_options": "`holdfast worker` has the options that it has",
    "Beat": "every worker keeps the schedules: `holdfast schedules` shows them",
    "backend": "results are kept with the job: use AsyncResult(id)",
    "amqp": _CONNECTION,
    "broker_connection": _CONNECTION,
    "connection": _CONNECTION,
    "connection_for_read": _CONNECTION,
    "connection_for_write": _CONNECTION,
    "connection_or_acquire": _CONNECTION,
    "pool": _CONNECTION,
    "producer_pool": _CONNECTION,
    "producer_or_acquire": _CONNECTION,
    "events": "use hf.on(…), which tells of everything",
    "log": "use Python's logging: the logger is called holdfast",
    "loader": _IMPORTS,
    "Task": "what the methods of a base class did is done by hf.on(JobDead, …), hf.middleware or hf.around_handler",
    "register_task": "use @app.task on a function",
    "GroupResult": "use what group(…)() returned, or AsyncResult(id) for each of its jobs",
    "ResultSet": "use what group(…)() returned, or AsyncResult(id) for each of its jobs",
    "canvas": "import chain, group and chord from holdfast.celery",
    "current_task": "use holdfast.celery.current_task",
    "current_worker_task": "use holdfast.celery.current_task",
    "set_current": "the application that was made last is the current one",
    "set_default": "the application that was made last is the current one",
    "close": "close the application that runs the tasks: app.holdfast.close()",
    "setup_security": "arguments are JSON and in your database: there are no messages to sign",
    "config_from_envvar": _SET,
    "config_from_cmdline": _SET,
    "add_defaults": _SET,
    "timezone": "use app.conf.timezone",
    "now": "use datetime.now(UTC)",
    "bugreport": "use `holdfast doctor`",
}

_JOINED = "join it with the bar: … | callback.s()"
_FAILED = "use hf.on(holdfast.events.JobDead, …), or a job that runs after it: handler.using(after=[…])"
_SAID = "say it of each signature, or in apply_async(…)"
# What people use of signatures, chains, groups and chords.
_OF_A_CANVAS = {
    "link": _JOINED,
    "link_error": _FAILED,
    "on_error": _FAILED,
    "set": _SAID,
    "skew": "say countdown= of each signature",
    "freeze": "a job has its id once it is added: apply_async() returns it",
    "stamp": "headers= says more about a job",
}
_FOLLOWS = "`holdfast jobs show` tells what follows a job"
_READ = "use .job, which has what is known of the job"
_KEPT = "keep the ids of its jobs: AsyncResult(id) finds each"
# What people use of results.
_OF_A_RESULT = {
    "forget": "a job is kept for as long as its queue says: hf.queue(name, retention=…)",
    "children": _FOLLOWS,
    "collect": _FOLLOWS,
    "iterdeps": _FOLLOWS,
    "graph": _FOLLOWS,
    "then": "use hf.on(holdfast.events.JobDone, …)",
    "backend": "results are kept with the job",
    "maybe_throw": "use get()",
    "maybe_reraise": "use get()",
    "args": _READ,
    "kwargs": _READ,
    "queue": _READ,
    "retries": _READ,
    "worker": _READ,
    "save": _KEPT,
    "restore": _KEPT,
    "delete": "a job is kept for as long as its queue says: hf.queue(name, retention=…)",
    "join_native": "use get()",
    "iter_native": "iterate over it, and call get() of each",
    "waiting": "use ready()",
}


def refuse_setting(name: str, value: object) -> None:
    """Refuse a setting of Celery's, or what is like one. Raises: ConfigError."""
    if begins := [one for one in _SETTINGS if name.startswith(one)]:
        raise ConfigError(name, f"is not a setting here: {_SETTINGS[max(begins, key=len)]}", value)


def refuse_misspelt(name: str, value: object, takes: tuple[str, ...]) -> None:
    """Refuse what is closer to a setting of Celery's than to one that there is here. Raises: ConfigError."""
    near = get_close_matches(name, (*takes, *_SETTINGS), n=1, cutoff=_LIKE)
    if near and near[0] in _SETTINGS:
        hint = f"did you mean {near[0]}? That is not a setting here, either: {_SETTINGS[near[0]]}"
        raise ConfigError(name, f"app.conf takes no such option ({hint})", value)


def unknown_setting(name: str, takes: tuple[str, ...]) -> str:
    """Say of a setting that was read and is not there what there is instead, and where others belong."""
    begins = [one for one in _SETTINGS if name.startswith(one)]
    near = get_close_matches(name, takes, n=1, cutoff=_LIKE)
    hint = f"did you mean {near[0]}?" if near else f"it has {', '.join(takes)}."
    if begins and not near:
        hint = f"{_SETTINGS[max(begins, key=len)]}."
    rest = "The database and its options are said to Holdfast(…); keep settings of your own elsewhere"
    return f"app.conf has no setting {name!r}: {hint} {rest}"


def refuse_attribute(name: str, app: object) -> None:
    """Refuse what Celery's application has and ours has not. Raises: ConfigError."""
    if name in _OF_THE_APP:
        raise ConfigError(name, f"the application does not have it here: {_OF_THE_APP[name]}", app)


def refuse_on_canvas(name: str, what: str) -> None:
    """Refuse what a signature of Celery's has, or what is made of some, and ours has not. Raises: ConfigError."""
    if name in _OF_A_CANVAS:
        raise ConfigError(name, f"a {what.lower()} does not have it here: {_OF_A_CANVAS[name]}", what)


def refuse_on_result(name: str, result: object) -> None:
    """Refuse what a result of Celery's has and ours has not. Raises: ConfigError."""
    if name in _OF_A_RESULT:
        raise ConfigError(name, f"a result does not have it here: {_OF_A_RESULT[name]}", type(result).__name__)
