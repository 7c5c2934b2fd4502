"""The command line of an application with shards: all of them as one, each named where it matters."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from holdfast.lines import stored
from holdfast.store import shard_map
from holdfast.values.shards import stamp_of
from holdfast.worker import registry
from tests.cli.conftest import lines
from tests.shards.people.grounds import SHARDS, Shop

Say = Callable[..., Result]
APP = """
from holdfast import Holdfast
from tests.shards.people.grounds import declare

hf = declare(Holdfast({said}))
"""


@pytest.fixture
def say(run: Any, shop: Shop, place: Path) -> Say:
    """Run a command for the application of the shop."""
    urls = [store.url for store in shop.shards.stores]
    said = f"{urls[0]!r}, shards={SHARDS}" if shop.shards.one_place else f"shards={urls!r}"
    (place / "sharded.py").write_text(APP.format(said=said))
    return lambda *args, code=0, **more: run(*args, "--app", "sharded:hf", code=code, **more)


@pytest.fixture
def say_files(run: Any, files: Shop) -> Say:
    """Run a command for files, which --shards names."""
    return lambda *args, code=0, **more: run(*args, "--shards", words(files), code=code, **more)


@pytest.fixture
def say_app(run: Any, files: Shop, place: Path) -> Say:
    """Run a command that takes the application of files as its argument."""
    urls = [store.url for store in files.shards.stores]
    (place / "sharded.py").write_text(APP.format(said=f"shards={urls!r}"))
    return lambda *args, code=0, **more: run(*args, code=code, **more)


def words(shop: Shop) -> str:
    return " ".join(store.url for store in shop.shards.stores)


def test_a_job_is_shown_with_its_shard(say: Say, shop: Shop) -> None:
    for job in shop.add(1):
        [told] = lines(say("jobs", "show", job, "--json"))
        assert (told["id"], told["shard"]) == (job, stamp_of(job))
        assert f"shard     {stamp_of(job)}" in say("jobs", "show", job).stdout


def test_lists_go_on_where_the_page_before_ended(say: Say, shop: Shop) -> None:
    ids = shop.add()
    first = [one["id"] for one in lines(say("jobs", "list", "--limit", "4", "--json"))]
    rest = [one["id"] for one in lines(say("jobs", "list", "--after", first[-1], "--json"))]
    assert first + rest == sorted(ids, reverse=True)


def test_a_cancel_by_filter_keeps_to_its_limit(say: Say, shop: Shop) -> None:
    ids = shop.add()
    [told] = lines(say("jobs", "cancel", "--queue", "mail", "--limit", "4", "--yes", "--json"))
    assert told["cancelled"] == ids[:4]


def test_letters_of_all_shards_are_replayed_and_discarded(say: Say, shop: Shop) -> None:
    shop.add()
    dead = sorted(job for number in range(SHARDS) for job in shop.kill(number, 2))
    [group] = lines(say("dead", "groups", "--json"))
    assert group["count"] == len(dead)
    assert sorted(one["id"] for one in lines(say("dead", "list", "--json"))) == dead
    assert "replayed 4 dead letters" in say("dead", "replay", "--all", "--limit", "4", "--yes").stdout
    assert "discarded 1 dead letter" in say("dead", "discard", "--all", "--limit", "1", "--yes").stdout
    assert "replayed 1 dead letter" in say("dead", "replay", "--all", "--yes").stdout
    say("dead", "replay", "--all", "--yes", code=5)


def test_queues_are_paused_set_and_listed_as_one(say: Say, shop: Shop) -> None:
    shop.add(1)
    say("queues", "pause", "mail", "--reason", "a provider is down")
    say("queues", "set", "orders", "--ordered", "yes")
    told = {one["name"]: one for one in lines(say("queues", "--json"))}
    assert told["mail"]["paused"]["reason"] == "a provider is down"
    assert told["orders"]["settings"]["ordered"] is True
    assert "resumed" in say("queues", "resume", "mail").stdout


def test_doctor_names_a_shard_that_no_worker_serves(say: Say, shop: Shop) -> None:
    shop.add(1)
    for store in shop.shards.stores[:2]:
        store.run(
            registry.beat("web1-1-a", '{"host": "web1", "queues": ["mail"], "kinds": ["send"], "shards": [0, 1]}')
        )
    told = [one for one in lines(say("doctor", "--json", code=7)) if one["check"] == "workers"]
    assert [(one["severity"], one["seen"]) for one in told if one["severity"] != "ok"] == [
        ("problem", "shard 2: there is work, and no live worker serves it (others serve 0 and 1)")
    ]


@pytest.mark.parametrize(
    "said, rule",
    [
        ("0,x", "must be numbers, as in 0,2"),
        ("0,3", "--serve-shards: there is no shard 3; the application has 0, 1 and 2"),
    ],
)
def test_a_worker_refuses_numbers_that_no_shard_has(say_app: Say, said: str, rule: str) -> None:
    assert rule in say_app("worker", "sharded:hf", "--serve-shards", said, code=2).stderr


def test_a_limit_that_is_split_is_set_and_listed_as_a_whole(say: Say, shop: Shop) -> None:
    whole = say("queues", "set", "calls", "--concurrency", "7")
    assert "--across split divides it" in whole.stderr
    split = say("queues", "set", "calls", "--across", "split")
    assert "calls: concurrency 7 → concurrency 7, across split" in split.stdout
    assert "divides it" not in split.stderr
    parts = [store.run(stored("calls"))["calls"].settings.here.concurrency for store in shop.shards.stores]
    assert (len(parts), sum(map(int, filter(None, parts)))) == (SHARDS, 7)
    [told] = [one for one in lines(say("queues", "--json")) if one["name"] == "calls"]
    assert told["settings"] == {"concurrency": 7, "across": "split"}
    assert "must be 3 or more" in say("queues", "set", "calls", "--concurrency", "2", code=2).stderr


def test_a_worker_is_listed_and_drained_once(say: Say, shop: Shop) -> None:
    for store in shop.shards.stores:
        store.run(registry.beat("web1-1-a", '{"host": "web1", "queues": ["mail"]}'))
    [told] = lines(say("workers", "--json"))
    assert (told["id"], told["status"]) == ("web1-1-a", "alive")
    assert say("workers", "drain", "web1-1-a").stdout == "web1-1-a is asked to drain\n"
    assert lines(say("workers", "--json"))[0]["status"] == "draining"


def test_runs_are_found_by_their_ids(say: Say, shop: Shop) -> None:
    flow: Any = shop.hf.handlers["fulfil@1"]
    names = [f"order-{n}" for n in range(6)]
    for n, name in enumerate(names):
        flow.start(n, id=name)
    assert {one["id"] for one in lines(say("runs", "list", "--json"))} == set(names)
    for name in names:
        [told] = lines(say("runs", "show", name, "--json"))
        assert told["shard"] == stamp_of(told["job_id"])
        assert "was sent" in say("runs", "signal", name, "approved").stdout
    say("runs", "show", "order-99", code=5)
    say("runs", "cancel", names[0])


def test_metrics_add_up_and_say_who_answered(say: Say, shop: Shop) -> None:
    ids = shop.add()
    page = say("metrics").stdout
    assert f'holdfast_queue_due{{queue="mail"}} {len(ids)}' in page
    for number in range(SHARDS):
        assert f'holdfast_shard_up{{shard="{number}"}} 1' in page


def test_migrate_makes_every_shard_once(run: Any, tmp_path: Path) -> None:
    where = ("--shards", " ".join(f"sqlite:///new{number}.db" for number in range(SHARDS)))
    plan = lines(run("migrate", "plan", "--json", *where))
    assert {one["shard"] for one in plan} == set(range(SHARDS))
    run("migrate", "check", *where, code=3)
    made = run("migrate", "apply", *where).stdout.splitlines()
    assert len(made) == len(plan)
    assert made[0] == f"shard 0: applied {plan[0]['name']}"
    assert run("migrate", "apply", *where).stdout.startswith("Nothing to run: the tables of 3 shards are at version ")
    assert "which this holdfast needs" in run("migrate", "check", *where).stdout
    assert run("migrate", "sql", *where).stdout.count("begin;") == SHARDS


def test_shards_are_listed(say: Say, shop: Shop) -> None:
    ids = shop.add()
    told = lines(say("shards", "list", "--json"))
    assert [one["shard"] for one in told] == list(range(SHARDS))
    assert sum(one["buckets"] for one in told) == shop.shards.options.buckets
    assert sum(one["live"] for one in told) == len(ids)
    assert {(one["state"], one["reachable"], one["moving_in"]) for one in told} == {("open", True, 0)}
    assert say("shards", "list").stdout.splitlines()[0].split() == [
        *("SHARD", "WHERE", "STATE", "BUCKETS", "LIVE", "MAP")
    ]


def test_buckets_that_move_and_a_shard_that_is_drained_are_listed(say: Say, shop: Shop) -> None:
    changed = shop.shards.go(shop.shards.map()).without_shard(2)
    for store in shop.shards.stores:
        store.run(shard_map.copy(changed))
    first, second, third = lines(say("shards", "list", "--json"))
    assert (third["state"], third["buckets"]) == ("draining", 0)
    assert third["moving_out"] == first["moving_in"] + second["moving_in"] == len(changed.moving)
    told = [one for one in lines(say("doctor", "--json", code=0)) if one["check"] == "shards"]
    assert f"{len(changed.moving)} buckets of keys went to another shard" in told[0]["seen"]


def test_there_may_be_no_shards(run: Any, tmp_path: Path) -> None:
    assert "there are no shards" in run("shards", "list", "--url", "sqlite:///one.db", code=2).stderr


def test_doctor_tells_what_all_shards_say_once(say: Say, shop: Shop) -> None:
    found = lines(say("doctor", "--json"))
    assert {one["severity"] for one in found} == {"ok"}
    assert [one["check"] for one in found].count("schema") == 1
    assert found[0]["seen"] == "all 3 answer, and go by the same map"


def test_doctor_names_the_shard_of_a_finding(say: Say, shop: Shop) -> None:
    shop.add()
    shop.kill(1)
    found = lines(say("doctor", "--json", code=7))
    [letters] = [one for one in found if one["check"] == "dead-letters" and one["severity"] == "warning"]
    assert letters["seen"].startswith("shard 1: 1 × send")
    [none] = [one for one in found if one["check"] == "dead-letters" and one["severity"] == "ok"]
    assert none["seen"] == "shards 0, 2: there are none"
    [lag] = [one for one in found if one["check"] == "workers"]
    assert lag["seen"] == "there is work and no live worker"


def test_doctor_finds_a_shard_that_is_down_and_looks_at_the_others(say_files: Say, files: Shop) -> None:
    files.add()
    files.kill(2)
    files.lose(1)
    found = lines(say_files("doctor", "--json", code=7))
    [away] = [one for one in found if one["check"] == "shards"]
    assert away["severity"] == "problem"
    assert "shard 1 " in away["seen"]
    assert "is not reached" in away["seen"]
    assert any(one["seen"].startswith("shard 2: 1 × send") for one in found)
    assert [one["reachable"] for one in lines(say_files("shards", "list", "--json"))] == [True, False, True]


def test_a_list_says_which_shard_is_missing_in_it(say_files: Say, files: Shop) -> None:
    ids = files.add()
    files.lose(1)
    said = say_files("jobs", "list", "--json")
    assert {one["id"] for one in lines(said)} == {job for job in ids if stamp_of(job) != 1}
    assert said.stderr.count("shard 1 ") == 1
    assert "does not answer, and is left out" in said.stderr
    assert 'holdfast_shard_up{shard="1"} 0' in say_files("metrics").stdout
    say_files("queues", "pause", "mail", code=4)


def test_doctor_finds_shards_that_were_named_in_another_order(run: Any, files: Shop) -> None:
    first, second, third = words(files).split()
    found = lines(run("doctor", "--json", "--shards", f"{second} {first} {third}", code=7))
    told = [one["seen"] for one in found if one["check"] == "shards"]
    assert len(told) == 2
    assert "named as shard 0" in told[0]
    assert "says that it is shard 1" in told[0]
    run("jobs", "list", "--shards", f"{second} {first} {third}", code=6)


def test_doctor_finds_a_shard_that_goes_by_an_old_map(say: Say, shop: Shop) -> None:
    changed = shop.shards.go(shop.shards.map()).arrived([])
    shop.shards.stores[0].run(shard_map.copy(changed))
    told = [one for one in lines(say("doctor", "--json", code=7)) if one["check"] == "shards"]
    assert [one["severity"] for one in told] == ["warning"] * 2
    assert "shard 1 goes by version 1 of the map, and another by 2" in told[0]["seen"]


def test_the_environment_names_shards_as_well(run: Any, files: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_SHARDS", words(files))
    assert len(lines(run("shards", "list", "--json"))) == SHARDS


def test_shards_of_postgres_are_named_by_their_number(run: Any, pg_url: str) -> None:
    run("migrate", "apply", "--url", pg_url, "--shards", "2")
    told = lines(run("shards", "list", "--json", "--url", pg_url, "--shards", "2"))
    assert [one["schema"] for one in told] == ["holdfast_0", "holdfast_1"]


def test_an_application_without_shards_cannot_be_given_some(run: Any, place: Path) -> None:
    (place / "plainly.py").write_text("from holdfast import Holdfast\nhf = Holdfast('sqlite:///one.db', shards=None)\n")
    said = run("jobs", "list", "--app", "plainly:hf", "--shards", "sqlite:///a.db sqlite:///b.db", code=2)
    assert "url" in said.stderr or "shards" in said.stderr


def test_a_shard_that_has_no_file_is_named(run: Any, files: Shop) -> None:
    files.hf.close()
    for beside in files.files[2].parent.glob(f"{files.files[2].name}*"):
        beside.unlink()
    assert "shard2.db cannot be opened: it is not there" in run("jobs", "list", "--shards", words(files)).stderr
    assert not files.files[2].exists()
    told = lines(run("shards", "list", "--json", "--shards", words(files)))
    assert "shard2.db cannot be opened: it is not there" in told[2]["error"]
    assert not files.files[2].exists()


def test_top_shows_all_shards(say: Say, shop: Shop) -> None:
    ids = shop.add()
    told = json.loads(say("top", "--json").stdout)
    assert told["due"] == len(ids)
    assert len(told["shards"]) == SHARDS


def test_pruning_tells_of_all_shards_as_one(say: Say, shop: Shop) -> None:
    ids = shop.add()
    shop.hf.cancel(everything=True)
    said = say("prune", "--older-than", "0", "--outcome", "cancelled", "--yes", "--chunk", "2").stdout
    assert said.startswith(f"deleted {len(ids)} cancelled in mail")
