"""`make bench ARGS="--study sinks"`: a relay into each broker, beside its client's own fastest loop, of the same bytes.

Events wait in PostgreSQL; the figure is from the relay's start to the commit of the last delivery. The loop has them in
memory as the sink would write them, sends them in batches with as many under way at once, and waits for every
acknowledgement. Both are processes of their own, in turn. Then single events are published 20 to 40 ms apart into
Kafka, and a consumer stops the time from the commit on.
"""

import argparse
import asyncio
import gc
import importlib
import json
import random
import statistics
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import ExitStack
from typing import Any

from holdfast import Holdfast
from holdfast.sinks import Kafka, Message, Nats, RabbitMQ, RedisStream, Sink
from holdfast.sinks.bindings import packed
from holdfast.values.cloudevents import CloudEvent
from tests import brokers, servers

BATCH = 500
# Batches under way at once: as many as a relay has slots for.
AT_ONCE = 20
SERVERS: dict[str, Any] = {
    "kafka": brokers.Kafka,
    "nats": brokers.NatsServer,
    "redis": brokers.RedisServer,
    "rabbitmq": brokers.RabbitMQ,
}
MODULES = {"kafka": "aiokafka", "nats": "nats", "redis": "redis.asyncio", "rabbitmq": "aio_pika"}
TARGETS = {"kafka": 0.5, "nats": 0.5, "redis": 0.5, "rabbitmq": 0.4}


# Seconds of the clock, and of this process's CPU: on a machine that others use, the latter says more. For a relay then
# the seconds until its first batch was settled, which are its start.
Took = tuple[float, ...]


def now() -> Took:
    return time.perf_counter(), time.process_time()


def since(began: Took) -> Took:
    return time.perf_counter() - began[0], time.process_time() - began[1]


def address_of(server: Any) -> str:
    return str(getattr(server, "address", None) or server.url)


def sink(broker: str, address: str, place: str) -> Sink:
    match broker:
        case "kafka":
            return Kafka(address, topic=place)
        case "nats":
            return Nats(address, subject=place)
        case "redis":
            return RedisStream(address, stream=place)
        case _:
            return RabbitMQ(address, queue=place)


def data(number: int) -> dict[str, Any]:
    return {"order": number, "amount": 12.5, "note": "x" * 100}


def messages(count: int) -> list[Message]:
    """Make the messages that a relay would have, ten for each key."""
    made: list[Message] = []
    for number in range(count):
        key = f"order:{number % max(1, count // 10)}"
        event = CloudEvent(
            str(uuid.uuid4()), "holdfast", "order.created", data(number), extensions={"partitionkey": key}
        )
        made.append(Message(event, key))
    return made


# The places


async def make_place(broker: str, address: str, place: str) -> None:
    if broker == "kafka":
        from aiokafka.admin import AIOKafkaAdminClient, NewTopic

        admin = AIOKafkaAdminClient(bootstrap_servers=address)
        await admin.start()
        await admin.create_topics([NewTopic(place, 3, 1)])
        await admin.close()
    elif broker == "nats":
        import nats

        client = await nats.connect(address)
        await client.jetstream().add_stream(name=place, subjects=[place])
        await client.close()
    elif broker == "rabbitmq":
        import aio_pika

        async with await aio_pika.connect(address) as connection:
            channel = await connection.channel()
            await channel.declare_queue(place, durable=True, arguments={"x-queue-type": "quorum"})


# The clients' own loops


async def in_batches(items: Sequence[Any], send: Callable[[Sequence[Any]], Any]) -> None:
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(part: Sequence[Any]) -> None:
        async with gate:
            await send(part)

    await asyncio.gather(*(one(items[start : start + BATCH]) for start in range(0, len(items), BATCH)))


async def raw_kafka(address: str, place: str, count: int) -> Took:
    from aiokafka import AIOKafkaProducer

    written = []
    for message in messages(count):
        headers, body = packed(message, "binary", prefix="ce_")
        written.append((message.key.encode(), body, [(name, value.encode()) for name, value in headers.items()]))  # type: ignore[union-attr]
    producer = AIOKafkaProducer(
        bootstrap_servers=address,
        acks="all",
        enable_idempotence=True,
        max_batch_size=1_000_000,
        linger_ms=2,
        # The client counts the waits for batches before this one several times.
        request_timeout_ms=600_000,
    )
    await producer.start()
    await producer.partitions_for(place)
    gc.collect()
    began = now()

    async def send(part: Sequence[Any]) -> None:
        # As large as its batches may be: one for each partition.
        builders: dict[int, Any] = {}
        for key, body, headers in part:
            partition = hash(key) % 3
            if partition not in builders:
                builders[partition] = producer.create_batch()
            builders[partition].append(timestamp=None, key=key, value=body, headers=headers)
        futures = [await producer.send_batch(one, place, partition=number) for number, one in builders.items()]
        await asyncio.gather(*futures)

    await in_batches(written, send)
    took = since(began)
    await producer.stop()
    return took


