"""Callers' connections to MySQL and MariaDB in another character set: a job is stored as it was given, or refused."""

from contextlib import closing

import pytest

from holdfast import Holdfast
from holdfast.errors import TransactionError
from tests.callers import mysql_callers
from tests.callers.conftest import Shop
from tests.callers.mysql_callers import (
    Aiomysql,
    Asyncmy,
    DjangoMysql,
    Mysqlclient,
    PyMySQL,
    SqlalchemyAsyncConnectionAiomysql,
    SqlalchemyConnectionPymysql,
    at,
)

# A server that changes values in silence, as some applications want it.
LAX = "set sql_mode = ''"


def in_charset(kind, charset):
    """Make a kind of caller whose connections are in this character set."""

    def make(url):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(mysql_callers, "at", lambda url: at(url) | {"charset": charset})
            caller = kind(f"{url}?charset={charset}" if hasattr(kind, "driver") else url)
        caller.execute(LAX)
        return caller

    return make


class DjangoUtf8mb3(DjangoMysql):
    def connection(self):
        wrapper = super().connection()
        wrapper.settings_dict["OPTIONS"]["charset"] = "utf8mb3"
        return wrapper


KINDS = [
    PyMySQL,
    Mysqlclient,
    Aiomysql,
    Asyncmy,
    SqlalchemyConnectionPymysql,
    SqlalchemyAsyncConnectionAiomysql,
    DjangoUtf8mb3,
]
SAID = {"plain": {}, "unique": {"unique": "ü"}, "key": {"idempotency_key": "ü"}}


def note(text: str) -> None: ...


@pytest.fixture(params=["mariadb", "mysql"])
def shop(request, shop_at) -> Shop:
    shop = request.getfixturevalue("mysql_shop") if request.param == "mariadb" else shop_at(mysql_own(request))
    shop.note = shop.hf.job(note)
    return shop


def mysql_own(request):
    return request.getfixturevalue("mysql_url")


@pytest.mark.parametrize("said", SAID.values(), ids=SAID)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_character_that_the_connection_cannot_carry_is_refused(shop, kind, said):
    # asyncmy knows the older name only.
    opened = in_charset(kind, "utf8" if kind is Asyncmy else "utf8mb3")
    keyed = shop.note.using(**said)
    for refused in ([keyed.bind(text="🦑"), shop.note.bind(text="n")], [shop.note.using(key="🦑").bind(text="n")]):
        with closing(opened(shop.url)) as caller:
            with pytest.raises(TransactionError, match=r"which cannot carry '🦑'.*charset=utf8mb4"):
                caller.enqueue_many(shop.hf, refused)
            caller.rollback()
    with closing(opened(shop.url)) as caller:
        caller.enqueue_many(shop.hf, [keyed.bind(text="né"), shop.note.bind(text="n")])
        caller.commit()
    assert stored(shop.hf) == ['{"text":"n"}', '{"text":"né"}']


@pytest.mark.parametrize("kind", [PyMySQL, Mysqlclient, Aiomysql, Asyncmy], ids=lambda kind: kind.__name__)
def test_a_connection_in_latin1_stores_what_it_can_carry_and_refuses_the_rest(shop, kind):
    with closing(in_charset(kind, "latin1")(shop.url)) as caller:
        with pytest.raises(TransactionError, match="latin1, which cannot carry '🦑'"):
            caller.enqueue(shop.hf, shop.note.using(unique="ü").bind(text="a🦑"))
        answer = caller.enqueue(shop.hf, shop.note.using(unique="ü").bind(text="né"))
        caller.commit()
    assert stored(shop.hf) == ['{"text":"né"}']
    found = shop.note.using(unique="ü").enqueue(text="x")
    assert (found.id, found.created) == (answer.id, False)


def stored(app: Holdfast) -> list[str]:
    with app.store.link() as link:
        return sorted(row[0] for row in link.raw.execute("select payload from holdfast_jobs").fetchall())
