"""The port that Prometheus and probes ask: three pages, read-only, one short answer to a connection."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress
from typing import Protocol

from holdfast.errors import ConfigError, StoreError
from holdfast.observe.exposition import CONTENT_TYPE

# How long a client may take to ask, and to take the answer. A parent of several processes answers between two looks at
# its children, so it must be short.
CLIENT_SECONDS = 0.5
LONGEST_REQUEST = 8_192
# After a client could not be accepted.
PAUSE_SECONDS = 0.1
PAGES = "/metrics, /livez and /readyz"


class Watched(Protocol):
    """What is asked about: the workers of a host, or a database."""

    def text(self) -> str:
        """Write the metrics. Raises: StoreError, when they cannot be had."""

    def silent(self) -> list[int]:
        """Name the processes that hang."""

    def ready(self) -> bool: ...


def listen(address: tuple[str, int]) -> socket.socket:
    """Open the port. Raises: ConfigError."""
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    try:
        return socket.create_server(address, family=family, backlog=16)
    except OSError as error:
        raise ConfigError("http", f"cannot be listened on: {error}", f"{address[0]}:{address[1]}") from error


def name_of(server: socket.socket) -> str:
    host, port, *_ = server.getsockname()
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def serve(server: socket.socket, board: Watched) -> threading.Thread:
    """Answer on a thread until the socket is closed: a blocked event loop must be told of."""
    thread = threading.Thread(target=_serve, args=(server, board), name="holdfast-http", daemon=True)
    thread.start()
    return thread


def _serve(server: socket.socket, board: Watched) -> None:
    while server.fileno() != -1:
        try:
            connection, _ = server.accept()
        except OSError:
            # Closed, as at a stop; or there are no file descriptors left, of which there may be some soon again.
            time.sleep(PAUSE_SECONDS)
        else:
            answer(connection, board)


def accept(server: socket.socket, board: Watched) -> None:
    """Answer one client that waits."""
    with suppress(OSError):
        connection, _ = server.accept()
        answer(connection, board)


def answer(connection: socket.socket, board: Watched) -> None:
    """Read a request and answer it; a client that is slow or gone is left alone."""
    with connection, suppress(OSError):
        # For all of the request, not for each part of it: one who sends a letter at a time would keep us for an hour.
        until = time.monotonic() + CLIENT_SECONDS
        request = b""
        while b"\r\n\r\n" not in request and len(request) < LONGEST_REQUEST:
            connection.settimeout(max(0.001, until - time.monotonic()))
            part = connection.recv(LONGEST_REQUEST)
            if not part:
                return
            request += part
        connection.settimeout(CLIENT_SECONDS)
        connection.sendall(reply(request, board))


def reply(request: bytes, board: Watched) -> bytes:
    """Make the answer to a request."""
    method, _, rest = request.partition(b" ")
    path = rest.split(b" ", 1)[0].split(b"?", 1)[0].decode("ascii", "replace")
    status, text, kind = _page(path, board) if method in (b"GET", b"HEAD") else ("405 Method Not Allowed", "", "")
    body = text.encode()
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: {kind or 'text/plain; charset=utf-8'}\r\n"
        f"Content-Length: {len(body)}\r\nCache-Control: no-store\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + (b"" if method == b"HEAD" else body)


def _page(path: str, board: Watched) -> tuple[str, str, str]:
    match path:
        case "/metrics":
            try:
                return "200 OK", board.text(), CONTENT_TYPE
            except StoreError as error:
                return "503 Service Unavailable", f"{error}\n", ""
        case "/livez":
            silent = board.silent()
            if silent:
                pids = ", ".join(map(str, silent))
                return "503 Service Unavailable", f"the event loop stands still in: {pids}\n", ""
            return "200 OK", "alive\n", ""
        case "/readyz":
            if board.ready():
                return "200 OK", "ready\n", ""
            return "503 Service Unavailable", "not started, draining, or without a database\n", ""
        case _:
            return "404 Not Found", f"there is {PAGES}\n", ""
