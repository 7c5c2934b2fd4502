"""`holdfast … --store durable:durable`: remote steps as a user at a keyboard meets them."""

import time
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.foreign import DurableSteps
from tests.cli.conftest import Run, lines, place, run  # noqa: F401 - fixtures
from tests.foreign.conftest import Sql

APP = """
from holdfast import Holdfast

hf = Holdfast({url!r})
steps = hf.foreign.durable({prefix!r}, lease=30)


@steps.step("add")
def add(value: int) -> int:
    return value + 1
"""
STORE = ("--store", "durable:durable", "--app", "shop:hf")


@pytest.fixture
def shop(run: Run, place: Path, durable_url: str, steps: DurableSteps) -> Run:  # noqa: F811
    """A keyboard before an application whose tables, and those that it shares with an engine, are there."""
    (place / "shop.py").write_text(APP.format(url=durable_url, prefix="durable"))
    run("migrate", "apply", "--app", "shop:hf")
    return run


def ms(ago: float = 0) -> int:
    return int((time.time() - ago) * 1000)


def dispatch(sql: Sql, step_id: str, ago: float = 0, **columns: Any) -> None:
    """Insert a task as an engine does."""
    values = {"name": "add", "grp": "add", "input": "41", "claimed_by": None, "claimed_at": None} | columns
    sql(
        "insert into durable_transport_tasks "
        "(step_id, run_id, seq, name, grp, input, attempt, status, claimed_by, claimed_at, created_at) "
        "values (:id, :run, 0, :name, :grp, :input, 1, 'pending', :claimed_by, :claimed_at, :at)",
        id=step_id,
        run=step_id.partition(":")[0],
        at=ms(ago),
        **values,
    )


def report(sql: Sql, step_id: str, output: str, ago: float = 0) -> None:
    """Insert a result as a worker does."""
    sql(
        "insert into durable_transport_results (step_id, run_id, seq, status, output, created_at) "
        "values (:id, 'r', 0, 'completed', :output, :at)",
        id=step_id,
        output=output,
        at=ms(ago),
    )


def listed(shop: Run, *words: str) -> list[str]:
    return [row["id"] for row in lines(shop("jobs", "list", "--json", *STORE, *words))]


def test_tasks_are_listed_by_age_chosen_and_paged(shop: Run, sql: Sql, durable_url: str) -> None:
    dispatch(sql, "z:0", 30)
    dispatch(sql, "b:0", 20, claimed_by="node-1/5/0", claimed_at=ms())
    dispatch(sql, "a:0", 10, name="ns:other", grp="ns-other@acme")
    assert "durable:durable: 2 due, 1 leased" in shop("jobs", "list", "--app", "shop:hf").stderr
    assert listed(shop) == ["a:0", "b:0", "z:0"]
    assert listed(shop, "--oldest") == ["z:0", "b:0", "a:0"]
    assert listed(shop, "--state", "leased") == listed(shop, "--worker", "node-1") == ["b:0"]
    assert listed(shop, "--state", "pending", "--kind", "add") == ["z:0"]
    assert listed(shop, "--queue", "ns-other@acme") == listed(shop, "--key", "a") == ["a:0"]
    assert listed(shop, "--since", "15s") == ["a:0"]
    assert listed(shop, "--id", "z:0", "--id", "b:0", "--until", "25s") == ["z:0"]
    assert listed(shop, "--limit", "1", "--after", "a:0") == ["b:0"]
    assert listed(shop, "--oldest", "--after", "z:0") == ["b:0", "a:0"]
    assert "is gone" in shop("jobs", "list", *STORE, "--after", "gone:0", code=6).stderr
    alone = shop("jobs", "list", "--json", "--store", "durable:durable?lease=30", "--url", durable_url)
    assert [row["store"] for row in lines(alone)] == ["durable:durable"] * 3


def test_a_list_goes_on_where_rows_vanish_between_its_pages(
    shop: Run, hf: Holdfast, steps: DurableSteps, sql: Sql
) -> None:
    for number in range(5):
        dispatch(sql, f"r{number}:0", 60 - number)
    first = hf.store.run(steps.desk.rows(limit=2, newest=False))
    assert [row.id for row in first.rows] == ["r0:0", "r1:0"]
    sql("delete from durable_transport_tasks where step_id = 'r1:0'")
    second = hf.store.run(steps.desk.rows(limit=3, after=first.more, newest=False))
    assert [row.id for row in second.rows] == ["r2:0", "r3:0", "r4:0"]
    last = hf.store.run(steps.desk.rows(limit=3, after=second.more, newest=False))
    assert (last.rows, last.more) == ([], None)
    assert listed(shop, "--worker", "nobody") == []


