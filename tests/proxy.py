"""A TCP proxy that does to a connection what networks do: delay it, swallow it, reset it, lose the answer to a COMMIT.

It runs in a thread of its own, so that sync and async tests steer it alike:

    with Proxy(postgres.port) as proxy:
        connection = psycopg.connect(proxy.url(postgres.url()))
        proxy.cut_commit_reply()
"""

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Literal, Self, TypeVar
from urllib.parse import urlsplit, urlunsplit

HOST = "127.0.0.1"
READ_SIZE = 1 << 16
LINGER_ZERO = struct.pack("ii", 1, 0)

ENCRYPTION_REQUESTS = {80877103, 80877104}
BIND_COMPLETE, COMMAND_COMPLETE, DATA_ROW, NOTICE, READY = b"2", b"C", b"D", b"N", b"Z"

T = TypeVar("T")
Predicate = Callable[[str], bool]


class Cut:
    """An order to lose the answers whose command tag pleases a predicate."""

    def __init__(self) -> None:
        self.left = 0
        self.wanted: Predicate = lambda tag: False
        self.inside_transactions = False

    def takes(self, tag: str, in_transaction: bool) -> bool:
        if not self.left or (in_transaction and tag != "COMMIT" and not self.inside_transactions):
            return False
        return self.wanted(tag)


class Greeting:
    """The client's first packets, which have no type byte; some are answered with a single byte."""

    def __init__(self) -> None:
        self.short_answers = 0
        self._buffer = b""
        self._over = False

    def read(self, data: bytes) -> None:
        if self._over:
            return
        self._buffer += data
        while len(self._buffer) >= 8 and not self._over:
            length, code = struct.unpack("!II", self._buffer[:8])
            self._over = code not in ENCRYPTION_REQUESTS
            self.short_answers += not self._over
            self._buffer = self._buffer[length:]


class Answers:
    """The server's side of one PostgreSQL connection, cut into messages."""

    def __init__(self, greeting: Greeting, cut: Cut) -> None:
        self.lost = False
        self._greeting = greeting
        self._cut = cut
        self._buffer = b""
        self._held: list[bytes] = []
        self._losing = False
        self._in_transaction = False

    def read(self, data: bytes) -> bytes:
        """Return what may go on to the client; after `lost` the client gets nothing more."""
        self._buffer += data
        return b"".join(self._pass_on(message) for message in self._messages())

    def _messages(self) -> Iterator[bytes]:
        while self._greeting.short_answers and self._buffer:
            self._greeting.short_answers -= 1
            yield self._take(1)
        while len(self._buffer) >= 5 and len(self._buffer) > (length := struct.unpack("!I", self._buffer[1:5])[0]):
            yield self._take(length + 1)

    def _take(self, size: int) -> bytes:
        message, self._buffer = self._buffer[:size], self._buffer[size:]
        return message

    def _pass_on(self, message: bytes) -> bytes:
        kind = message[:1] if len(message) > 1 else b""
        if kind == COMMAND_COMPLETE and not self._losing:
            self._judge(message[5:-1].decode())
        if self._losing:
            # COMMIT is done when its tag comes; a statement in autocommit only with the message after it: ready.
            self.lost = self.lost or kind == READY or message[5:] == b"COMMIT\0"
            return b""
        if kind == READY:
            self._in_transaction = message[5:6] != b"I"
        self._held.append(message)
        # The rows of an answer wait for its tag, so that all of it is lost or none.
        if self._cut.left and kind in (BIND_COMPLETE, DATA_ROW, NOTICE):
            return b""
        released, self._held = b"".join(self._held), []
        return released

    def _judge(self, tag: str) -> None:
        if self._cut.takes(tag, self._in_transaction):
            self._cut.left -= 1
            self._losing = True
        elif tag in ("BEGIN", "START TRANSACTION"):
            self._in_transaction = True
        elif tag in ("COMMIT", "ROLLBACK"):
            self._in_transaction = False


class Link:
    """One client's connection and the proxy's own connection to the server."""

    def __init__(self, client: asyncio.StreamWriter, server: asyncio.StreamWriter) -> None:
        self.writers = (client, server)

    def close(self) -> None:
        for writer in self.writers:
            writer.close()

    def reset(self) -> None:
        for writer in self.writers:
            # Closing a socket that lingers for no time sends RST in place of FIN. It may be closed already.
            with contextlib.suppress(OSError):
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_ZERO)
            writer.transport.abort()


