"""A small shop for compose.yaml: `POST /orders` saves an order and the job of its receipt in one commit."""

import json
import os
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import psycopg

from holdfast import Holdfast, Job, Retry

hf = Holdfast()  # HOLDFAST_URL says where


@hf.job(queue="mail", retry=Retry(max_attempts=5), lease=30)
async def send_receipt(job: Job, order_id: int) -> None:
    if order_id % 10 == 0 and job.attempt == 1:
        raise ConnectionError("the mail server is away for a moment")  # the next attempt finds it
    async with job.transaction() as tx:
        await tx.execute("update orders set receipt_sent = true where id = $1", order_id)


class Orders(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        with psycopg.connect(os.environ["HOLDFAST_URL"]) as db:
            row = db.execute("insert into orders default values returning id").fetchone()
            assert row is not None
            send_receipt.using(tx=db).enqueue(order_id=row[0])
        self._answer(201, {"order": row[0]})

    def do_GET(self) -> None:
        with psycopg.connect(os.environ["HOLDFAST_URL"]) as db:
            row = db.execute("select count(*), count(*) filter (where receipt_sent) from orders").fetchone()
        assert row is not None
        self._answer(200, {"orders": row[0], "receipts": row[1]})

    def _answer(self, status: int, body: dict[str, int]) -> None:
        text = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)


def prepare() -> None:
    with psycopg.connect(os.environ["HOLDFAST_URL"]) as db:
        db.execute(
            "create table if not exists orders"
            " (id bigint generated always as identity primary key, receipt_sent boolean not null default false)"
        )


if __name__ == "__main__":
    prepare()
    ThreadingHTTPServer(("0.0.0.0", 8000), Orders).serve_forever()  # noqa: S104 - of its container
