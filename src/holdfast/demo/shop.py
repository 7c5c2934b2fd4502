"""The shop: its tables, its one handler, and its business transactions, on SQLite or PostgreSQL."""

from __future__ import annotations

import asyncio
import itertools
import re
import threading
from collections import Counter
from contextlib import closing
from typing import Any

from holdfast import Holdfast, Job, Retry

URL, PREFIX, MAIL_SECONDS = "HOLDFAST_URL", "HOLDFAST_PREFIX", "HOLDFAST_DEMO_MAIL_SECONDS"
MAX_ATTEMPTS = 5
CONCURRENCY = 4
LEASE = 2
COUNTRIES = ("Norway", "Portugal", "Chile", "Japan")
# The shop sells to a country before anybody entered its VAT rate: the poison of this story.
FORGOTTEN = "Atlantis"
FORGOTTEN_ORDERS = 3
SHOP_TABLES = ("orders", "receipts", "vat")

_TABLES = (
    "create table shop_orders (id integer primary key, country text not null, total integer not null)",
    # No unique constraint: a receipt that was written twice shall be seen, not refused.
    "create table shop_receipts (order_id integer not null, job_id text not null, attempt integer not null)",
    "create table shop_vat (country varchar(40) primary key, rate integer not null)",
)


class Declined(Exception):
    """The card was declined: the order's transaction is rolled back."""


class Shop:
    """An application with tables of its own beside Holdfast's, in one database."""

    def __init__(self, url: str, prefix: str, mail_seconds: float = 0.0) -> None:
        self.prefix = prefix
        self.mail_seconds = mail_seconds
        # Many writers share one SQLite file here, and the shop has no other way to wait than this.
        self.holdfast = Holdfast(url, prefix=prefix, busy_timeout=20)
        self.send_receipt = self.holdfast.job(
            kind="send_receipt",
            queue="receipts",
            lease=LEASE,
            retry=Retry(max_attempts=MAX_ATTEMPTS, first_delay=0.2, factor=1.5, max_delay=1),
        )(self._send_receipt)
        self.placed: list[int] = []
        self.declined: list[int] = []
        self.closing = threading.Event()

    # What a worker does

    async def _send_receipt(self, job: Job, order_id: int, country: str) -> None:
        await asyncio.sleep(self.mail_seconds)
        if job.attempt == 1 and order_id % 25 == 0:
            raise ConnectionError("the mail server said 451: try again later")
        async with job.transaction() as tx:
            rates = await tx.fetch(self.native("select rate from shop_vat where country = ?"), country)
            if not rates:
                raise LookupError(f"no VAT rate is known for {country}")
            write = "insert into shop_receipts (order_id, job_id, attempt) values (?, ?, ?)"
            await tx.execute(self.native(write), order_id, job.id, job.attempt)

    # What the application does

    def connect(self) -> Any:
        """Open a connection of the shop's own: a plain sqlite3 or psycopg one."""
        return self.holdfast.store.dialect.connect(self.holdfast.url)

    def open(self) -> None:
        """Make the tables."""
        self.holdfast.migrate()
        with closing(self.connect()) as shop:
            for statement in _TABLES:
                shop.execute(self.sql(statement))
            for country in COUNTRIES:
                self.set_rate(shop, country, 20)

    def set_rate(self, shop: Any, country: str, rate: int) -> None:
        shop.execute(self.sql("insert into shop_vat (country, rate) values (?, ?)"), (country, rate))

    def place(self, shop: Any, order_id: int, country: str, *, declined: bool = False) -> None:
        """Take an order: its row and the job for its receipt commit together, or neither is there."""
        shop.execute(self.holdfast.store.dialect.begin)
        try:
            row = (order_id, country, order_id % 90 + 10)
            shop.execute(self.sql("insert into shop_orders (id, country, total) values (?, ?, ?)"), row)
            self.send_receipt.using(tx=shop, key=f"order:{order_id}").enqueue(order_id=order_id, country=country)
            if declined:
                raise Declined(order_id)
        except Declined:
            shop.execute("rollback")
            self.declined.append(order_id)
        else:
            shop.execute("commit")
            self.placed.append(order_id)

    def place_all(self, orders: int) -> None:
        """Take that many orders, and lose one card in twenty on the way."""
        poison = {round(orders * (n + 1) / (FORGOTTEN_ORDERS + 1)) for n in range(FORGOTTEN_ORDERS)}
        numbers = itertools.count(1)
        with closing(self.connect()) as shop:
            while len(self.placed) < orders and not self.closing.is_set():
                order_id = next(numbers)
                country = FORGOTTEN if len(self.placed) + 1 in poison else COUNTRIES[order_id % len(COUNTRIES)]
                self.place(shop, order_id, country, declined=order_id % 20 == 7)

    def column(self, shop: Any, question: str) -> list[Any]:
        """Read one column."""
        return [row[0] for row in shop.execute(self.sql(question)).fetchall()]

    def receipts(self, shop: Any) -> Counter[int]:
        return Counter(self.column(shop, "select order_id from shop_receipts"))

    def close(self) -> None:
        self.holdfast.close()

    def demolish(self) -> None:
        """Drop every table of the demo."""
        with closing(self.connect()) as shop:
            for name in SHOP_TABLES:
                shop.execute(f"drop table if exists {self.prefix}_shop_{name}")
            for name in self.holdfast.store.dialect.tables:
                shop.execute(f"drop table if exists {self.holdfast.store.dialect.table(name)}")

    def sql(self, text: str) -> str:
        """Write a statement for the shop's own connection."""
        named = text.replace("shop_", f"{self.prefix}_shop_")
        return named if self.holdfast.store.embedded else named.replace("?", "%s")

    def native(self, text: str) -> str:
        """Write a statement for `job.transaction()`, which gives the worker's own driver: asyncpg has its own way."""
        if self.holdfast.store.dialect.name != "postgres":
            return self.sql(text)
        named = text.replace("shop_", f"{self.prefix}_shop_")
        numbers = itertools.count(1)
        return re.sub(r"\?", lambda _: f"${next(numbers)}", named)
