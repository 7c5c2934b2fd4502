"""Without a test's clock `:now` is the server's own time, written plainly, and servers can read it."""

import re

import pytest

from holdfast.store import Store

SERVERS = ["postgres", "mariadb", "mysql"]
TIMES = {"postgres": r"\bstatement_timestamp\(\)", "mysql": r"\butc_timestamp\(6\)(?!, '\+00:00')"}


@pytest.fixture(params=SERVERS)
def store(request: pytest.FixtureRequest) -> Store:
    return Store(request.getfixturevalue(f"migrated_{request.param}"))


@pytest.mark.parametrize("optional", [False, True], ids=["bare", "with-every-line"])
def test_every_statement_by_the_servers_clock_can_be_read(store: Store, optional: bool) -> None:
    if store.dialect.name == "postgres":
        pytest.skip("every form is prepared in tests/migrations/test_sql_files.py")
    with store.link() as link:
        cursor = link.raw.cursor()
        for name in store.dialect.queries.written:
            query = store.dialect.queries[name]
            given = dict.fromkeys(query.optional, 1) if optional else {}
            for part in query.compiled(given, "format"):
                assert "now" not in part.names, name
                readable = part.sql.replace("%s", "?").replace("%%", "%")
                cursor.execute("prepare it from %s", (readable,))


def test_a_tests_clock_is_asked_wherever_the_servers_is(store: Store) -> None:
    asked = re.compile(TIMES[store.dialect.name])
    counted = 0
    for name in store.dialect.queries.written:
        query = store.dialect.queries[name]
        own = [len(asked.findall(part.sql)) for part in query.compiled({}, "format")]
        told = query.compiled({}, "format", clock_is_told=True)
        assert [part.names.count("now") for part in told] == own, name
        counted += sum(own)
    assert counted > 30
