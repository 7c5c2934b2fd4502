"""What a run of the tests says at its end, in one process and in several."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Said = Callable[..., tuple[int, list[str]]]

ROOT = Path(__file__).parents[2]
HOOKS = "from tests.conftest import *\n"
TESTS = """
import pytest
from tests import servers

def fail():
    raise servers.Unavailable("Unobtainium", "none is left")

servers.finders["unobtainium"] = fail

@pytest.mark.parametrize("number", range(3))
def test_with_a_server(number):
    servers.need("unobtainium")

@pytest.mark.parametrize("number", range(2))
def test_elsewhere(number):
    pytest.skip("only on Mondays")

@pytest.mark.galera
def test_of_a_cluster():
    pass

def test_it():
    pass
"""


@pytest.fixture(params=["-n0", "-n2"], ids=["one", "two"])
def said(request: pytest.FixtureRequest, tmp_path: Path) -> Said:
    """Run a few tests in that many processes and return the exit code and the lines."""
    (tmp_path / "conftest.py").write_text(HOOKS)
    (tmp_path / "test_few.py").write_text(TESTS)
    plain = ["-p", "xdist", "-p", "no:cacheprovider", "-W", "ignore", "-q", "--tb=no"]
    options = [*plain, "-m", "not galera and not citus", request.param]
    command = [sys.executable, "-m", "pytest", *options, "-c", os.devnull, "--rootdir", str(tmp_path), str(tmp_path)]

    def said(**environment: str) -> tuple[int, list[str]]:
        plain = {name: value for name, value in os.environ.items() if not name.startswith(("CI", "PYTEST"))}
        done = subprocess.run(
            command,
            cwd=ROOT,
            env={**plain, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", **environment},
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout.splitlines()

    return said


def test_the_last_lines_say_what_was_skipped_and_why(said: Said) -> None:
    code, lines = said()

    assert code == 0
    *_, first, second, third, closing = lines
    assert first == "skipped 3: Unobtainium is not to be had here: none is left"
    assert second == "skipped 2: only on Mondays"
    assert third == "left out 1: `make galera` runs them"
    assert closing.startswith("1 passed, 5 skipped")


def test_in_ci_what_cannot_be_had_fails_and_is_named_once(said: Said) -> None:
    code, lines = said(CI="true")

    assert code == 1
    assert "skipped 2: only on Mondays" in lines[-4:]
    assert lines[-2] == "Unobtainium is not to be had here: none is left"
    assert lines[-1].startswith("3 failed, 1 passed, 2 skipped")
