"""The site holds every page of the documentation, with a menu, search and links that lead somewhere."""

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tools import site
from tools.markdown import BrokenPage, carried_over
from tools.pages import PageMissing, sections, sources

PLACES = [site.place_of(page) for page in sources()]


@pytest.fixture
def little(tmp_path: Path) -> Path:
    """A repository with a list of one page, and that page."""
    files = {"README.md": "# Top", "CHANGELOG.md": "# Changes", "docs/start.md": "# Start"}
    for name, text in {**files, "docs/README.md": "# Pages\n\n## Learn\n\n- [Start](start.md): begin here.\n"}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text + "\n")
    return tmp_path


def test_the_list_of_pages_says_where_each_is_and_what_it_is_about(little: Path) -> None:
    [learn] = sections(little)
    [start] = learn.entries
    assert (learn.title, start.title, start.place, start.about) == ("Learn", "Start", "start.md", "begin here")


def test_a_page_that_the_list_leaves_out_is_named(little: Path) -> None:
    (little / "docs" / "guide.md").write_text("# Guide\n")
    with pytest.raises(PageMissing, match=r"does not list docs/guide\.md"):
        sections(little)


def test_a_page_that_is_listed_and_not_there_is_named(little: Path) -> None:
    (little / "docs" / "start.md").unlink()
    with pytest.raises(PageMissing, match=r"lists docs/start\.md, which is not there"):
        sections(little)


def test_a_page_that_is_listed_twice_is_named(little: Path) -> None:
    with (little / "docs" / "README.md").open("a") as listed:
        listed.write("\n## Again\n\n- [Start](start.md)\n")
    with pytest.raises(PageMissing, match=r"start\.md twice"):
        sections(little)


def test_links_of_a_page_lead_to_places_of_the_site(little: Path) -> None:
    (little / "code.py").write_text("x = 1\n")
    (little / "docs" / "start.md").write_text("[a](../README.md#top), [b](README.md) and [c](../code.py)\n")
    text, outside = carried_over("docs/start.md", little)
    assert text == "[a](index.md#top), [b](contents.md) and [c](source/code.py.txt)\n"
    assert outside == {"code.py"}


def test_a_link_that_leads_nowhere_is_named(little: Path) -> None:
    (little / "docs" / "start.md").write_text("[a](gone.md)\n")
    with pytest.raises(BrokenPage, match=r"docs/start\.md: gone\.md"):
        carried_over("docs/start.md", little)


def test_lists_are_lists_and_code_stays_as_it_is(little: Path) -> None:
    (little / "docs" / "start.md").write_text("Text:\n- one\n  - two\n\n```\nText:\n- [x](gone.md)\n```\n")
    text, _ = carried_over("docs/start.md", little)
    assert text == "Text:\n\n- one\n    - two\n\n```\nText:\n- [x](gone.md)\n```\n"


def test_links_of_the_built_pages_are_followed_to_their_headings(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(
        '<h1 id="here">A</h1><a href="#here"></a><a href="b.html#there"></a><img src="x.png">'
    )
    (tmp_path / "b.html").write_text('<a href="a.html#here"></a><a href="https://example.com/gone"></a>')
    assert site.broken_links(tmp_path) == ["a.html: b.html#there", "a.html: x.png"]


def test_what_the_builder_warns_of_stops_the_build(little: Path) -> None:
    (little / "docs" / "start.md").write_text("# Start\n\n[nowhere](gone.md)\n")
    (little / "zensical.toml").write_text(site.settings(sections(little)))
    with pytest.raises(site.BrokenSite, match="page does not exist"):
        site._make_html(little)


def test_every_page_is_in_the_menu() -> None:
    menu = tomllib.loads(site.settings(sections()))["project"]["nav"]
    assert sorted(places_in(menu)) == sorted(PLACES)


def places_in(menu: list[dict[str, Any]]) -> list[str]:
    below = [place for item in menu for place in item.values()]
    return [one for place in below for one in (places_in(place) if isinstance(place, list) else [place])]


def test_every_page_is_in_llms_txt_once() -> None:
    listed = re.findall(r"^- \[[^]]+\]\(([^)]+)\)", site.llms(sections()), re.MULTILINE)
    assert sorted(listed) == sorted(PLACES)


# One test, because the build takes seconds: tests of one module may run in several processes.
def test_the_built_site_has_every_page_as_html_as_markdown_and_in_its_search(tmp_path: Path) -> None:
    built = site.build(tmp_path / "site")
    html = {str(Path(place).with_suffix(".html")) for place in PLACES}
    assert len(html) > 90
    assert [place for place in (*PLACES, *html, "llms.txt") if not (built / place).is_file()] == []
    found = {item["location"].partition("#")[0] for item in json.loads((built / "search.json").read_text())["items"]}
    assert html <= found
    loads = re.compile(r"<(?:script|img|link rel=.?(?:stylesheet|preload|preconnect))[^>]*(?:src|href)=.?https?:[^>]*>")
    assert [page.name for page in built.rglob("*.html") if loads.search(page.read_text("utf-8"))] == []
