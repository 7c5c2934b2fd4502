"""`holdfast queues` and `holdfast lines`."""

from contextlib import closing
from pathlib import Path

import pytest

from holdfast import admin, jobs, lines
from holdfast.store import Store
from holdfast.testing import failure, new_job
from holdfast.values.queues import QueueSettings, Rate
from tests.cli.conftest import Run
from tests.cli.conftest import lines as printed

STOP = QueueSettings(ordered=True, on_dead="stop")


@pytest.fixture
def shop(place: Path, app: str) -> str:
    """An application that says something of its queues."""
    module = app.partition(":")[0]
    text = (place / f"{module}.py").read_text("utf-8")
    said = '\nfrom holdfast import Rate\nhf.queue("stripe", concurrency=10, rate=Rate(100, per=1))\n'
    (place / "limits_app.py").write_text(text + said, "utf-8")
    return "limits_app:hf"


def stopped(store: Store, *keys: str) -> list[str]:
    """Let a dead letter stop the line of each key."""
    store.run(lines.declare({"orders": STOP}))
    dead = []
    for key in keys:
        store.run(jobs.enqueue_many([new_job("orders", key=key) for _ in range(3)]))
        [lease] = store.run(lines.claim("orders", STOP, limit=1)).leases
        store.run(lines.claim("orders", STOP, limit=9))
        store.run(jobs.kill(lease, failure(), "g"))
        dead.append(lease.job_id)
    return dead


def test_nothing_is_stored_at_first(run: Run, app: str) -> None:
    assert "no queue has order or limits" in run("queues", "--app", app).stderr


def test_set_changes_what_is_stored_and_leaves_an_audit_line(run: Run, app: str, store: Store) -> None:
    words = ("--concurrency", "5", "--rate", "50/1s", "--actor", "ada", "--app", app)
    assert "plain → concurrency 5, rate 50/1s" in run("queues", "set", "stripe", *words).stdout
    stored = store.run(lines.stored())["stripe"]
    assert (stored.settings, stored.changed_by) == (QueueSettings(concurrency=5, rate=Rate(50)), "ada")
    run("queues", "set", "stripe", "--rate", "none", "--app", app)
    assert store.run(lines.stored())["stripe"].settings == QueueSettings(concurrency=5)
    [second, first] = store.run(admin.audit())
    assert (first.action, first.actor, first.detail["now"]) == (
        "queue_settings",
        "ada",
        {"concurrency": 5, "rate": [50, 1.0]},
    )
    assert second.detail["before"] == first.detail["now"]


def test_a_dry_run_stores_nothing(run: Run, app: str, store: Store) -> None:
    shown = run("queues", "set", "stripe", "--concurrency", "5", "--dry-run", "--json", "--app", app)
    assert printed(shown) == [{"queue": "stripe", "dry_run": True, "before": {}, "now": {"concurrency": 5}}]
    assert (store.run(lines.stored()), store.run(admin.audit())) == ({}, [])


@pytest.mark.parametrize(
    "words",
    ["", "--concurrency many", "--rate 100", "--rate 5/never", "--ordered yes --key-concurrency 2", "--on-dead stop"],
)
def test_wrong_settings_are_wrong_usage(run: Run, app: str, store: Store, words: str) -> None:
    run("queues", "set", "stripe", *words.split(), "--app", app, code=2)
    assert store.run(lines.stored()) == {}


def test_the_order_of_commits_can_be_set_by_hand(run: Run, app: str, store: Store) -> None:
    assert "ordered commit" in run("queues", "set", "orders", "--ordered", "commit", "--app", app).stdout
    assert store.run(lines.stored())["orders"].settings == QueueSettings(ordered="commit")
    assert "ordered commit" in run("queues", "list", "--app", app).stdout
    run("queues", "set", "orders", "--ordered", "yes", "--app", app)
    assert store.run(lines.stored())["orders"].settings == QueueSettings(ordered=True)


def test_the_order_of_commits_is_refused_where_the_database_cannot_keep_it(run: Run, mariadb_url: str) -> None:
    run("migrate", "apply", "--url", mariadb_url)
    said = run("queues", "set", "orders", "--ordered", "commit", "--url", mariadb_url, code=2)
    assert '"commit" needs PostgreSQL or SQLite' in said.stderr
    with closing(Store(mariadb_url)) as store:
        assert store.run(lines.stored()) == {}


