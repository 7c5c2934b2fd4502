"""`holdfast prune`."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import pytest

from holdfast import admin, jobs
from holdfast.admin import Filter
from holdfast.store import Store
from tests.cli.conftest import Run, add, claim, kill, lines


@contextmanager
def earlier(store: Store, span: timedelta) -> Iterator[None]:
    store.now = datetime.now(UTC) - span
    yield
    store.now = None


def done(store: Store, count: int, queue: str = "mail") -> None:
    add(store, count, queue=queue)
    for lease in claim(store, count, queue):
        store.run(jobs.complete(lease))


def left(store: Store, *states: str) -> int:
    return store.run(admin.count_jobs(Filter(states=states)))


def test_it_needs_an_app_or_an_age(run: Run, app: str, url: str) -> None:
    assert "--older-than" in run("prune", "--url", url, code=2).stderr


def test_retention_of_the_app_decides(run: Run, app: str, store: Store) -> None:
    with earlier(store, timedelta(minutes=30)):
        done(store, 2, "mail")
        done(store, 1, "default")
        kill(store, 1)
    with earlier(store, timedelta(hours=2)):
        kill(store, 1)
    shown = run("prune", app).stdout
    assert "deleted 2 done in mail" in shown
    assert "deleted 1 dead in mail, older than 1 h 0 m" in shown
    assert (left(store, "done"), left(store, "dead")) == (1, 1)
    assert run("prune", "--app", app).stdout == "nothing to delete\n"


def test_by_age_it_spares_dead_letters_unless_named(run: Run, app: str, store: Store, url: str) -> None:
    with earlier(store, timedelta(days=8)):
        done(store, 5)
        kill(store, 2)
    done(store, 1)
    run("prune", "--older-than", "7d", "--chunk", "2", "--yes", "--url", url)
    assert (left(store, "done"), left(store, "dead")) == (1, 2)
    [told] = lines(run("prune", "--older-than", "7d", "--outcome", "dead", "--yes", "--json", "--url", url))
    assert told == {"outcome": "dead", "queue": "mail", "older_than": 604_800.0, "jobs": 2}


def test_by_age_it_asks_first(run: Run, app: str, store: Store, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with earlier(store, timedelta(days=8)):
        done(store, 3)
    assert (
        "Delete 3 finished jobs older than 7 d 0 h?" in run("prune", "--older-than", "7d", "--url", url, code=2).stderr
    )
    monkeypatch.setattr("holdfast.cli.shared.interactive", lambda: True)
    run("prune", "--older-than", "7d", "--url", url, input="n\n", code=1)
    assert left(store, "done") == 3
    run("prune", "--older-than", "7d", "--url", url, input="y\n")
    assert left(store, "done") == 0


def test_counts_beforehand_end_at_a_limit_and_say_so(
    run: Run, app: str, store: Store, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in ("holdfast.admin.desk", "holdfast.cli.prune", "holdfast.observe.counting"):
        monkeypatch.setattr(f"{place}.COUNTED", 3)
    with earlier(store, timedelta(days=8)):
        done(store, 5)
        done(store, 2, "bulk")
    asked = ("prune", "--older-than", "7d", "--url", url)
    told = {one["queue"]: one for one in lines(run(*asked, "--dry-run", "--json"))}
    assert (told["mail"]["jobs"], told["mail"]["at_least"]) == (3, True)
    assert (told["bulk"]["jobs"], "at_least" in told["bulk"]) == (2, False)
    assert "would delete 3+ done in mail" in run(*asked, "--dry-run").stdout
    assert "Delete at least 5 finished jobs" in run(*asked, code=2).stderr
    assert "deleted 5 done in mail" in run(*asked, "--yes").stdout


def test_a_dry_run_counts(run: Run, app: str, store: Store) -> None:
    with earlier(store, timedelta(hours=2)):
        done(store, 3)
    assert run("prune", app, "--dry-run").stdout == "would delete 3 done in mail, older than 0 s\n"
    assert left(store, "done") == 3


def test_only_one_queue(run: Run, app: str, store: Store, url: str) -> None:
    with earlier(store, timedelta(hours=2)):
        done(store, 1, "mail")
        done(store, 1, "other")
    run("prune", "--older-than", "1h", "--queue", "other", "--yes", "--url", url)
    assert left(store, "done") == 1


def test_idempotency_keys_past_their_window_go_too(run: Run, app: str, store: Store) -> None:
    with earlier(store, timedelta(days=2)):
        add(store, 1, idempotency_key="once")
    assert "deleted 1 idempotency key" in run("prune", app).stdout


@pytest.mark.parametrize("words", ["--older-than old", "--older-than 1d --outcome gone", "--older-than 1d --chunk 0"])
def test_wrong_options_are_wrong_usage(run: Run, app: str, url: str, words: str) -> None:
    run("prune", *words.split(), "--url", url, code=2)


def test_audit_lines_go_by_the_retention_of_the_app(run: Run, app: str, store: Store, url: str) -> None:
    with earlier(store, timedelta(days=91)):
        store.run(admin.pause("queue", "mail", "ann"))
    store.run(admin.resume("queue", "mail", "ann"))
    assert "would delete 1 audit line older than 90 d" in run("prune", app, "--dry-run").stdout
    run("prune", "--older-than", "7d", "--yes", "--app", app)
    run("prune", app, "--queue", "mail")
    assert len(store.run(admin.audit())) == 2, "nothing but the retention of an application deletes them"
    told = lines(run("prune", app, "--json"))
    assert told[-1] == {"older_than": 90 * 86_400.0, "audit_lines": 1}
    assert [line.action for line in store.run(admin.audit())] == ["queue_resume"]
    assert run("prune", app).stdout == "nothing to delete\n"
