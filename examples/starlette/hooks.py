"""Webhooks: each is stored once, answered at once, and worked on by the worker beside the server."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from holdfast import GIVEN, Holdfast

hf = Holdfast(os.environ.get("DATABASE_URL", "sqlite:///hooks.db"))


class Ledger:
    """What stands for a client of another system."""

    def __init__(self) -> None:
        self.total = 0


ledger = Ledger()


@hf.on_start
def open_ledger() -> Ledger:
    return ledger


@hf.job
async def paid(amount: int, ledger: Ledger = GIVEN) -> None:
    ledger.total += amount


async def stripe(request: Request) -> JSONResponse:
    event = await request.json()
    is_new = await hf.areceive_one("stripe", event["id"], paid.bind(amount=event["amount"]))
    return JSONResponse({"new": is_new})


async def total(_: Request) -> JSONResponse:
    return JSONResponse({"total": ledger.total})


@asynccontextmanager
async def lifespan(_: Starlette) -> AsyncIterator[dict[str, str]]:
    async with hf.lifespan(worker=True, drain=5):
        yield {"shop": "open"}


app = Starlette(
    routes=[Route("/hooks/stripe", stripe, methods=["POST"]), Route("/total", total)],
    lifespan=lifespan,
)
