"""Carry a page over to the site: point its links there, and fix what GitHub reads and the site's Markdown does not."""

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

from tools.pages import MOVED, ROOT, place_of

_TARGET = re.compile(r"(?<=\]\()[^)\s]+(?=\))")
_FENCE = re.compile(r" *(```|~~~)")
_ITEM = re.compile(r"(?:[-*]|\d+\.) ")


class BrokenPage(Exception):
    """A page has a link that leads nowhere."""


def copy_of(name: str) -> str:
    """Say where the site has a file that is not in docs/: as text, which browsers show and do not store."""
    return f"source/{name}.txt"


def carried_over(source: str, root: Path = ROOT) -> tuple[str, set[str]]:
    """Read a page as the site needs it, and name the files outside of docs/ that it links to. Raises: BrokenPage."""
    outside: set[str] = set()

    def point(match: re.Match[str]) -> str:
        path, mark, anchor = match[0].partition("#")
        if not path or re.match(r"\w+:", path):
            return match[0]
        name = os.path.normpath(PurePosixPath(source).parent / path)
        if not (root / name).is_file():
            raise BrokenPage(f"{source}: {match[0]}: there is no such file")
        if name in MOVED or (name.startswith("docs/") and name.endswith(".md")):
            place = place_of(name)
        elif name.startswith("docs/"):
            place = name.removeprefix("docs/")
        else:
            outside.add(name)
            place = copy_of(name)
        return os.path.relpath(place, PurePosixPath(place_of(source)).parent) + mark + anchor

    text = "\n".join(_mended((root / source).read_text("utf-8").splitlines(), lambda line: _TARGET.sub(point, line)))
    return text + "\n", outside


def _mended(lines: list[str], prose: Callable[[str], str]) -> Iterator[str]:
    """Give lists the empty line before them and the four spaces inside them that the site's Markdown needs."""
    fence, shift, before = "", 0, ""
    for line in lines:
        mark = _FENCE.match(line)
        if fence:
            yield " " * shift + line if line else ""
            fence = "" if mark and line.strip() == fence else fence
            continue
        text = line.lstrip(" ")
        indent = len(line) - len(text)
        shift = 4 - indent if indent in (2, 3) else 0
        if _ITEM.match(text) and _is_prose(before) and (indent == 0 or not before.startswith(" ")):
            yield ""
        fence = mark[1] if mark else ""
        yield " " * shift + (line if fence else prose(line))
        before = line


def _is_prose(line: str) -> bool:
    """Say whether a list after this line would be read as more of its paragraph."""
    return bool(line.strip()) and line.lstrip(" ")[0] not in "#|<" and not _ITEM.match(line.lstrip(" "))
