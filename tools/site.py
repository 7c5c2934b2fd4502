"""Build the documentation as a site with search: `make site`, or `python -m tools.site`.

The pages stay plain Markdown that reads well in the repository, too. They are copied into a folder of the build,
Zensical makes HTML of them, and every link of the result is followed. Beside each page there is its Markdown, and
`llms.txt` lists these for programs that read.
"""

import argparse
import json
import re
import shutil
import subprocess
import sys
import tomllib
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

from tools.markdown import BrokenPage, carried_over, copy_of
from tools.pages import ROOT, PageMissing, Section, place_of, sections, sources

BUILD = ROOT / ".run" / "site"
SETTINGS = """\
[project]
site_name = "Holdfast"
site_description = {about}
copyright = "MIT licence"
use_directory_urls = false
nav = {menu}

[project.theme]
language = "en"
font = false  # nothing is loaded from elsewhere
features = [
  "content.code.copy",
  "navigation.footer",
  "navigation.indexes",
  "navigation.path",
  "navigation.prune",
  "navigation.top",
  "search.highlight",
  "toc.follow",
]

[[project.theme.palette]]
media = "(prefers-color-scheme: light)"
scheme = "default"
toggle.icon = "lucide/sun"
toggle.name = "Switch to dark mode"

[[project.theme.palette]]
media = "(prefers-color-scheme: dark)"
scheme = "slate"
toggle.icon = "lucide/moon"
toggle.name = "Switch to light mode"

[project.markdown_extensions]
attr_list = {{}}
tables = {{}}
toc.permalink = true
toc.slugify.object = "pymdownx.slugs.slugify"  # headings are named as GitHub names them
toc.slugify.kwds.case = "lower"
pymdownx.highlight.pygments_lang_class = true
pymdownx.superfences = {{}}
pymdownx.tasklist = {{}}
"""


class BrokenSite(Exception):
    """The pages did not become a site in which every link leads somewhere."""


def build(folder: Path = BUILD) -> Path:
    """Build the site below a folder and return where its pages are. Raises: BrokenPage, BrokenSite, PageMissing."""
    menu = sections()
    shutil.rmtree(folder, ignore_errors=True)
    stage(folder / "docs")
    (folder / "zensical.toml").write_text(settings(menu), "utf-8")
    _make_html(folder)
    site = folder / "site"
    for page in sources():
        shutil.copy(folder / "docs" / place_of(page), site / place_of(page))
    (site / "llms.txt").write_text(llms(menu), "utf-8")
    if broken := broken_links(site):
        raise BrokenSite("these links lead nowhere:\n" + "\n".join(broken))
    return site


def stage(folder: Path) -> None:
    """Copy pages, pictures, and the files that pages link to, each to its place on the site."""
    shutil.copytree(ROOT / "docs", folder, ignore=shutil.ignore_patterns("*.md"))
    for source in sources():
        text, outside = carried_over(source)
        _write(folder / place_of(source), text)
        for name in outside:
            _write(folder / copy_of(name), (ROOT / name).read_text("utf-8"))


def _write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, "utf-8")


def settings(menu: list[Section]) -> str:
    """Write Zensical's settings, with the menu."""
    tree = [
        {"Holdfast": "index.md"},
        *({section.title: [{entry.title: entry.place} for entry in section.entries]} for section in menu),
        {"All pages": "contents.md"},
        {"Changelog": "changelog.md"},
    ]
    return SETTINGS.format(about=json.dumps(_description()), menu=_toml(tree))


def _toml(value: object) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{json.dumps(name)} = {_toml(item)}" for name, item in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value)


def _description() -> str:
    described = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    return str(described["project"]["description"])


def _make_html(folder: Path) -> None:
    """Run Zensical; whatever it warns of is an error."""
    zensical = [sys.executable, "-m", "zensical", "build", "--strict", "--clean"]
    done = subprocess.run(zensical, cwd=folder, capture_output=True, text=True, check=False)
    told = done.stdout + done.stderr
    if done.returncode or re.search(r"\b(?:warning|error)\b", told, re.IGNORECASE):
        raise BrokenSite(f"Zensical ended with {done.returncode}:\n{told}")


def llms(menu: list[Section]) -> str:
    """List every page for programs that read, in the form that llmstxt.org proposes."""
    lines = ["# Holdfast", "", f"> {_description()}", "", "Install `holdfast-db`, import `holdfast`."]
    for section in menu:
        lines += ["", f"## {section.title}", ""]
        for page in section.entries:
            lines.append(f"- [{page.title}]({page.place})" + (f": {page.about}" if page.about else ""))
    lines += ["", "## Optional", "", "- [Overview](index.md): what the repository's first page says"]
    return "\n".join([*lines, "- [All pages](contents.md)", "- [Changelog](changelog.md)", ""])


class _Page(HTMLParser):
    """The places that a page links to, and the names that it can be linked to by."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.names: set[str] = set()
        self.feed(file.read_text("utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id" and value:
                self.names.add(value)
            elif name in ("href", "src") and value:
                self.links.add(value)


def broken_links(site: Path) -> list[str]:
    """List the links of HTML pages that lead nowhere in the site, and those that load something from elsewhere."""
    pages = {file: _Page(file) for file in site.rglob("*.html") if file.name != "404.html"}
    broken = []
    for file, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (file.parent / unquote(parts.path)).resolve() if parts.path else file
            target = target / "index.html" if target.is_dir() else target
            known = target not in pages or not parts.fragment or unquote(parts.fragment) in pages[target].names
            if not target.is_file() or not known:
                broken.append(f"{file.relative_to(site)}: {link}")
    return sorted(broken)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.site", description="Build the documentation as a site.")
    parser.add_argument("--folder", type=Path, default=BUILD, help="where to build (default: .run/site)")
    try:
        site = build(parser.parse_args().folder)
    except (BrokenPage, BrokenSite, PageMissing) as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{len(list(site.rglob('*.html')))} pages: {site / 'index.html'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
