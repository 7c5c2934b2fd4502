"""Redis Streams: one script appends a batch, so that nothing comes between, and what fails holds back its key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from holdfast.errors import ConfigError
from holdfast.inbox.base import Consumer
from holdfast.sinks.base import Delivered, Failed, Message, Mode, Outcome
from holdfast.sinks.bindings import header_bytes, packed
from holdfast.sinks.link import Link, Secrets
from holdfast.sinks.order import BEHIND, Answer, Down, concluded
from holdfast.sinks.settings import mode_of, seconds, texts, whole
from holdfast.sinks.templates import Naming, Template, TooLarge, Unsendable
from holdfast.values.drivers import importing, require

if TYPE_CHECKING:
    from redis.asyncio import Redis

NAMING = Naming(None, 1_000)
# For each message: its line ("" without a key), how many fields and values follow, and those. A stream's id comes back,
# an error behind "!", or "" for what was held back.
_APPEND = """
local answers, stopped, at = {}, {}, 2
for i = 1, #KEYS do
  local line, count = ARGV[at], tonumber(ARGV[at + 1])
  if line ~= '' and stopped[line] then
    answers[i] = ''
  else
    local entry
    if ARGV[1] == '' then
      entry = redis.pcall('XADD', KEYS[i], '*', unpack(ARGV, at + 2, at + 1 + count))
    else
      entry = redis.pcall('XADD', KEYS[i], 'MAXLEN', '~', ARGV[1], '*', unpack(ARGV, at + 2, at + 1 + count))
    end
    if type(entry) == 'table' then
      answers[i] = '!' .. entry.err
      stopped[line] = true
    else
      answers[i] = entry
    end
  end
  at = at + 2 + count
