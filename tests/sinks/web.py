"""A small HTTP server in a thread of its own, which keeps what it was sent and answers as a test says."""

import asyncio
import contextlib
import ssl
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

HOST = "127.0.0.1"


@dataclass(frozen=True)
class Request:
    target: str
    headers: dict[str, str]
    body: bytes


Answer = tuple[int, dict[str, str]]


class Web:
    """Requests in the order in which they came; `answer` says what each gets."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.requests: list[Request] = []
        self.answer: Callable[[Request], Answer] = lambda request: (200, {})
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="web", daemon=True)
        self._thread.start()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server = self._await(asyncio.start_server(self._serve, HOST, 0, ssl=tls, limit=1 << 22))
        self.port: int = self._server.sockets[0].getsockname()[1]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        async def end() -> None:
            self._server.close()
            for task in list(self._tasks):
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

        self._await(end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _await(self, work):
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout=30)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
                while True:
                    await self._exchange(reader, writer)
        finally:
            writer.close()
            self._tasks.discard(task)

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        pairs = (line.split(": ", 1) for line in head[1:] if line)
        headers = {name.lower(): value for name, value in pairs}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        request = Request(head[0].split()[1], headers, body)
        status, more = self.answer(request)
        if status < 300:
            self.requests.append(request)
        lines = [f"HTTP/1.1 {status} Said", "content-length: 0", *(f"{name}: {value}" for name, value in more.items())]
        writer.write("\r\n".join(lines).encode() + b"\r\n\r\n")
        await writer.drain()
