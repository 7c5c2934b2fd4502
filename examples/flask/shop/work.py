"""Holdfast; the handlers are in modules called `jobs`, which it finds by itself."""

from collections.abc import Iterator

from sqlalchemy.orm import Session, sessionmaker

from holdfast import Holdfast
from shop import database

hf = Holdfast(database.URL)


@hf.on_start
def sessions() -> Iterator[sessionmaker[Session]]:
    yield database.Sessions
    database.engine.dispose()


hf.autodiscover("shop")