async def raw_nats(address: str, place: str, count: int) -> Took:
    import nats

    written = []
    for message in messages(count):
        headers, body = packed(message, "binary")
        written.append((body, {**headers, "Nats-Msg-Id": message.event.id}))
    client = await nats.connect(address)
    inbox, left, done = client.new_inbox(), count, asyncio.Event()

    async def acknowledged(_: Any) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            done.set()

    await client.subscribe(inbox, cb=acknowledged)
    gc.collect()
    began = now()
    for start in range(0, count, BATCH):
        for body, headers in written[start : start + BATCH]:
            await client.publish(place, body, inbox, headers)
        await asyncio.sleep(0)
        while start + BATCH - (count - left) > AT_ONCE * BATCH:  # noqa: ASYNC110 - nobody tells how many are left
            await asyncio.sleep(0.001)
    await done.wait()
    took = since(began)
    await client.close()
    return took


async def raw_redis(address: str, place: str, count: int) -> Took:
    from redis.asyncio import Redis

    written = []
    for message in messages(count):
        headers, body = packed(message, "structured")
        written.append({**headers, "data": body})
    client = Redis.from_url(address)
    await client.ping()
    gc.collect()
    began = now()

    async def send(part: Sequence[Any]) -> None:
        pipe = client.pipeline(transaction=False)
        for fields in part:
            pipe.xadd(place, fields)
        await pipe.execute()

    await in_batches(written, send)
    took = since(began)
    await client.aclose()
    return took


async def raw_rabbitmq(address: str, place: str, count: int) -> Took:
    import aio_pika

    written = []
    for message in messages(count):
        headers, body = packed(message, "binary", "cloudEvents_")
        persistent = aio_pika.DeliveryMode.PERSISTENT
        written.append(
            aio_pika.Message(body, headers=dict(headers), message_id=message.event.id, delivery_mode=persistent)
        )
    async with await aio_pika.connect(address) as connection:
        channel = await connection.channel(publisher_confirms=True, on_return_raises=True)
        exchange = channel.default_exchange
        gc.collect()
        began = now()

        async def send(part: Sequence[Any]) -> None:
            await asyncio.gather(*(exchange.publish(one, place, mandatory=True) for one in part))

        await in_batches(written, send)
        return since(began)


RAW = {"kafka": raw_kafka, "nats": raw_nats, "redis": raw_redis, "rabbitmq": raw_rabbitmq}


# The relay


def application(url: str, broker: str, address: str, place: str, ordered: bool = False) -> Holdfast:
    hf = Holdfast(url, prefix=f"s{place[1:9]}")
    hf.route("order.*", to=sink(broker, address, place), name="orders", ordered=ordered, batch=BATCH)
    return hf


