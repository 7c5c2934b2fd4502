"""The demo in a browser: its dashboard, served while the story is told."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from holdfast.dashboard import ACTIONS, Access
from holdfast.dashboard.guard import LOOPBACK
from holdfast.dashboard.serving import Server
from holdfast.demo.shop import Shop

PORT = 8321


@contextmanager
def window(shop: Shop) -> Iterator[str]:
    """Serve the dashboard of the shop to this machine, and return its address; actions are allowed."""
    watching = Access("demo", tuple(ACTIONS))  # type: ignore[arg-type]
    board = shop.holdfast.dashboard(access=lambda _request: watching, hosts=LOOPBACK, title="Holdfast demo", refresh=1)
    try:
        server = Server(board.wsgi, "127.0.0.1", PORT)
    except OSError:
        server = Server(board.wsgi, "127.0.0.1", 0)
    with server:
        serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True)
        serving.start()
        try:
            yield server.address
        finally:
            server.shutdown()
            serving.join()
