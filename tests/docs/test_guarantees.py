"""The page of guarantees names real tests, and the README's short table leads to it."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text("utf-8")
PAGE = (ROOT / "docs" / "guarantees.md").read_text("utf-8")
TABLE = re.compile(r"\| Promise \| Proof \|\n\|[-|]+\|\n((?:\|.*\|\n)+)")
_PROOF = re.compile(r"\[(test_\w+)\]\(([\w./-]+)\)")


def rows() -> dict[str, list[tuple[str, str]]]:
    """Read the tables: each promise with the tests that prove it, as (name, file)."""
    cells = [line.strip("|").split("|") for table in TABLE.findall(PAGE) for line in table.splitlines()]
    return {promise.strip(): _PROOF.findall(proof) for promise, proof in cells}


def functions_in(path: Path) -> set[str]:
    tree = ast.parse(path.read_text("utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def test_every_promise_of_the_design_has_its_row():
    # Nine of the design, three of order and limits, one each of shared commits, schedules, chains, results, debounce
    # and events, two of runs, three of shards.
    assert len(rows()) == 23


@pytest.mark.parametrize("promise", rows())
def test_every_promise_names_its_tests(promise):
    assert rows()[promise]


@pytest.mark.parametrize("name, file", [proof for proofs in rows().values() for proof in proofs])
def test_every_named_test_exists(name, file):
    assert name in functions_in(ROOT / "docs" / file)


def test_the_readme_promises_something_of_every_section_and_links_to_it():
    [short] = TABLE.findall(README)
    linked = re.findall(r"\[([^]]+)\]\(docs/guarantees\.md#[\w-]+\)", short)
    assert len(linked) == len(short.splitlines())
    assert linked == [part.partition("\n")[0] for part in PAGE.split("\n## ")[1:] if TABLE.search(part)]


def test_the_shipped_suite_is_run_by_our_own_tests():
    assert "from holdfast.testing.suite import *" in (ROOT / "tests/conformance/test_store.py").read_text("utf-8")
