"""The layout holds: import-linter's contracts say which room may import which; here is what they cannot say."""

import ast
import importlib
import pkgutil
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import grimp
import pytest

import holdfast

ROOT = Path(holdfast.__file__).parent
# The rooms, and the rooms within them.
ROOMS = sorted(one.name for one in pkgutil.walk_packages([str(ROOT)], "holdfast.") if one.ispkg)


@cache
def imports() -> grimp.ImportGraph:
    """Every import of ours, those for type checkers included."""
    return grimp.build_graph("holdfast", exclude_type_checking_imports=False)


def test_no_module_is_in_a_cycle_even_through_type_imports() -> None:
    assert list(_cycles(imports())) == []


def test_a_cycle_would_be_found() -> None:
    graph = grimp.ImportGraph()
    for importer, imported in [("a", "b"), ("b", "c"), ("c", "a"), ("c", "d")]:
        graph.add_import(importer=importer, imported=imported)
    assert list(_cycles(graph)) == [{"a", "b", "c"}]


def test_no_part_of_the_worker_takes_the_whole_worker() -> None:
    # `process` runs a whole worker, and the room's `__init__` gives its name to those outside.
    users = imports().find_modules_that_directly_import("holdfast.worker.worker")
    assert users == {"holdfast.worker", "holdfast.worker.process"}
    parts = {name for name in imports().modules if name.startswith("holdfast.worker.")} - {"holdfast.worker.process"}
    assert [name for name in sorted(parts) if re.search(r"\b(worker|app): \"?(Worker|Holdfast)\b", _code(name))] == []


def _code(module: str) -> str:
    return Path(importlib.import_module(module).__file__ or "").read_text("utf-8")


def _cycles(graph: grimp.ImportGraph) -> Iterator[set[str]]:
    seen: set[str] = set()
    for module in sorted(graph.modules):
        if module in seen:
            continue
        ring = _reached(graph, module) & _reaching(graph, module)
        seen |= ring
        if ring:
            yield ring


def _reached(graph: grimp.ImportGraph, module: str) -> set[str]:
    return set(graph.find_downstream_modules(module)) | _self_if(graph, module)


def _reaching(graph: grimp.ImportGraph, module: str) -> set[str]:
    return set(graph.find_upstream_modules(module)) | _self_if(graph, module)


def _self_if(graph: grimp.ImportGraph, module: str) -> set[str]:
    """A module is in a ring with those that it reaches and that reach it."""
    both = set(graph.find_downstream_modules(module)) & set(graph.find_upstream_modules(module))
    return {module} if both else set()


# How a room says what does not belong there: with the place where it does, or with "not".
NOT_HERE = re.compile(r"belongs? (to|beside|in|elsewhere)\b|not belong|here\. \w+ does not|nothing [^.]* belongs", re.I)


@pytest.mark.parametrize("room", ROOMS)
def test_every_room_says_what_belongs_there(room: str) -> None:
    said = " ".join((importlib.import_module(room).__doc__ or "").split())
    assert len(said.split()) > 15, f"{room}: one paragraph on what belongs there, and what does not"
    assert NOT_HERE.search(said), f"{room}: what does not belong there, and where it does"


# Where modules stood before there were rooms, where they stand now, and what applications import from them.
MOVED = {
    "holdfast.process": ("holdfast.worker.process", {"main", "run_one"}),
    "holdfast.health": ("holdfast.admin.health", {"table_health", "long_transactions", "missing_indexes"}),
    "holdfast.migrate": ("holdfast.store.migrate", {"apply", "pending", "version", "check"}),
    "holdfast.jobs": ("holdfast.life.expiry", {"LEASE_EXPIRED"}),
}


@pytest.mark.parametrize("old", MOVED)
def test_a_module_that_moved_is_still_imported_by_its_old_name(old: str) -> None:
    new, names = MOVED[old]
    before, now = importlib.import_module(old), importlib.import_module(new)
    assert {name: getattr(before, name) for name in names} == {name: getattr(now, name) for name in names}


def test_no_module_is_longer_than_it_should_be() -> None:
    long = {
        str(file.relative_to(ROOT)): n for file in ROOT.rglob("*.py") if (n := len(file.read_text().split("\n"))) > 500
    }
    assert long == {}


# What is longer than 50 lines, and why it stays so.
LONG = {
    "store/dialects/mysql/drivers.py:async_class": "a class of the driver's, which is imported at first use",
    "store/dialects/mysql/drivers.py:sync_class": "a class of the driver's, which is imported at first use",
    "worker/slots.py:_run_jobs": "the path of every job: calls that were measured are written out",
}


def test_no_function_is_longer_than_it_should_be() -> None:
    long = {f"{name}:{node.name}" for name, node in _functions() if (node.end_lineno or 0) - node.lineno + 1 > 50}
    assert long == LONG.keys()


def _functions() -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for file in ROOT.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield str(file.relative_to(ROOT)), node
