from __future__ import annotations

import math
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import ConfigError
from holdfast.values.debounce import Debounce, Throttle
from holdfast.values.options import (
    EnqueueOptions,
    HandlerOptions,
    QueueOptions,
    StoreOptions,
    identifier,
    kind_name,
    only_options,
    seconds,
)
from holdfast.values.retry import LONGEST_LEASE, Retry


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PREFIX", "SCHEMA", "POOL_SIZE", "BUSY_TIMEOUT", "NOTIFY", "PREPARE", "LISTEN_URL", "BUCKETS"):
        monkeypatch.delenv(f"HOLDFAST_{name}", raising=False)


def test_seconds_take_numbers_and_timedeltas() -> None:
    assert [seconds(each, "lease") for each in (3, 2.5, timedelta(minutes=1))] == [3.0, 2.5, 60.0]


@pytest.mark.parametrize("value", [-1, math.nan, math.inf, True, "3", None, 1e300, timedelta(seconds=-1)])
def test_seconds_refuse_the_rest_by_name(value: Any) -> None:
    with pytest.raises(ConfigError, match=r"^lease: must be .*; got "):
        seconds(value, "lease")


@pytest.mark.parametrize("value", ["holdfast", "_x", "a" * 40, "h2_"])
def test_an_identifier_is_lower_case_and_short(value: str) -> None:
    assert identifier(value, "prefix") == value


@pytest.mark.parametrize("value", ["", "2h", "Hold", "a-b", "a" * 41, "a;drop table", "a\n", "é", None, 3])
def test_anything_else_is_no_identifier(value: Any) -> None:
    with pytest.raises(ConfigError, match="prefix"):
        identifier(value, "prefix")


def test_a_lease_is_as_long_as_the_tables_can_keep() -> None:
    assert round(LONGEST_LEASE * 1000) < 2**31
    with pytest.raises(ConfigError, match="lease: must be from 1 second to 24 days; got"):
        HandlerOptions(lease=timedelta(days=25))


def test_a_kind_is_a_short_name() -> None:
    assert kind_name("mail.send") == "mail.send"
    for bad in ("", "x" * 101, "a\0b", None, "index (throttle)"):
        with pytest.raises(ConfigError, match="kind"):
            kind_name(bad)


