"""The public surface as an application's type checkers see it: mypy and pyright, strict and without our plugin.

They read the sample project, in a folder of its own, with Holdfast found as any installed package is: by `py.typed`.
"""

import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

SAMPLE = Path(__file__).parent / "sample"
KEPT = Path(__file__).parents[2] / ".run" / "mypy-of-samples"
MYPY_SAYS = re.compile(r"^(\w+\.py):(\d+): error: (.*)  \[([\w-]+)\]$", re.MULTILINE)


class Said(NamedTuple):
    """One complaint of a checker, or what pyright reveals, which has no rule."""

    file: str
    line: int
    rule: str
    text: str


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(shutil.copytree(SAMPLE, tmp_path_factory.mktemp("application") / "shop"))


@pytest.fixture(scope="module")
def pyright_says(project: Path) -> list[Said]:
    return ask_pyright(project)


@pytest.fixture(scope="module")
def mypy_says(project: Path) -> list[Said]:
    return ask_mypy(project)


def ask_pyright(project: Path) -> list[Said]:
    words = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable]
    done = subprocess.run(words, cwd=project, capture_output=True, text=True, check=False)
    return [
        Said(Path(one["file"]).name, one["range"]["start"]["line"] + 1, one.get("rule", ""), one["message"])
        for one in json.loads(done.stdout)["generalDiagnostics"]
    ]


def ask_mypy(project: Path) -> list[Said]:
    # A process of its own: inside this one mypy would raise the recursion limit for every test to come.
    words = [sys.executable, "-m", "mypy", "--no-pretty", "--hide-error-context", "--no-error-summary", "."]
    # What the projects import is the same, and most of the work; one at a time, because both write what they found.
    KEPT.mkdir(parents=True, exist_ok=True)
    with (KEPT / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        env = os.environ | {"MYPY_CACHE_DIR": str(KEPT)}
        done = subprocess.run(words, cwd=project, capture_output=True, text=True, check=False, env=env)
    return [Said(file, int(line), rule, text) for file, line, text, rule in MYPY_SAYS.findall(done.stdout)]


def comments(word: str) -> dict[tuple[str, int], str]:
    """Find the comments that begin with a word, by file and line."""
    found: dict[tuple[str, int], str] = {}
    for file in SAMPLE.glob("*.py"):
        for number, line in enumerate(file.read_text().splitlines(), 1):
            if f"# {word}: " in line:
                found[file.name, number] = line.partition(f"# {word}: ")[2]
    return found


@pytest.mark.parametrize("checker", ["mypy", "pyright"])
def test_the_mistakes_are_refused_and_nothing_else(checker: str, request: pytest.FixtureRequest) -> None:
    rules: dict[tuple[str, int], set[str]] = {}
    for said in request.getfixturevalue(f"{checker}_says"):
        if said.rule:
            rules.setdefault((said.file, said.line), set()).add(said.rule)
    wanted = {where: rule.split(", ")[checker == "pyright"] for where, rule in comments("error").items()}
    assert wanted
    assert rules.keys() == wanted.keys()
    # What follows from a mistake may be said beside it.
    assert [where for where in wanted if wanted[where] not in rules[where]] == []


def test_pyright_shows_what_enqueue_takes(pyright_says: list[Said]) -> None:
    shown = {(said.file, said.line): said.text.partition(" is ")[2] for said in pyright_says if not said.rule}
    assert shown == {where: f'"{kind}"' for where, kind in comments("reveals").items()}
    assert shown
