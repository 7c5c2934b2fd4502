"""`holdfast top` on a terminal: it looks again and again, tells of an outage and looks through it, and ends cleanly."""

import os
import pty
import select
import signal
import socket
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from fcntl import ioctl
from struct import pack

import pytest

from holdfast import Holdfast
from holdfast.store import Store
from tests.cli.conftest import add
from tests.proxy import Proxy

PATIENCE = 60.0
# What a terminal is told to show another screen, and to go back to the one before.
OTHER_SCREEN, BACK = "\x1b[?1049h", "\x1b[?1049l"
# A shell in the background ignores SIGINT, and its children with it.
HEED = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"


class Terminal:
    """A command on a terminal of its own, 100 by 40."""

    def __init__(self, *args: str) -> None:
        self.screen, self._theirs = pty.openpty()
        ioctl(self._theirs, termios.TIOCSWINSZ, pack("HHHH", 40, 100, 0, 0))
        self.before = termios.tcgetattr(self._theirs)
        self.seen = ""
        command = [sys.executable, "-c", f"{HEED}; from holdfast.cli import main; main()", *args]
        names = {**os.environ, "TERM": "xterm-256color"}
        self.child = subprocess.Popen(command, stdin=self._theirs, stdout=self._theirs, stderr=self._theirs, env=names)

    def until(self, text: str) -> None:
        """Read what is shown until a text comes; what came before is forgotten."""
        deadline = time.monotonic() + PATIENCE
        while text not in self.seen:
            left = deadline - time.monotonic()
            assert left > 0, f"the terminal never showed {text!r}, but: {self.seen[-2000:]!r}"
            if select.select([self.screen], [], [], left)[0]:
                self.seen += os.read(self.screen, 65536).decode(errors="replace")
        self.seen = self.seen.partition(text)[2]

    def ends(self) -> None:
        """Wait for a clean end: no traceback, and the terminal as it was."""
        self.until(BACK)
        assert self.child.wait(PATIENCE) == 0
        left = ""
        while select.select([self.screen], [], [], 0)[0]:
            left += os.read(self.screen, 65536).decode(errors="replace")
        assert "Traceback" not in self.seen + left
        assert termios.tcgetattr(self._theirs) == self.before

    def close(self) -> None:
        self.child.kill()
        self.child.wait()
        os.close(self.screen)
        os.close(self._theirs)


@contextmanager
def terminal(*args: str) -> Iterator[Terminal]:
    made = Terminal(*args)
    try:
        yield made
    finally:
        made.close()


@pytest.mark.parametrize("end", ["q", "Ctrl-C"])
def test_top_looks_again_and_again_until_somebody_ends_it(app: str, store: Store, end: str) -> None:
    add(store, 3)
    with terminal("top", app, "--every", "0.5") as shown:
        shown.until(OTHER_SCREEN)
        shown.until("3 due")
        add(store, 2)
        shown.until("5 due")
        add(store, 1)
        shown.until("6 due")
        # A letter that means nothing ends nothing, and is not echoed.
        os.write(shown.screen, b"z")
        add(store, 1)
        shown.until("7 due")
        if end == "q":
            os.write(shown.screen, b"q")
        else:
            shown.child.send_signal(signal.SIGINT)
        shown.ends()


def test_top_tells_of_an_outage_and_goes_on_after_it(pg_url: str, pg_proxy: Proxy) -> None:
    with Holdfast(pg_url) as hf:
        hf.migrate()
    address, there = pg_proxy.url(pg_url), pg_proxy.target_port
    with closing(Store(pg_url)) as store, terminal("top", "--url", address, "--every", "0.5") as shown:
        add(store, 3)
        shown.until("3 due")
        with socket.create_server(("127.0.0.1", 0)) as nobody:
            away = nobody.getsockname()[1]
        pg_proxy.target_port = away
        pg_proxy.reset_all()
        shown.until("the database is not reached")
        add(store, 2)
        pg_proxy.target_port = there
        shown.until("5 due")
        os.write(shown.screen, b"q")
        shown.ends()
