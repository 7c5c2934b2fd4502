"""`holdfast shards add`, `drain` and `move`, as somebody at a terminal sees them."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from click.testing import CliRunner, Result

from holdfast import Holdfast
from holdfast.cli import main
from holdfast.store import growing
from tests.shards.stage import key_in


@pytest.fixture
def hf(files: Callable[..., Holdfast]) -> Holdfast:
    return files()


@pytest.fixture
def run(hf: Holdfast) -> Callable[..., Result]:
    places = " ".join(store.url for store in hf.stores.ours)

    def run(*args: str, code: int = 0, **options: Any) -> Result:
        answer = CliRunner().invoke(main, ["shards", *args, "--shards", places], prog_name="holdfast", **options)
        assert answer.exit_code == code, answer.output
        return answer

    return run


def settle(hf: Holdfast) -> None:
    assert hf.shards is not None
    hf.shards.go(growing.arrive(hf.shards, range(1024)))


def test_drain_and_add_show_what_moves_and_are_audited(hf: Holdfast, run: Callable[..., Result]) -> None:
    assert "341 of 1,024 buckets would move" in run("drain", "1", "--dry-run").output
    assert "there is no terminal to ask on" in run("drain", "1", code=2).output
    assert "341 of 1,024 buckets move now" in run("drain", "1", "--yes", "--actor", "ada").output
    told = [json.loads(line) for line in run("list", "--json").output.splitlines()]
    assert [one["state"] for one in told] == ["open", "draining", "open"]
    assert "on their way" in run("add", "1", "--yes", code=6).output
    settle(hf)
    answer = json.loads(run("add", "1", "--yes", "--json").output)
    assert answer["moving"] == 341
    assert answer["buckets"]["1"] == 341
    with hf.stores.ours[0].link() as link:
        lines = list(link.raw.execute("select action, actor from holdfast_audit"))
    assert ("shards_drain", "ada") in lines


def test_move_takes_the_bucket_of_a_key(hf: Holdfast, run: Callable[..., Result]) -> None:
    key = key_in(hf, 0)
    assert "1 of 1,024 buckets move now" in run("move", "--key", key, "--to", "2", "--yes").output
    assert hf.shards is not None
    hf.shards.go(hf.shards.map())
    assert hf.shard_of(key) == 2


@pytest.mark.parametrize(
    "args, words, code",
    [
        (["add", "9"], "Put a new one at the end of shards=", 2),
        (["add", "1"], "Shard 1 has keys already", 6),
        (["move", "--to", "1"], "Name what to move", 2),
        (["move", "--bucket", "1024", "--to", "1"], "must be 0 to 1023", 2),
    ],
)
def test_what_cannot_be_done_says_why(run: Callable[..., Result], args: list[str], words: str, code: int) -> None:
    assert words in run(*args, "--yes", code=code).output


def test_one_database_has_no_shards() -> None:
    answer = CliRunner().invoke(main, ["shards", "list", "--url", "sqlite:///nothing.db"], prog_name="holdfast")
    assert answer.exit_code == 2
    assert "there are no shards" in answer.output
