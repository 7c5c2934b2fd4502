"""The first code that people copy type-checks as it stands: the README's, that of the page on typing, and what
`holdfast init` writes. What the page calls a mistake is refused.

Strict, without our plugin, with the settings of the sample project.
"""

import shutil
from pathlib import Path

import pytest

from holdfast.cli.init import FILES
from tests.docs.test_docs import ROOT, blocks_of
from tests.typing.test_typing import SAMPLE, Said, ask_mypy, ask_pyright

MISTAKES = "mistakes.py"


def python_of(page: str, *, mistakes: bool = False) -> str:
    """Join the Python of a page; with mistakes, what is not run, too."""
    blocks = [block for block in blocks_of(ROOT / page) if block.language == "python" and "file" not in block.marks]
    assert blocks, f"{page} has no Python block any more"
    return "\n".join(block.text for block in blocks if mistakes or "not run" not in block.marks)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("examples")
    shutil.copy(SAMPLE / "pyproject.toml", folder)
    written = {name: text for name, text in FILES.items() if name.endswith(".py")}
    assert written, "`holdfast init` writes no Python any more"
    pages = {
        "readme.py": python_of("README.md"),
        "typing_page.py": python_of("docs/guides/typing.md"),
        MISTAKES: python_of("docs/guides/typing.md", mistakes=True),
    }
    for name, text in {**pages, **written}.items():
        (folder / name).write_text(text, "utf-8")
    return folder


@pytest.fixture(scope="module", params=[ask_mypy, ask_pyright], ids=["mypy", "pyright"])
def said(request: pytest.FixtureRequest, project: Path) -> list[Said]:
    found: list[Said] = request.param(project)
    return found


def test_the_first_examples_type_check(said: list[Said]) -> None:
    assert [one for one in said if one.file != MISTAKES] == []


def test_what_the_page_calls_a_mistake_is_refused_and_nothing_else(said: list[Said], project: Path) -> None:
    lines = (project / MISTAKES).read_text("utf-8").splitlines()
    marked = {number for number, line in enumerate(lines, 1) if "# error: " in line}
    assert len(marked) >= 10
    assert {one.line for one in said if one.file == MISTAKES} == marked
