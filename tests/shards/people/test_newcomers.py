"""What somebody meets who tries shards on three files: parts that are not there, left out, or not served."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from holdfast import Rate, admin, lines
from holdfast.values.queues import QueueSettings
from tests.cli.conftest import lines as told_in
from tests.shards.people.grounds import Shop
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
