"""The dashboard as a WSGI application."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from http import HTTPStatus
from typing import Any

from holdfast.dashboard.guard import guarded
from holdfast.dashboard.http import CUT_SHORT, MOST_BODY, Request, Responder, Response


class WsgiApp:
    """`app(environ, start_response)`."""

    def __init__(self, board: Responder) -> None:
        self._board = board

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        response = self.answer(environ)
        status = f"{response.status} {_phrase(response.status)}"
        start_response(status, [(name.title(), value) for name, value in response.all_headers])
        return [] if environ["REQUEST_METHOD"] == "HEAD" else [response.body]

    def answer(self, environ: dict[str, Any], body: bytes | None = None) -> Response:
        """Answer what an environ asks; `body` where a framework has read it already."""
        try:
            length = int(environ.get("CONTENT_LENGTH") or 0)
        except ValueError:
            length = -1
        if not 0 <= length <= MOST_BODY:
            return guarded(Response.text(413, "That is more than a form of the dashboard holds."))
        if body is None:
            body = environ["wsgi.input"].read(length) if length else b""
        if len(body) < length:
            return guarded(Response.text(400, CUT_SHORT))
        return self._board.respond(_request(environ, body))


def _request(environ: dict[str, Any], body: bytes) -> Request:
    headers = {
        name[5:].replace("_", "-").lower(): str(value) for name, value in environ.items() if name.startswith("HTTP_")
    }
    return Request(
        method=environ["REQUEST_METHOD"],
        path=_text(environ.get("PATH_INFO")) or "/",
        query=environ.get("QUERY_STRING", ""),
        headers=headers,
        body=body,
        base=_text(environ.get("SCRIPT_NAME")).rstrip("/"),
        scheme=environ.get("wsgi.url_scheme", "http"),
        client=environ.get("REMOTE_ADDR", ""),
        native=environ,
    )


def _text(raw: str | None) -> str:
    # PEP 3333: bytes, written as latin-1.
    return (raw or "").encode("latin-1", "replace").decode("utf-8", "replace")


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Other"
