"""In every example `job: Job` comes first: then type checkers read `enqueue` right without a plugin."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.test_docs import PAGES, ROOT, blocks_of

SOURCES = sorted((ROOT / "src" / "holdfast").rglob("*.py"))
EXAMPLES = sorted(file for folder in ("examples", "deploy") for file in (ROOT / folder).rglob("*.py"))
# A handler as prose and docstrings write it, on one line.
WRITTEN = re.compile(r"`+(?:async )?def \w+\((?P<parameters>[^`]*)\)[^`]*`")


def late(code: str) -> Iterator[str]:
    """Name the functions of a text that take a job, and not first."""
    for node in ast.walk(ast.parse(code.replace("…", "..."))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            given = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            takes = [n for n, one in enumerate(given) if _is_job(one.annotation)]
            if any(n > (given[0].arg == "self") for n in takes):
                yield f"{node.name} on line {node.lineno}"


def _is_job(annotation: ast.expr | None) -> bool:
    return annotation is not None and re.fullmatch(r"'?Job( \| None)?'?", ast.unparse(annotation)) is not None


def test_a_job_that_comes_late_would_be_found() -> None:
    assert list(late("async def a(n: int, job: Job) -> None: ...\ndef b(job: Job, n: int): ...")) == ["a on line 1"]
    assert _late_in_prose("as in `async def paid(event: CloudEvent, job: Job)`, or so") == [
        "event: CloudEvent, job: Job"
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_job_comes_first_in_the_examples_of_a_page(page: Path) -> None:
    for block in blocks_of(page):
        if block.language == "python":
            assert list(late(block.text)) == [], f"{page.relative_to(ROOT)}:{block.line}"
    assert _late_in_prose(page.read_text("utf-8")) == []


def test_the_job_comes_first_in_the_example_projects() -> None:
    takers = [file for file in EXAMPLES if "job: Job" in file.read_text("utf-8")]
    assert len(takers) >= 4
    assert {str(file): found for file in takers if (found := list(late(file.read_text("utf-8"))))} == {}


def test_the_job_comes_first_in_what_docstrings_and_messages_show() -> None:
    assert {str(file): found for file in SOURCES if (found := _late_in_prose(file.read_text("utf-8")))} == {}


def _late_in_prose(text: str) -> list[str]:
    shown = [one["parameters"] for one in WRITTEN.finditer(text)]
    return [one for one in shown if re.search(r".,\s*\w+: Job\b", one) and not one.startswith("job: Job")]
