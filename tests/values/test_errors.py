from __future__ import annotations

import pickle
import time
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import errors
from holdfast.errors import ConfigError, Fatal, HoldfastError, redact
from holdfast.values.views import JobView

ENDED = JobView(
    id="0190",
    state="dead",
    queue="mail",
    kind="send",
    priority=0,
    attempts=2,
    max_attempts=2,
    fence=2,
    key=None,
    unique=None,
    payload="{}",
    headers=None,
    progress=None,
    result=None,
    errors=[{"type": "Cancelled", "message": "at postgresql://ann:s3cret@db/shop"}],
    available_at=datetime(2026, 5, 1, tzinfo=UTC),
    created_at=datetime(2026, 5, 1, tzinfo=UTC),
    leased_at=None,
    lease_expires_at=None,
    leased_by=None,
    finished_at=None,
    group=None,
    replays=0,
    cancel_requested=False,
)
SAMPLES: list[HoldfastError] = [
    errors.ConfigError("prefix", "must be lower case", "Bad"),
    errors.DriverMissing("psycopg", "postgres", "No module named 'psycopg'"),
    errors.UnknownKind("mial", ["mail", "report"]),
    errors.InvalidPayload("mail", "order_id", "expected int"),
    errors.PayloadTooLarge("mail", 2_000_000, 1_048_576),
    errors.UnsupportedConnection(object()),
    errors.WrongDatabase("PostgreSQL", "SQLite"),
    errors.WrongColour("enqueue", "aenqueue"),
    errors.ConnectionClosed(),
    errors.NoTransaction("mail"),
    errors.ConnectionInUse(),
    errors.TransactionAborted(),
    errors.TransactionEnded(),
    errors.SharedTransactionUndone(),
    errors.DatabaseUnavailable("connection refused"),
    errors.AccessRefused("password authentication failed"),
    errors.FileRefused("shop.db", "it is a folder"),
    errors.ReadOnlyDatabase("cannot execute INSERT in a read-only transaction"),
    errors.DatabaseBusy("deadlock"),
    errors.UniqueViolation(),
    errors.SchemaMissing(),
    errors.ForeignTablesMissing("pdo:jobs", ["jobs", "jobs_failed"]),
    errors.SchemaMismatch(1, 2),
    errors.QueryFailed("syntax"),
    errors.UnknownFollowers("0199", 4),
    errors.LeaseLost("0190", 3),
    errors.LeasesLost(),
    errors.BatchNotFound("0190"),
    errors.JobNotFound("0190"),
    errors.JobDead(ENDED),
    errors.JobCancelled(ENDED),
    errors.WouldBlock("hf.result()", "await hf.aresult()"),
    errors.ScheduleNotFound("nightly"),
    errors.RunNotFound("order-1", ["fulfil", "ship"]),
    errors.RunFinished("order-1"),
    errors.StepFailed("charge", "ValueError", "no card", 7),
    errors.ChildFailed("ship", "dead"),
    errors.NonDeterminism("recorded next: a; the code waits for: b"),
    errors.NoIO("a subprocess"),
    errors.NotSupported("pdo:jobs", "cancel", "knows no cancel. Delete its row."),
    errors.Conflict("a leased job cannot be replayed"),
    errors.TimedOut(5),
    errors.Unusable("The returned Snooze", "holdfast.values.retry.Snooze", "ValueError: no delay"),
    errors.WorkerFailed("web1-12-ab", "holdfast-settler"),
    errors.HookFailed("client (shop.py:12)", "OSError: no route to host"),
]


@pytest.mark.parametrize("error", SAMPLES, ids=lambda error: type(error).__name__)
def test_every_error_survives_a_trip_between_processes(error: HoldfastError) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert vars(copy) == vars(error)


def test_the_samples_cover_every_error_and_the_docstring_draws_it() -> None:
    leaves = {type(error) for error in SAMPLES if not type(error).__subclasses__()}
    public = [each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, HoldfastError)]
    assert {each for each in public if not each.__subclasses__()} == leaves
    assert [each.__name__ for each in public if each.__name__ not in (errors.__doc__ or "")] == []


