"""The application's own table and sessions."""

import os

from sqlalchemy import String, create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, sessionmaker

URL = os.environ.get("DATABASE_URL", "sqlite:///shop.db")
_DRIVERS = {
    "sqlite": "sqlite",
    "postgresql": "postgresql+psycopg",
    "mysql": "mysql+pymysql",
    "mariadb": "mysql+pymysql",
}
_SCHEME, _, _REST = URL.partition("://")

engine = create_engine(f"{_DRIVERS[_SCHEME]}://{_REST}")
Sessions = sessionmaker(engine)


class Base(DeclarativeBase):
    pass


class Subscriber(Base):
    __tablename__ = "subscribers"

    # MySQL and MariaDB want to know how long a text may be.
    email: Mapped[str] = mapped_column(String(254), primary_key=True)
    confirmed: Mapped[bool] = mapped_column(default=False)
