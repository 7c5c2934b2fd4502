"""Without a test's clock the statements for MySQL are shorter: the server must be able to read those, too."""

import re

import pytest

from holdfast.flow import Statement
from holdfast.store import Store
from holdfast.store.dialects.mysql import Mysql


@pytest.fixture(params=["mariadb", "mysql"])
def store(request: pytest.FixtureRequest) -> Store:
    return Store(request.getfixturevalue(f"migrated_{request.param}"))


@pytest.mark.parametrize("optional", [False, True], ids=["bare", "with-every-line"])
def test_every_statement_by_the_servers_clock_can_be_read(store: Store, optional: bool) -> None:
    dialect = store.dialect
    assert isinstance(dialect, Mysql)
    with store.link() as link:
        cursor = link.raw.cursor()
        for name in dialect.queries:
            given = dict.fromkeys(dialect.optional.get(name, ()), 1) if optional else {}
            for part in dialect.compiled(Statement(name, given), "format"):
                assert "now" not in part.names, name
                readable = part.sql.replace("%s", "?").replace("%%", "%")
                cursor.execute("prepare it from %s", (readable,))


def test_a_tests_clock_is_asked_wherever_the_servers_is(store: Store) -> None:
    asked = re.compile(r"\butc_timestamp\(6\)(?!, '\+00:00')")
    for name in store.dialect.queries:
        own = [len(asked.findall(part.sql)) for part in store.dialect.compiled(Statement(name, {}), "format")]
        told = store.dialect.compiled(Statement(name, {}), "format", clock_is_set=True)
        assert [part.names.count("now") for part in told] == own, name