def test_the_list_shows_what_the_code_says_otherwise(run: Run, shop: str, store: Store) -> None:
    store.run(lines.change("stripe", {"concurrency": 3}, "ada"))
    shown = run("queues", "list", "--app", shop).stdout
    assert "concurrency 3" in shown
    assert "concurrency 10, rate 100/1s" in shown
    [row] = printed(run("queues", "--json", "--app", shop))
    assert (row["settings"], row["said"], row["changed_by"]) == (
        {"concurrency": 3},
        {"concurrency": 10, "rate": [100, 1.0]},
        "ada",
    )
    found = printed(run("doctor", "--json", "--app", shop, code=7))
    [finding] = [one for one in found if one["check"] == "queues"]
    assert finding["severity"] == "warning"


def test_adopt_stores_what_the_code_says(run: Run, shop: str, store: Store) -> None:
    store.run(lines.change("stripe", {"concurrency": 3}))
    run("queues", "adopt", shop, "--dry-run")
    assert store.run(lines.stored())["stripe"].settings == QueueSettings(concurrency=3)
    run("queues", "adopt", shop, code=2)
    run("queues", "adopt", shop, "nothing", "--yes", code=5)
    run("queues", "adopt", shop, "--yes")
    assert store.run(lines.stored())["stripe"].settings == QueueSettings(concurrency=10, rate=Rate(100))
    assert "nothing to change" in run("queues", "adopt", shop, "--yes").stderr


def test_stopped_lines_are_listed_and_started(run: Run, app: str, store: Store) -> None:
    dead, _ = stopped(store, "a", "b")
    rows = printed(run("lines", "list", "--stopped", "--json", "--app", app))
    assert [(row["key"], row["waiting"]) for row in rows] == [("a", 2), ("b", 2)]
    assert rows[0]["stopped_for"] == dead
    assert "2 lines stopped" in run("doctor", "--app", app, code=7).stdout
    run("lines", "start", "orders", "a", "--dry-run", "--app", app)
    assert len(printed(run("lines", "list", "--stopped", "--json", "--app", app))) == 2
    assert "started 1 line of orders: a" in run("lines", "start", "orders", "a", "--actor", "ada", "--app", app).stdout
    assert {lease.key for lease in store.run(lines.claim("orders", STOP, limit=9)).leases} == {"a"}
    [line] = store.run(admin.audit())
    assert (line.action, line.actor, line.detail) == ("line_start", "ada", {"queue": "orders", "key": "a"})
    run("lines", "start", "orders", "--all", "--app", app, code=2)
    run("lines", "start", "orders", "--all", "--yes", "--app", app)
    assert printed(run("lines", "list", "--stopped", "--json", "--app", app)) == []


def test_which_lines_must_be_said(run: Run, app: str, store: Store) -> None:
    run("lines", "start", "orders", "--app", app, code=2)
    run("lines", "start", "orders", "a", "--all", "--app", app, code=2)
    run("lines", "start", "orders", "a", "--app", app, code=5)


def test_a_line_is_stopped_by_hand(run: Run, app: str, store: Store) -> None:
    store.run(lines.declare({"orders": STOP}))
    store.run(jobs.enqueue(new_job("orders", key="a")))
    run("lines", "stop", "orders", "a", "--app", app)
    assert store.run(lines.claim("orders", STOP, limit=9)).leases == []
    assert "by hand" in run("doctor", "--app", app, code=7).stdout


def test_a_change_of_a_queue_that_nobody_knows_is_made_with_a_warning(run: Run, shop: str) -> None:
    assert run("queues", "set", "stripe", "--concurrency", "5", "--app", shop).stderr == ""
    told = run("queues", "set", "stripee", "--concurrency", "5", "--app", shop)
    assert told.stdout.startswith("stripee: ")
    assert "no worker serves queue stripee, and there are no jobs of it; did you mean stripe?" in told.stderr


def test_to_resume_a_name_that_nobody_knows_gives_a_hint(run: Run, shop: str) -> None:
    run("queues", "set", "stripe", "--concurrency", "5", "--app", shop)
    assert "did you mean stripe?" in run("queues", "resume", "strype", "--app", shop).stderr
    assert run("queues", "resume", "stripe", "--app", shop).stderr == ""
