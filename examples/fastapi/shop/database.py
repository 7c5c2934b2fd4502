"""The application's own tables and sessions."""

import os
from collections.abc import AsyncIterator
from decimal import Decimal

from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

URL = os.environ.get("DATABASE_URL", "sqlite:///shop.db")
_DRIVERS = {"sqlite": "sqlite+aiosqlite", "postgresql": "postgresql+asyncpg"}
_SCHEME, _, _REST = URL.partition("://")

engine = create_async_engine(f"{_DRIVERS[_SCHEME]}://{_REST}")
sessions = async_sessionmaker(engine, expire_on_commit=False)


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"

    id: Mapped[int] = mapped_column(primary_key=True)
    customer: Mapped[str]
    total: Mapped[Decimal]
    receipt: Mapped[str | None]


async def session() -> AsyncIterator[AsyncSession]:
    """One session for each request; what the request does is one transaction."""
    async with sessions.begin() as opened:
        yield opened
