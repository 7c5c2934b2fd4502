"""Redis Streams: one script appends a batch, so that nothing comes between, and what fails holds back its key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

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
# All messages are one argument, written by msgpack: one for each field took a dozen µs more a message. Of each: which
# key is its stream, its line ("" without a key), fields and values; where the last is a number, it stands for the
# argument of that number, because it is not text. Back comes a line for each: the id of the entry, an error behind
# "!", or nothing for what was held back.
_APPEND = """
local answers, stopped = {}, {}
for i, message in ipairs(cmsgpack.unpack(ARGV[2])) do
  local stream, line, last = KEYS[message[1]], message[2], #message
  if line ~= '' and stopped[line] then
    answers[i] = ''
  else
    if type(message[last]) == 'number' then
      message[last] = ARGV[message[last]]
    end
    local entry
    if ARGV[1] == '' then
      entry = redis.pcall('XADD', stream, '*', unpack(message, 3))
    else
      entry = redis.pcall('XADD', stream, 'MAXLEN', '~', ARGV[1], '*', unpack(message, 3))
    end
    if type(entry) == 'table' then
      answers[i] = '!' .. string.gsub(entry.err, '\\n', ' ')
      stopped[line] = true
    else
      answers[i] = entry
    end
  end
end
return table.concat(answers, '\\n')
"""
# What Redis says when it takes no writes at all now.
_DOWN = ("OOM", "READONLY", "LOADING", "MISCONF", "NOREPLICAS", "MASTERDOWN", "CLUSTERDOWN", "BUSY ")
# Bodies that are not text are arguments of their own, from this one on; `maxlen` and the messages come before them.
_FIRST_RAW = 3
_encode = msgspec.msgpack.Encoder().encode


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
        self._mode: Mode = mode_of(mode)
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
        entries = self._written(messages, answers)
        if entries.ready:
            heard = await self._append(entries)
            for index, answer in zip(entries.ready, heard, strict=True):
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

    def _written(self, messages: Sequence[Message], answers: list[Answer]) -> _Entries:
        """Write what the script gets; a message that cannot be sent gets its answer, and holds back its key."""
        entries = _Entries()
        stopped: set[str] = set()
        for index, message in enumerate(messages):
            key = message.key
            if stopped and key is not None and key in stopped:
                continue
            try:
                stream = self._stream.of(message)
                headers, body = packed(message, self._mode)
                size = len(body) + header_bytes(headers)
                if size > self._limit:
                    raise TooLarge(size, self._limit)
            except Unsendable as error:
                answers[index] = error.refusal
                stopped |= set() if key is None else {key}
                continue
            entries.add(index, stream, key, headers, body)
        return entries

    async def _append(self, entries: _Entries) -> Sequence[Answer]:
        from redis import exceptions

        client, count = await self._link.get(), len(entries.ready)
        arguments: list[str | bytes] = [self._maxlen, _encode(entries.messages), *entries.raw]
        try:
            heard: bytes = await client.register_script(_APPEND)(keys=list(entries.streams), args=arguments)
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
        streams = list(entries.streams)
        said = heard.decode("utf-8", "replace").split("\n")
        return [self._answer(one, streams[entry[0] - 1]) for one, entry in zip(said, entries.messages, strict=True)]

    def _answer(self, said: str, stream: str) -> Answer:
        if not said:
            return BEHIND
        if said[0] != "!":
            return Delivered(f"{stream}@{said}")
        reason = self._secrets.hide(said[1:])
        return Down(reason) if reason.removeprefix("-").startswith(_DOWN) else Failed(reason)


class _Entries:
    """What one call appends: the messages that can be sent, by their index, and the arguments of the script."""

    def __init__(self) -> None:
        self.ready: list[int] = []
        # The streams with their numbers, as Lua counts.
        self.streams: dict[str, int] = {}
        self.messages: list[list[Any]] = []
        self.raw: list[bytes] = []

    def add(self, index: int, stream: str, key: str | None, headers: Mapping[str, str], body: bytes) -> None:
        # A line is never empty, so that a key which is an empty text is a key, too.
        entry: list[Any] = [self.streams.setdefault(stream, len(self.streams) + 1), "" if key is None else f":{key}"]
        for name, value in headers.items():
            if name != "data":
                entry += (name, value)
        self.ready.append(index)
        self.messages.append(entry)
        entry += ("data", self._text(body))

    def _text(self, body: bytes) -> str | int:
        """Return a body as a text, or the number of its own argument: Redis's msgpack knows no bytes."""
        try:
            return body.decode()
        except UnicodeDecodeError:
            self.raw.append(body)
            return _FIRST_RAW + len(self.raw) - 1


async def _shut(client: Redis) -> None:
    await client.aclose()
