"""The page on the architecture names files that are there, and the rooms as the linter has them."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text("utf-8")


def test_every_file_that_it_names_is_there() -> None:
    named = set(re.findall(r"`((?:[a-z_]+/)+[a-z_]*(?:\.py|\.sql)?|[a-z_]+\.py)`", PAGE))
    assert len(named) > 40
    places = (ROOT, ROOT / "src" / "holdfast")
    assert [one for one in sorted(named) if not any((place / one).exists() for place in places)] == []


def test_the_picture_shows_the_rooms_in_the_order_of_the_layers() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    [layers] = [one["layers"] for one in settings["tool"]["importlinter"]["contracts"] if one["type"] == "layers"]
    picture = re.search(r"```\n(.*?)```", PAGE, re.DOTALL)
    assert picture
    assert [_rooms(line) for line in picture[1].splitlines()] == [set(re.split(r" [|:] ", layer)) for layer in layers]


def _rooms(line: str) -> set[str]:
    """Read the names in front of what is said about them: a column of its own."""
    return set(line[:42].split())
