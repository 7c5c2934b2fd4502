"""Webhooks: one signed POST for each message, to an address of the public internet."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from holdfast.errors import ConfigError
from holdfast.sinks import addresses
from holdfast.sinks.base import Delivered, Failed, Message, Mode, Outcome, Refused, SinkDown
from holdfast.sinks.bindings import TOKEN, packed, percent, printable
from holdfast.sinks.link import Link, Secrets
from holdfast.sinks.order import Answer, Down, in_turn
from holdfast.sinks.settings import mode_of, seconds, texts, whole
from holdfast.sinks.signatures import keys_of, signed
from holdfast.values.drivers import importing, require

if TYPE_CHECKING:
    from httpx import AsyncClient, Response

# Answers that a repeated request would get, too: the message is at fault, or the receiver is gone for good. Others of
# 4xx (401, 403, 404, …) are at fault for every message, and somebody may put them right.
NEVER = frozenset({400, 406, 410, 411, 413, 414, 415, 422, 431})
MAY_HAVE_ARRIVED = frozenset({502, 504})
# What of an answer is read at most, so that the connection can be used again.
_ANSWER_BYTES = 65_536
_RETRY_AFTER_AT_MOST = 86_400.0
_ADDRESS_SECONDS = 10.0
# What a publisher's headers must not change.
_RESERVED = re.compile(
    r"(webhook|proxy|ce)-.*|host|content-.*|transfer-encoding|connection|keep-alive|te|trailer|upgrade|expect|"
    r"authorization|cookie|user-agent|accept-encoding"
)
# Set while one of ours is sent: httpx logs every request with its whole URL, and many have a token in their path.
_ours: ContextVar[bool] = ContextVar("holdfast_webhook", default=False)


class Webhook:
    """Post to a URL: `Webhook("https://example.com/hooks", secret="whsec_…")`.

    Signed as Standard Webhooks has it, with the event's id as `webhook-id`; several secrets sign side by side while one
    is changed. Binary mode has the attributes in headers `ce-…`. Redirects are not followed, and addresses that are not
    public are refused when it connects; allow_private=True is for receivers inside. concurrency: how many requests run
    at the same time. timeout: seconds for one request. headers: sent with each. options: passed on to
    `httpx.AsyncClient` (verify, cert, …).
    """

    def __init__(
        self,
        url: str,
        *,
        secret: str | bytes | Sequence[str | bytes] | None = None,
        mode: Mode = "binary",
        headers: Mapping[str, str] | None = None,
        allow_private: bool = False,
        concurrency: int = 10,
        timeout: float = 15.0,
        connect_timeout: float = 5.0,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        require("httpx", "http")
        [self._url] = texts("url", url)
        self._host, self._port = _host_and_port(self._url)
        self._keys = keys_of(secret)
        self._mode: Mode = mode_of(mode)
        self._headers = dict(headers or {})
        self._allow_private = allow_private
        if not allow_private and (address := addresses.literal(self._host)) and not addresses.is_public(address):
            raise ConfigError("url", "names a private address, which only allow_private=True permits", self._host)
        self._concurrency = whole("concurrency", concurrency, at_least=1)
        self._timeout = seconds("timeout", timeout)
        self._connect_timeout = seconds("connect_timeout", connect_timeout)
        self._options = dict(options or {})
        self._secrets = _secrets(self._url, self._headers, self._options)
        self._known: tuple[float, list[str]] = (0.0, [])
        self._link: Link[AsyncClient] = Link(
            self._host, self._open, _shut, lambda client: not client.is_closed, self._connect_timeout, self._secrets
        )

    def __repr__(self) -> str:
        # The path is left out: many receivers have a token in it.
        return f"Webhook('{urlsplit(self._url).scheme}://{self._host}:{self._port}/…')"

    async def send(self, messages: Sequence[Message]) -> Sequence[Outcome]:
        """Post the messages. Raises: SinkDown when the receiver cannot be reached, or asks for a pause."""
        return await in_turn(messages, self._one, self._concurrency)

    async def close(self) -> None:
        """Close the connections."""
        await self._link.close()

    async def _open(self) -> AsyncClient:
        with importing("httpx", "http"):
            import httpx

        settings: dict[str, Any] = {
            "timeout": httpx.Timeout(self._timeout, connect=self._connect_timeout),
            "limits": httpx.Limits(max_connections=self._concurrency, max_keepalive_connections=self._concurrency),
            # A proxy of the environment would connect for us, to wherever the name leads there.
            "trust_env": False,
        }
        if self._url.startswith("http://"):
            # Redirects are not followed, so it never comes to TLS: reading the authorities would be wasted.
            settings["verify"] = False
        settings |= self._options
        settings["follow_redirects"] = False
        # Added once, however often: a logger keeps a filter that it has.
        logging.getLogger("httpx").addFilter(_is_not_ours)
        return httpx.AsyncClient(**settings)

    async def _one(self, message: Message) -> Answer:
        import httpx

        client = await self._link.get()
        failure: Answer = Down(f"{self._host} has no address")
        for address in await self._addresses():
            try:
                async with asyncio.timeout(self._timeout):
                    with _unlogged():
                        return await self._post(client, message, address)
            except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout) as error:
                failure = Down(self._secrets.reason(error))
            except TimeoutError:
                return Failed(f"no answer within {self._timeout:g} s", unknown=True)
            except httpx.TransportError as error:
                return Failed(self._secrets.reason(error), unknown=True)
        return failure

    async def _addresses(self) -> list[str | None]:
        """List where to connect to: None for the URL as it is.

        Raises: SinkDown where no address may be used.
        """
        if self._allow_private:
            return [None]
        if (address := addresses.literal(self._host)) is not None:
            return [address]
        until, known = self._known
        if time.monotonic() > until:
            try:
                async with asyncio.timeout(self._connect_timeout):
                    found = await addresses.addresses_of(self._host, self._port)
            except (OSError, TimeoutError) as error:
                raise SinkDown(f"{self._host} cannot be resolved: {self._secrets.reason(error)}") from None
            known = [one for one in found if addresses.is_public(one)]
            if not known:
                raise SinkDown(f"{self._host} leads to private addresses only, which allow_private=True permits")
            self._known = (time.monotonic() + _ADDRESS_SECONDS, known)
        return [*known]

    async def _post(self, client: AsyncClient, message: Message, address: str | None) -> Answer:
        import httpx

        headers, body = packed(message, self._mode, value=percent, reserved=_reserved)
        headers |= signed(self._keys, printable(message.event.id), int(time.time()), body) | self._headers
        url, extensions = httpx.URL(self._url), {}
        if address is not None:
            # To the address that was looked at; TLS still asks for, and checks, the name.
            headers["Host"] = url.netloc.decode()
            extensions = {"sni_hostname": self._host}
            url = url.copy_with(host=address)
        encoded = {name: printable(value) for name, value in headers.items()}
        async with client.stream("POST", url, content=body, headers=encoded, extensions=extensions) as response:
            read = 0
            async for chunk in response.aiter_raw():
                read += len(chunk)
                if read > _ANSWER_BYTES:
                    break
            return _verdict(response)


@contextmanager
def _unlogged() -> Iterator[None]:
    token = _ours.set(True)
    try:
        yield
    finally:
        _ours.reset(token)


def _is_not_ours(_: logging.LogRecord) -> bool:
    return not _ours.get()


def _verdict(response: Response) -> Answer:
    status = response.status_code
    said = f"HTTP {status} {response.reason_phrase}".strip()
    pause = _retry_after(response)
    if 200 <= status < 300:
        return Delivered(said)
    if 300 <= status < 400:
        return Failed(f"{said}: redirects are not followed; name the right URL")
    if status in NEVER:
        return Refused(said, str(status))
    if status == 429 or (status == 503 and pause is not None):
        return Down(said, pause)
    return Failed(said, pause, unknown=status in MAY_HAVE_ARRIVED)


def _retry_after(response: Response) -> float | None:
    """Read how many seconds the receiver asks for; a date counts from the receiver's own clock, if it says that."""
    said = response.headers.get("retry-after", "").strip()
    if said.isdigit():
        return min(float(said), _RETRY_AFTER_AT_MOST)
    when = _date(said)
    if when is None:
        return None
    now = _date(response.headers.get("date", "")) or datetime.now(UTC)
    return min(max((when - now).total_seconds(), 0.0), _RETRY_AFTER_AT_MOST)


def _date(text: str) -> datetime | None:
    try:
        found = parsedate_to_datetime(text)
    except ValueError:
        return None
    return found.replace(tzinfo=found.tzinfo or UTC)


def _reserved(name: str) -> bool:
    return TOKEN.fullmatch(name) is None or _RESERVED.fullmatch(name) is not None


def _host_and_port(url: str) -> tuple[str, int]:
    rule = "must be an address such as https://example.com/hooks"
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise ConfigError("url", rule, "a text that is not a URL") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError("url", rule, parts.scheme)
    return parts.hostname, port or {"http": 80, "https": 443}[parts.scheme]


def _secrets(url: str, headers: Mapping[str, str], options: Mapping[str, Any]) -> Secrets:
    parts = urlsplit(url)
    found = Secrets.of([url], options)
    path = parts.path if len(parts.path) > 1 else None
    return found.and_also(*headers.values(), path, parts.query)


async def _shut(client: AsyncClient) -> None:
    await client.aclose()
