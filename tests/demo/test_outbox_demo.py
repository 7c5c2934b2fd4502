"""The outbox demo, small, into both receivers: it ends well, says so from what arrived, and notices what is wrong."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from holdfast.demo import outbox
from holdfast.demo.outbox import Arrival, InFile, Story

ORDERS = 60
pytestmark = pytest.mark.slow


def test_the_outbox_demo_proves_its_promises_into_nats() -> None:
    console = Console(file=io.StringIO(), width=100, highlight=False)
    code = outbox.run(orders=ORDERS, console=console)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert code == 0, text
    for word in ("NATS JetStream", "killed with SIGKILL while it holds", "Every promise held."):
        assert word in text


def test_the_outbox_demo_proves_its_promises_into_a_file_and_notices_what_is_wrong(tmp_path: Path) -> None:
    console = Console(file=io.StringIO(), width=100, highlight=False)
    receiver = InFile(tmp_path)
    story = Story(f"sqlite:///{tmp_path}/shop.db", tmp_path, receiver, console, ORDERS, 2)
    assert story.tell() == 0, console.file.getvalue()  # type: ignore[attr-defined]

    # Each once: a killed relay may have sent some again, and without the first of two nothing is lost.
    arrived = list(dict.fromkeys(receiver.arrived()))
    never_published = Arrival("x", "customer:1", 1)
    for wrong in (arrived[1:], [*arrived, never_published], arrived[::-1], [*arrived, arrived[0]]):
        story.killed.clear()
        receiver.arrived = lambda wrong=wrong: wrong  # type: ignore[misc]
        assert story.prove() == 1
