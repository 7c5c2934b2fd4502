"""`holdfast dead`."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from holdfast import Fatal, admin, jobs
from holdfast.admin import Filter
from holdfast.life import letters
from holdfast.store import Store
from holdfast.values.failure import ErrorRecord
from holdfast.values.ids import new_id
from tests.cli.conftest import Run, add, claim, kill, lines


def dead(store: Store) -> int:
    return store.run(admin.count_jobs(Filter(states=("dead",))))


def waiting(store: Store) -> int:
    return store.run(admin.count_jobs(Filter(states=("pending",))))


def test_the_code_of_a_fatal_error_is_shown(run: Run, app: str, store: Store) -> None:
    add(store)
    [lease] = claim(store)
    now = datetime.now(UTC)
    declined = Fatal("declined", code="card_declined")
    error = ErrorRecord.of(declined, attempt=1, worker="w1", started_at=now, failed_at=now)
    store.run(jobs.kill(lease, error.to_json(), error.fingerprint))
    told = run("dead", "show", lease.job_id, "--app", app).stdout
    assert "Fatal: declined\n  code: card_declined\n" in told
    [line] = [line for line in told.splitlines() if line.startswith("attempt 1 failed at ")]
    assert datetime.fromisoformat(line.removeprefix("attempt 1 failed at ").removesuffix(" on w1")).tzinfo is not None


def test_the_list_shows_what_they_died_of(run: Run, app: str, store: Store) -> None:
    [job_id] = kill(store, message="no such\norder")
    add(store)
    [_, line] = run("dead", "list", "--app", app).stdout.splitlines()
    assert line.startswith(job_id)
    assert line.endswith("ValueError: no such order")
    assert [job["id"] for job in lines(run("dead", "list", "--app", app, "--json"))] == [job_id]
    assert run("dead", "list", "--app", app, "--queue", "other").stderr == "no dead letters found\n"


def test_a_list_ends_after_a_number_of_dead_letters_and_says_so(
    run: Run, app: str, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.admin.desk.WINDOW", 3)
    [far] = kill(store)
    kill(store, 2, queue="bulk")
    # What is done is not looked at, so that it does not count.
    add(store, 9)
    for lease in claim(store, 9):
        store.run(jobs.complete(lease))
    asked = ("dead", "list", "--app", app, "--json", "--queue", "mail")
    assert [job["id"] for job in lines(run(*asked))] == [far]
    kill(store, 1, queue="bulk")
    short = run(*asked)
    assert short.stdout == ""
    assert "dead letters; for the others: --all, or --after " in short.stderr
    after = short.stderr.split("--after ")[1].split()[0]
    for more in (("--all",), ("--after", after)):
        whole = run(*asked, *more)
        assert [job["id"] for job in lines(whole)] == [far]
        assert "--all" not in whole.stderr


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Count no further than to two, and look at two at a time."""
    for name in ("holdfast.cli.meant", "holdfast.admin.desk"):
        monkeypatch.setattr(f"{name}.COUNTED", 2)
    for name in ("holdfast.admin.jobs", "holdfast.admin.looking"):
        monkeypatch.setattr(f"{name}.WINDOW", 2)
    monkeypatch.setattr(letters, "LETTERS_PER_COMMIT", 2)


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("verb", ["replay", "discard"])
def test_very_many_are_not_counted_before_they_are_acted_on(run: Run, app: str, store: Store, verb: str) -> None:
    kill(store, 3, queue="bulk")
    kill(store, 7)
    asked = ("dead", verb, "--queue", "mail", "--app", app)
    assert "2 dead letters or more" in run(*asked, code=2).stderr
    assert "up to 5 dead letters" in run(*asked, "--limit", "5", code=2).stderr
    assert run(*asked, "--dry-run").stdout == f"would {verb} 2 dead letters or more\n"
    [told] = lines(run(*asked, "--dry-run", "--json"))
    assert (told["at_least"], len(told[f"{verb}ed"])) == (True, 2)
    [told] = lines(run(*asked, "--dry-run", "--json", "--limit", "2"))
    assert "at_least" not in told
    assert run(*asked, "--limit", "5", "--yes").stdout == f"{verb}ed 5 dead letters\n"
    # Few enough to be counted.
    assert run(*asked, "--dry-run").stdout == f"would {verb} 2 dead letters\n"
    kill(store, 5)
    assert run(*asked, "--yes").stdout == f"{verb}ed 7 dead letters\n"
    assert dead(store) == 3


def test_groups_join_like_errors(run: Run, app: str, store: Store) -> None:
    kill(store, 2, message="order 1 is gone")
    kill(store, 1, message="order 27 is gone")
    kill(store, 1, message="the network is down")
    found = lines(run("dead", "groups", "--app", app, "--json"))
    assert [group["count"] for group in found] == [3, 1]
    shown = run("dead", "groups", "--app", app).stdout
    assert found[0]["group"] in shown
    assert "order 27 is gone" in shown


def test_replay_and_discard_need_a_filter_or_all(run: Run, app: str, store: Store) -> None:
    kill(store)
    for words in ("replay", "discard"):
        assert "or --all" in run("dead", words, "--yes", "--app", app, code=2).stderr
        assert "contradict" in run("dead", words, "--all", "--kind", "x", "--app", app, code=2).stderr
    assert dead(store) == 1


