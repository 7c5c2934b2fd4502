"""The demo of durable runs: it ends well, says so from what it counted, and notices what is wrong."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from holdfast.demo.runs import Story

pytestmark = pytest.mark.slow


def test_the_demo_of_runs_proves_its_promises_and_notices_what_is_wrong(tmp_path: Path) -> None:
    console = Console(file=io.StringIO(), width=100, highlight=False)
    story = Story(f"sqlite:///{tmp_path}/shop.db", tmp_path, console)
    code = story.tell()
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert code == 0, text
    for word in ("killed with SIGKILL in the middle of the step charge", "● charge_card", "Every promise held."):
        assert word in text
    calls = story.calls()
    for wrong in (calls[:-1], [*calls, calls[-1]], [("charge", "other", calls[0][2]), *calls[1:]]):
        story.calls = lambda wrong=wrong: wrong  # type: ignore[misc]
        assert story.prove() == 1
    story.hf.close()
