"""The README's example does what the README says it does, also the second time."""

import re
import subprocess
import sys
from pathlib import Path

from tests.docs.test_docs import ROOT, blocks_of, environment

README = ROOT / "README.md"


def test_the_example_prints_what_is_shown_and_can_be_run_again(tmp_path: Path) -> None:
    blocks = blocks_of(README)
    [example] = [block.text for block in blocks if block.language == "python"]
    [shown] = [block.text for block in blocks if block.language == "text"]
    (tmp_path / "shop.py").write_text(example, "utf-8")
    for number in ("1", "2"):
        command = [sys.executable, "-W", "error", "shop.py"]
        done = subprocess.run(
            command, cwd=tmp_path, env=environment(tmp_path), capture_output=True, text=True, check=False
        )
        assert (done.stderr, done.stdout) == ("", shown.replace("1", number))


def test_it_says_how_to_install_it_before_anything_else() -> None:
    text = README.read_text("utf-8")
    assert text.index("pip install") < 1000
    assert re.search(r"no broker", text[:600], re.IGNORECASE)
