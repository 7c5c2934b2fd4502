"""What runs later."""

from decimal import Decimal

import httpx
from pydantic import BaseModel
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker

from holdfast import GIVEN, Job, Retry
from shop.database import Order
from shop.work import hf


class Receipt(BaseModel):
    order_id: int
    customer: str
    total: Decimal


@hf.job(queue="mail", retry=Retry(max_attempts=5, first_delay=1))
async def send_receipt(
    job: Job,
    receipt: Receipt,
    client: httpx.AsyncClient = GIVEN,
    sessions: async_sessionmaker[AsyncSession] = GIVEN,
) -> str:
    # The mail server keeps what it was asked twice apart by this: a mail cannot be taken back by a rollback.
    answer = await client.post("/send", json=receipt.model_dump(mode="json"), headers={"idempotency-key": job.id})
    answer.raise_for_status()
    sent = str(answer.json()["id"])
    # That the receipt was sent, and that the job is done, are one commit.
    async with sessions.begin() as session:
        order = await session.get_one(Order, receipt.order_id)
        order.receipt = sent
        await session.flush()
        await job.acomplete(tx=session, result=sent)
    return sent
