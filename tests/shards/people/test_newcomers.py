"""What somebody meets who tries shards on three files: parts that are not there, left out, or not served."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from holdfast import Holdfast, Rate, admin, events, lines
from holdfast.errors import ConfigError, Conflict, FileRefused
from holdfast.values.queues import QueueSettings
from holdfast.values.shards import stamp_of
from holdfast.worker import registry
from tests.cli.conftest import lines as told_in
from tests.shards.people.grounds import Shop, declare
from tests.shards.people.test_cli import APP

Say = Callable[..., Result]
LIMITS = QueueSettings(concurrency=6, rate=Rate(600, per=60), across="split")


@pytest.fixture
def say(run: Any, files: Shop, place: Path) -> Say:
    """Run a command for the application of three files, whose URLs it names."""
    urls = [store.url for store in files.shards.stores]
    (place / "sharded.py").write_text(APP.format(said=f"shards={urls!r}"))
    return lambda *args, code=0, **more: run(*args, "--app", "sharded:hf", code=code, **more)


def stored_in(files: Shop) -> list[QueueSettings | None]:
    found = [store.run(lines.stored()).get("provider") for store in files.shards.stores]
    return [None if one is None else one.settings for one in found]


def findings(said: Result, check: str) -> list[tuple[str, str]]:
    return [(one["severity"], one["seen"]) for one in told_in(said) if one["check"] == check]


def remove(files: Shop, *numbers: int) -> None:
    """Take the files of shards away, as if they had never been copied, or the working folder was another."""
    files.hf.close()
    for number in numbers:
        for beside in files.files[number].parent.glob(f"{files.files[number].name}*"):
            beside.rename(beside.parent / f"gone-{beside.name}")


# Settings


def test_a_shard_that_nobody_has_served_gets_all_settings_of_a_queue(say: Say, files: Shop) -> None:
    for number in (0, 2):
        files.shards.stores[number].run(lines.declare({"provider": LIMITS}))
    said = say("queues", "set", "provider", "--concurrency", "10")
    assert "concurrency 6, rate 600/60s, across split → concurrency 10, rate 600/60s, across split" in said.stdout
    assert stored_in(files) == [LIMITS.changed(concurrency=10)] * 3
    parts = [one.here for one in stored_in(files) if one is not None]
    assert sum(one.concurrency or 0 for one in parts) == 10
    assert sum(one.rate.count for one in parts if one.rate) == 600
    assert "differently" not in say("queues", "list").stderr


def test_shards_that_have_different_settings_are_named(say: Say, files: Shop) -> None:
    for number in (0, 2):
        files.shards.stores[number].run(lines.declare({"provider": LIMITS}))
    files.shards.stores[1].run(admin.change_queue("provider", {"concurrency": 10}, "ann"))
    seen = (
        "queue provider is stored differently: shards 0 and 2: concurrency 6, rate 600/60s, across split; "
        "shard 1: concurrency 10"
    )
    assert seen in say("queues", "list").stderr
    assert ("warning", seen) in findings(say("doctor", "--json", code=7), "queues")


def test_a_shard_that_nobody_serves_is_named_while_others_are_served(say: Say, files: Shop) -> None:
    for number in (0, 2):
        info = '{"host": "web1", "queues": ["mail"], "kinds": ["send"], "shards": [0, 2]}'
        files.shards.stores[number].run(registry.beat("web1-1-a", info))
    [served, missed] = findings(say("doctor", "--json", code=7), "workers")
    assert served == ("ok", "1 live worker")
    assert missed == ("warning", "shard 1: no live worker serves it (others serve 0 and 2)")
    assert "`holdfast worker sharded:hf --serve-shards 1`" in say("doctor", code=7).stdout


def test_that_no_worker_lives_is_told_once(say: Say, files: Shop) -> None:
    files.hf.handlers["send"].using(key="order:1").enqueue(n=1)
    assert findings(say("doctor", "--json", code=7), "workers") == [("problem", "there is work and no live worker")]


def test_a_worker_wants_a_list_of_numbers(files: Shop) -> None:
    with pytest.raises(ConfigError, match=r"shards: must be a list of whole numbers, as in \[0, 2\]; got '0,2'"):
        files.hf.worker(shards="0,2")  # type: ignore[arg-type]


# The list of shards


def test_a_shard_that_is_down_is_listed_so_with_the_reason_below(say: Say, files: Shop) -> None:
    remove(files, 1)
    said = say("shards", "list")
    assert [line.split()[2] for line in said.stdout.splitlines()] == ["STATE", "open", "down", "open"]
    assert "MOVING" not in said.stdout
    assert said.stderr.startswith("shard 1 (sqlite:///")


def test_a_shard_in_another_place_of_the_list_is_named(run: Any, files: Shop) -> None:
    first, second, third = (store.url for store in files.shards.stores)
    said = run("shards", "list", "--shards", f"{first} {third} {second}").stdout
    assert "is shard 2, listed as 1" in said
    assert "is shard 1, listed as 2" in said


def test_workers_are_listed_with_the_shards_that_they_serve(say: Say, files: Shop) -> None:
    for number in (0, 2):
        files.shards.stores[number].run(registry.beat("web1-1-a", '{"host": "web1", "shards": [0, 2]}'))
    assert say("workers", "list").stdout.splitlines()[1].endswith("0, 2")


def test_a_worker_says_which_shards_it_serves(files: Shop) -> None:
    started: list[events.WorkerStarted] = []
    files.hf.on(events.WorkerStarted, started.append)

    async def work() -> None:
        async with files.hf.worker(shards=[0, 2]):
            pass
        async with files.hf.worker():
            pass

    asyncio.run(work())
    assert [one.shards for one in started] == [[0, 2], None]


# Changes


def test_what_cannot_be_drained_or_is_not_there_is_refused_at_once(say: Say, files: Shop) -> None:
    assert "Shard 0 is not drained" in say("shards", "drain", "0", "--dry-run", code=6).stderr
    assert "Shard 0 is not drained" in say("shards", "drain", "0", code=6).stderr
    assert "there is no shard 5; the application has 0 to 2" in say("shards", "drain", "5", "--dry-run", code=2).stderr
    said = say("shards", "move", "--key", "a", "--to", "9", "--dry-run", code=2).stderr
    assert "--to: there is no shard 9; the application has 0 to 2" in said


def test_a_change_that_one_shard_has_not_heard_of_is_told(say: Say, files: Shop) -> None:
    files.add()
    remove(files, 1)
    for command in (("set", "mail", "--concurrency", "5"), ("pause", "mail"), ("resume", "mail")):
        said = say("queues", *command, code=4).stderr
        assert "error: Stored in shards 0 and 2; shard 1 (sqlite:///" in said
        assert "does not answer: say the same again when it is back" in said
    said = say("jobs", "cancel", "--kind", "send", "--yes", code=4).stderr
    assert "error: Nothing was done: shard 1 (sqlite:///" in said


def test_words_that_name_no_shards_are_refused(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_SHARDS", "three")
    with pytest.raises(ConfigError, match="HOLDFAST_SHARDS: must be a number, or URLs separated by spaces; got 'three"):
        Holdfast()


# A list that is too short


def test_a_shard_that_is_taken_for_all_is_told(
    run: Any, files: Shop, place: Path, caplog: pytest.LogCaptureFixture
) -> None:
    url, why = files.shards.stores[1].url, "this database is shard 1 of 3: name all in shards="
    assert findings(run("doctor", "--json", "--url", url, code=7), "shards") == [("problem", why)]
    assert f"note: {why} or --shards" in run("jobs", "list", "--url", url).stderr
    hf = declare(Holdfast(url))

    async def work() -> None:
        async with hf.worker():
            pass
        await hf.aclose()

    asyncio.run(work())
    assert [record.message for record in caplog.records if why in record.message] == [
        f"{why}; this worker serves that shard alone"
    ]


def test_a_shard_that_is_not_in_the_list_is_missed(run: Any, files: Shop, place: Path) -> None:
    urls = [store.url for store in files.shards.stores][:2]
    (place / "shorter.py").write_text(APP.format(said=f"shards={urls!r}"))
    why = "the map has 3 shards, but this application lists 2: shard 2 is missing (341 buckets). Deploy the whole list."
    assert ("problem", why) in findings(run("doctor", "--json", "--app", "shorter:hf", code=7), "shards")
    for command in (("shards", "list"), ("migrate", "apply"), ("jobs", "list")):
        assert f"note: {why}" in run(*command, "--app", "shorter:hf").stderr
    assert f"The worker does not start: {why}" in run("worker", "shorter:hf", code=6).stderr


def test_a_worker_names_the_shard_without_tables(say: Say, run: Any, files: Shop) -> None:
    remove(files, 1)
    files.files[1].touch()
    said = run("worker", "sharded:hf", code=3).stderr
    assert "Shard 1 (" in said
    assert "`holdfast migrate apply --app sharded:hf`" in said
    assert "shard0.db" not in said


# A file that is not there


def test_lists_are_of_the_others_and_say_what_to_do(say: Say, files: Shop) -> None:
    ids = files.add()
    remove(files, 1)
    said = say("jobs", "list", "--json")
    assert {one["id"] for one in told_in(said)} == {job for job in ids if stamp_of(job) != 1}
    assert said.stderr.count("shard 1 ") == 1
    assert "Restore it, or check its path and the working folder" in said.stderr
    assert not files.files[1].exists()


def test_only_a_migration_makes_a_file(say: Say, files: Shop) -> None:
    remove(files, 1)
    say("shards", "drain", "2", "--yes", code=4)
    assert "is not there" in say("queues", "pause", "mail", code=4).stderr
    files.hf = files.again()
    keys = [f"order:{n}" for n in range(10) if files.hf.shard_of(f"order:{n}") == 1]
    with pytest.raises(FileRefused):
        files.hf.handlers["send"].using(key=keys[0]).enqueue(n=1)

    async def work() -> None:
        async with files.hf.worker():
            pass

    asyncio.run(work())
    assert not files.files[1].exists()


def test_no_empty_shard_is_made_in_the_place_of_one_that_has_keys(say: Say, files: Shop) -> None:
    remove(files, 1)
    said = say("migrate", "apply", code=6).stderr
    assert "there is no database file" in said
    assert "by the map it has 341 buckets of keys. Restore it, or check its URL and the working folder" in said
    assert "`holdfast migrate apply --new-shard 1 --app sharded:hf`" in said
    assert not files.files[1].exists()
    files.hf = files.again()
    with pytest.raises(Conflict, match="Nothing was made"):
        files.hf.migrate()
    assert not files.files[1].exists()
    assert "the application has shards 0 to 2" in say("migrate", "apply", "--new-shard", "7", code=2).stderr
    say("migrate", "apply", "--new-shard", "1")
    assert [one["reachable"] for one in told_in(say("shards", "list", "--json"))] == [True] * 3


def test_the_first_shard_is_not_made_anew_either(say: Say, files: Shop) -> None:
    remove(files, 0)
    assert "shard 0 (" in say("migrate", "apply", code=6).stderr
    assert not files.files[0].exists()


def test_doctor_does_not_say_that_files_answer_which_are_not_there(say: Say, files: Shop) -> None:
    remove(files, 0, 1, 2)
    [(severity, seen)] = findings(say("doctor", "--json", code=7), "shards")
    assert (severity, seen[:9]) == ("problem", "0 of 3 an")


def test_where_no_file_is_there_a_migration_makes_all(say: Say, files: Shop) -> None:
    remove(files, 0, 1, 2)
    said = say("jobs", "list", code=3).stderr
    assert "`holdfast migrate apply --app sharded:hf` creates it" in said
    say("migrate", "apply")
    say("jobs", "list")
