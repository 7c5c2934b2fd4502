"""A connection that a sink opens at its first send, drops when it is broken, and opens again at the next."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Generic, TypeVar
from urllib.parse import unquote, urlsplit

from holdfast.errors import HoldfastError
from holdfast.sinks.base import SinkDown

T = TypeVar("T")

_SECRET = re.compile(r"pass|secret|token|seed|credential|key", re.IGNORECASE)
REASON_LIMIT = 500
CLOSE_SECONDS = 5.0


class Secrets:
    """What must not be read in a repr, a message or a log: passwords and tokens."""

    def __init__(self, *secrets: str | None) -> None:
        self._secrets = sorted({one for one in secrets if one}, key=len, reverse=True)

    @classmethod
    def of(cls, urls: Iterable[str], options: Mapping[str, object]) -> Secrets:
        """Take them out of URLs, where a user without a password may be a token, and out of a client's options."""
        found = [str(value) for name, value in options.items() if value and _SECRET.search(name)]
        for url in urls:
            login, at, _ = urlsplit(url if "://" in url else f"//{url}").netloc.rpartition("@")
            if at:
                user, _, password = login.partition(":")
                found += [password or user, unquote(password or user)]
        return cls(*found)

    def and_also(self, *more: str | None) -> Secrets:
        return Secrets(*self._secrets, *more)

    def hide(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return text

    def reason(self, error: BaseException) -> str:
        """Say what an error says, in one line of bounded length."""
        text = " ".join(self.hide(str(error)).split())
        name = type(error).__name__
        return (f"{name}: {text}" if text else name)[:REASON_LIMIT]


class Link(Generic[T]):
    """One connection for all sends of a sink. It may be used from one event loop, and after `close` from another."""

    def __init__(
        self,
        name: str,
        open_it: Callable[[], Awaitable[T]],
        shut_it: Callable[[T], Awaitable[object]],
        usable: Callable[[T], bool],
        seconds: float,
        secrets: Secrets,
    ) -> None:
        self._name = name
        self._open = open_it
        self._shut = shut_it
        self._usable = usable
        self._seconds = seconds
        self._secrets = secrets
        self._client: T | None = None
        self._opening: asyncio.Task[T] | None = None
        self._leaving: set[asyncio.Task[None]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None

    async def get(self) -> T:
        """Return the connection, and open it first if need be.

        Raises: SinkDown when that does not work, or takes longer than the connect time-out.
        """
        if self._loop is not (loop := asyncio.get_running_loop()):
            self._loop, self._client, self._opening, self._leaving = loop, None, None, set()
        if self._client is not None:
            if self._usable(self._client):
                return self._client
            # One that was lost while nobody sent is not worth an attempt.
            await self.drop(self._client)
        if self._opening is None:
            self._opening = loop.create_task(self._opened())
            # Asked for, so that asyncio does not complain where every send was cancelled meanwhile.
            self._opening.add_done_callback(lambda opening: opening.cancelled() or opening.exception())
        # Clients leave sockets behind when they are cancelled half-way: a send that is cancelled lets it go on, and the
        # next one finds it open.
        return await asyncio.shield(self._opening)

    async def _opened(self) -> T:
        try:
            async with asyncio.timeout(self._seconds):
                self._client = await self._open()
                return self._client
        except HoldfastError:
            raise
        except TimeoutError:
            raise SinkDown(f"{self._name} did not answer within {self._seconds:g} s") from None
        except Exception as error:
            # The error itself may hold the address with its password.
            raise SinkDown(f"{self._name} cannot be reached: {self._secrets.reason(error)}") from None
        finally:
            self._opening = None

    async def drop(self, client: T) -> None:
        """Close a connection that is broken; the next send opens another."""
        if self._client is client:
            self._client = None
            await self._goodbye(client)

    async def close(self) -> None:
        if self._loop is not asyncio.get_running_loop():
            self._client, self._opening, self._leaving = None, None, set()
            return
        if self._opening is not None:
            await asyncio.wait([self._opening])
        client, self._client = self._client, None
        if client is not None:
            await self._goodbye(client)
        if self._leaving:
            await asyncio.wait(self._leaving)

    async def _goodbye(self, client: T) -> None:
        # In a task of its own: a send that is cancelled meanwhile must not leave it half closed.
        leaving = asyncio.get_running_loop().create_task(self._shut_in_time(client))
        self._leaving.add(leaving)
        leaving.add_done_callback(self._leaving.discard)
        await asyncio.shield(leaving)

    async def _shut_in_time(self, client: T) -> None:
        # One that is broken cannot always say goodbye.
        with contextlib.suppress(Exception):
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._shut(client)
