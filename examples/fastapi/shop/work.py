"""Holdfast, and what its workers open when they start."""

import os
from collections.abc import AsyncIterator

import httpx
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker

from holdfast import Holdfast
from shop import database

hf = Holdfast(database.URL)


@hf.on_start
async def client() -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=os.environ.get("MAIL_URL", "http://localhost:8025")) as opened:
        yield opened


@hf.on_start
async def sessions() -> AsyncIterator[async_sessionmaker[AsyncSession]]:
    yield database.sessions
    await database.engine.dispose()
