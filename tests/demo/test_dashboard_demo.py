"""`holdfast demo --dashboard`: a newcomer watches the shop, a killed worker, retries and dead letters in a browser."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

from playwright.sync_api import expect

from tests.dashboard.browser import browser

IMAGES = Path(__file__).resolve().parents[2] / "docs" / "images"
# So few orders that the story takes some seconds; for the picture it takes half a minute.
ORDERS = "600" if os.environ.get("HOLDFAST_IMAGES") == "write" else "40"
PATIENCE = 120.0


def until(told: Path, words: str) -> str:
    """Wait until the story has said something, and return all it has said."""
    deadline = time.monotonic() + PATIENCE
    while words not in (text := told.read_text()):
        assert time.monotonic() < deadline, text
        time.sleep(0.05)
    return text


# A shell that starts things in the background has them ignore SIGINT, and Python leaves that as it is.
DEMO = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); from holdfast.cli import main; main()"


def test_somebody_watches_the_story_in_a_browser_and_replays_the_dead_letters_there(tmp_path: Path) -> None:
    told = tmp_path / "told"
    with told.open("w") as out:
        story = subprocess.Popen(
            [sys.executable, "-c", DEMO, "demo", "--dashboard", "--orders", ORDERS],
            stdout=out,
            # As on a terminal, where somebody may act and the pages stay at the end.
            env={**os.environ, "COLUMNS": "200", "FORCE_COLOR": "1", "PYTHONUNBUFFERED": "1"},
        )
    try:
        address = re.findall(r"http://127\.0\.0\.1:[0-9]+/", until(told, "in a browser"))[0]
        with browser() as chromium:
            page = chromium.new_page(viewport={"width": 1180, "height": 760}, color_scheme="light")
            page.goto(address)
            expect(page.locator(".crew")).to_contain_text("worker1", timeout=PATIENCE * 1000)
            dead = page.locator(".tiles li", has_text="dead letters").locator(".big")
            expect(dead).not_to_have_text("0", timeout=PATIENCE * 1000)
            if ORDERS == "600":
                page.screenshot(path=IMAGES / "dashboard-demo.png")
            until(told, "Replay them on")
            page.goto(f"{address}dead")
            page.click("text=Replay…")
            page.click("[data-yes]")
            until(told, "Somebody replayed them in the browser")
            until(told, "until Ctrl-C")
            page.goto(f"{address}jobs?q=state:done")
            expect(page.locator("tbody tr").first).to_be_visible(timeout=30_000)
        story.send_signal(signal.SIGINT)
        assert story.wait(60) == 0
    finally:
        story.kill()
        story.wait()
    for words in ("is killed with SIGKILL", "Every promise held"):
        assert words in told.read_text()
    assert (IMAGES / "dashboard-demo.png").exists()


def test_the_two_stories_are_told_one_at_a_time() -> None:
    command = [sys.executable, "-c", "from holdfast.cli import main; main()", "demo", "--dashboard", "--outbox"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "leave one of them out" in done.stderr