@pytest.mark.parametrize(
    "field, options",
    [
        ("queue", {"queue": ""}),
        ("queue", {"queue": "q" * 101}),
        ("queue", {"queue": "a\0"}),
        ("queue", {"queue": 3}),
        ("priority", {"priority": 101}),
        ("priority", {"priority": -101}),
        ("priority", {"priority": True}),
        ("priority", {"priority": 1.0}),
        ("run_after", {"run_after": datetime(2030, 1, 1)}),
        ("run_after", {"run_after": timedelta(seconds=-1)}),
        ("run_after", {"run_after": "soon"}),
        ("run_after", {"run_after": datetime.max.replace(tzinfo=timezone(timedelta(hours=-5)))}),
        ("run_after", {"run_after": datetime(999, 12, 31, tzinfo=UTC)}),
        ("run_after", {"run_after": datetime(9999, 1, 1, tzinfo=UTC)}),
        ("run_after", {"run_after": timedelta(days=40_000)}),
        ("key", {"key": ""}),
        ("key", {"key": "k" * 201}),
        ("key", {"key": "\ud800"}),
        ("idempotency_key", {"idempotency_key": "\0"}),
        ("unique", {"unique": "u" * 201}),
        ("window", {"window": -1}),
        ("max_attempts", {"max_attempts": 0}),
        ("window", {"window": timedelta(days=40_000)}),
        ("lease", {"lease": 0.5}),
        ("lease", {"lease": timedelta(days=24, seconds=1)}),
        ("headers", {"headers": {"a": 1}}),
        ("headers", {"headers": {1: "a"}}),
        ("headers", {"headers": {"a": "\0"}}),
        ("headers", {"headers": ["a"]}),
        ("headers", {"headers": {"holdfast-expires": "+1"}}),
        ("debounce", {"debounce": "doc:7"}),
        ("throttle", {"throttle": Debounce("doc:7", wait=1)}),
        ("throttle", {"debounce": Debounce("doc:7", wait=1), "throttle": Throttle("doc:7", window=1)}),
        ("run_after", {"debounce": Debounce("doc:7", wait=1), "run_after": 5}),
        ("unique", {"debounce": Debounce("doc:7", wait=1), "unique": "u"}),
        ("idempotency_key", {"debounce": Debounce("doc:7", wait=1), "idempotency_key": "k"}),
        ("idempotency_key", {"throttle": Throttle("doc:7", window=1), "idempotency_key": "k"}),
        ("window", {"throttle": Throttle("doc:7", window=1), "window": 60}),
        ("expires", {"expires": 0}),
        ("expires", {"expires": -1}),
        ("expires", {"expires": "tomorrow"}),
        ("expires", {"expires": datetime(2030, 1, 1)}),
        ("expires", {"expires": datetime(9999, 1, 1, tzinfo=UTC)}),
    ],
)
def test_a_bad_enqueue_option_is_refused_by_name(field: str, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        EnqueueOptions(**options)
    assert caught.value.field == field


def test_run_after_is_a_delay_or_a_moment() -> None:
    for delay in (300, 300.0, timedelta(minutes=5)):
        options = EnqueueOptions(run_after=delay)
        assert (options.delay, options.at) == (300.0, None)
    eastern = datetime(2030, 1, 1, 7, tzinfo=timezone(timedelta(hours=-5)))
    options = EnqueueOptions(run_after=eastern)
    assert (options.delay, options.at) == (None, datetime(2030, 1, 1, 12, tzinfo=UTC))
    assert options.at is not None
    assert options.at.tzinfo is UTC


def test_a_debounce_waits_ten_times_as_long_at_most_unless_it_says_otherwise() -> None:
    assert Debounce("doc:7", wait=timedelta(seconds=5)) == Debounce("doc:7", wait=5.0, max_wait=50)
    said = Debounce("doc:7", wait=0.25, max_wait=timedelta(minutes=1))
    assert (said.key, said.wait_ms, said.max_wait_ms) == ("doc:7", 250, 60_000)
    assert Debounce("doc:7", wait=0).max_wait_ms == 0
    assert Throttle("doc:7", window=timedelta(minutes=1)).window_ms == 60_000


@pytest.mark.parametrize(
    "field, make",
    [
        ("debounce", lambda: Debounce("", wait=1)),
        ("debounce", lambda: Debounce("k" * 201, wait=1)),
        ("wait", lambda: Debounce("k", wait=-1)),
        ("wait", lambda: Debounce("k", wait="soon")),  # type: ignore[arg-type]
        ("max_wait", lambda: Debounce("k", wait=5, max_wait=4)),
        ("max_wait", lambda: Debounce("k", wait=5, max_wait=timedelta(days=40_000))),
        ("throttle", lambda: Throttle(7, window=1)),  # type: ignore[arg-type]
        ("window", lambda: Throttle("k", window=0)),
        ("window", lambda: Throttle("k", window=None)),  # type: ignore[arg-type]
    ],
)
def test_a_bad_debounce_or_throttle_is_refused_by_name(field: str, make: Callable[[], object]) -> None:
    with pytest.raises(ConfigError) as caught:
        make()
    assert caught.value.field == field


def test_expires_is_a_time_after_the_enqueue_or_a_moment() -> None:
    assert EnqueueOptions().expiry is None
    assert {EnqueueOptions(expires=said).expiry for said in (90, 90.0, timedelta(seconds=90))} == {"+90000"}
    eastern = datetime(2030, 1, 1, 7, tzinfo=timezone(timedelta(hours=-5)))
    assert EnqueueOptions(expires=eastern).expiry == "2030-01-01T12:00:00+00:00"


def test_a_job_that_was_not_enqueued_cannot_be_run_after() -> None:
    with pytest.raises(ConfigError, match="enqueue them first"):
        EnqueueOptions(after=[object()])  # type: ignore[list-item]


def test_the_longest_texts_are_counted_in_characters() -> None:
    options = EnqueueOptions(queue="ü" * 100, key="ü" * 200, unique="x" * 200, idempotency_key="y" * 200)
    assert options.key == "ü" * 200


def test_merged_options_let_the_later_word_win() -> None:
    first = EnqueueOptions(queue="mail", priority=5, window=60, headers={"a": "1"})
    later = EnqueueOptions(priority=0, key="k", run_after=3)
    assert first.merged(later) == EnqueueOptions(
        queue="mail", priority=0, window=60, headers={"a": "1"}, key="k", run_after=3.0
    )


def test_a_window_said_aloud_wins_even_when_it_equals_the_default() -> None:
    assert EnqueueOptions().window == 86_400
    assert EnqueueOptions(window=60).merged(EnqueueOptions()).window == 60
    assert EnqueueOptions(window=60).merged(EnqueueOptions(window=86_400.0)).window == 86_400


@given(priority=st.none() | st.integers(-100, 100), key=st.none() | st.text("abc", min_size=1, max_size=200))
def test_merging_with_nothing_changes_nothing(priority: int | None, key: str | None) -> None:
    options = EnqueueOptions(priority=priority, key=key)
    assert options.merged(EnqueueOptions()) == options == EnqueueOptions().merged(options)


def test_options_do_not_change_with_the_mapping_they_were_made_from() -> None:
    headers = {"a": "1"}
    options = EnqueueOptions(headers=headers)
    headers["a"] = "2"
    assert options.headers == {"a": "1"}
    assert isinstance(hash(options), int)


def test_a_queue_keeps_done_a_day_dead_a_month_cancelled_a_week() -> None:
    queue = QueueOptions("mail")
    assert (queue.keep_done, queue.keep_dead, queue.keep_cancelled) == (86_400, 30 * 86_400, 7 * 86_400)
    assert QueueOptions.of("mail") == queue


def test_retention_is_one_time_for_done_or_one_for_each_outcome() -> None:
    assert QueueOptions.of("mail", retention=0) == QueueOptions("mail", keep_done=0)
    each: dict[str, float | timedelta] = {"dead": timedelta(days=90), "done": 5}
    assert QueueOptions.of("mail", retention=each) == QueueOptions("mail", keep_done=5, keep_dead=90 * 86_400)


@pytest.mark.parametrize("retention", [{"failed": 3}, {"done": -1}, -1, "week"])
def test_a_bad_retention_is_refused(retention: Any) -> None:
    with pytest.raises(ConfigError, match="retention"):
        QueueOptions.of("mail", retention=retention)


def test_a_handler_has_sensible_defaults() -> None:
    options = HandlerOptions()
    assert (options.queue, options.retry, options.lease) == ("default", Retry(), 30.0)
    assert (options.timeout, options.concurrency, options.priority) == (None, None, 0)
    assert HandlerOptions(lease=timedelta(minutes=1), timeout=timedelta(seconds=5)).timeout == 5.0


@pytest.mark.parametrize(
    "field, options",
    [
        ("lease", {"lease": 0.9}),
        ("lease", {"lease": timedelta(days=30)}),
        ("retry", {"retry": 5}),
        ("timeout", {"timeout": 0}),
        ("concurrency", {"concurrency": 0}),
        ("priority", {"priority": 200}),
        ("queue", {"queue": ""}),
    ],
)
def test_a_bad_handler_option_is_refused_by_name(field: str, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        HandlerOptions(**options)
    assert caught.value.field == field


def test_an_argument_beats_the_environment_which_beats_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    assert StoreOptions.of() == StoreOptions()
    monkeypatch.setenv("HOLDFAST_PREFIX", "shop")
    monkeypatch.setenv("HOLDFAST_POOL_SIZE", "3")
    monkeypatch.setenv("HOLDFAST_BUSY_TIMEOUT", "0.5")
    monkeypatch.setenv("HOLDFAST_NOTIFY", "off")
    monkeypatch.setenv("HOLDFAST_SCHEMA", "")
    assert StoreOptions.of() == StoreOptions("shop", pool_size=3, busy_timeout=0.5, notify=False)
    assert StoreOptions.of(prefix="mine", notify=True, pool_size=None) == StoreOptions(
        "mine", pool_size=3, busy_timeout=0.5
    )


@pytest.mark.parametrize("name, value", [("POOL_SIZE", "many"), ("NOTIFY", "maybe"), ("BUSY_TIMEOUT", "1 s")])
def test_a_bad_setting_in_the_environment_is_named(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(f"HOLDFAST_{name}", value)
    with pytest.raises(ConfigError, match=f"HOLDFAST_{name}: must be .*{value}"):
        StoreOptions.of()


@pytest.mark.parametrize(
    "field, options",
    [
        ("prefix", {"prefix": "Shop"}),
        ("schema", {"schema": "a.b"}),
        ("payload_limit", {"payload_limit": 0}),
        ("pool_size", {"pool_size": 0}),
        ("connect_timeout", {"connect_timeout": 0}),
        ("connect_timeout", {"connect_timeout": timedelta(days=2)}),
        ("busy_timeout", {"busy_timeout": timedelta(days=2)}),
        ("notify", {"notify": 1}),
        ("prepare", {"prepare": "no"}),
        ("buckets", {"buckets": 0}),
        ("buckets", {"buckets": 32_769}),
        ("schema", {"schema": "pg_jobs"}),
        ("listen_url", {"listen_url": 3}),
        ("colour", {"colour": "red"}),
    ],
)
def test_a_bad_store_option_is_refused_by_name(field: str, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        StoreOptions.of(**options)
    assert caught.value.field == field


def test_store_options_do_not_show_the_password_of_the_listening_url() -> None:
    assert "s3cret" not in repr(StoreOptions(listen_url="postgresql://ann:s3cret@db/shop"))


def test_an_option_that_a_call_does_not_take_is_named_with_the_one_that_was_meant() -> None:
    only_options("using()", {"tx": 1, "key": None}, ("tx", "key"))
    with pytest.raises(ConfigError, match=r"^txx: using\(\) takes no such option \(did you mean tx\?\); got 1$"):
        only_options("using()", {"key": "a", "txx": 1}, ("tx", "key"))
    with pytest.raises(ConfigError, match=r"^colour: .* \(it takes tx, key; see colour\); got 'red'$"):
        only_options("using()", {"colour": "red"}, ("tx", "key"), "see {name}")
