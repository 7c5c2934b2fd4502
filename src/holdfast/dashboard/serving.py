"""Serve the dashboard by itself, with the standard library alone: enough for the few people who look at it.

Each request has a thread of its own, and a connection that says nothing is closed. There is no TLS: where more than
this machine shall reach it, a proxy stands before it.
"""

from __future__ import annotations

import logging
import socket
from socketserver import TCPServer, ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from holdfast.dashboard.wsgi import WsgiApp

log = logging.getLogger("holdfast.dashboard")

SILENT_SECONDS = 30.0


class _Handler(WSGIRequestHandler):
    timeout = SILENT_SECONDS
    server_version = "holdfast"
    sys_version = ""

    def get_environ(self) -> dict[str, Any]:
        # In an environ X_User and X-User are one name: a client's could pass for what a proxy says of who it let in.
        for name in [one for one in self.headers if "_" in one]:
            del self.headers[name]
        environ: dict[str, Any] = super().get_environ()
        environ["SCRIPT_NAME"] = self.server.base_path  # type: ignore[attr-defined]
        return environ

    def log_message(self, format: str, *args: Any) -> None:
        log.debug(format, *args)


class Server(ThreadingMixIn, WSGIServer):
    """A server of one dashboard; port 0 takes a free one, and `address` tells which."""

    daemon_threads = True
    # A page is asked again each two seconds: what is under way at a stop need not be waited for.
    block_on_close = False
    request_queue_size = 64

    def __init__(self, app: WsgiApp, host: str, port: int, base_path: str = "") -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.base_path = base_path.rstrip("/")
        self.host = host
        super().__init__((host, port), _Handler)
        self.set_app(self._within_base if self.base_path else app)
        self._dashboard = app

    def server_bind(self) -> None:
        # Without asking a name server what we are called, which may take seconds.
        TCPServer.server_bind(self)
        self.server_name, self.server_port = self.host, self.server_address[1]
        self.setup_environ()

    def _within_base(self, environ: dict[str, Any], start_response: Any) -> Any:
        """Take off the path that a proxy leaves on, where it does."""
        path = environ["PATH_INFO"]
        if path == self.base_path or path.startswith(f"{self.base_path}/"):
            environ["PATH_INFO"] = path[len(self.base_path) :]
        return self._dashboard(environ, start_response)

    def handle_error(self, request: Any, client_address: Any) -> None:
        log.debug("a connection ended early", exc_info=True)

    @property
    def address(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.server_port}{self.base_path}/"
