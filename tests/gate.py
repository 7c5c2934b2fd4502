"""A TCP proxy for any protocol: it can be shut, so that nobody is there, and it can lose the next answer."""

import asyncio
import contextlib
from collections.abc import Callable, Iterator

from tests.proxy import Link, Proxy


class Gate(Proxy):
    """A proxy on a port of its own. It passes bytes until it is shut."""

    def __init__(self, target_port: int) -> None:
        self.is_shut = False
        self.losing = False
        super().__init__(target_port, protocol=None)

    @contextlib.contextmanager
    def shut(self) -> Iterator[None]:
        """Reset every connection, and each new one at once, as where no server is."""

        def close() -> None:
            self.is_shut = True
            self._reset_links()

        self._call(close)
        try:
            yield
        finally:
            self._call(lambda: setattr(self, "is_shut", False))

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

    async def _relay(self, from_client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        if self.is_shut:
            Link(to_client, to_client).reset()
            return
        await super()._relay(from_client, to_client)

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
