"""Only the dialects and callers' adapters know which database it is: nothing else compares names, or imports one."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast

ROOT = Path(holdfast.__file__).parent
PAGE = (Path(__file__).parents[2] / "docs" / "architecture.md").read_text("utf-8")
# Also within a word, as in `mysql+pymysql://`, and as a class is called.
DATABASE = re.compile(r"postgres|mysql|mariadb|sqlite", re.IGNORECASE)
TEXT_TESTS = {"startswith", "endswith", "removeprefix", "find", "index", "count", "match", "fullmatch", "search"}
ONE_DIALECT = re.compile(r"holdfast\.store\.dialects\.(postgres|mysql|sqlite)\b")
# Where it is the subject itself.
MAY_ASK = {
    "bench": "measures each database beside a loop that is written for it",
    "django/databases.py": "reads Django's entries of DATABASES, which differ for each database",
    "django/fields.py": "reads columns as each database keeps them, on Django's connections",
    "demo": "resets the database that it was given, in that database's words",
    "outbox/debezium/connector.py": "writes the settings of a connector, which differ for each database",
    "store/callers.py": "tells what a caller's connection is by its driver",
    "store/dialects": "is where databases are known",
    "values/urls.py": "hides passwords in URLs of every scheme, of which one names a file and has none",
    "testing": "reads rows as each database writes them, and finds Django's connection to the same one",
}


def modules() -> Iterator[str]:
    for file in sorted(ROOT.rglob("*.py")):
        name = str(file.relative_to(ROOT))
        if not any(name == one or name.startswith(f"{one}/") for one in MAY_ASK):
            yield name


def questions(code: str) -> Iterator[str]:
    """Find what asks for a database by name, or imports its dialect."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            named = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
            found = [f"{named}{alias.name}" for alias in node.names]
            yield from (one for one in found if ONE_DIALECT.match(one))
        elif any(DATABASE.search(text) for part in compared(node) for text in texts(part)):
            yield ast.unparse(node)


def compared(node: ast.AST) -> list[ast.AST]:
    """Return the parts of a node whose texts something is compared with, or looked up by."""
    if isinstance(node, ast.Compare):
        return [node.left, *node.comparators]
    if isinstance(node, ast.Dict):
        return [key for key in node.keys if key is not None]
    if isinstance(node, ast.MatchValue):
        return [node.value]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in TEXT_TESTS:
        return list(node.args)
    return []


def texts(part: ast.AST) -> Iterator[str]:
    """List the texts of a constant, or of a tuple, set or list of them."""
    for one in part.elts if isinstance(part, ast.Tuple | ast.Set | ast.List) else [part]:
        if isinstance(one, ast.Constant) and isinstance(one.value, str):
            yield one.value


@pytest.mark.parametrize("module", list(modules()))
def test_nothing_outside_of_the_dialects_asks_which_database_it_is(module: str) -> None:
    assert list(questions(ROOT.joinpath(module).read_text("utf-8"))) == []


@pytest.mark.parametrize("room", list(MAY_ASK))
def test_those_who_may_ask_still_do_and_the_architecture_names_them(room: str) -> None:
    files = [ROOT / room] if room.endswith(".py") else ROOT.joinpath(room).rglob("*.py")
    assert [one for file in files for one in questions(file.read_text("utf-8"))]
    [told] = re.findall(r"^Only `store` knows databases.*?\n\n", PAGE, re.MULTILINE | re.DOTALL)
    assert f"`{room}`" in told


@pytest.mark.parametrize(
    "code",
    [
        "x = store.dialect.name == 'mysql'",
        "x = name in ('postgres', 'other')",
        "x = {'sqlite': 1}[name]",
        "x = name in ['mysql']",
        "x = name == 'mariadb' or name == 'MySQL'",
        "x = 'mysql' in url",
        "x = type(dialect).__name__ == 'Postgres'",
        "x = url.startswith('mysql')",
        "x = url.startswith(('mysql:', 'mariadb:'))",
        "x = re.match('sqlite:///', url)",
        "match name:\n    case 'mysql' | 'mariadb':\n        pass",
        "from holdfast.store.dialects.postgres import sqlstate",
        "from holdfast.store.dialects import mysql",
        "import holdfast.store.dialects.sqlite",
    ],
)
def test_a_question_would_be_found(code: str) -> None:
    assert list(questions(code))


def test_what_every_dialect_says_may_be_asked() -> None:
    assert list(questions("from holdfast.store.dialects import SCHEMA_VERSION\nx = store.dialect.embedded")) == []
