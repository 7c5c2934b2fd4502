"""A TCP proxy for any protocol: it can be shut, so that nobody is there, and it can lose the next answer."""

import asyncio
import contextlib
from collections.abc import Callable, Iterator

from tests.proxy import HOST, Proxy


class Gate(Proxy):
    """A proxy on a port of its own. It passes bytes while it is open."""

    def __init__(self, target_port: int) -> None:
        self.losing = False
        super().__init__(target_port, protocol=None)

    @contextlib.contextmanager
    def shut(self) -> Iterator[None]:
        """Reset every connection and stop listening, as where no server is; then listen on the same port again."""
        self._call(self._leave)
        try:
            yield
        finally:
            self._await(self._come_back())

    def _leave(self) -> None:
        self._server.close()
        self._reset_links()

    async def _come_back(self) -> None:
        while True:
            # A client of somebody else may have got the port for a moment.
            with contextlib.suppress(OSError):
                self._server = await asyncio.start_server(self._serve, HOST, self.port, backlog=500)
                return
            await asyncio.sleep(0.02)

    @contextlib.contextmanager
    def lost_answer(self) -> Iterator[None]:
        """Let the next request through and cut its connection when the answer comes, which is lost."""
        self._call(lambda: setattr(self, "losing", True))
        before = self.cuts
        try:
            yield
        finally:
            self._call(lambda: setattr(self, "losing", False))
        assert self.cuts > before, "no answer came that could have been lost"

    def _readers(self) -> tuple[Callable[[bytes], bytes | None], Callable[[bytes], bytes | None]]:
        asked = False

        def ask(data: bytes) -> bytes:
            nonlocal asked
            asked = asked or self.losing
            return data

        def answer(data: bytes) -> bytes | None:
            if not (self.losing and asked):
                return data
            # Once: what is asked on the next connection is answered again.
            self.losing = False
            self.cuts += 1
            return None

        return ask, answer
