"""A real browser: Debian's Chromium, driven by Playwright, and axe, which looks for what keeps people out of a page."""

import contextlib
import hashlib
import os
import shutil
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from holdfast.dashboard import Dashboard
from holdfast.dashboard.serving import Server
from tests import servers
from tests.servers import TOOLS, Unavailable

CHROMIUM, AXE = "chromium", "axe-core of npm"
AXE_PACKAGE = "axe-core@4.14.0"
AXE_SHA256 = "20c09fe157a8a34a30e241aaa1fcdade657734f08ab379ecfbeb7d45cc46e878"
QUIET = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--disable-quic",
)


def _chromium() -> Path:
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if not found:
        if os.geteuid() != 0 or not shutil.which("apt-get"):
            raise Unavailable(CHROMIUM, "it is not installed, and apt-get installs only for root")
        try:
            servers.apt_get("install", "--yes", "--no-install-recommends", "chromium", "fonts-dejavu-core")
        except (OSError, RuntimeError) as error:
            raise Unavailable(CHROMIUM, str(error)) from error
        found = shutil.which("chromium")
    if not found:
        raise Unavailable(CHROMIUM, "apt-get installed no chromium")
    return Path(found)


def _axe() -> Path:
    target = TOOLS / "axe.min.js"
    if not target.exists():
        if not shutil.which("npm"):
            raise Unavailable(AXE, "npm is not installed")
        TOOLS.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=TOOLS) as folder:
            try:
                servers.run(["npm", "pack", "--silent", AXE_PACKAGE], cwd=Path(folder))
                shutil.unpack_archive(next(Path(folder).glob("*.tgz")), folder)
            except (OSError, RuntimeError, StopIteration) as error:
                raise Unavailable(AXE, str(error)) from error
            shutil.copy(Path(folder) / "package" / "axe.min.js", target)
    if hashlib.sha256(target.read_bytes()).hexdigest() != AXE_SHA256:
        raise Unavailable(AXE, f"{target} is not what was written down; delete it")
    return target


servers.finders[CHROMIUM] = _chromium
servers.finders[AXE] = _axe


@contextlib.contextmanager
def browser() -> Iterator[Any]:
    """Start the browser."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        running = play.chromium.launch(executable_path=str(servers.need(CHROMIUM)), args=list(QUIET))
        try:
            yield running
        finally:
            running.close()


@contextlib.contextmanager
def served(board: Dashboard) -> Iterator[str]:
    """Serve a dashboard as the command does, on a free port, and return its address."""
    with Server(board.wsgi, "127.0.0.1", 0) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            yield server.address.rstrip("/")
        finally:
            server.shutdown()
            thread.join(5)


def serious(page: Any) -> list[str]:
    """Run axe on a page, and name what is serious or worse."""
    # By the protocol: the page's own policy lets no script in.
    page.evaluate(servers.need(AXE).read_text())
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return [
        f"{one['id']}: {one['help']} ({', '.join(str(node['target']) for node in one['nodes'][:3])})"
        for one in found["violations"]
        if one["impact"] in ("serious", "critical")
    ]
