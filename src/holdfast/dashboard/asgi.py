"""The dashboard as an ASGI application. It needs no lifespan: mounted applications get none."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from holdfast.dashboard.guard import guarded
from holdfast.dashboard.http import CUT_SHORT, MOST_BODY, Request, Responder, Response

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class AsgiApp:
    """`await app(scope, receive, send)`. An object, because servers ask its `__call__` whether it is async."""

    def __init__(self, board: Responder) -> None:
        self._board = board

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return await _live(receive, send)
        if scope["type"] != "http":
            await receive()
            return await send({"type": "websocket.close", "code": 1000})
        body = await _body(receive)
        if isinstance(body, Response):
            response = guarded(body)
        else:
            response = await self._board.arespond(_request(scope, body))
        headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in response.all_headers]
        await send({"type": "http.response.start", "status": response.status, "headers": headers})
        sent = b"" if scope["method"] == "HEAD" else response.body
        return await send({"type": "http.response.body", "body": sent})


async def _live(receive: Receive, send: Send) -> None:
    while True:
        what = (await receive())["type"].removeprefix("lifespan.")
        await send({"type": f"lifespan.{what}.complete"})
        if what == "shutdown":
            return


async def _body(receive: Receive) -> bytes | Response:
    parts, size = [], 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return Response.text(400, CUT_SHORT)
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > MOST_BODY:
            return Response.text(413, "That is more than a form of the dashboard holds.")
        if not message.get("more_body"):
            return b"".join(parts)


def _request(scope: Scope, body: bytes) -> Request:
    # Several headers of one name count as one, as in WSGI; Host is asked for by its last.
    headers: dict[str, str] = {}
    for raw, value in scope["headers"]:
        name, text = raw.decode("latin-1").lower(), value.decode("latin-1")
        headers[name] = f"{headers[name]},{text}" if name in headers else text
    base, path = scope.get("root_path", "").rstrip("/"), scope["path"]
    # Frameworks differ in whether the path begins with where the application is mounted.
    if base and (path == base or path.startswith(f"{base}/")):
        path = path[len(base) :]
    client = scope.get("client")
    return Request(
        method=scope["method"],
        path=path or "/",
        query=scope.get("query_string", b"").decode("latin-1"),
        headers=headers,
        body=body,
        base=base,
        scheme=scope.get("scheme", "http"),
        client=client[0] if client else "",
        native=scope,
    )
