"""Lists that name what a folder holds: a file that nobody named would never run, and nothing else would say so."""

import ast
import importlib
import pkgutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType

import click
import pytest

import holdfast.cli
import holdfast.foreign
import holdfast.testing
import holdfast.worker
from holdfast import sinks
from holdfast.cli import COMMANDS
from holdfast.foreign.kinds import KINDS
from holdfast.store.catalogue import foreign_rooms, own_queries, own_rooms, written_in
from holdfast.store.dialects import DIALECTS
from holdfast.testing import plugin, suite
from holdfast.worker import rounds
from holdfast.worker.executors import EXECUTORS
from holdfast.worker.rounds import ROUNDS, Round
from holdfast.worker.work import BaseExecutor

ROOT = Path(holdfast.__file__).parent


def modules_in(package: ModuleType) -> list[ModuleType]:
    names = [one.name for one in pkgutil.iter_modules(package.__path__)]
    return [importlib.import_module(f"{package.__name__}.{name}") for name in names]


def classes_in(package: ModuleType, base: type) -> set[type]:
    """Find the classes below `base` that the modules of a package define themselves."""
    found = {
        value
        for module in modules_in(package)
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, base) and value.__module__ == module.__name__
    }
    return found - {base}


def test_every_round_runs() -> None:
    assert classes_in(rounds, Round) == set(ROUNDS)
    assert len(ROUNDS) == len(set(ROUNDS))


def test_every_executor_can_be_named_by_a_source() -> None:
    assert classes_in(holdfast.worker, BaseExecutor) == set(EXECUTORS.values())


def test_every_kind_of_foreign_tables_can_be_named_on_the_command_line() -> None:
    folders = {one.name for one in pkgutil.iter_modules(holdfast.foreign.__path__) if one.ispkg}
    assert folders == set(KINDS)


def test_every_command_is_on_the_command_line() -> None:
    defined = {
        name
        for module in modules_in(holdfast.cli)
        if isinstance(getattr(module, name := module.__name__.rpartition(".")[2], None), click.Command)
    }
    assert defined == {name.replace("-", "_") for name in COMMANDS}
    assert len(COMMANDS) == len(defined)


def test_every_topic_is_in_the_conformance_suite() -> None:
    topics = {file.stem.removeprefix("suite_") for file in Path(suite.__file__).parent.glob("suite_*.py")}
    assert topics == set(plugin.TOPICS)
    imported = [
        node for node in ast.parse(Path(suite.__file__).read_text("utf-8")).body if type(node) is ast.ImportFrom
    ]
    assert {f"holdfast.testing.suite_{topic}" for topic in topics} == {node.module for node in imported}


@pytest.mark.parametrize("page", ["sinks/README.md", "reference/api.md"])
def test_every_sink_is_in_the_lists_of_sinks(page: str) -> None:
    kinds = [name for name in sinks.__all__ if name != "Sink" and hasattr(getattr(sinks, name), "send")]
    assert len(kinds) >= 9
    text = (Path(__file__).parents[2] / "docs" / page).read_text("utf-8")
    assert [name for name in kinds if f"`{name}`" not in text] == []


def names_in(code: str) -> Iterator[str]:
    """List every text where code may name a query: in a call, in a yield, as an index, in what a loop goes over."""
    for node in ast.walk(ast.parse(code)):
        parts: list[ast.expr] = []
        if isinstance(node, ast.Call):
            parts = node.args
        elif isinstance(node, ast.Subscript):
            parts = [node.slice]
        elif isinstance(node, ast.For):
            parts = [node.iter]
        elif isinstance(node, ast.Yield) and node.value is not None:
            parts = [node.value]
        found = [one for part in parts for one in ast.walk(part) if isinstance(one, ast.Constant)]
        yield from (one.value for one in found if isinstance(one.value, str))


def asked_in(folders: Iterable[str]) -> set[str]:
    files = [file for folder in folders for file in (ROOT / folder).rglob("*.py")]
    return {name for file in files for name in names_in(file.read_text("utf-8"))}


@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_query_is_asked_for(dialect: str) -> None:
    assert sorted(own_queries(dialect).keys() - asked_in([*own_rooms(), "life"])) == []


@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_query_on_foreign_tables_is_asked_for(dialect: str) -> None:
    shared = {name for file in ROOT.joinpath("foreign").glob("*.py") for name in names_in(file.read_text("utf-8"))}
    for room in foreign_rooms(dialect):
        assert sorted(written_in(room, dialect).keys() - asked_in([room]) - shared) == [], room


def test_a_name_would_be_found() -> None:
    code = (
        "ask('a')\nheld(x, 'b' if y else 'c')\nqueries['d']\nfor z in ('e', 'f'): pass\ng = 'h'\ndef i(): yield 'j', k"
    )
    assert sorted(names_in(code)) == ["a", "b", "c", "d", "e", "f", "j"]
