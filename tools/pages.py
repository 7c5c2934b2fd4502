"""What pages there are, in which order, and what each is about: read from the lists in docs/README.md.

That page is the only list: the menu of the site and `llms.txt` are made from it. A page that it leaves out is an error.
"""

import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).parents[1]
CONTENTS = "docs/README.md"
# Pages outside of docs/ that the site has as well, by the names that they have there.
MOVED = {"README.md": "index.md", CONTENTS: "contents.md", "CHANGELOG.md": "changelog.md"}

_ITEM = re.compile(r"^- (.+?)(?=^- |^$|\Z)", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[([^\]]+)\]\(([^)\s#]+\.md)\)")


class PageMissing(Exception):
    """The list of pages and the pages themselves do not agree."""


@dataclass(frozen=True)
class Entry:
    """A page as the list names it."""

    title: str
    source: str
    about: str

    @property
    def place(self) -> str:
        return place_of(self.source)


@dataclass(frozen=True)
class Section:
    title: str
    entries: tuple[Entry, ...]


def place_of(source: str) -> str:
    """Say where the site has a page, from its path in the repository."""
    if source in MOVED:
        return MOVED[source]
    path = PurePosixPath(source).relative_to("docs")
    return str(path.with_name("index.md") if path.name == "README.md" else path)


def sources(root: Path = ROOT) -> list[str]:
    """List the pages in the repository that belong on the site."""
    found = (str(page.relative_to(root)) for page in root.glob("docs/**/*.md"))
    return [*MOVED, *sorted(set(found) - MOVED.keys())]


def sections(root: Path = ROOT) -> list[Section]:
    """Read the list of pages.

    Raises: PageMissing if a page is not in it, or if it names one twice, or one that is not there.
    """
    text = (root / CONTENTS).read_text("utf-8")
    parts = re.split(r"^## (.+)\n", text, flags=re.MULTILINE)[1:]
    read = [Section(title, _entries(body)) for title, body in zip(parts[::2], parts[1::2], strict=True)]
    _insist_on_agreement([entry.source for section in read for entry in section.entries], root)
    return read


def _entries(body: str) -> tuple[Entry, ...]:
    """Read the entries of a section: one for each link, with the sentences behind it."""
    found = []
    for item in _ITEM.findall(body):
        line = " ".join(item.split())
        links = list(_LINK.finditer(line))
        for link, end in zip(links, [*(later.start() for later in links[1:]), None], strict=True):
            said = line[link.end() : end].lstrip(":, ")
            # What stands before another link, and is not a whole sentence, introduces that one.
            about = (said if end is None else said.rpartition(".")[0]).strip().rstrip(".")
            found.append(Entry(link[1][0].upper() + link[1][1:], f"docs/{link[2]}", about))
    return tuple(found)


def _insist_on_agreement(listed: list[str], root: Path) -> None:
    pages = set(sources(root)) - MOVED.keys()
    if absent := sorted(pages - set(listed)):
        raise PageMissing(f"{CONTENTS} does not list {', '.join(absent)}: add each to the section where it belongs")
    if unknown := sorted(set(listed) - pages):
        raise PageMissing(f"{CONTENTS} lists {', '.join(unknown)}, which is not there")
    if twice := sorted({page for page in listed if listed.count(page) > 1}):
        raise PageMissing(f"{CONTENTS} lists {', '.join(twice)} twice: link it in one list, and name it elsewhere")