def test_one_task_is_shown(shop: Run, sql: Sql) -> None:
    dispatch(sql, "r:0", claimed_by="node-1/5/0", claimed_at=ms())
    shown = shop("jobs", "show", "r:0", *STORE).stdout
    assert "node-1/5/0" in shown
    [told] = lines(shop("jobs", "show", "r:0", "--json", *STORE))
    assert (told["payload"], told["key"], told["store"]) == (41, "r", "durable:durable")
    assert "There is no row r:1" in shop("jobs", "show", "r:1", *STORE, code=5).stderr


def test_retry_frees_what_was_put_off_and_leaves_what_is_held(shop: Run, sql: Sql) -> None:
    dispatch(sql, "later:0", claimed_at=ms(-600))
    dispatch(sql, "held:0", claimed_by="node-1/5/0", claimed_at=ms())
    refused = shop("jobs", "retry", "later:0", "held:0", "--actor", "ada", *STORE, code=6)
    assert refused.stdout == "later:0 is due now\n"
    assert "run_now by ada" in shop("jobs", "show", "later:0", *STORE).stdout
    assert "held by a worker" in refused.stderr
    claimed = sql("select claimed_at is null from durable_transport_tasks order by step_id")
    assert [bool(row[0]) for row in claimed] == [False, True]


def test_what_belongs_to_the_engine_is_refused_with_the_reason(shop: Run, sql: Sql) -> None:
    dispatch(sql, "r:0")
    assert "Cancel the run in its engine" in shop("jobs", "cancel", "r:0", *STORE, code=6).stderr
    for words in ("dead show r:0", "dead replay --all", "dead discard --all --yes"):
        told = shop(*words.split(), *STORE, code=6).stderr
        assert "keeps no dead letters" in told
        assert "engine" in told
    assert "Prune its runs there" in shop("prune", "--older-than", "1d", *STORE, code=6).stderr
    for words in ("dead list", "dead groups"):
        empty = shop(*words.split(), *STORE)
        assert empty.stdout == ""
        assert "keeps no dead letters" in empty.stderr
    assert listed(shop) == ["r:0"]


def test_doctor_finds_lag_silence_no_engine_and_what_is_not_json(shop: Run, sql: Sql) -> None:
    report(sql, "fresh:0", '{"pages":3}')
    assert shop("doctor", *STORE).stdout.endswith("all is well\n")
    dispatch(sql, "late:0", 3700)
    dispatch(sql, "lost:0", 3700, claimed_by="node-1/5/0", claimed_at=ms(3600))
    dispatch(sql, "bad:0", 0, input="{nonsense", grp="other")
    report(sql, "unread:0", "NaN", 7300)
    found = [f for f in lines(shop("doctor", "--app", "shop:hf", "--json", code=7)) if f["check"] == "foreign"]
    seen = {finding["seen"]: finding for finding in found}
    for words, severity in (
        ("add: 1 due, the oldest for 1:01:", "warning"),
        ("add: 1 held by workers", "warning"),
        ("2 results unread, the oldest for 2:01:", "problem"),
        ("1 task whose input is not JSON, such as bad:0", "warning"),
        ("1 result without valid JSON, such as unread:0", "problem"),
    ):
        [finding] = [finding for text, finding in seen.items() if words in text]
        assert (finding["severity"], bool(finding["do"])) == (severity, True)
    assert len(found) == 5


def test_without_its_tables_nothing_starts_and_migrate_makes_them(
    run: Run,  # noqa: F811
    place: Path,  # noqa: F811
    durable_url: str,
    hf: Holdfast,
) -> None:
    (place / "shop.py").write_text(APP.format(url=durable_url, prefix="Other"))
    store = ("--store", "durable:Other", "--app", "shop:hf")
    run("migrate", "apply", "--app", "shop:hf")
    told = run("worker", "shop:hf", code=3).stderr
    assert "no table Other_transport_tasks and no Other_transport_results" in told
    assert "holdfast migrate apply --store durable:Other" in told
    run("jobs", "list", *store, code=3)
    run("migrate", "check", *store, code=3)
    assert "create table" in run("migrate", "sql", *store).stdout
    assert run("migrate", "apply", *store).stdout.count("created Other_transport_") == 2
    run("migrate", "check", *store)
    assert run("jobs", "list", *store).stderr == "no jobs found\n"
