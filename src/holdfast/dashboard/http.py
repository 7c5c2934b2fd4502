"""A request and a response as plain values, whatever server they come from and go to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol
from urllib.parse import parse_qs, urlencode

# Forms here hold ids and a few words; a page of chosen jobs is some kilobytes.
MOST_BODY = 1_000_000
MOST_FIELDS = 5_000
# Said where a connection broke within a form: a part of a search finds more than all of it, so nothing must be done.
CUT_SHORT = "The form did not arrive whole, so nothing was done."


class TooLarge(Exception):
    """The body of a request is larger than any form here."""


@dataclass(frozen=True)
class Request:
    """What was asked.

    path: below `base`, where the dashboard is mounted; it begins with a slash. headers: names in lower case. client:
    the address of who is connected, which may be a proxy. native: the WSGI environ or the ASGI scope, with whatever the
    framework has put there.
    """

    method: str
    path: str
    query: str = ""
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    body: bytes = b""
    base: str = ""
    scheme: str = "http"
    client: str = ""
    native: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def host(self) -> str:
        return self.headers.get("host", "")

    @cached_property
    def said(self) -> Fields:
        """What the query says, or the form of a POST; never both, so that a link can add nothing to a form."""
        if self.method == "POST":
            return Fields.of(self.body.decode("utf-8", "replace"))
        return Fields.of(self.query)


class Fields:
    """The fields of a query or a form."""

    def __init__(self, values: dict[str, list[str]]) -> None:
        self._values = values

    @classmethod
    def of(cls, text: str) -> Fields:
        try:
            return cls(parse_qs(text, keep_blank_values=True, max_num_fields=MOST_FIELDS))
        except ValueError as error:
            raise TooLarge("too many fields") from error

    def one(self, name: str, default: str = "") -> str:
        """Return the last value of a field, without space around it."""
        values = self._values.get(name)
        return values[-1].strip() if values else default

    def many(self, name: str) -> list[str]:
        return [value.strip() for value in self._values.get(name, []) if value.strip()]

    def number(self, name: str, default: int = 0, most: int = 10**9) -> int:
        """Return a count; what is not one counts as the default."""
        text = self.one(name)
        return min(int(text), most) if text.isascii() and text.isdigit() and len(text) < 20 else default

    def pairs(self, *leave: str) -> list[tuple[str, str]]:
        """List all fields, for a form that says the same again."""
        return [(name, value) for name, values in self._values.items() if name not in leave for value in values]

    def __contains__(self, name: str) -> bool:
        return name in self._values


@dataclass(frozen=True)
class Response:
    """What is answered; the headers that every answer has are added by the guard."""

    status: int
    body: bytes
    kind: str = "text/html; charset=utf-8"
    headers: tuple[tuple[str, str], ...] = ()

    @classmethod
    def text(cls, status: int, text: str, *headers: tuple[str, str]) -> Response:
        return cls(status, text.encode(), "text/plain; charset=utf-8", headers)

    @property
    def all_headers(self) -> list[tuple[str, str]]:
        return [("content-type", self.kind), ("content-length", str(len(self.body))), *self.headers]


class Responder(Protocol):
    """What answers requests, in either colour."""

    def respond(self, request: Request) -> Response: ...

    async def arespond(self, request: Request) -> Response: ...


def link(base: str, path: str, **said: object) -> str:
    """Write the address of a page; what is empty is left out."""
    flat = [(name, str(value)) for name, value in said.items() if value not in (None, "", False)]
    return f"{base}/{path.lstrip('/')}" + (f"?{urlencode(flat)}" if flat else "")
