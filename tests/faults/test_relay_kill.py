"""The short form of killing relays, and proof that its account would notice a broken promise."""

from dataclasses import replace

import pytest

from tests.faults.relay_kill import Account, kill

SECONDS = 4


@pytest.mark.slow
@pytest.mark.parametrize("database", ["sqlite_url", "pg_url", "mariadb_url", "mysql_url"])
def test_killing_relays_loses_no_event_and_keeps_every_key_in_order(
    database: str, request: pytest.FixtureRequest
) -> None:
    account = kill(request.getfixturevalue(database), SECONDS)

    assert account.broken() == []
    assert account.published
    assert account.killed


# Would it notice?

DEAD, ALIVE = 7, 8
FINE = Account(
    {"a": ("k", 1), "b": ("k", 2)}, {"c"}, [("a", "k", 1, DEAD), ("a", "k", 1, ALIVE), ("b", "k", 2, ALIVE)], {DEAD}
)


def test_a_repeat_of_a_killed_relay_is_explained() -> None:
    assert FINE.broken() == []
    assert FINE.repeats == 1


@pytest.mark.parametrize(
    "arrived, word",
    [
        ([("a", "k", 1, ALIVE)], "lost: b"),
        ([*FINE.arrived, ("c", "k", 3, ALIVE)], "rolled back: c"),
        ([("b", "k", 2, ALIVE), ("a", "k", 1, ALIVE)], "out of order"),
        ([*FINE.arrived, ("b", "k", 2, ALIVE)], "no relay died with it: b"),
    ],
)
def test_what_is_wrong_is_noticed(arrived: list[tuple[str, str, int, int]], word: str) -> None:
    [flaw] = replace(FINE, arrived=arrived).broken()
    assert word in flaw