class Proxy:
    """A proxy on its own loopback port in front of the server on `target_port`.

    `protocol=None` passes bytes of any protocol; answers can then not be cut.
    """

    def __init__(self, target_port: int, *, protocol: Literal["postgres"] | None = "postgres") -> None:
        self.target_port = target_port
        self.protocol = protocol
        self.port = 0
        self.cuts = 0
        self._cut = Cut()
        self._delay = 0.0
        self._links: set[Link] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._passable = asyncio.Event()
        self._passable.set()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._thread.start()
        self._server = self._await(self._listen())

    def url(self, original_url: str) -> str:
        """Return the URL with this proxy in place of its server."""
        parts = urlsplit(original_url)
        if parts.port != self.target_port:
            raise ValueError(f"this proxy leads to port {self.target_port}, not to {original_url!r}")
        login, at, _ = parts.netloc.rpartition("@")
        return urlunsplit(parts._replace(netloc=f"{login}{at}{HOST}:{self.port}"))

    @property
    def connections(self) -> int:
        return len(self._links)

    def latency(self, ms: float) -> None:
        """Delay every byte by `ms`, in each direction."""
        self._call(lambda: setattr(self, "_delay", ms / 1000))

    def blackhole(self) -> None:
        """Let nothing through, in silence. Connecting still works, as the kernel does it, but nobody answers."""
        self._call(self._passable.clear)

    def heal(self) -> None:
        """End latency, black hole and pending cuts; what was held back arrives now, as TCP would resend it."""
        self._call(self._heal)

    def reset_all(self) -> None:
        """Send RST on every connection, to the client and to the server."""
        self._call(self._reset_links)

    def cut_commit_reply(self, times: int = 1) -> None:
        """Let the next `times` COMMITs reach the server, then lose their answers and close the connections."""
        self.drop_reply(lambda tag: tag == "COMMIT", times=times)

    def drop_reply(self, wanted: Predicate, *, times: int = 1, inside_transactions: bool = False) -> None:
        """Lose the next answers whose command tag ("INSERT 0 1", "UPDATE 3") is wanted, and close their connections.

        Counted are answers that end a transaction: to COMMIT and to statements in autocommit. The server has
        finished by the time the client sees its connection closed. `cuts` tells how many were lost.
        """
        if self.protocol is None:
            raise ValueError("only a proxy that reads the PostgreSQL protocol can cut answers")
        order = Cut()
        order.left, order.wanted, order.inside_transactions = times, wanted, inside_transactions
        self._call(lambda: vars(self._cut).update(vars(order)))

    def close(self) -> None:
        if self._thread.is_alive():
            self._await(self._shut())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _call(self, action: Callable[[], object]) -> None:
        """Do `action` in the proxy's thread and return when it is done."""

        async def act() -> None:
            action()

        self._await(act())

    def _await(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout=30)

    async def _listen(self) -> asyncio.Server:
        server = await asyncio.start_server(self._serve, HOST, 0, backlog=500)
        self.port = server.sockets[0].getsockname()[1]
        return server

    def _heal(self) -> None:
        self._delay = 0.0
        self._cut.left = 0
        self._passable.set()

    def _reset_links(self) -> None:
        for link in list(self._links):
            link.reset()

    async def _shut(self) -> None:
        self._server.close()
        self._reset_links()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, from_client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            # Ending by return, not by cancellation: asyncio's own callback asks a cancelled task for its exception.
            with contextlib.suppress(asyncio.CancelledError):
                await self._relay(from_client, to_client)
        finally:
            to_client.close()
            self._tasks.discard(task)

    async def _relay(self, from_client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        try:
            from_server, to_server = await asyncio.open_connection(HOST, self.target_port)
        except OSError:
            Link(to_client, to_client).reset()
            return
        link = Link(to_client, to_server)
        self._links.add(link)
        if not self._server.is_serving():
            # It came at the last moment, and nobody is to be here any more.
            link.reset()
        greeting, answers = self._readers()
        there = asyncio.ensure_future(self._pump(from_client, to_server, greeting))
        back = asyncio.ensure_future(self._pump(from_server, to_client, answers))
        try:
            await asyncio.wait((there, back), return_when=asyncio.FIRST_COMPLETED)
        finally:
            there.cancel()
            back.cancel()
            await asyncio.gather(there, back, return_exceptions=True)
            link.close()
            self._links.discard(link)

    def _readers(self) -> tuple[Callable[[bytes], bytes | None], Callable[[bytes], bytes | None]]:
        """Say for each direction what to do with bytes: return what goes on, or None to hang up."""
        if self.protocol is None:
            return (lambda data: data), (lambda data: data)
        greeting = Greeting()
        answers = Answers(greeting, self._cut)

        def listen(data: bytes) -> bytes:
            greeting.read(data)
            return data

        def answer(data: bytes) -> bytes | None:
            passed = answers.read(data)
            self.cuts += answers.lost
            return None if answers.lost else passed

        return listen, answer

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, treat: Callable[[bytes], bytes | None]
    ) -> None:
        """Carry bytes one way until either side ends."""
        arrivals: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(maxsize=256)
        # Reading and writing are two tasks, so that latency delays bytes without making the line thinner.
        reading = asyncio.ensure_future(self._collect(reader, arrivals))
        try:
            while True:
                due, data = await arrivals.get()
                await asyncio.sleep(due - self._loop.time())
                await self._passable.wait()
                treated = treat(data) if data else None
                if treated is None:
                    return
                writer.write(treated)
                await writer.drain()
        except OSError:
            return
        finally:
            reading.cancel()

    async def _collect(self, reader: asyncio.StreamReader, arrivals: "asyncio.Queue[tuple[float, bytes]]") -> None:
        data = b"-"
        while data:
            try:
                data = await reader.read(READ_SIZE)
            except OSError:
                data = b""
            await arrivals.put((self._loop.time() + self._delay, data))
