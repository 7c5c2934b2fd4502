"""The public surface as mypy strict sees it: what must pass, and what must not."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
COMPLAINT = re.compile(r"^[^:]+:(\d+): error: (.*)$", re.MULTILINE)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One cache for the module, apart from that of `make check`, which other options filled."""
    return tmp_path_factory.mktemp("mypy")


def mypy(file: Path, cache: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--no-pretty", "--hide-error-context"]
    return subprocess.run(
        [*command, "--cache-dir", str(cache), "--follow-imports=silent", str(file)],
        cwd=ROOT,
        env=os.environ | {"MYPYPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        check=False,
    )


def expected(file: Path) -> dict[int, str]:
    lines = enumerate(file.read_text().splitlines(), 1)
    return {number: line.partition("# refused: ")[2] for number, line in lines if "# refused: " in line}


def test_what_applications_write_passes_mypy_strict(cache: Path) -> None:
    done = mypy(HERE / "good.py", cache)
    assert (done.stdout, done.returncode) == ("", 0), done.stdout + done.stderr


def test_wrong_calls_are_refused_with_the_expected_words(cache: Path, tmp_path: Path) -> None:
    sample = Path(shutil.copy(HERE / "bad.sample", tmp_path / "bad.py"))
    done = mypy(sample, cache)
    found: dict[int, str] = {}
    for number, message in COMPLAINT.findall(done.stdout):
        found[int(number)] = found.get(int(number), "") + message
    wanted = expected(sample)
    assert found.keys() == wanted.keys(), done.stdout + done.stderr
    for number, words in wanted.items():
        assert words in found[number]