async def relayed(url: str, broker: str, address: str, place: str, count: int, ordered: bool) -> Took:
    from holdfast.events import JobsSettled

    hf = application(url, broker, address, place, ordered)
    hf.migrate()
    # Before the clock starts, as in the client's own loop: it happens once in the life of a relay.
    importlib.import_module(MODULES[broker])
    keys = max(1, count // 10)
    for start in range(0, count, 1000):
        hf.publish_many(
            [
                hf.draft("order.created", data(n), key=f"order:{n % keys}")
                for n in range(start, min(start + 1000, count))
            ]
        )
    left, done = count, asyncio.Event()
    first: list[float] = []

    def settled(event: JobsSettled) -> None:
        nonlocal left
        left -= event.count
        if not first:
            first.append(since(began)[0])
        if left <= 0:
            done.set()

    hf.on(JobsSettled, settled)
    gc.collect()
    began = now()
    async with hf.relay():
        await done.wait()
        took = since(began)
    await hf.aclose()
    return (*took, *first)


# Latency


def latency(url: str, address: str, place: str, count: int) -> list[float]:
    """Publish single events; a consumer of Kafka says when each came, in milliseconds from the commit on."""
    from aiokafka import AIOKafkaConsumer

    hf = application(url, "kafka", address, place)
    hf.migrate()
    relay = _spawn("serve", url, "kafka", address, place, "0")
    came: dict[str, float] = {}

    async def run() -> list[float]:
        consumer = AIOKafkaConsumer(place, bootstrap_servers=address, auto_offset_reset="earliest")
        await consumer.start()

        async def consume() -> None:
            async for record in consumer:
                came[dict(record.headers)["ce_id"].decode()] = time.perf_counter()

        consuming = asyncio.ensure_future(consume())
        committed: dict[str, float] = {}
        for number in range(count + 20):
            said = await hf.apublish("order.created", data(number), key="k")
            # The first ones find connections being opened.
            if number >= 20:
                committed[said.id] = time.perf_counter()
            await asyncio.sleep(random.uniform(0.02, 0.04))
            while number < 20 and said.id not in came:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        while not committed.keys() <= came.keys():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        consuming.cancel()
        await consumer.stop()
        await hf.aclose()
        return [(came[one] - at) * 1000 for one, at in committed.items()]

    try:
        return asyncio.run(run())
    finally:
        relay.terminate()
        relay.wait()


# The study


def _spawn(*arguments: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "tests.bench.sinks", "--side", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def _side(arguments: Sequence[str]) -> None:
    """One side in a process of its own: says how many seconds it took."""
    from holdfast.worker.process import run_one

    what, url, broker, address, place, count = arguments
    if what == "serve":
        run_one(application(url, broker, address, place))
        return
    # As seldom as `holdfast worker` does.
    gc.set_threshold(5_000, *gc.get_threshold()[1:])
    if what == "raw":
        took = _run(RAW[broker](address, place, int(count)))
    else:
        took = _run(relayed(url, broker, address, place, int(count), what == "ordered"))
    print(json.dumps(took))


def _run(work: Coroutine[Any, Any, Took]) -> Took:
    try:
        import uvloop
    except ImportError:
        return asyncio.run(work)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work)


def study(count: int, rounds: int, names: Iterable[str], latencies: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    with ExitStack() as stack:
        server = stack.enter_context(servers.Postgres(durable=True))
        url = server.fresh_database()
        for name in names:
            try:
                broker = stack.enter_context(SERVERS[name]())
            except servers.Unavailable as absent:
                print(absent)
                continue
            found[name] = _measured(url, name, address_of(broker), count, rounds)
            _tell(name, found[name])
            if name == "kafka" and latencies:
                place = f"t{uuid.uuid4().hex[:12]}"
                asyncio.run(make_place(name, address_of(broker), place))
                took = sorted(latency(url, address_of(broker), place, latencies))
                found["latency"] = {"p50": took[len(took) // 2], "p99": took[len(took) * 99 // 100]}
                middle, late = found["latency"].values()
                print(f"commit to a consumer of Kafka: p50 {middle:.1f} ms, p99 {late:.1f} ms")
            broker.discard()
    return found


def _measured(url: str, name: str, address: str, count: int, rounds: int) -> dict[str, list[Took]]:
    """Return the messages a second of each side in each round, its CPU in µs a message, and a relay's start."""
    rates: dict[str, list[Took]] = {"raw": [], "relay": [], "ordered": []}
    for turn in range(rounds):
        sides = list(rates)
        for side in sides[turn % 3 :] + sides[: turn % 3]:
            place = f"t{uuid.uuid4().hex[:12]}"
            asyncio.run(make_place(name, address, place))
            process = _spawn(side, url, name, address, place, str(count))
            said, _ = process.communicate()
            if process.returncode:
                raise RuntimeError(f"{name}, {side} ended with {process.returncode}")
            seconds, cpu, *start = json.loads(said.splitlines()[-1])
            rates[side].append((count / seconds, cpu / count * 1e6, *start))
    return rates


def _tell(name: str, rates: dict[str, list[Took]]) -> None:
    def middle(side: str, what: int) -> float:
        return statistics.median(one[what] for one in rates[side])

    def ratio(side: str) -> float:
        return statistics.median(ours[0] / alone[0] for ours, alone in zip(rates[side], rates["raw"], strict=True))

    told = [f"client alone {middle('raw', 0):,.0f}/s, {middle('raw', 1):.0f} µs"]
    for side in ("relay", "ordered"):
        start = f"first settled after {middle(side, 2):.2f} s"
        told.append(f"{side} {middle(side, 0):,.0f}/s, {middle(side, 1):.0f} µs, ratio {ratio(side):.2f}, {start}")
    print(f"{name} (wanted {TARGETS[name]}): {'; '.join(told)}", flush=True)


def main(arguments: Sequence[str]) -> None:
    if arguments[:1] == ["--side"]:
        return _side(arguments[1:])
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--latencies", type=int, default=300)
    parser.add_argument("brokers", nargs="*", default=list(SERVERS))
    given = parser.parse_args(arguments)
    study(given.count, given.rounds, given.brokers, given.latencies)
    return None


if __name__ == "__main__":
    main(sys.argv[1:])