def test_without_a_terminal_a_bulk_action_needs_yes(run: Run, app: str, store: Store) -> None:
    kill(store, 2)
    told = run("dead", "replay", "--all", "--app", app, code=2).stderr
    assert "Replay 2 dead letters? Not done" in told
    assert "--yes" in told
    assert "--yes" in run("dead", "discard", "--all", "--app", app, code=2).stderr
    assert dead(store) == 2


@pytest.mark.parametrize("answer, code, left", [("y\n", 0, 0), ("n\n", 1, 2), ("\n", 1, 2)])
@pytest.mark.parametrize("words", ["replay", "discard"])
def test_on_a_terminal_it_asks(
    run: Run, app: str, store: Store, monkeypatch: pytest.MonkeyPatch, words: str, answer: str, code: int, left: int
) -> None:
    monkeypatch.setattr("holdfast.cli.shared.interactive", lambda: True)
    kill(store, 2)
    run("dead", words, "--all", "--app", app, input=answer, code=code)
    assert dead(store) == left


def test_one_letter_is_replayed_without_asking(run: Run, app: str, store: Store) -> None:
    [job_id] = kill(store)
    assert run("dead", "replay", "--id", job_id, "--app", app).stdout == "replayed 1 dead letter\n"
    assert store.run(admin.show(job_id)).state == "pending"


def test_a_dry_run_changes_nothing(run: Run, app: str, store: Store) -> None:
    ids = kill(store, 3)
    assert run("dead", "replay", "--all", "--dry-run", "--app", app).stdout == "would replay 3 dead letters\n"
    assert (
        run("dead", "discard", "--all", "--dry-run", "--limit", "2", "--app", app).stdout
        == "would discard 2 dead letters\n"
    )
    [told] = lines(run("dead", "replay", "--all", "--dry-run", "--json", "--app", app))
    assert told == {"dry_run": True, "replayed": ids, "conflicts": {}}
    assert dead(store) == 3


def test_filters_choose(run: Run, app: str, store: Store) -> None:
    kill(store, 2, message="order 1 is gone")
    kill(store, 1, message="the network is down")
    [group, _] = lines(run("dead", "groups", "--app", app, "--json"))
    run("dead", "replay", "--group", group["group"], "--yes", "--app", app)
    assert (dead(store), waiting(store)) == (1, 2)
    run("dead", "discard", "--error", "NETWORK", "--yes", "--app", app)
    assert dead(store) == 0


def test_a_limit_takes_the_oldest_across_chunks(
    run: Run, app: str, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(letters, "LETTERS_PER_COMMIT", 2)
    ids = kill(store, 8)
    [told] = lines(run("dead", "replay", "--all", "--limit", "5", "--yes", "--json", "--app", app))
    assert told["replayed"] == ids[:5]
    [gone] = lines(run("dead", "discard", "--all", "--yes", "--json", "--app", app))
    assert gone["discarded"] == ids[5:]


def test_letters_whose_unique_key_is_taken_stay_and_stop_nobody(
    run: Run, app: str, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(letters, "LETTERS_PER_COMMIT", 1)
    held = [kill(store, unique="a")[0], kill(store, unique="b")[0]]
    free = kill(store, 2)
    holders = [add(store, unique="a")[0], add(store, unique="b")[0]]
    told = run("dead", "replay", "--all", "--yes", "--app", app)
    assert told.stdout == "replayed 2 dead letters\n"
    assert f"{held[0]} stays: job {holders[0]} holds its unique key" in told.stderr
    assert [store.run(admin.show(job_id)).state for job_id in (*held, *free)] == ["dead", "dead", "pending", "pending"]
    run("dead", "replay", "--all", "--yes", "--app", app, code=6)


def test_when_nothing_matches_the_code_is_5(run: Run, app: str, store: Store) -> None:
    kill(store)
    for words in ("replay", "discard"):
        assert "no dead letter matches" in run("dead", words, "--kind", "other", "--yes", "--app", app, code=5).stderr
        run("dead", words, "--id", new_id(), "--yes", "--app", app, code=5)


def test_a_job_that_is_not_dead_is_a_conflict(run: Run, app: str, store: Store) -> None:
    [job_id] = add(store)
    assert (
        "is pending, not a dead letter" in run("dead", "discard", "--id", job_id, "--yes", "--app", app, code=6).stderr
    )


def test_each_action_leaves_an_audit_line(run: Run, app: str, store: Store) -> None:
    [job_id] = kill(store)
    run("dead", "discard", "--id", job_id, "--yes", "--actor", "ada", "--app", app)
    [line] = store.run(admin.audit(job_id))
    assert (line.action, line.actor) == ("discard", "ada")


@pytest.mark.parametrize("words", ["--since never", "--limit 0", "--id 5", "--group=", "--limit -1"])
def test_a_wrong_filter_is_wrong_usage(run: Run, app: str, words: str) -> None:
    run("dead", "replay", "--yes", "--app", app, *words.split(), code=2)


def test_on_postgres_the_same(run: Run, place: Path, pg_url: str) -> None:
    from contextlib import closing

    run("migrate", "apply", "--url", pg_url)
    with closing(Store(pg_url)) as store:
        kill(store, 3)
        [group] = lines(run("dead", "groups", "--url", pg_url, "--json"))
        run("dead", "replay", "--group", group["group"], "--limit", "2", "--yes", "--url", pg_url)
        run("dead", "discard", "--all", "--yes", "--url", pg_url)
        assert (dead(store), waiting(store)) == (0, 2)
    assert len(run("jobs", "list", "--url", pg_url).stdout.splitlines()) == 3
