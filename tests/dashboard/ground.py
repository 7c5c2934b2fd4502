"""A shop with something on every page: jobs in every state, dead letters, runs, events, schedules, foreign rows."""

import asyncio
import json
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

from holdfast import Continue, Fatal, Holdfast, Job, Retry, Run, admin, jobs, observe
from holdfast.flow import Flow, Steps
from holdfast.observe import Depth, Figures, Folded, Histogram
from holdfast.sinks import Function
from holdfast.values.ids import new_id
from holdfast.worker import registry

PATIENCE = 60.0
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
# What must not be seen on any page.
SECRET = "hunter2-do-not-show"


class Shop:
    """The application, and what its tests name of it."""

    def __init__(self, url: str, foreign: bool = True) -> None:
        self.hf = hf = Holdfast(url)
        hf.migrate()
        hf.queue("orders", ordered=True, on_dead="stop", concurrency=5)
        never = Retry(max_attempts=1)

        @hf.job(queue="mail", retry=never)
        def send_receipt(order_id: int, customer: dict[str, str] | None = None) -> str:
            if order_id % 3 == 0:
                raise ValueError(f"no such order {order_id} (password={SECRET})")
            return f"sent {order_id}"

        @hf.job(queue="mail", retry=Retry(max_attempts=5, first_delay=3600, max_delay=7200))
        def remind(order_id: int) -> None:
            raise ConnectionError("the mail server said 451: try again later")

        @hf.job(queue="images", retry=never)
        def resize(picture: str) -> None:
            raise Fatal(f"{picture} is not a picture", code="not-a-picture")

        @hf.job(queue="orders")
        def ship(order_id: int) -> Continue:
            return Continue(invoice.bind(order_id=order_id))

        @hf.job(queue="orders")
        def invoice(order_id: int) -> str:
            return f"invoice of {order_id}"

        @hf.job(queue="reports")
        def report(day: str) -> None:
            pass

        @hf.job(queue="slow", lease=60)
        async def encode(film: str, job: Job) -> None:
            await asyncio.sleep(3600)

        def charge(order_id: int) -> dict[str, Any]:
            return {"amount": order_id * 100, "card": "4242"}

        @hf.workflow(queue="runs")
        async def deliver(run: Run, order_id: int) -> str:
            await run.sleep(0.05)
            return f"parcel {order_id}"

        @hf.workflow(queue="runs")
        async def fulfil(run: Run, order_id: int) -> str:
            await run.step(charge, order_id)
            run.set("stage", "charged")
            if order_id > 1:
                await run.signal("approved")
            return await run.child(deliver, order_id)

        def post(message: Any) -> None:
            if message.event.type.endswith("failed"):
                raise Fatal("the receiver answered 422")

        hf.schedule("nightly", report.bind(day="yesterday"), cron="0 2 * * *", timezone="Europe/Berlin")
        hf.schedule("sweep", report.bind(day="today"), every=900)
        hf.route("order.#", to=Function(post), name="orders", retry=Retry(max_attempts=2, first_delay=0.05))
        # PHP's queue is not served on PostgreSQL; Node's outbox is served nowhere else.
        on_postgres = hf.store.dialect.name == "postgres"
        self.pdo = hf.foreign.pdo() if foreign and not on_postgres else None
        self.airlock = hf.foreign.airlock() if foreign and on_postgres else None
        self.send_receipt, self.remind, self.resize, self.ship, self.invoice = (
            send_receipt,
            remind,
            resize,
            ship,
            invoice,
        )
        self.report, self.encode, self.fulfil = report, encode, fulfil

    def fill(self) -> None:
        """Enqueue all of it, and have a worker do what can be done."""
        hf = self.hf
        customer = {"name": "Ada", "api_token": SECRET}
        for number in range(1, 25):
            using = self.send_receipt.using(
                key=f"order:{number}", headers={"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"}
            )
            using.enqueue(order_id=number, customer=customer)
        for number in (1, 2):
            self.remind.enqueue(order_id=number)
        for number in range(1, 6):
            self.resize.enqueue(picture=f"cat{number}.txt")
        first = self.ship.using(key="order:1").enqueue(order_id=1)
        self.report.using(after=[first]).enqueue(day="the day of order 1")
        self.encode.enqueue(film="Metropolis")
        self.fulfil.start(order_id=1, id="order-1")
        self.fulfil.start(order_id=2, id="order-2")
        for what in ("created", "paid", "failed"):
            hf.publish(f"order.{what}", {"id": 1}, subject="order:1", key="order:1")
        hf.publish("parcel.lost", {"id": 1})
        hf.sync_schedules()
        if self.pdo is not None:
            self.pdo.create_schema()
            self.pdo.publish("shop.mail", {"to": "ada"})
        if self.airlock is not None:
            self.airlock.create_schema()
        # On a thread: where a browser is driven, this one has a running loop.
        with ThreadPoolExecutor(1) as thread:
            thread.submit(lambda: asyncio.run(self._work())).result()
        for number in range(100, 108):
            self.report.using(run_after=timedelta(hours=number)).enqueue(day="later")
        for number in range(200, 206):
            self.send_receipt.enqueue(order_id=number)
        hf.store.run(admin.pause("queue", "images", "grace@ops1", "the disk is full"))
        self.beat("web1-4821-7f3a", "web1", ["mail", "orders", "reports", "runs", "slow"])
        self.beat("web2-977-01cc", "web2", ["mail", "images", "route:orders"])

    def beat(self, worker: str, host: str, queues: list[str]) -> None:
        """Have a worker say that it is there."""
        info = {"host": host, "queues": queues, "kinds": list(self.hf.handlers)}
        self.hf.store.run(registry.beat(worker, json.dumps(info)))

    async def _work(self) -> None:
        live = admin.Filter(states=("pending", "leased"))
        async with self.hf.worker(name="shop1", poll=0.05, drain=0.1):
            deadline = time.monotonic() + PATIENCE
            while time.monotonic() < deadline:
                rows = await self.hf.store.arun(admin.list_jobs(live, limit=100))
                soon = datetime.now(UTC) + timedelta(minutes=1)
                resting = ("remind", "encode", "route:-")
                busy = [one.kind for one in rows if one.kind not in resting and one.available_at < soon]
                if not busy and any(r.state == "leased" for r in rows):
                    return
                await asyncio.sleep(0.05)
            raise AssertionError(f"the shop did not come to rest: {busy}")

    def claim(self, queue: str = "mail", worker: str = "web1-77-ab") -> str:
        """Have a worker that is not there hold a job."""
        [lease] = self.hf.store.run(jobs.claim([queue], limit=1, worker=worker, lease_ms=600_000))
        return lease.job_id

    def write_history(self, minutes: int = 60) -> None:
        """Write what workers would have told in the last hour: a wave of work, and a queue that fell behind."""
        store, now = self.hf.store, datetime.now(UTC)
        try:
            for minute in range(minutes, 0, -1):
                store.now = now - timedelta(minutes=minute)
                share = abs((minute % 40) - 20) / 20
                done = int(400 + 900 * share)
                waits = Histogram.of([0.02 + 0.4 * share] * (done - 40) + [1.5 * share + 0.2] * 36 + [4.0] * 4)
                runs = Histogram.of([0.03] * (done - 30) + [0.4] * 25 + [2.0] * 5)
                ended = {"done": done, "retried": int(20 * share), "dead": 2 if minute % 17 == 0 else 0}
                folded = Folded({("mail", "send_receipt"): Figures(ended, waits, runs)})
                folded.depths = {
                    "mail": Depth(int(300 * share), 8, 4, 8, 0.2 + 3 * share),
                    "images": Depth(int(2 * (60 - minute)), 0, 0, 5, 12.0 * max(0, 30 - minute)),
                    "orders": Depth(1, 0, 1, 0, 0.4),
                }
                self.note(folded)
        finally:
            store.now = None

    def note(self, folded: Folded) -> None:
        """Write what a worker would have told."""
        self.hf.store.run(_noted(folded))


def _noted(folded: Folded) -> Flow[None]:
    row_id = new_id()

    def steps() -> Steps[None]:
        yield from observe.note("shop1", folded, row_id)

    return Flow("note", steps)