@pytest.mark.parametrize(
    "error, advice",
    [
        (errors.SchemaMissing(), "holdfast migrate apply"),
        (errors.ForeignTablesMissing("pdo:jobs", ["jobs"]), "holdfast migrate apply --store pdo:jobs"),
        (errors.SchemaMismatch(1, 2), "holdfast migrate apply"),
        (errors.SchemaMismatch(3, 2), "upgrade holdfast"),
        (errors.SchemaMismatch(1, 0, "airlock:messages: there is no column x; add it"), "no column x; add it"),
        (errors.NoTransaction("mail"), "leave out tx="),
        (errors.JobNotFound("0190"), "never committed"),
        (errors.JobNotFound("0190", ended=True), "also where you wait"),
        (
            errors.JobDead(ENDED),
            "Cancelled: at postgresql://ann:***@db/shop. `holdfast dead show 0190 --app module:attribute` has",
        ),
        (
            errors.JobCancelled(ENDED),
            "was cancelled: at postgresql://ann:***@db/shop. `holdfast jobs show 0190 --app module",
        ),
        (errors.WouldBlock("hf.result()", "await hf.aresult()"), "Use await hf.aresult() instead"),
        (errors.WrongColour("enqueue", "aenqueue"), "Call aenqueue"),
        (errors.UnknownKind("mial", ["mail"]), "Did you mean 'mail'"),
        (errors.UnknownKind("mail", []), "import the modules"),
        (errors.UnknownKind("x", [f"kind{n:02}" for n in range(20)]), "kind09, …"),
        (errors.PayloadTooLarge("mail", 2_000_000, 10), "2,000,000 bytes"),
        (errors.UnsupportedConnection(3), "builtins.int"),
    ],
)
def test_a_message_says_what_to_do(error: HoldfastError, advice: str) -> None:
    assert advice in str(error)


def test_a_schema_mismatch_has_its_own_exit_code() -> None:
    assert errors.SchemaMismatch.exit_code == 3


def test_a_config_error_names_field_rule_and_value_and_is_a_value_error() -> None:
    with pytest.raises(ValueError, match=r"^prefix: must be lower case; got 'Bad'$") as caught:
        raise ConfigError("prefix", "must be lower case", "Bad")
    assert isinstance(caught.value, HoldfastError)


def test_a_config_error_shortens_values_and_survives_those_that_cannot_be_shown() -> None:
    class Shy:
        def __repr__(self) -> str:
            raise RuntimeError

    assert len(str(ConfigError("f", "r", "x" * 10_000))) < 300
    assert "Shy" in str(ConfigError("f", "r", Shy()))


def test_fatal_is_a_handlers_outcome_not_an_error_of_ours() -> None:
    fatal = pickle.loads(pickle.dumps(Fatal("no such card", code="card")))
    assert (str(fatal), fatal.reason, fatal.code) == ("no such card", "no such card", "card")
    assert not isinstance(fatal, HoldfastError)


@pytest.mark.parametrize(
    "url, shown",
    [
        ("postgresql://ann:s3cret@db/shop", "postgresql://ann:***@db/shop"),
        ("postgresql://ann@db:5432/shop", "postgresql://ann@db:5432/shop"),
        ("postgresql://ann@corp:s3cret@db/shop", "postgresql://ann@corp:***@db/shop"),
        ("mysql://ann:s3@c/r?e#t@db:3306/shop", "mysql://ann:***@db:3306/shop"),
        ("postgresql://:s3cret@[::1]:5432/shop", "postgresql://:***@[::1]:5432/shop"),
        (
            "postgresql://db/shop?user=ann&password=s3cret&sslmode=on",
            "postgresql://db/shop?user=ann&password=***&sslmode=on",
        ),
        ("mysql://db/shop?passwd=s3cret", "mysql://db/shop?passwd=***"),
        ("host=db password=s3&cret user=ann", "host=db password=*** user=ann"),
        (r"password = 's3\' cret' host=db", "password = *** host=db"),
        ("PASSWORD='s3 cret", "PASSWORD=***"),
        (r"password=s3\ cret host=db", "password=*** host=db"),
        ("sqlite:///shop.db", "sqlite:///shop.db"),
        ("sqlite:////home/ann@x/C:/shop.db", "sqlite:////home/ann@x/C:/shop.db"),
    ],
)
def test_redact_masks_the_password_and_keeps_the_rest(url: str, shown: str) -> None:
    assert redact(url) == shown


@pytest.mark.parametrize("text", ["a" * 20_000, "a." * 10_000, "a." * 10_000 + "@", "password" * 2_500])
def test_long_words_are_redacted_as_fast_as_others(text: str) -> None:
    began = time.perf_counter()
    assert redact(text) == text
    assert time.perf_counter() - began < 1, "every line of a worker's log goes through this, on its event loop"


@given(password=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="*"), min_size=1))
def test_no_password_in_a_url_is_ever_shown(password: str) -> None:
    marked = f"<<{password}>>"
    assert marked not in redact(f"postgresql://ann:{marked}@db/shop")
    assert "<<" not in redact(f"postgresql://ann:{marked}@db/shop")


def test_errors_hide_the_password_of_a_url() -> None:
    url = "postgresql://ann:s3cret@db/shop"
    config, store = ConfigError("url", "must be known", url), errors.DatabaseUnavailable(f"cannot reach {url}")
    assert "s3cret" not in f"{config} {config!r} {vars(config)} {store} {store!r} {vars(store)}"
