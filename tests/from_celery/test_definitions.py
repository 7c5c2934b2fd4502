"""What a task is told in its decorator: what it becomes, and what is refused there with what to do instead."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from holdfast import ConfigError, Holdfast, Rate
from holdfast.celery import AsyncResult, Celery, crontab, current_app, install, shared_task
from holdfast.testing.inline import run_due


def test_a_bare_task_has_the_name_and_the_retries_that_celery_gives_it(app: Celery) -> None:
    @app.task
    def add(x: int, y: int) -> int:
        return x + y

    assert add.name == f"{__name__}.add"
    assert add(2, 3) == 5
    options = add.handler.options
    assert (options.queue, options.retry.max_attempts, options.priority, options.timeout) == ("default", 4, 0, None)


def test_options_become_those_of_the_handler(app: Celery) -> None:
    @app.task(name="mail.send", queue="mail", priority=5, max_retries=7, time_limit=60, soft_time_limit=30, lease=90)
    def send(to: str) -> None: ...

    options = send.handler.options
    assert (send.handler.kind, options.queue, options.priority) == ("mail.send", "mail", 5)
    assert (options.retry.max_attempts, options.timeout, options.lease) == (8, 30.0, 90.0)


def test_a_task_may_be_tried_again_for_ever(app: Celery) -> None:
    @app.task(max_retries=None)
    def poll() -> None: ...

    assert poll.handler.options.retry.max_attempts == 1_000_000


def test_the_delays_of_a_backoff_are_celerys(app: Celery) -> None:
    @app.task(autoretry_for=(OSError,), retry_backoff=True, retry_backoff_max=10, retry_jitter=False, max_retries=9)
    def plain() -> None: ...

    @app.task(autoretry_for=(OSError,), retry_backoff=3)
    def spread() -> None: ...

    @app.task(autoretry_for=(OSError,), retry_kwargs={"max_retries": 5, "countdown": 7})
    def steady() -> None: ...

    assert [plain.handler.options.retry.delay(attempt) for attempt in range(1, 7)] == [1, 2, 4, 8, 10, 10]
    retry = spread.handler.options.retry
    assert [retry.delay(attempt, lambda: 1.0) for attempt in (1, 2, 3)] == [3, 6, 12]
    assert retry.delay(3, lambda: 0.0) == 0
    assert (steady.handler.options.retry.delay(4), steady.handler.options.retry.max_attempts) == (7, 6)


def test_a_rate_becomes_that_of_the_tasks_own_queue(app: Celery, hf: Holdfast) -> None:
    @app.task(queue="stripe", rate_limit="100/m")
    def charge() -> None: ...

    @app.task(queue="mail", rate_limit="5/s")
    def send() -> None: ...

    assert hf.queue_options("stripe").settings.rate == Rate(100, 60)
    assert hf.queue_options("mail").settings.rate == Rate(5, 1)
    with pytest.raises(ConfigError, match="give the task a queue of its own"):
        app.task(rate_limit=10)
    with pytest.raises(ConfigError, match="charge, too, which has the queue 'stripe'"):

        @app.task(queue="stripe", rate_limit="5/s")
        def refund() -> None: ...


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"acks_late": False}, "max_retries=0"),
    ({"serializer": "pickle"}, "arguments are JSON"),
    ({"base": object}, "hf.middleware"),
    ({"rate_limit": "many", "queue": "a"}, "10/s"),
    ({"autoretry_for": ("OSError",)}, "classes of exceptions"),
    ({"throws": (KeyError,)}, "Ignore"),
    ({"retry_backof": True}, "did you mean retry_backoff"),
    ({"retry_kwargs": {"max_retry": 3}}, "did you mean max_retries"),
    ({"pydantic": True}, "annotate the parameters"),
    ({"bnd": True}, r"did you mean bind\?"),
    ({"colour": 1}, "it takes bind, name, "),
]


@pytest.mark.parametrize("options, advice", REFUSED, ids=lambda one: next(iter(one)) if isinstance(one, dict) else "")
def test_what_has_no_counterpart_is_refused_at_the_definition(options: dict[str, Any], advice: str) -> None:
    with pytest.raises(ConfigError, match=advice):
        shared_task(**options)


def test_what_is_always_so_may_be_said() -> None:
    @shared_task(acks_late=True, reject_on_worker_lost=True, track_started=True, serializer="json", send_events=True)
    def add(x: int) -> int:
        return x

    assert add(1) == 1


def test_a_bound_task_takes_itself_first() -> None:
    with pytest.raises(ConfigError, match=r"must take the task first: def alone\(self"):

        @shared_task(bind=True)
        def alone() -> None: ...


def test_a_parameter_that_json_cannot_serve_is_refused_at_the_definition() -> None:
    with pytest.raises(ConfigError, match="parameter order of ship"):

        @shared_task
        def ship(order: Holdfast) -> None: ...


def test_shared_tasks_belong_to_what_is_installed_before_or_after(hf: Holdfast) -> None:
    @shared_task
    def before() -> None: ...

    with pytest.raises(ConfigError, match=r"holdfast\.celery\.install\(hf\)"):
        before.delay()
    install(hf)

    @shared_task
    def after() -> None: ...

    assert set(hf.handlers) == {before.name, after.name}
    assert current_app.holdfast is hf


def test_tasks_may_be_installed_again_and_a_foreign_handler_is_kept(hf: Holdfast) -> None:
    @shared_task(name="twice")
    def twice() -> None: ...

    install(hf)
    install(hf, task_default_queue="other")
    assert hf.handlers["twice"].options.queue == "other"

    @hf.job(kind="taken")
    def ours() -> None: ...

    with pytest.raises(ConfigError, match="each kind has one handler"):

        @shared_task(name="taken")
        def theirs() -> None: ...


def test_routes_and_the_default_queue_count_for_tasks_before_and_after(hf: Holdfast) -> None:
    app = Celery("shop", holdfast=hf)

    @app.task(name="mail.send")
    def send() -> None: ...

    app.conf.update(task_default_queue="slow", task_routes={"mail.*": {"queue": "mail"}, "stripe": "money"})

    @app.task(name="stripe")
    def charge() -> None: ...

    @app.task(name="rest")
    def rest() -> None: ...

    assert [one.handler.options.queue for one in (send, charge, rest)] == ["mail", "money", "slow"]


SETTINGS = {
    "broker_url": "there is no broker",
    "result_expires": "retention",
    "worker_prefetch_multiplier": "holdfast worker",
    "task_acks_late": "leave it out",
    "task_track_started": "in its decorator",
    "tsk_routes": r"did you mean task_routes\?",
    "task_serialiser": r"did you mean task_serializer\?.*arguments are JSON",
    "task_eager_propagate": r"did you mean task_eager_propagates\?",
    "task_default_exchange_type": "no exchanges",
    "colour": "it takes task_always_eager, ",
}


@pytest.mark.parametrize("name", SETTINGS)
def test_settings_that_mean_nothing_here_say_what_does(name: str) -> None:
    app = Celery("shop")
    with pytest.raises(ConfigError, match=SETTINGS[name]):
        app.conf.update({name: 1})
    with pytest.raises(ConfigError, match=r"app\.conf\.update.*got 'django\.conf:settings'"):
        app.config_from_object("django.conf:settings", namespace="CELERY")


@pytest.mark.parametrize(
    "name, advice",
    [
        ("broker_url", "there is no broker"),
        ("task_alway_eager", r"did you mean task_always_eager\?"),
        ("shop_email", "it has task_always_eager, .* keep settings of your own elsewhere"),
    ],
)
def test_reading_a_setting_that_is_not_there_says_what_is(name: str, advice: str) -> None:
    app = Celery("shop")
    with pytest.raises(AttributeError, match=rf"app\.conf has no setting '{name}': .*{advice}"):
        getattr(app.conf, name)
    assert getattr(app.conf, name, "unsaid") == "unsaid"


def test_entries_of_beat_become_schedules(hf: Holdfast) -> None:
    app = Celery("shop", holdfast=hf, timezone="Europe/Berlin")

    @app.task(name="report")
    def report(day: str) -> None: ...

    app.conf.beat_schedule = {
        "nightly": {"task": "report", "schedule": crontab(minute=0, hour="2,3"), "args": ("today",)},
        "often": {"task": "report", "schedule": timedelta(minutes=5), "kwargs": {"day": "now"}},
    }
    nightly, often = hf.context.schedules["nightly"], hf.context.schedules["often"]
    assert (nightly.timetable.cron, nightly.timetable.timezone) == ("0 2,3 * * *", "Europe/Berlin")
    assert (often.job.kind, often.job.payload) == ("report", '{"day":"now"}')
    with pytest.raises(ConfigError, match="a task and a schedule"):
        app.conf.beat_schedule = {"broken": {"task": "report"}}


def test_what_entries_of_beat_depend_on_may_be_said_after_them(hf: Holdfast) -> None:
    app = Celery("shop", holdfast=hf)

    @app.task(name="report")
    def report() -> None: ...

    app.conf.beat_schedule = {"nightly": {"task": "report", "schedule": crontab(minute=0, hour=2)}}
    app.add_periodic_task(crontab(minute=0, hour=3), report.s(), name="later")
    app.conf.timezone = "Europe/Berlin"
    app.conf.task_default_queue = "slow"
    assert hf.context.schedules["nightly"].timetable.timezone == "Europe/Berlin"
    app.conf.beat_schedule["yearly"] = {"task": "report", "schedule": crontab(0, 0, "*", 1, 1)}  # type: ignore[index]
    assert hf.sync_schedules() == {"nightly": "created", "later": "created", "yearly": "created"}
    for declared in hf.context.schedules.values():
        assert (declared.timetable.timezone, declared.job.queue) == ("Europe/Berlin", "slow")
    app.conf.beat_schedule = {}
    assert list(hf.context.schedules) == ["later"]
    with pytest.raises(ConfigError, match="each name is declared once"):
        app.add_periodic_task(60, report.s(), name="later")
    with pytest.raises(ConfigError, match="each name is declared once"):
        app.conf.beat_schedule = {"later": {"task": "report", "schedule": 60.0}}


@pytest.mark.parametrize("installed", [True, False], ids=["shared", "app"])
def test_an_entry_of_beat_may_name_a_task_that_is_defined_later(hf: Holdfast, installed: bool) -> None:
    entries = {"nightly": {"task": "report", "schedule": 60.0}}
    app = install(hf, beat_schedule=entries) if installed else Celery("shop", holdfast=hf, beat_schedule=entries)
    (shared_task if installed else app.task)(name="report")(lambda: None)
    run_due(hf)
    assert list(hf.context.schedules) == ["nightly"]
    assert hf.sync_schedules() == {"nightly": "same"}


def test_an_entry_of_beat_whose_task_is_never_defined_is_named_when_it_is_needed(hf: Holdfast) -> None:
    app = Celery("shop", holdfast=hf, beat_schedule={"nightly": {"task": "shop.report", "schedule": 60.0}})
    with pytest.raises(ConfigError, match=r"'nightly' calls .* \(import its module.*'shop\.report'"):
        hf.sync_schedules()

    @app.task(name="shop.reports")
    def reports() -> None: ...

    with pytest.raises(ConfigError, match=r"'nightly' calls .* \(did you mean 'shop\.reports'\?\)"):
        asyncio.run(hf.worker().start())
    with pytest.raises(ConfigError, match="'nightly' calls "):
        run_due(hf)
    assert isinstance(reports.delay(), AsyncResult)


@pytest.mark.parametrize(
    "name, advice", [("control", "revoke"), ("on_after_configure", "top"), ("worker_main", "holdfast worker")]
)
def test_what_an_application_of_celerys_has_and_ours_has_not_says_what_there_is(name: str, advice: str) -> None:
    app = Celery("shop")
    with pytest.raises(ConfigError, match=f"^{name}: .*{advice}"):
        getattr(app, name)
    with pytest.raises(ConfigError, match=advice):
        getattr(current_app, name)
    with pytest.raises(AttributeError, match="'Celery' object has no attribute 'nonsense'"):
        _ = app.nonsense  # type: ignore[attr-defined]


def test_what_a_task_of_celerys_has_and_ours_has_not_says_what_there_is() -> None:
    @shared_task
    def add() -> None: ...

    with pytest.raises(ConfigError, match=r"using\(tx=connection\)"):
        add.delay_on_commit()
    with pytest.raises(AttributeError, match="nonsense"):
        add.nonsense()
