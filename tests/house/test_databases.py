"""Only the store knows which database it is: nothing else compares names of databases, or imports one dialect."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast

ROOT = Path(holdfast.__file__).parent
PAGE = (Path(__file__).parents[2] / "docs" / "architecture.md").read_text("utf-8")
NAMES = {"postgres", "mysql", "sqlite"}
ONE_DIALECT = re.compile(r"holdfast\.store\.dialects\.(postgres|mysql|sqlite)\b")
# Where it is the subject itself.
MAY_ASK = {
    "bench": "measures each database beside a loop that is written for it",
    "demo": "resets the database that it was given, in that database's words",
    "testing": "reads rows as each database writes them, and finds Django's connection to the same one",
}


def modules() -> Iterator[str]:
    for file in sorted(ROOT.rglob("*.py")):
        name = str(file.relative_to(ROOT))
        if not name.startswith("store/") and not any(name == one or name.startswith(f"{one}/") for one in MAY_ASK):
            yield name


def questions(code: str) -> Iterator[str]:
    """Find what asks for a database by name, or imports its dialect."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            parts = [one for side in sides for one in (side.elts if isinstance(side, ast.Tuple | ast.Set) else [side])]
            if any(isinstance(one, ast.Constant) and one.value in NAMES for one in parts):
                yield ast.unparse(node)
        elif isinstance(node, ast.Dict):
            if NAMES & {key.value for key in node.keys if isinstance(key, ast.Constant)}:
                yield ast.unparse(node)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            named = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
            found = [f"{named}{alias.name}" for alias in node.names]
            yield from (one for one in found if ONE_DIALECT.match(one))


@pytest.mark.parametrize("module", list(modules()))
def test_nothing_outside_of_the_store_asks_which_database_it_is(module: str) -> None:
    assert list(questions(ROOT.joinpath(module).read_text("utf-8"))) == []


@pytest.mark.parametrize("room", list(MAY_ASK))
def test_those_who_may_ask_still_do_and_the_architecture_names_them(room: str) -> None:
    assert [one for file in ROOT.joinpath(room).rglob("*.py") for one in questions(file.read_text("utf-8"))]
    [told] = re.findall(r"^Only `store` knows databases.*?\n\n", PAGE, re.MULTILINE | re.DOTALL)
    assert f"`{room}`" in told


@pytest.mark.parametrize(
    "code",
    [
        "x = store.dialect.name == 'mysql'",
        "x = name in ('postgres', 'other')",
        "x = {'sqlite': 1}[name]",
        "from holdfast.store.dialects.postgres import sqlstate",
        "from holdfast.store.dialects import mysql",
        "import holdfast.store.dialects.sqlite",
    ],
)
def test_a_question_would_be_found(code: str) -> None:
    assert list(questions(code))


def test_what_every_dialect_says_may_be_asked() -> None:
    assert list(questions("from holdfast.store.dialects import SCHEMA_VERSION\nx = store.dialect.embedded")) == []
