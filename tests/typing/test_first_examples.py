"""The first code that people copy type-checks as it stands: the README's, and what `holdfast init` writes.

Strict, without our plugin, with the settings of the sample project.
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.cli.init import FILES
from tests.typing.test_typing import SAMPLE

README = Path(__file__).parents[2] / "README.md"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
CHECKERS = {
    "mypy": ["mypy", "--no-pretty", "."],
    "pyright": ["pyright", "--warnings", "--pythonpath", sys.executable],
}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("examples")
    shutil.copy(SAMPLE / "pyproject.toml", folder)
    blocks = BLOCK.findall(README.read_text("utf-8"))
    assert blocks, "the README has no Python block any more"
    written = {name: text for name, text in FILES.items() if name.endswith(".py")}
    assert written, "`holdfast init` writes no Python any more"
    for name, text in {"readme.py": "\n".join(blocks), **written}.items():
        (folder / name).write_text(text, "utf-8")
    return folder


@pytest.mark.parametrize("checker", sorted(CHECKERS))
def test_the_first_examples_type_check(checker: str, project: Path) -> None:
    words = [sys.executable, "-m", *CHECKERS[checker]]
    done = subprocess.run(words, cwd=project, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
