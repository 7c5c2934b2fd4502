"""A browser without a screen: asks a dashboard in either colour, reads the HTML, fills in forms."""

import asyncio
import io
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any
from urllib.parse import urlencode, urlsplit

from holdfast.dashboard import Dashboard

VOID = ("input", "meta", "link", "img", "br", "hr", "rect", "option")
FIELDS = ("input", "textarea", "select")


@dataclass
class Form:
    """A form with what it would send."""

    method: str
    action: str
    fields: list[tuple[str, str]] = field(default_factory=list)
    buttons: list[str] = field(default_factory=list)


class Page(HTMLParser):
    """What an answer holds: elements with their texts, links, forms."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []
        self.forms: list[Form] = []
        self._open: list[str] = []
        self._form: Form | None = None
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        said = dict(attrs)
        self.elements.append((tag, said))
        if tag not in VOID:
            self._open.append(tag)
        if tag == "form":
            self._form = Form((said.get("method") or "get").lower(), said.get("action") or "")
            self.forms.append(self._form)
        elif self._form is not None and tag in FIELDS and said.get("name") and said.get("type") != "checkbox":
            self._form.fields.append((str(said["name"]), said.get("value") or ""))

    def handle_endtag(self, tag: str) -> None:
        if tag == "form":
            self._form = None
        while self._open and self._open.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        if data.strip():
            self.texts.append((self._open[-1] if self._open else "", data.strip()))
            if self._form is not None and self._open and self._open[-1] == "button":
                self._form.buttons.append(data.strip())

    def of(self, tag: str) -> list[str]:
        return [text for at, text in self.texts if at == tag]

    @property
    def words(self) -> str:
        return " ".join(text for _, text in self.texts)

    def attribute(self, name: str) -> list[str]:
        return [str(said[name]) for _, said in self.elements if name in said]

    def form(self, action: str) -> Form:
        """Find the form that leads to an action."""
        found = [one for one in self.forms if urlsplit(one.action).path.endswith(action)]
        assert found, f"no form leads to {action}; there are {[one.action for one in self.forms]}"
        return found[0]


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    text: str

    @property
    def page(self) -> Page:
        return Page(self.text)


class Client:
    """Asks as a browser on the same origin does, unless headers say otherwise."""

    def __init__(self, board: Dashboard, colour: str = "wsgi", base: str = "") -> None:
        self.board, self.colour, self.base = board, colour, base

    def get(self, path: str, **headers: str) -> Answer:
        return self.ask("GET", path, b"", headers)

    def post(self, path: str, fields: Any = (), **headers: str) -> Answer:
        body = urlencode(list(fields.items() if isinstance(fields, dict) else fields)).encode()
        return self.ask("POST", path, body, {"sec_fetch_site": "same-origin"} | headers)

    def submit(self, form: Form, **more: str) -> Answer:
        """Send a form, with what somebody has filled in."""
        fields = [(name, value) for name, value in form.fields if name not in more] + list(more.items())
        path = form.action.removeprefix(self.base)
        if form.method == "post":
            return self.post(path, fields)
        return self.get(f"{path}?{urlencode(fields)}")

    def ask(self, method: str, path: str, body: bytes, headers: dict[str, str]) -> Answer:
        sent = {name.replace("_", "-"): value for name, value in ({"host": "testserver"} | headers).items() if value}
        split = urlsplit(path)
        ask = self._wsgi if self.colour == "wsgi" else self._asgi
        return ask(method, split.path, split.query, body, sent)

    def _wsgi(self, method: str, path: str, query: str, body: bytes, headers: dict[str, str]) -> Answer:
        environ = {
            "REQUEST_METHOD": method,
            "SCRIPT_NAME": self.base,
            "PATH_INFO": path.encode().decode("latin-1"),
            "QUERY_STRING": query,
            "CONTENT_LENGTH": str(len(body)),
            "wsgi.input": io.BytesIO(body),
            "wsgi.url_scheme": "http",
            "REMOTE_ADDR": "127.0.0.1",
        } | {f"HTTP_{name.upper().replace('-', '_')}": value for name, value in headers.items()}
        told: list[Any] = []
        parts = self.board.wsgi(environ, lambda status, sent: told.extend((status, sent)))
        answered = {name.lower(): value for name, value in told[1]}
        return Answer(int(told[0].split()[0]), answered, b"".join(parts).decode())

    def _asgi(self, method: str, path: str, query: str, body: bytes, headers: dict[str, str]) -> Answer:
        scope = {
            "type": "http",
            "method": method,
            "path": self.base + path,
            "root_path": self.base,
            "query_string": query.encode(),
            "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
            "client": ("127.0.0.1", 1),
        }
        sent: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": body}

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        async def ask() -> None:
            await self.board.asgi(scope, receive, send)
            # The loop ends with this request, and with it the connections that it has opened.
            await self.board.setting.store.aclose()

        asyncio.run(ask())
        begin, *rest = sent
        answered = {name.decode(): value.decode() for name, value in begin["headers"]}
        return Answer(begin["status"], answered, b"".join(one["body"] for one in rest).decode())
