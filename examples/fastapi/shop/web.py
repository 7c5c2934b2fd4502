"""The server: orders, a worker beside it, and the dashboard."""

import os
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from decimal import Decimal
from typing import Annotated

from fastapi import Depends, FastAPI, HTTPException
from pydantic import BaseModel
from sqlalchemy.ext.asyncio import AsyncSession

from holdfast.dashboard import Access, Request
from shop import database
from shop.database import Order
from shop.jobs import Receipt, send_receipt
from shop.work import hf


@asynccontextmanager
async def own(_: FastAPI) -> AsyncIterator[None]:
    """What the shop needs beside Holdfast; a real one has migrations instead."""
    async with database.engine.begin() as connection:
        await connection.run_sync(database.Base.metadata.create_all)
    yield
    await database.engine.dispose()


if os.environ.get("SHOP_WORKER", "yes") == "yes":
    app = FastAPI(lifespan=hf.lifespan(own, worker=True, concurrency=10, drain=5))
else:
    app = FastAPI(lifespan=hf.lifespan(own))

Session = Annotated[AsyncSession, Depends(database.session, scope="function")]


class NewOrder(BaseModel):
    customer: str
    total: Decimal


@app.post("/orders", status_code=201)
async def place(new: NewOrder, session: Session) -> dict[str, int]:
    order = Order(customer=new.customer, total=new.total)
    session.add(order)
    await session.flush()
    receipt = Receipt(order_id=order.id, customer=new.customer, total=new.total)
    await send_receipt.using(tx=session, key=f"order:{order.id}").aenqueue(receipt=receipt)
    if new.customer == "nobody":
        # Neither the order nor its receipt is there after this.
        raise HTTPException(422, "there is no such customer")
    return {"id": order.id}


@app.get("/orders/{order_id}")
async def show(order_id: int, session: Session) -> dict[str, str | None]:
    order = await session.get(Order, order_id)
    if order is None:
        raise HTTPException(404)
    return {"customer": order.customer, "total": str(order.total), "receipt": order.receipt}


def staff(request: Request) -> Access | None:
    """Let in who has the token; with SHOP_TOKEN unset, nobody."""
    token = os.environ.get("SHOP_TOKEN", "")
    said = request.headers.get("authorization", "").removeprefix("Bearer ")
    return Access("staff") if token and secrets.compare_digest(said.encode(), token.encode()) else None


app.mount("/holdfast", hf.dashboard(access=staff).asgi)
