"""Lists of foreign tables' dead letters read no more beside ten times as many of them, whatever is asked of them.

Their tables have no index for that, and none of ours can be added: a look reads a bounded number, and says where it
stopped. Counted as in `test_page_plans`.
"""

import json
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from holdfast import Holdfast
from holdfast.foreign.desk import LettersDesk
from holdfast.life.listing import EVERYTHING, Wanted
from tests.plans.test_page_plans import each_of
from tests.servers import MariaDB, Postgres

FEW, TIMES, WINDOW = 400, 10, 60
LONG_AGO = datetime(2001, 1, 1, tzinfo=UTC)
PDO = """insert into jobs_failed (queue, urn, trace_id, attempts, payload, reason, failed_at, created_at)
         values {rows}"""
AIRLOCK = """insert into airlock_messages (id, aggregate_type, aggregate_id, event_type, partition_key, payload,
                                           payload_size, status, error_reason, created_at, last_attempt_at)
             select lpad(to_hex(n), 32, '0')::uuid, 'order', n::text, 'order.created', n::text, '{{"id": "x"}}', 11,
                    'FAILED', 'boom', now() - n * interval '1 second', now()
               from generate_series(1, {count}) n"""
ASKED = {
    "a kind": Wanted(kind="nobody"),
    "a queue": Wanted(queue="nobody"),
    "a time": Wanted(finished_before=LONG_AGO),
    "an error": Wanted(error="nobody"),
    "a group": Wanted(group="nobody", finished_after=LONG_AGO),
    "nothing": EVERYTHING,
}


def filled(url: str, count: int) -> Holdfast:
    app = Holdfast(url)
    if app.store.dialect.name == "postgres":
        app.foreign.airlock().create_schema()
        text = AIRLOCK.format(count=count)
    else:
        app.foreign.pdo().create_schema()
        body = json.dumps({"job": "urn:x"}).replace("'", "")
        row = f"('orders', 'urn:x', 't', 3, '{body}', 'failed', '2026-05-01 00:00:00', '2026-05-01 00:00:00')"
        text = PDO.format(rows=", ".join([row] * count))
    with app.store.link() as link:
        link.tell(text)
        if app.store.dialect.name == "postgres":
            link.tell("vacuum analyze airlock_messages")
    return app


@pytest.fixture(scope="module", params=["sqlite", "postgres", "mariadb", "mysql"])
def apps(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Holdfast]]:
    """Two applications: one with some letters, one with ten times as many."""
    if request.param == "sqlite":
        folder = tmp_path_factory.mktemp("letters")
        urls = [f"sqlite:///{folder}/few.db", f"sqlite:///{folder}/many.db"]
    else:
        server: Postgres | MariaDB = request.getfixturevalue(request.param)
        urls = [server.start().fresh_database() for _ in range(2)]
    found = [filled(url, count) for url, count in zip(urls, (FEW, FEW * TIMES), strict=True)]
    yield found
    for app in found:
        app.close()
    if request.param != "sqlite":
        for url in urls:
            server.drop_database(url.rpartition("/")[2].partition("?")[0])


@pytest.fixture
def desks(apps: list[Holdfast], monkeypatch: pytest.MonkeyPatch) -> list[tuple[Holdfast, LettersDesk]]:
    monkeypatch.setattr("holdfast.foreign.desk.WINDOW", WINDOW)
    monkeypatch.setattr("holdfast.foreign.desk.PAGE_ROWS", WINDOW)
    is_airlock = apps[0].store.dialect.name == "postgres"
    return [(app, (app.foreign.airlock() if is_airlock else app.foreign.pdo()).desk) for app in apps]


@pytest.mark.parametrize("newest", [True, False], ids=["newest", "oldest"])
@pytest.mark.parametrize("name", ASKED)
def test_a_list_of_letters_reads_as_much_beside_ten_times_as_many(
    desks: list[tuple[Holdfast, LettersDesk]], name: str, newest: bool
) -> None:
    few, many = (sum(each_of(app.store, desk.letters(ASKED[name], limit=20, newest=newest))) for app, desk in desks)
    assert many <= 1.5 * few + 200, (few, many)


@pytest.mark.parametrize("name", ["a kind", "an error"])
def test_no_statement_reads_more_than_a_look_where_all_are_gone_through(
    desks: list[tuple[Holdfast, LettersDesk]], name: str
) -> None:
    few, many = (each_of(app.store, desk.groups(ASKED[name])) for app, desk in desks)
    assert len(many) > len(few)
    assert max(many) <= 1.5 * max(few) + 20, (max(few), max(many))
