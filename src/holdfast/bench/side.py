"""The parent's end: a side is a contestant in a child process, asked in JSON lines."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, cast

from holdfast.bench.cpu import process_seconds
from holdfast.errors import ConfigError

LONGEST_LINE = 1 << 26
# What a child gets to disconnect.
ENDING = 5.0

BY_HAND = frozenset(
    {"one", "one in tx", "one async", "many", "kept", "deleted", "def", "effect", "failing", "latency", "flow", "idle"}
)
# What queues with order or limits, chains and events are compared with is ours, too: the raw loops have nothing to show
# here.
LINED = frozenset({"ordered", "one key", "limited", "fair", "keyed", "chains", "events", "relay"})
# What is measured of runs.
RUNS = frozenset({"one run", "steps", "one step", "signals", "timers"})
EVERYTHING = BY_HAND | LINED | RUNS | {"queues"}


@dataclass(frozen=True, slots=True)
class Spec:
    """What stands in the report: its name, how to start it, and the rows that it can do.

    share: the part of the jobs it drains in a round, for those that would take minutes; `shares` by what a row needs,
    where that is another one.
    apart: what its tables have behind the prefix, where two sides would take the same ones.
    guest: another project's; when it fails, the run goes on without it and says so.
    databases: where a guest of `make bench` takes part.
    """

    name: str
    command: tuple[str, ...]
    can: frozenset[str] = EVERYTHING
    share: float = 1.0
    environment: dict[str, str] = field(default_factory=dict)
    guest: bool = False
    apart: str = ""
    databases: tuple[str, ...] = ("PostgreSQL",)
    shares: dict[str, float] = field(default_factory=dict)

    def share_of(self, needs: str) -> float:
        return self.shares.get(needs, self.share)


def child(name: str, can: frozenset[str] = EVERYTHING, share: float = 1.0, apart: str = "") -> Spec:
    """Describe a contestant of this package."""
    return Spec(name, (sys.executable, "-m", "holdfast.bench.child", name), can, share, apart=apart)


def before(checkout: Path, can: frozenset[str] = EVERYTHING) -> Spec:
    """Describe Holdfast as it is in another checkout, driven by this one's bench: what it does not know it skips."""
    source = checkout / "src"
    if not (source / "holdfast").is_dir():
        raise ConfigError("before", "must be a checkout of Holdfast, with its src folder", str(checkout))
    command = (sys.executable, str(Path(__file__).with_name("child.py")), "holdfast")
    return Spec("before", command, can, environment={"PYTHONPATH": str(source)}, guest=True, apart="_before")


class _Child(NamedTuple):
    process: asyncio.subprocess.Process
    requests: asyncio.StreamWriter
    answers: asyncio.StreamReader

    def write(self, request: dict[str, Any]) -> None:
        self.requests.write(json.dumps(request).encode() + b"\n")


class Side:
    """One contestant on one database; its process starts when it is first asked, and again after `stop`."""

    def __init__(self, spec: Spec, url: str, prefix: str) -> None:
        self.spec = spec
        self.can = spec.can
        self.url = url
        self.prefix = prefix + spec.apart
        # A worker that broke must not hold the whole run up for ever.
        self.patience = 120.0
        # Why a guest takes no part after all.
        self.broken = ""
        self._child: _Child | None = None

    @property
    def name(self) -> str:
        return self.spec.name

    async def do(self, call: str, **arguments: Any) -> Any:
        return (await self._ask(call, arguments))["value"]

    async def timed(self, call: str, **arguments: Any) -> float:
        """Return the seconds that a call took inside the child."""
        return float((await self._ask(call, arguments))["seconds"])

    async def _ask(self, call: str, arguments: dict[str, Any]) -> dict[str, Any]:
        if self._child is None:
            self._child = await self._started()
        self._child.write({"do": call, **arguments})
        return await self._answer(self._child)

    async def _started(self) -> _Child:
        process = await asyncio.create_subprocess_exec(
            *self.spec.command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=LONGEST_LINE,
            env={**os.environ, **self.spec.environment},
        )
        child = _Child(process, cast(asyncio.StreamWriter, process.stdin), cast(asyncio.StreamReader, process.stdout))
        child.write({"url": self.url, "prefix": self.prefix})
        await self._answer(child)
        return child

    async def _answer(self, child: _Child) -> dict[str, Any]:
        try:
            line = await asyncio.wait_for(child.answers.readline(), self.patience)
        except TimeoutError as error:
            raise RuntimeError(f"{self.name}: no answer within {self.patience:g} s") from error
        if not line:
            raise RuntimeError(f"{self.name}: its process ended with {await child.process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise RuntimeError(f"{self.name}: {answer['error']}")
        return answer

    def cpu_seconds(self) -> float | None:
        """Return what its process used since it started; None where that is not to be known."""
        return None if self._child is None else process_seconds(self._child.process.pid)

    @cached_property
    def producer(self) -> Side:
        """A second process of the same contestant, on the same tables; it ends with this one."""
        return Side(self.spec, self.url, self.prefix.removesuffix(self.spec.apart))

    async def stop(self) -> None:
        """End the process; its connections close, and the server adds up what they did."""
        if "producer" in self.__dict__:
            await self.producer.stop()
        child, self._child = self._child, None
        if child is None:
            return
        child.requests.close()
        try:
            await asyncio.wait_for(child.process.wait(), ENDING)
        except TimeoutError:
            with suppress(ProcessLookupError):
                child.process.kill()
            await child.process.wait()