end
return answers
"""
# What Redis says when it takes no writes at all now.
_DOWN = ("OOM", "READONLY", "LOADING", "MISCONF", "NOREPLICAS", "MASTERDOWN", "CLUSTERDOWN", "BUSY ")


class RedisStream:
    """Append to a stream: `RedisStream("redis://localhost:6379/0", stream="orders")`.

    Each entry has the body in the field `data`, its `content-type` and, in binary mode, the attributes in fields
    `ce-…`. maxlen: about how many entries the stream keeps; all by default. message_bytes: what is larger is refused
    before it is sent. group: for `hf.receive`, the group of consumers; entries that one of them has not acknowledged
    within `take_over` seconds go to another. options: passed on to `redis.asyncio.Redis.from_url` (ssl_ca_certs,
    username, …).
    """

    def __init__(
        self,
        url: str = "redis://localhost:6379/0",
        *,
        stream: str,
        maxlen: int | None = None,
        group: str | None = None,
        take_over: float = 60.0,
        mode: Mode = "structured",
        message_bytes: int = 10_000_000,
        timeout: float = 10.0,
        connect_timeout: float = 5.0,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        require("redis", "redis")
        [self._url] = texts("url", url)
        if not self._url.startswith(("redis://", "rediss://", "unix://")):
            raise ConfigError("url", "must begin with redis://, rediss:// or unix://", self._url.partition("://")[0])
        self._stream = Template("stream", stream, NAMING)
        self._maxlen = "" if maxlen is None else str(whole("maxlen", maxlen, at_least=1))
        self._group = group
        self._take_over = seconds("take_over", take_over)
        self._mode = mode_of(mode)
        self._limit = whole("message_bytes", message_bytes, at_least=1_000)
        self._timeout = seconds("timeout", timeout)
        self._connect_timeout = seconds("connect_timeout", connect_timeout)
        self._options = dict(options or {})
        self._secrets = Secrets.of([self._url], self._options)
        self._link: Link[Redis] = Link("Redis", self._open, _shut, lambda _: True, self._connect_timeout, self._secrets)

    def __repr__(self) -> str:
        return f"RedisStream({self._secrets.hide(self._url)!r}, stream={self._stream!r})"

    async def send(self, messages: Sequence[Message]) -> Sequence[Outcome]:
        """Append the messages in one round trip. Raises: SinkDown when Redis cannot be reached, or takes no writes."""
        answers: list[Answer] = [BEHIND] * len(messages)
        ready, streams, arguments = self._written(messages, answers)
        if ready:
            heard = await self._append(streams, arguments, len(ready))
            for index, answer in zip(ready, heard, strict=True):
                answers[index] = answer
        return concluded(answers, one_place=True)

    async def close(self) -> None:
        """Close the connections."""
        await self._link.close()

    def consumer(self) -> Consumer:
        """Make a consumer, for `hf.receive`. Raises: ConfigError without a group, or with fields in the stream."""
        from holdfast.inbox.redis import RedisConsumer

        if self._group is None or self._stream.fields:
            rule = "messages are received by a group, from a stream without fields: RedisStream(…, stream=…, group=…)"
            raise ConfigError("broker", rule, self)
        return RedisConsumer(self._open, self._stream.text, self._group, self._take_over)

    async def _open(self) -> Redis:
        with importing("redis", "redis"):
            from redis.asyncio import Redis
            from redis.asyncio.retry import Retry
            from redis.backoff import NoBackoff

        client = Redis.from_url(
            self._url,
            socket_timeout=self._timeout,
            socket_connect_timeout=self._connect_timeout,
            # An entry whose answer was lost would be appended twice, and nobody would hear of it.
            retry=Retry(NoBackoff(), 0),
            **self._options | {"decode_responses": False},
        )
        try:
            await client.ping()
        except BaseException:
            await client.aclose()
            raise
        return client

    def _written(
        self, messages: Sequence[Message], answers: list[Answer]
    ) -> tuple[list[int], list[str], list[str | bytes]]:
        """Write the script's arguments; a message that cannot be sent gets its answer, and holds back its key."""
        ready: list[int] = []
        streams: list[str] = []
        arguments: list[str | bytes] = [self._maxlen]
        stopped: set[str] = set()
        for index, message in enumerate(messages):
            if message.key is not None and message.key in stopped:
                continue
            try:
                stream, fields = self._entry(message)
            except Unsendable as error:
                answers[index] = error.refusal
                stopped |= set() if message.key is None else {message.key}
                continue
            ready.append(index)
            streams.append(stream)
            # A line is never empty, so that a key which is an empty text is a key, too.
            arguments += ["" if message.key is None else f":{message.key}", str(len(fields)), *fields]
        return ready, streams, arguments

    def _entry(self, message: Message) -> tuple[str, list[str | bytes]]:
        stream = self._stream.of(message)
        headers, body = packed(message, self._mode)
        size = len(body) + header_bytes(headers)
        if size > self._limit:
            raise TooLarge(size, self._limit)
        fields: list[str | bytes] = [part for pair in headers.items() for part in pair if pair[0] != "data"]
        return stream, [*fields, "data", body]

    async def _append(self, streams: list[str], arguments: list[str | bytes], count: int) -> Sequence[Answer]:
        from redis import exceptions

        client = await self._link.get()
        try:
            heard: list[bytes] = await client.register_script(_APPEND)(keys=streams, args=arguments)
        except (exceptions.ConnectionError, exceptions.TimeoutError, OSError) as error:
            await self._link.drop(client)
            late = isinstance(error, exceptions.TimeoutError)
            answer: Answer = Failed(self._secrets.reason(error), unknown=True, lost=not late)
            if isinstance(error, exceptions.BusyLoadingError):
                answer = Down(self._secrets.reason(error))
            return [answer] * count
        except exceptions.ResponseError as error:
            reason = self._secrets.reason(error)
            down = isinstance(error, exceptions.ReadOnlyError) or any(word in reason for word in _DOWN)
            return [Down(reason) if down else Failed(reason)] * count
        return [self._answer(one.decode(), stream) for one, stream in zip(heard, streams, strict=True)]

    def _answer(self, said: str, stream: str) -> Answer:
        if not said:
            return BEHIND
        if not said.startswith("!"):
            return Delivered(f"{stream}@{said}")
        reason = self._secrets.hide(said[1:])
        return Down(reason) if reason.removeprefix("-").startswith(_DOWN) else Failed(reason)


async def _shut(client: Redis) -> None:
    await client.aclose()
