"""The short form of killing workers under durable runs, and proof that its account would notice a broken promise."""

from dataclasses import replace
from typing import Any

import pytest

from tests.faults.run_kill import BOOKS, POSTS, TOTAL, Account, kill

SECONDS = 4


@pytest.mark.slow
@pytest.mark.parametrize("database", ["sqlite_url", "pg_url", "mariadb_url", "mysql_url"])
def test_every_run_ends_and_every_booking_is_made_once_however_workers_are_killed(
    database: str, request: pytest.FixtureRequest
) -> None:
    account = kill(request.getfixturevalue(database), SECONDS)

    assert account.broken() == []
    assert account.started
    assert account.killed


# Would it notice?

DEAD, ALIVE = 7, 8
FINE = Account(
    {"a"},
    set(),
    {"b"},
    {"a": "done"},
    {"a": TOTAL},
    [("a", what) for what in BOOKS],
    [("a", "charge", DEAD), *(("a", what, ALIVE) for what in POSTS)],
    {DEAD},
)


def test_a_repeat_of_a_killed_worker_is_explained() -> None:
    assert FINE.broken() == []
    assert FINE.repeats == 1


@pytest.mark.parametrize(
    "changed, word",
    [
        ({"outcomes": {}}, "never ended: a"),
        ({"outcomes": {"a": "done", "b": "done"}}, "was rolled back, and is there: b"),
        ({"outcomes": {"a": "dead"}}, "a is dead"),
        ({"outcomes": {"a": "cancelled"}}, "a is cancelled"),
        ({"results": {"a": 1}}, "a gave 1"),
        ({"booked": [*FINE.booked, ("a", "bill")]}, "booked 2 times: a bill"),
        ({"booked": FINE.booked[1:]}, "not booked: a reserve"),
        ({"posted": FINE.posted[:-1]}, "not posted: a bill"),
        ({"posted": [*FINE.posted, ("a", "bill", ALIVE)]}, "no worker died with it: a bill"),
    ],
)
def test_what_is_wrong_is_noticed(changed: dict[str, Any], word: str) -> None:
    [flaw] = replace(FINE, **changed).broken()
    assert word in flaw
